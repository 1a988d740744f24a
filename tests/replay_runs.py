"""Two hundred runs of many kinds, written by one process and replayed by another: `write FOLDER SEED`, `replay FOLDER`.

A new kind of run is a new row of KINDS.
"""

from __future__ import annotations

import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import random_gguf

import glassbox
from glassbox.beam import EARLY, Beam
from glassbox.errors import EmptySupport
from glassbox.policy.policy import Policy
from glassbox.policy.presets import PRESETS
from glassbox.stream import Stream

RUNS = 200
T = gguf.GGMLQuantizationType
# name -> (architecture and shape, formats, how keys and values are kept)
TINY: dict[str, tuple[str, list[T], str]] = {
    "llama": ("llama", [T.Q8_0, T.Q4_1, T.F32], "f32"),
    "windows": ("gemma3", [T.Q4_0, T.F16], "f32"),
    "f16": ("llama", [T.Q5_1], "f16"),
    "q8": ("gemma3", [T.F32, T.Q8_0], "q8"),
}
REAL = "smollm2-135m"
MODELS = [*TINY, "bigram", REAL]
WEIGHTS = [10, 10, 4, 4, 2, 2]  # how often each

Asked = dict[str, Any]
# What is asked for beside prompt and seed, by kind. r: where chance comes from; v: the size of the vocabulary.
KINDS: dict[str, Callable[[random.Random, int], Asked]] = {
    "plain": lambda r, v: dict(policy=Policy()),
    "greedy": lambda r, v: dict(policy=Policy(temperature=0), speculate=r.random() < 0.5),
    "cut": lambda r, v: dict(policy=Policy(r.uniform(0.3, 1.5), r.randint(0, 40), r.uniform(0.5, 1), min_p=0.05)),
    "rare cuts": lambda r, v: dict(
        policy=Policy(typical_p=r.uniform(0.3, 1), epsilon_cutoff=0.001, eta_cutoff=0.002, top_n_sigma=r.uniform(0, 3))
    ),
    "xtc": lambda r, v: dict(policy=Policy(xtc_probability=0.5, xtc_threshold=0.05), speculate=r.random() < 0.5),
    "penalties": lambda r, v: dict(
        policy=Policy(
            0.8, repetition_penalty=r.uniform(1, 1.3), frequency_penalty=0.3, presence_penalty=0.2, dry_multiplier=0.8,
            repetition_scope=r.choice(["output", "prompt+output", 16]),
        )
    ),
    "constrained": lambda r, v: constrained(r.sample(range(v), 3), v),
    "preset": lambda r, v: dict(policy=Policy.preset(r.choice(sorted(PRESETS)), temperature=0.7, top_p=0.9)),
    "guessed": lambda r, v: dict(policy=Policy(0.2), speculate=True),
    "stops": lambda r, v: dict(policy=Policy(1.2), stop=["a", "e", "bc"], stop_ids=[r.randrange(v)], ignore_eos=False),
    "salted": lambda r, v: dict(policy=Policy(top_h=0.6), salt="mine"),
    "schema": lambda r, v: grammatical({"json_schema": SCHEMA} if v > 4 else {"regex": "(a|b c|ab)*"}),
    "regex": lambda r, v: grammatical({"regex": "[a-c]{2,5}( [a-c]+)*"}, min_tokens=r.randint(0, 4) if v > 4 else 0),
    "choice": lambda r, v: grammatical({"choice": ["abc", "a b c", "cab", "bbbbb"]}),
    "mirostat": lambda r, v: dict(policy=Policy(1.5, mirostat_tau=r.uniform(1, 6), mirostat_eta=r.uniform(0.05, 0.5))),
    "guidance": lambda r, v: dict(
        policy=Policy(1.5, guidance_scale=r.uniform(0.5, 3), negative_ids=tuple(r.choices(range(min(v, 90)), k=9)))
    ),
    "dola": lambda r, v: dict(policy=Policy(1.5, dola_layers=r.choice(["low", "high"])) if v > 4 else Policy(1.5)),
    "contrastive": lambda r, v: dict(policy=Policy(penalty_alpha=0.5, top_k=r.randint(2, 6)) if v > 4 else Policy(0.5)),
    "samples": lambda r, v: dict(policy=Policy(2.0), n=r.randint(2, 4)),
    "beams": lambda r, v: dict(policy=Policy(1.5), beam=Beam(r.randint(1, 5), r.uniform(-1, 2), r.choice(EARLY))),
    "groups": lambda r, v: dict(
        policy=Policy(1.5, repetition_penalty=1.1), beam=Beam(4, groups=2, diversity_penalty=0.5, returned=3)
    ),
    "beams in a grammar": lambda r, v: grammatical({"regex": "[a-c]{2,9}"}, min_tokens=3 if v > 4 else 0) | dict(
        beam=Beam(3), stop=["cc", "ab"], include_stop=True
    ),
    "texts": lambda r, v: dict(
        policy=Policy(2.0, banned_texts=("ab", "c"), logit_bias={"b": 2.0, "ba": -1.5}, min_tokens=5 if v > 4 else 0)
    ),
    "stops shown": lambda r, v: dict(policy=Policy(2.0), stop=["a", "e", "bc"], include_stop=True, ignore_eos=False),
    "judged prompt": lambda r, v: dict(policy=Policy(0.2), prompt_logprobs=True, speculate=True),
    "no way on": lambda r, v: dict(policy=Policy(allowed_ids=tuple(r.sample(range(v), 3)), no_repeat_ngram_size=1)),
}  # fmt: skip
SCHEMA = {"type": "object", "properties": {"a": {"enum": ["b", "cc"]}}, "required": ["a"]}


