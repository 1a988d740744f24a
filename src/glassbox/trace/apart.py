"""How far apart two rows of logits, two distributions or two vectors are.

In: numbers of both sides. Out: a few numbers about the difference. Logits that differ by one constant say the same, so
the constant is taken off and told by itself.
But: it judges nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from glassbox.types import F32, F64, I64

ROUNDING = 4 * float(np.finfo(np.float32).eps)  # of adding a constant to float32 logits, relative to the largest


def logits_apart(a: F32, b: F32) -> dict[str, Any]:
    """Of the same ids, [n] each: the shift from a to b, the largest difference beside it, whether that is rounding."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    both = np.isfinite(x) & np.isfinite(y)
    delta = y[both] - x[both]
    if not len(delta):
        return {"shift": None, "largest": None, "only_shift": False}
    shift = float(delta.mean())
    largest = float(np.abs(delta - shift).max())
    noise = ROUNDING * max(1.0, float(np.abs(x[both]).max()), float(np.abs(y[both]).max()))
    same_gaps = bool(np.array_equal(np.isfinite(x), np.isfinite(y)))
    return {"shift": shift, "largest": largest, "only_shift": same_gaps and largest <= noise < abs(shift)}


def softmax(logits: F32) -> F64:
    """float64 [n]."""
    z = logits.astype(np.float64)
    w = np.exp(z - z.max())
    p: F64 = w / w.sum()
    return p


def distributions_apart(p: F64, q: F64) -> dict[str, Any]:
    """Of the same ids, [n] each: KL(p || q) in nats (None: infinite, q lacks what p has), and the total variation."""
    alive = p > 0
    lacking = bool(np.any(q[alive] <= 0))
    kl = None if lacking else max(0.0, float((p[alive] * np.log(p[alive] / q[alive])).sum()))
    return {"kl": kl, "total_variation": 0.5 * float(np.abs(p - q).sum())}


def vectors_apart(a: F32, b: F32) -> dict[str, Any]:
    """|b - a| / |a|, the cosine between them, and whether every bit is equal."""
    x, y = a.reshape(-1).astype(np.float64), b.reshape(-1).astype(np.float64)
    size, other = float(np.linalg.norm(x)), float(np.linalg.norm(y))
    distance = float(np.linalg.norm(y - x))
    return {
        "equal": a.tobytes() == b.tobytes(),
        "distance": distance / size if size else None,
        "cosine": min(1.0, float(x @ y) / (size * other)) if size and other else None,
    }


def shared_ids(a: Sequence[bytes], b: Sequence[bytes]) -> tuple[I64, I64]:
    """The ids of two vocabularies that say the same bytes; of several with the same bytes the lowest."""
    first: dict[bytes, int] = {}
    for i, said in enumerate(a):
        if said:
            first.setdefault(said, i)
    pairs: dict[int, int] = {}
    for j, said in enumerate(b):
        if said in first:
            pairs.setdefault(first[said], j)
    return np.array(list(pairs), dtype=np.int64), np.array(list(pairs.values()), dtype=np.int64)


def candidates_apart(a: Mapping[int, Mapping[str, Any]], b: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Of what two steps list, {id: candidate}: what can be said of the logits, and the largest difference of p_raw."""
    shared = [i for i in a if i in b]
    found: dict[str, Any] = {"listed_in_both": len(shared)}
    known = [i for i in shared if a[i].get("logit") is not None and b[i].get("logit") is not None]
    if known:
        x, y = (np.array([side[i]["logit"] for i in known], dtype=np.float32) for side in (a, b))
        found |= logits_apart(x, y)
    raw = [i for i in shared if a[i].get("p_raw") is not None and b[i].get("p_raw") is not None]
    if raw:
        found["largest_p"] = max(abs(b[i]["p_raw"] - a[i]["p_raw"]) for i in raw)
    return found


def text_apart(a: str, b: str, around: int = 30) -> dict[str, Any] | None:
    """Where two texts first differ, and what stands there; None where they do not."""
    if a == b:
        return None
    at = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))
    tail = 0
    while tail < min(len(a), len(b)) - at and a[-1 - tail] == b[-1 - tail]:
        tail += 1
    return {
        "character": at,
        "before": a[max(0, at - around) : at],
        "a": a[at : min(len(a) - tail, at + 4 * around)],
        "b": b[at : min(len(b) - tail, at + 4 * around)],
    }
