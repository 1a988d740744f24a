"""llama.cpp's own samplers, asked through its server object: what they keep of a row of logits, and how likely it is.

Run as a program (where `xllamacpp` is) it writes tests/data/policy_llama.*, with which the tests compare always;
with `xllamacpp` at hand they ask again. llama.cpp quantises activations, so its logits are not ours: its own, told
before any sampler, are what both sides begin with. It tells log-probabilities, that is logits up to a constant, and a
repetition penalty depends on that constant; `shifted` finds it from what a penalty of 2 does to one id.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

DATA = Path(__file__).parent / "data" / "policy_llama"
VOCAB = 49152
LISTED = 64  # probabilities a golden case holds, the largest
CHAIN = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature")
OURS: Mapping[str, tuple[str, ...]] = {  # a sampler there -> steps here
    "penalties": ("repetition_penalty", "frequency_penalty", "presence_penalty"), "typ_p": ("typical",),
}  # fmt: skip
NAMES: Mapping[str, tuple[str, ...]] = {  # a parameter there -> parameters here, where the names differ
    "repeat_penalty": ("repetition_penalty",), "repeat_last_n": ("repetition_scope", "penalty_scope"),
    "dynatemp_range": ("dynatemp_range",), "dry_penalty_last_n": ("dry_scope",),
}  # fmt: skip
NEUTRAL: Mapping[str, Any] = dict(
    temperature=1.0, dynatemp_range=0.0, top_k=0, top_p=1.0, min_p=0.0, typical_p=1.0, top_n_sigma=-1.0,
    xtc_probability=0.0, repeat_penalty=1.0, frequency_penalty=0.0, presence_penalty=0.0, dry_multiplier=0.0,
    mirostat=0, repeat_last_n=64, dry_penalty_last_n=1024, dry_sequence_breakers=["\u2603"],
)  # fmt: skip
# What is asked: the samplers in their order, and their values. An empty order is llama.cpp's own.
ASKED: tuple[tuple[tuple[str, ...], Mapping[str, Any]], ...] = (
    (("temperature",), dict(temperature=0.7)),
    (("temperature",), dict(temperature=1.5)),
    (("temperature",), dict(temperature=0.0)),
    (("temperature",), dict(temperature=1.0, dynatemp_range=0.5)),
    (("top_k", "temperature"), dict(temperature=0.9, dynatemp_range=0.9, dynatemp_exponent=2.0, top_k=50)),
    (("top_k",), dict(top_k=17)),
    (("top_k",), dict(top_k=1)),
    (("top_p",), dict(top_p=0.9)),
    (("top_p",), dict(top_p=0.35)),
    (("min_p",), dict(min_p=0.05)),
    (("min_p",), dict(min_p=0.002)),
    (("typ_p",), dict(typical_p=0.5)),
    (("typ_p",), dict(typical_p=0.95)),
    (("top_n_sigma",), dict(top_n_sigma=1.0)),
    (("top_n_sigma",), dict(top_n_sigma=2.5)),
    (("top_n_sigma", "temperature"), dict(top_n_sigma=1.5, temperature=3.0)),
    (("xtc",), dict(xtc_probability=1.0, xtc_threshold=0.05)),
    (("xtc",), dict(xtc_probability=1.0, xtc_threshold=0.01)),
    (("min_p", "xtc", "temperature"), dict(xtc_probability=1.0, xtc_threshold=0.03, min_p=0.02, temperature=1.3)),
    (("penalties", "top_k"), dict(repeat_penalty=1.3, top_k=60)),
    (("penalties", "top_k"), dict(repeat_penalty=0.8, top_k=60)),
    (("penalties", "top_k"), dict(repeat_penalty=1.3, repeat_last_n=3, top_k=60)),
    (("penalties", "top_k"), dict(frequency_penalty=0.4, top_k=60)),
    (("penalties", "top_k"), dict(presence_penalty=-0.7, top_k=60)),
    (("penalties", "top_p"), dict(repeat_penalty=1.1, frequency_penalty=0.3, presence_penalty=0.5, top_p=0.8)),
    (("penalties", "top_p"), dict(repeat_penalty=1.1, frequency_penalty=0.3, repeat_last_n=5, top_p=0.8)),
    (("dry", "top_k"), dict(dry_multiplier=0.8, dry_base=1.75, dry_allowed_length=2, top_k=60)),
    (("dry", "top_k"), dict(dry_multiplier=0.3, dry_base=1.2, dry_allowed_length=1, top_k=60)),
    (("dry", "top_k"), dict(dry_multiplier=0.3, dry_base=1.2, dry_allowed_length=1, dry_penalty_last_n=5, top_k=60)),
    (("top_k",), dict(logit_bias=[[260, 3.5], [253, -2.0], [28, 1.25]], top_k=40)),
    (("top_k",), dict(logit_bias=[[253, False]], top_k=40)),
    (("penalties", "top_k"), dict(logit_bias=[[253, 9.0]], repeat_penalty=1.4, top_k=40)),
    (("top_k", "top_p", "temperature"), dict(top_k=30, top_p=0.7, temperature=2.0)),
    (("temperature", "top_k", "top_p"), dict(top_k=30, top_p=0.7, temperature=2.0)),
    (("top_p", "top_k", "temperature"), dict(top_k=30, top_p=0.7, temperature=2.0)),
    (("temperature", "min_p"), dict(min_p=0.1, temperature=2.0)),
    (("min_p", "temperature"), dict(min_p=0.1, temperature=2.0)),
    (("typ_p", "top_k"), dict(typical_p=0.8, top_k=5)),
    (("top_k", "typ_p"), dict(typical_p=0.8, top_k=5)),
    ((), dict(temperature=0.8, top_k=40, top_p=0.95, min_p=0.05)),
    ((), dict(temperature=1.2, top_k=100, top_p=0.9, min_p=0.01, repeat_penalty=1.2, typical_p=0.9)),
    ((), dict(temperature=0.6, top_n_sigma=2.0, dry_multiplier=0.8, presence_penalty=0.2, top_k=40, top_p=0.95)),
    ((), dict(temperature=0.8, xtc_probability=1.0, xtc_threshold=0.04, top_k=40, top_p=0.95, min_p=0.02)),
    ((), dict(temperature=0.8, min_keep=7, top_k=40, top_p=0.2, min_p=0.5)),
)  # fmt: skip
PROMPTS = (
    "The cat sat on the mat. The cat sat on the",
    "The capital of France is",
    "one two three one two three one two three one",
    "Once upon a time there was",
)


def policy_values(samplers: tuple[str, ...], values: Mapping[str, Any]) -> dict[str, Any]:
    """The same for our preset."""
    steps = [s for name in samplers or CHAIN for s in OURS.get(name, (name,))]
    order = ("banned_ids", "logit_bias", *steps)
    off = {p: x for p, x in (("temperature", 1.0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)) if p in order}
    found: dict[str, Any] = {"order": order, **off}
    for name, value in values.items():
        if name == "logit_bias":
            found["banned_ids"] = [i for i, b in value if b is False]
            found["logit_bias"] = {i: b for i, b in value if b is not False}
        else:
            found |= dict.fromkeys(NAMES.get(name, (name,)), value)
    return found


class Server:
    """The real model behind llama.cpp's server object."""

    def __init__(self, path: Path) -> None:
        import xllamacpp

        p = xllamacpp.CommonParams()
        p.model.path = str(path)
        p.n_ctx, p.n_parallel, p.warmup, p.verbosity = 1024, 1, False, -1
        p.cpuparams.n_threads = p.cpuparams_batch.n_threads = 2
        self.server = xllamacpp.Server(p)

    def _ask(self, ids: list[int], **asked: Any) -> dict[str, Any]:
        given = dict(prompt=ids, n_predict=1, ignore_eos=False, cache_prompt=False, seed=7, n_probs=VOCAB) | asked
        told = self.server.handle_completions(given)
        if "choices" not in told:
            raise RuntimeError(str(told))
        choice = told["choices"][0]
        if choice["logprobs"] is None:
            raise LookupError("the token drawn is no whole character, and of those the server tells nothing")
        content: dict[str, Any] = choice["logprobs"]["content"][0]
        return content

    def logits(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """float32 [V], up to a constant."""
        out = np.full(VOCAB, -np.inf, np.float32)
        for entry in self._ask(ids, samplers=["top_k"], **{**NEUTRAL, "top_k": 1})["top_logprobs"]:
            out[entry["id"]] = entry["logprob"]
        assert np.isfinite(out).all()
        return out

    def kept(self, ids: list[int], samplers: tuple[str, ...], values: Mapping[str, Any]) -> dict[int, float]:
        """{id: probability} of what the samplers leave."""
        order = {"samplers": list(samplers)} if samplers else {}
        told = self._ask(ids, **{**NEUTRAL, **values}, **order, post_sampling_probs=True)["top_probs"]
        return {entry["id"]: entry["prob"] for entry in told}

    def shifted(self, ids: list[int]) -> npt.NDArray[np.float32]:
        """`logits` with the constant put back: a penalty of 2 halves the logit of an id of the prompt."""
        row = self.logits(ids)
        seen = max(set(ids), key=lambda i: row[i])
        other = max(set(range(VOCAB)) - set(ids), key=lambda i: row[i])
        after = self.kept(ids, ("penalties",), dict(repeat_penalty=2.0))
        moved = math.log(after[seen]) - math.log(after[other]) - float(row[seen]) + float(row[other])
        logit = -2.0 * moved if moved < 0 else moved  # a positive one is halved, a negative one doubled (and sinks too)
        return (row.astype(np.float64) + (logit - float(row[seen]))).astype(np.float32)


def compact(kept: Mapping[int, float]) -> dict[str, Any]:
    """A case as it is stored: every id kept, or those that went if these are fewer, and the largest probabilities."""
    gone = sorted(set(range(VOCAB)) - set(kept))
    best = sorted(kept, key=lambda i: -kept[i])[:LISTED]
    which = {"gone": gone} if len(gone) < len(kept) else {"kept": sorted(kept)}
    return which | {"p": {str(i): kept[i] for i in best}}


if __name__ == "__main__":
    import xllamacpp

    import glassbox
    from glassbox.weights.source import pull

    path = pull("smollm2-135m")
    ids = list(glassbox.load_tokenizer(path).encode(PROMPTS[0]).ids)
    server = Server(path)
    row = server.shifted(ids)
    found = [compact(server.kept(ids, samplers, values)) for samplers, values in ASKED]
    lines = ",\n".join(json.dumps(c, separators=(",", ":")) for c in found)
    head = json.dumps({"xllamacpp": xllamacpp.__version__, "ids": ids})[1:-1]
    DATA.with_suffix(".json").write_text(f'{{{head}, "cases": [\n{lines}\n]}}\n')
    np.savez_compressed(DATA.with_suffix(".npz"), row=row)
    print(f"{len(found)} cases, {sum(DATA.with_suffix(e).stat().st_size for e in ('.json', '.npz')):,} bytes")