def grammatical(grammar: dict[str, Any], **more: Any) -> Asked:
    return dict(policy=Policy(4.0, grammar=grammar, **more), ignore_eos=False)


def constrained(ids: list[int], v: int) -> Asked:
    """Three ids: banned, favoured, and the first of the output."""
    banned, liked, first = ids
    ngram = 3 if v > 50 else 0  # where there are few tokens, they soon run out
    policy = Policy(banned_ids=(banned,), logit_bias=((liked, 2.0),), forced_ids=(first,), no_repeat_ngram_size=ngram)
    return dict(policy=policy)


def write(folder: Path, seed: int) -> None:
    r = random.Random(seed)
    models = {}
    for i, (name, (arch, formats, kv)) in enumerate(TINY.items()):
        path = random_gguf.write(folder / f"{name}.gguf", arch, arch, formats, seed=i, window=24)
        models[name] = glassbox.load(path, kv=kv)
    models |= {name: glassbox.load(name) for name in ("bigram", REAL)}
    told: Counter[str] = Counter()
    with glassbox.open_store(folder / "runs.db") as store:
        made = 0
        while made < RUNS:
            name = r.choices(MODELS, WEIGHTS)[0]
            count = min(r.choice([1, 1, 2, 5, 8]), 2 if name == REAL else 8)
            streams = [stream for _ in range(count) for stream in start(models[name], name, store, r, told)]
            run_together(streams, r)
            told[f"model {name}"] += len(streams)
            told["in company"] += len(streams) if len(streams) > 4 else 0
            made += len(streams)
        for summary in store.runs(None):
            run = store.load(summary.id)
            told["prefix hits"] += run.usage.cached_tokens > 0
            told["guesses that were right"] += any(s.drafted for s in run.steps)
            told[f"ended {run.finish_reason}"] += 1
            told["steps"] += len(run.steps)
            told["candidates of beams"] += len(run.tried)
    print(json.dumps(told))


def start(model: glassbox.Model, name: str, store: Any, r: random.Random, told: Counter[str]) -> list[Stream]:
    v = model.model.vocab_size
    kind = r.choice(list(KINDS))
    told[f"kind {kind}"] += 1
    # Prompts begin in one of three ways, so that later ones find pages of earlier ones.
    stem = random.Random(r.randrange(3)).choices(range(min(v, 90)), k=r.choice([3, 40, 70] if name != REAL else [12]))
    ids = stem + r.choices(range(min(v, 90)), k=r.randint(1, 9))
    most = r.randint(1, 6) if name == REAL else r.randint(1, 40)
    asked = dict(ids=ids, seed=r.getrandbits(64), max_tokens=most, ignore_eos=r.random() < 0.7) | KINDS[kind](r, v)
    keep = dict(level=r.choice(["look", "ids"]), retain=r.choice(["text", "text", "ids"]))
    if "n" in asked:
        return model.sample_streams(store=store, **asked, **keep)
    return [model.stream(store=store, **asked, **keep)]


def run_together(streams: list[Stream], r: random.Random) -> None:
    """All in one batch, each asked for its next step in turn; some are left early."""
    leave = {id(s): r.randint(0, 8) for s in streams if r.random() < 0.1}
    going = list(streams)
    while going:
        for stream in list(going):
            if len(stream.run.steps) >= leave.get(id(stream), 10**6) or not goes_on(stream):
                stream.close()
                going.remove(stream)


def goes_on(stream: Stream) -> bool:
    try:
        return next(stream, None) is not None
    except EmptySupport:  # is recorded, and must come again
        return False


def replay(folder: Path) -> None:
    """Prints what did not come again, and with how many threads all was made."""
    models: dict[str, glassbox.Model] = {}
    wrong, compared, rows, threads = [], 0, 0, set()
    with glassbox.open_store(folder / "runs.db", readonly=True) as store:
        for summary in store.runs(None):
            run = store.load(summary.id)
            if run.model not in models:
                models[run.model] = glassbox.load(run.model, kv=run.provenance.kv)
            replayed = run.replay(models[run.model])
            compared += replayed.compared
            rows += replayed.rows
            threads.add(f"{run.provenance.threads} -> {models[run.model].model.threads}")
            if not replayed.equal or replayed.compared != len(run.steps):
                wrong.append([run.run_id, run.model, str(run.policy), str(replayed.difference)])
    print(json.dumps({"wrong": wrong, "compared": compared, "rows": rows, "threads": sorted(threads)}))


if __name__ == "__main__":
    what, where, *more = sys.argv[1:]
    if what == "write":
        write(Path(where), int(more[0]))
    else:
        replay(Path(where))
