"""Three engines behind one face: read a prompt, continue it, answer several at once, tell the last row's logprobs.

Each does what it would do for a user: Glassbox with its trace at level look, llama.cpp through its server object
(in the `xllamacpp` wheel), transformers on float32 weights.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import glassbox
from glassbox.engine import Engine as GlassboxEngine
from glassbox.generation import Generation
from glassbox.opening import encoding_of
from glassbox.policy.policy import Policy
from glassbox.request import Request

SAMPLING = dict(temperature=0.8, top_p=0.95)


class Engine(Protocol):
    name: str

    def prefill(self, ids: list[int]) -> float:
        """Tokens per second of reading a prompt."""

    def decode(self, ids: list[int], n: int) -> float:
        """Tokens per second of n tokens after the first."""

    def together(self, prompts: list[list[int]], n: int) -> float:
        """Tokens per second of all prompts' n tokens together, prompts included in the time."""

    def logprobs(self, ids: list[int]) -> np.ndarray:
        """log p of every id after the prompt, float64 [V]."""


class Glassbox:
    name = "glassbox"

    def __init__(self, name: str, threads: int, store: Path) -> None:
        self.model, self.policy = glassbox.load(name, threads=threads), Policy(**SAMPLING)
        self.store = glassbox.open_store(store)

    def prefill(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        next(stream := self.model.stream(ids=ids, policy=self.policy, seed=7, reuse=False, store=self.store))
        took = time.perf_counter() - begin
        stream.close()
        return len(ids) / took

    def decode(self, ids: list[int], n: int) -> float:
        asked = dict(policy=self.policy, seed=7, max_tokens=n, ignore_eos=True, reuse=False, store=self.store)
        t = self.model.generate(ids=ids, **asked).timings
        assert t is not None and t.first_token_ns is not None
        return (n - 1) * 1e9 / (t.total_ns - t.first_token_ns)

    def together(self, prompts: list[list[int]], n: int) -> float:
        engine, tokenizer = GlassboxEngine(self.model.model), self.model.tokenizer
        begin = time.perf_counter()
        for seed, ids in enumerate(prompts):
            request = Request("versus", encoding_of(ids, tokenizer), self.policy, seed, n, ignore_eos=True)
            engine.add(Generation(request, tokenizer, self.model.model.new_cache(), self.model.context))
        while engine.running or engine.waiting:
            engine.step()
        return len(prompts) * n / (time.perf_counter() - begin)

    def logprobs(self, ids: list[int]) -> np.ndarray:
        return log_softmax(self.model.logits(ids)[-1])


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, path: Path, threads: int, slots: int, vocab: int) -> None:
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = str(path)
        p.n_ctx, p.n_parallel, p.warmup, p.verbosity = 2048 * max(2, slots // 2), slots, True, -1
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = threads
        self.server, self.vocab = xllamacpp.Server(p), vocab

    def _complete(self, ids: list[int], n: int, **more: Any) -> dict[str, Any]:
        asked = dict(prompt=ids, n_predict=n, ignore_eos=True, cache_prompt=False, seed=7, **SAMPLING)
        out: dict[str, Any] = self.server.handle_completions(asked | more)
        return out

    def prefill(self, ids: list[int]) -> float:
        return float(self._complete(ids, 1)["timings"]["prompt_per_second"])

    def decode(self, ids: list[int], n: int) -> float:
        return float(self._complete(ids, n)["timings"]["predicted_per_second"])

    def together(self, prompts: list[list[int]], n: int) -> float:
        threads = [threading.Thread(target=self._complete, args=(ids, n)) for ids in prompts]
        begin = time.perf_counter()
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        return len(prompts) * n / (time.perf_counter() - begin)

    def logprobs(self, ids: list[int]) -> np.ndarray:
        got = self._complete(ids, 1, temperature=0, logprobs=self.vocab, n_probs=self.vocab)
        told = got["choices"][0]["logprobs"]
        if told is None:  # its first token was half a character, and it tells only of whole ones
            return np.full(self.vocab, np.nan)
        out = np.full(self.vocab, -np.inf)
        for entry in told["content"][0]["top_logprobs"]:
            out[entry["id"]] = entry["logprob"]
        return log_softmax(out)


class Transformers:
    name = "transformers"

    def __init__(self, path: Path, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        self.torch = torch
        self.model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32).eval()

    def _forward(self, ids: list[int], past: Any = None) -> Any:
        with self.torch.no_grad():
            return self.model(self.torch.tensor([ids]), past_key_values=past, use_cache=True, logits_to_keep=1)

    def prefill(self, ids: list[int]) -> float:
        begin = time.perf_counter()
        self._forward(ids)
        return len(ids) / (time.perf_counter() - begin)

    def decode(self, ids: list[int], n: int) -> float:
        out = self._forward(ids)
        begin = time.perf_counter()
        for _ in range(n - 1):
            out = self._forward([int(out.logits[0, -1].argmax())], out.past_key_values)
        return (n - 1) / (time.perf_counter() - begin)

    def together(self, prompts: list[list[int]], n: int) -> float:
        return float("nan")  # its own continuous batching does not run on a processor alone

    def logprobs(self, ids: list[int]) -> np.ndarray:
        return log_softmax(self._forward(ids).logits[0, -1].numpy())


class Apart:
    """An engine in a process of its own, so that no engine's threads or memory get into another's way."""

    def __init__(self, kind: str, *arguments: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, kind, arguments), daemon=True)
        self._process.start()
        self.name: str = self._ask("name")

    def _ask(self, what: str, *arguments: Any) -> Any:
        self._pipe.send((what, arguments))
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def prefill(self, ids: list[int]) -> float:
        return float(self._ask("prefill", ids))

    def decode(self, ids: list[int], n: int) -> float:
        return float(self._ask("decode", ids, n))

    def together(self, prompts: list[list[int]], n: int) -> float:
        return float(self._ask("together", prompts, n))

    def logprobs(self, ids: list[int]) -> np.ndarray:
        return np.asarray(self._ask("logprobs", ids))

    def close(self) -> None:
        self._process.kill()


KINDS = {"glassbox": Glassbox, "llama.cpp": LlamaCpp, "transformers": Transformers}


def _serve(pipe: Any, kind: str, arguments: tuple[Any, ...]) -> None:
    """The other end: makes the engine, then answers until the pipe closes. Its logs go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    try:
        engine = KINDS[kind](*arguments)
    except Exception as e:
        pipe.recv()
        pipe.send(e)
        return
    while True:
        what, given = pipe.recv()
        value = getattr(engine, what)
        try:
            pipe.send(value(*given) if callable(value) else value)
        except Exception as e:
            pipe.send(RuntimeError(f"{kind}: {type(e).__name__}: {e}"))


def log_softmax(z: np.ndarray) -> np.ndarray:
    z = z.astype(np.float64)
    z = z - z.max()
    return z - np.log(np.exp(z).sum())
