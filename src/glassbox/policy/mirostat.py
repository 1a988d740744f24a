"""Mirostat: cuts the tail where it surprises more than the output so far leaves room for.

In: a distribution, and with which probability each id of the output was drawn. Out: a part of it, renormalised.
But: no state. The bound is worked out anew from the whole output, so any step can be done again by itself.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from glassbox.errors import ParameterError
from glassbox.policy.distribution import Distribution
from glassbox.policy.step import Past
from glassbox.policy.truncate import at_least
from glassbox.policy.truncate_entropy import CUT_TOLERANCE

BIT = math.log(2)  # nats


@dataclass(frozen=True)
class Mirostat:
    """keep every token with -log2 p_i <= mu + 1e-9, or the best alone; mu = 2 tau - eta sum (S_t - tau) over the
    tokens t of the output, S_t = -log2 of the final probability with which t was drawn

    Source: Basu et al., "Mirostat: A Neural Text Decoding Algorithm that Directly Controls Perplexity", ICLR 2021, in
    the form of llama.cpp, llama_sampler_init_mirostat_v2
    """

    name: ClassVar[str] = "mirostat"
    argmax_invariant: ClassVar[bool] = True
    tau: float
    eta: float

    @property
    def params(self) -> Mapping[str, float]:
        return {"mirostat_tau": self.tau, "mirostat_eta": self.eta}

    def __call__(self, before: Distribution, past: Past) -> Distribution:
        drawn = past.logprobs
        if len(drawn) != len(past.output_ids):
            raise ParameterError("logprobs", drawn, "one for each output id, which mirostat goes by")
        surprise = -math.fsum(drawn) / BIT
        mu = 2 * self.tau - self.eta * (surprise - len(drawn) * self.tau)
        least = math.log1p(before.rest) - (mu + CUT_TOLERANCE) * BIT
        # Where even the best surprises too much it stays alone: what ties with it goes, as in llama.cpp.
        alone = least > 0
        kept = before.keep_first(1) if alone else at_least(before, least, 1)
        last = {"surprise": -drawn[-1] / BIT} if drawn else {}  # of the token before
        return kept.noted(mu=mu, **last)
