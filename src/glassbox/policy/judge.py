"""How likely an id that is given already was, by the model itself.

In: one row of its float32 logits, the id after it. Out: log probability in float64, natural logarithm, and rank. The
same sums in the same order as for an id that is chosen (distribution.py), so a text scored as a prompt has the values
its tokens had when they were generated, bit for bit.
But: no policy touches it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from glassbox.errors import EmptySupport, NonFiniteLogits
from glassbox.policy.distribution import Distribution
from glassbox.policy.ranking import rank_of
from glassbox.types import F32, Sums


class Judged(NamedTuple):
    logprob: float  # nats; -inf for an id that the model gave -inf
    rank: int  # 0 is the model's first; of equal logits the lower id comes first


@np.errstate(under="ignore", invalid="ignore")
def judge(logits: F32, token_id: int, sums: Sums | None = None) -> Judged:
    """logits [V]; sums: of these logits, where somebody has them already. Raises NonFiniteLogits, EmptySupport."""
    raw = Distribution.weigh(logits, vocab=len(logits), sums=sums)
    if raw.bad is not None:
        raise NonFiniteLogits("the forward pass", position=raw.bad)
    if not raw.size:
        raise EmptySupport("raw logits")
    return Judged(raw.logprob(token_id), rank_of(logits, token_id))
