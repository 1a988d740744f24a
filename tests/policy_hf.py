"""transformers' own logits processors over random rows: makes tests/data/policy_hf.json, which the tests compare with.

    python tests/policy_hf.py        with torch and transformers installed; neither is needed to run the tests

What changes logits runs in float32, as transformers does; what cuts runs in float64, so that rounding is no excuse.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).parent / "data" / "policy_hf.json"
# One step each, then whole pipelines.
SETS: list[dict[str, Any]] = [
    {}, {"temperature": 0.3}, {"temperature": 1.7}, {"top_k": 5}, {"top_k": 200}, {"top_p": 0.6}, {"top_p": 0.95},
    {"min_p": 0.05}, {"min_p": 0.3}, {"typical_p": 0.4}, {"typical_p": 0.9}, {"epsilon_cutoff": 0.003},
    {"epsilon_cutoff": 0.05}, {"eta_cutoff": 0.002}, {"eta_cutoff": 0.1}, {"top_h": 0.4}, {"top_h": 0.8},
    {"repetition_penalty": 1.3}, {"repetition_penalty": 0.8}, {"no_repeat_ngram_size": 1}, {"no_repeat_ngram_size": 2},
    {"no_repeat_ngram_size": 3}, {"logit_bias": {"1": 2.5, "7": -3.25, "20": 0.1}}, {"banned_ids": [0, 3, 9]},
    {"banned_sequences": [[4], [1, 2], [2, 3, 1], [1, 5]]}, {"begin_suppress_ids": [1, 2]}, {"forced_ids": [6]},
    {"min_tokens": 4, "eos_ids": [2, 8]}, {"length_decay": [2, 1.2], "eos_ids": [2, 8]},
    {"allowed_ids": [0, 1, 2, 3, 5, 8, 13, 21, 34]},
    {"temperature": 0.7, "top_k": 20, "top_p": 0.9}, {"temperature": 1.2, "top_p": 0.9, "min_p": 0.02},
    {"repetition_penalty": 1.1, "no_repeat_ngram_size": 2, "temperature": 0.8, "top_k": 50, "top_p": 0.95},
    {
        "logit_bias": {"3": 1.5}, "repetition_penalty": 1.2, "banned_sequences": [[5], [1, 2]], "min_tokens": 9,
        "eos_ids": [2], "length_decay": [1, 1.1], "banned_ids": [11], "temperature": 1.3, "top_h": 0.9, "top_k": 30,
        "top_p": 0.97, "min_p": 0.001, "typical_p": 0.95, "epsilon_cutoff": 0.001, "eta_cutoff": 0.002,
    },
    {"logit_bias": [[[3], 1.5], [[1, 2], 2.5], [[2, 4], -4.0], [[6, 4], 3.0], [[5, 1, 4], -1.25], [[2], 0.3]]},
]  # fmt: skip
SIZES = ((48, 1.5), (150, 3.0), (150, 8.0))  # vocabulary, spread of the logits


def row(case: dict[str, Any]) -> tuple[np.ndarray, list[int], list[int]]:
    """(logits float32 [V], prompt ids, output ids) of a case."""
    rng = np.random.default_rng(case["seed"])
    vocab, spread = case["size"]
    logits = (rng.standard_normal(vocab) * spread).astype(np.float32)
    prompt = rng.integers(1, 7, rng.integers(1, 9)).tolist()
    return logits, prompt, rng.integers(1, 7, rng.integers(0, 7)).tolist()


def cases() -> list[dict[str, Any]]:
    return [
        {"seed": 100 * i + j, "size": list(size), "values": values}
        for i, values in enumerate(SETS)
        for j, size in enumerate(SIZES)
    ]


def processed(case: dict[str, Any]) -> dict[str, Any]:
    """The case with what transformers makes of it: the ids kept and their probabilities."""
    import torch

    logits, prompt, output = row(case)
    ids = torch.tensor([prompt + output])
    changing, cutting = processors(case["values"], len(prompt))
    scores = torch.from_numpy(logits)[None]
    for p in changing:
        scores = p(ids, scores)
    scores = scores.double()
    for p in cutting:
        scores = p(ids, scores)
    p = torch.softmax(scores, -1)[0].numpy()
    kept = np.flatnonzero(scores[0].numpy() > -np.inf)
    return {**case, "kept": kept.tolist(), "p": p[kept].tolist()}


def processors(v: dict[str, Any], prompt: int) -> tuple[list[Any], list[Any]]:
    """In the order of transformers' _get_logits_processor: those that change logits or forbid, those that cut."""
    from transformers.generation import logits_process as hf

    eos = torch_ids(v.get("eos_ids", ()))
    first = {
        "logit_bias": lambda b: hf.SequenceBiasLogitsProcessor(
            [[[int(i)], x] for i, x in b.items()] if isinstance(b, dict) else b
        ),
        "repetition_penalty": hf.RepetitionPenaltyLogitsProcessor,
        "no_repeat_ngram_size": hf.NoRepeatNGramLogitsProcessor,
        "banned_sequences": lambda s: hf.NoBadWordsLogitsProcessor(s),
        "min_tokens": lambda n: hf.MinNewTokensLengthLogitsProcessor(prompt, n, eos),
        "allowed_ids": lambda a: hf.PrefixConstrainedLogitsProcessor(lambda batch, ids: a, 1),
        "forced_ids": lambda f: hf.ForcedBOSTokenLogitsProcessor(f[0]) if prompt == 1 else lambda ids, s: s,
        "length_decay": lambda d: hf.ExponentialDecayLengthPenalty(tuple(d), eos, prompt),
        "banned_ids": lambda s: hf.SuppressTokensLogitsProcessor(s),
        "begin_suppress_ids": lambda s: hf.SuppressTokensAtBeginLogitsProcessor(s, prompt),
    }
    second = {
        "temperature": hf.TemperatureLogitsWarper, "top_h": hf.TopHLogitsWarper, "top_k": hf.TopKLogitsWarper,
        "top_p": hf.TopPLogitsWarper, "min_p": hf.MinPLogitsWarper, "typical_p": hf.TypicalLogitsWarper,
        "epsilon_cutoff": hf.EpsilonLogitsWarper, "eta_cutoff": hf.EtaLogitsWarper,
    }  # fmt: skip
    return tuple([make(v[name]) for name, make in table.items() if name in v] for table in (first, second))  # type: ignore[return-value]


def torch_ids(ids: Any) -> Any:
    import torch

    return torch.tensor(list(ids), dtype=torch.long)


if __name__ == "__main__":
    import transformers

    found = [processed(c) for c in cases() if "forced_ids" not in c["values"]]
    lines = ",\n".join(json.dumps(c) for c in found)
    PATH.write_text(f'{{"transformers": "{transformers.__version__}", "cases": [\n{lines}\n]}}\n')
    print(f"{len(found)} cases, {PATH.stat().st_size:,} bytes")
