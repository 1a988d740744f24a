"""What each kind of key-value cache costs in accuracy and takes in memory.    python benchmarks/kv.py

KL divergence from the float32 cache's distribution after each prompt of the golden tests, and how often the likeliest
token is another.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from engines import log_softmax

import glassbox
from glassbox.cache.pages import KINDS

GOLDEN = Path(__file__).parent.parent / "tests" / "data"


def main() -> None:
    for name, stem in (("smollm2-135m", "smollm2"), ("gemma3-270m", "gemma3")):
        prompts = [p["ids"] for p in json.loads((GOLDEN / f"golden_{stem}.json").read_text())["prompts"]]
        right: list[np.ndarray] = []
        for kind in KINDS:
            model = glassbox.load(name, kv=kind)
            got = [log_softmax(model.logits(ids)[-1]) for ids in prompts]
            right = right or got  # the first kind is float32
            kl = [float((np.exp(a) * (a - b)).sum()) for a, b in zip(right, got, strict=True)]
            other = sum(a.argmax() != b.argmax() for a, b in zip(right, got, strict=True))
            size = model.model.new_cache().pool.shape.sequence_bytes(2048) / 1e6
            print(f"{name:<13} {kind:<4} {size:>6.1f} MB for 2,048 tokens   KL mean {max(0.0, np.mean(kl)):.1e}, "
                  f"most {max(0.0, *kl):.1e}   another best token after {other} of {len(prompts)} prompts")  # fmt: skip


if __name__ == "__main__":
    main()
