"""A distribution over token ids, held compactly: the logits that are alive, a temperature, and two sums.

In: logits. Out: weights w = exp(z), z = (logit - max) / T, and what follows from them. The max is taken off
before the division, so neither 3e38 nor T = 1e-6 overflows. Sums run in float64, in four lanes
(model/kernels/rows.py), so they depend neither on threads nor on the machine. -inf is never stored: such an id is
not alive.
But: a value, not a policy. Nothing here decides who stays. And no array of V weights: filling fresh memory
costs more than the exponentials do, and nobody needs more than the weights of the best few.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from glassbox.model.kernels.build import load
from glassbox.policy.logits import Logits
from glassbox.policy.ranking import LEAST, Ranking
from glassbox.policy.softmax import exp
from glassbox.types import F32, F64, I64, Sums

_FEW = 1000  # more ids than this are sorted sooner as a mask over the vocabulary
_MOST_KEPT = 0.0625  # of the weight beside the best: with so much left, a difference loses four bits of 53
_MOST_MOVED = 30.0  # nats that the best may move: beyond, sums are made anew
_NOTHING: F64 = np.empty(0)
_MAX_BETA = 1e250  # keeps z finite; unequal float32 logits are infinitely far apart long before


@dataclass(frozen=True, eq=False, repr=False)
class Distribution:
    """p_i = w_i / total over the n ids that are alive. Build one with `weigh`, then `tempered` and `keep`."""

    vocab: int  # V
    ids: I64 | None  # [n]; None: every id, in order
    row: Logits  # [n], what ranks; a temperature does not touch it, so it cannot break or make a tie
    top: int  # the position of the best
    shift: float  # its logit
    beta: float  # 1 / T
    rest: float  # sum of w over all but the best, whose w is 1: keeps the digits that 1 + rest would lose
    weighted_z: float  # sum of w z
    ranking: Ranking
    bad: int | None = None  # the first id whose logit is NaN or +inf; then there is no distribution
    sums: Sums = field(default_factory=dict)  # of these logits, as far as they are known already
    parent: Distribution | None = None  # the one this is a part of, with the same weights
    is_head: bool = False  # the part is the first of the parent's ranking, in that order
    base: Distribution | None = None  # the one that cutting the tail began with; None: this one
    gone: I64 | None = None  # the positions in `parent` that are not here, where somebody knows
    notes: Mapping[str, float] = field(default_factory=dict)  # what the step that made this measured; `changed` logits

    @classmethod
    def weigh(
        cls,
        logits: F32 | F64,
        *,
        vocab: int,
        ids: I64 | None = None,
        beta: float = 1.0,
        is_sorted: bool = False,
        sums: Sums | None = None,
        betas: Sequence[float] = (),
    ) -> Distribution:
        """From logits [n]. -inf leaves the support; NaN and +inf are reported in `bad`. sums: those known already;
        where there are none, they are made at once for these betas too."""
        top = int(logits.argmax()) if len(logits) else 0  # of a NaN, if there is one
        shift = float(logits[top]) if len(logits) else -math.inf
        finite = math.isfinite(shift)
        if sums is None and finite:
            sums = {b: _sums(logits, top, shift, b) for b in betas}
        known = sums or {}
        rest, weighted_z = known.get(beta) or (_sums(logits, top, shift, beta) if finite else (0.0, math.nan))
        made_of = Logits(logits)
        ranking = Ranking(made_of, is_sorted=is_sorted)
        made = cls(vocab, ids, made_of, top, shift, beta, rest, weighted_z, ranking, sums=known)
        if weighted_z == weighted_z:
            return made
        # Something is not finite. (A -inf shows as the NaN that 0 times -inf adds to the second sum.)
        wrong = np.flatnonzero(~(logits < np.inf))
        if len(wrong):
            return replace(made, bad=int(made.ids_at(wrong)[0]))
        alive = np.flatnonzero(logits > -np.inf)
        if not len(alive):
            none = Logits(logits[alive])
            return replace(made, ids=alive, row=none, ranking=Ranking(none))
        return cls.weigh(logits[alive], vocab=vocab, ids=made.ids_at(alive), beta=beta, is_sorted=is_sorted)

    def tempered(self, temperature: float) -> Distribution:
        """The same ids in the same order, with z divided by T > 0."""
        beta = min(self.beta / temperature, _MAX_BETA)
        rest, weighted_z = self.sums.get(beta) or _sums(self.logits, self.top, self.shift, beta)
        return Distribution(self.vocab, self.ids, self.row, self.top, self.shift, beta, rest, weighted_z, self.ranking)

    def keep_first(self, count: int) -> Distribution:
        """Only the best `count`, at least 1, in ranking order. Renormalised; itself if there are no more."""
        if count >= self.size:
            return self
        positions = self.ranking.first(count)
        row = Logits(self.row.at(positions))
        rest, weighted_z = _sums(row.whole, 0, self.shift, self.beta)
        return Distribution(
            self.vocab, self.ids_at(positions), row, 0, self.shift, self.beta, rest, weighted_z,
            Ranking(row, is_sorted=True), parent=self, is_head=True, base=self.base or self,
        )  # fmt: skip

    def keep(self, positions: I64, *, is_sorted: bool = False) -> Distribution:
        """Only these positions: ascending ones, or (`is_sorted`) ones in ranking order. Renormalised."""
        logits, ids = self.row.at(positions), self.ids_at(positions)
        top = int(logits.argmax()) if len(logits) else 0
        if not len(logits) or float(logits[top]) != self.shift:
            # The best is gone: what is left may weigh 0 on the old scale, so it is weighed anew.
            return Distribution.weigh(logits, vocab=self.vocab, ids=ids, beta=self.beta, is_sorted=is_sorted)
        rest, weighted_z = _sums(logits, top, self.shift, self.beta)
        row = Logits(logits)
        ranking = Ranking(row, is_sorted=is_sorted)
        return Distribution(
            self.vocab, ids, row, top, self.shift, self.beta, rest, weighted_z, ranking,
            parent=self, base=self.base or self,
        )  # fmt: skip

    def narrowed(self, positions: I64) -> Distribution:
        """Only these positions (ascending), as a constraint: what cuts the tail begins with what this gives."""
        return replace(self.keep(positions, is_sorted=self.ranking.is_sorted), base=None)

    def noted(self, **notes: float) -> Distribution:
        return replace(self, notes=notes)

    def scaled_at(self, positions: I64) -> F32 | F64:
        """logit / T: float32, as the model gave it, while T is 1; else float64."""
        logits = self.row.at(positions)
        return logits if self.beta == 1.0 else logits.astype(np.float64) * self.beta

    def rewritten(self, positions: I64, scaled: F32 | F64) -> Distribution:
        """With these in place of what `scaled_at` gives there; weighed anew, at T = 1 from here on."""
        old = self.scaled_at(positions)
        changed = int(np.count_nonzero(old != scaled))
        if not changed:
            return replace(self, notes={"changed": 0}, base=None)
        if self.beta == 1.0 and not self.ranking.is_sorted and np.isfinite(scaled).all():
            row = self.row.rewritten(positions, scaled)
            ranking = self.ranking.rewritten(row, positions)
            top = int(ranking.first(1)[0]) if ranking.known else int(row.whole.argmax())
            shift = row.one(top)
            sums = self._updated(positions, old, scaled, top, shift)
            if sums is not None:
                return Distribution(
                    self.vocab, self.ids, row, top, shift, 1.0, *sums[1.0], ranking, sums=sums,
                    notes={"changed": changed},
                )  # fmt: skip
        ids, logits = self.ids, self.logits.copy() if self.beta == 1.0 else self.logits.astype(np.float64) * self.beta
        logits[positions] = scaled
        if ids is not None and self.ranking.is_sorted:  # it no longer is, so ids have to ascend again
            order = np.argsort(ids)
            ids, logits = ids[order], logits[order]
        return Distribution.weigh(logits, vocab=self.vocab, ids=ids).noted(changed=changed)

    def among(self, ids: I64) -> I64:
        """The positions of those of these ids that are alive, ascending."""
        if self.ids is None and len(ids) <= _FEW:
            return ids if (ids[1:] > ids[:-1]).all() else np.unique(ids)
        listed = np.zeros(self.vocab, dtype=np.bool_)
        listed[ids] = True
        return np.flatnonzero(listed if self.ids is None else listed[self.ids])

    def without(self, ids: I64) -> Distribution:
        """These ids are gone. Itself if none of them is alive."""
        gone = self.among(ids)
        if not len(gone):
            return self
        stay = np.ones(self.size, dtype=np.bool_)
        stay[gone] = False
        logits = self.logits[stay]
        at = int(logits.argmax()) if len(logits) else 0
        kept = np.flatnonzero(stay)
        if not len(logits):
            return self.narrowed(kept)
        sums = self._updated(gone, self.row.at(gone), _NOTHING, int(kept[at]), float(logits[at]))
        if sums is None:
            return self.narrowed(kept)
        row = Logits(logits)
        return Distribution(
            self.vocab, self.ids_at(kept), row, at, float(logits[at]), self.beta, *sums[self.beta],
            self.ranking.without(row, gone), sums=sums, parent=self, gone=gone,
        )  # fmt: skip

    def _updated(
        self, positions: I64, old: F32 | F64, scaled: F32 | F64, top: int, shift: float
    ) -> Sums | None:  # fmt: skip
        """The sums there are with `scaled` in place of the `old` logits at these positions (none: with nothing there),
        and the best then at `top`, with the logit `shift`. None where a difference would lose digits: little of the
        other weight is left."""
        stays, was, rise = top == self.top, positions == self.top, shift - self.shift
        old = old[~was]  # the best is in neither sum
        new: F32 | F64 = scaled[positions != top] if len(scaled) else scaled
        if not stays and not np.any(positions == top):
            old = np.concatenate([old, self.row.at(np.array([top]))])
        if not stays and not was.any():
            new = np.concatenate([new, self.row.at(np.array([self.top]))])
        found: Sums = {}
        for beta, (rest, weighted_z) in {**self.sums, self.beta: (self.rest, self.weighted_z)}.items():
            if abs(rise * beta) > _MOST_MOVED:
                continue
            less, more = _sums(old, -1, self.shift, beta), _sums(new, -1, self.shift, beta)
            left, left_z = rest - less[0] + more[0], weighted_z - less[1] + more[1]
            if left > _MOST_KEPT * rest:
                scale = math.exp(-rise * beta)  # w = e**(z + rise * beta) on the old scale
                found[beta] = left * scale, (left_z - rise * beta * left) * scale
        return found if self.beta in found else None

    @property
    def logits(self) -> F32 | F64:
        """[n]. Of a row that was rewritten they are put together now; `row` has single ones for less."""
        return self.row.whole

    @property
    def size(self) -> int:
        return len(self.row)

    @property
    def total(self) -> float:
        return 1.0 + self.rest

    @cached_property
    def entropy(self) -> float:
        """Nats: -sum p log p = log(total) - sum(w z) / total. No 0 log 0 arises: w z is 0 where w is."""
        return max(0.0, math.log1p(self.rest) - self.weighted_z / self.total)

    @property
    def best(self) -> int:
        """The id with the largest logit, of equal ones the lowest."""
        return self.top if self.ids is None else int(self.ids[self.top])

    def alive(self) -> npt.NDArray[np.bool_]:
        """[V]: whether each id is in the support."""
        mask = np.full(self.vocab, self.ids is None)
        if self.ids is not None:
            mask[self.ids] = True
        return mask

    def ids_at(self, positions: I64) -> I64:
        return positions if self.ids is None else self.ids[positions]

    def z_at(self, positions: I64) -> F64:
        z = self.row.at(positions).astype(np.float64)
        z -= self.shift
        z *= self.beta
        return z

    def weights_at(self, positions: I64) -> F64:
        return exp(self.z_at(positions))

    def best_weights(self, n: int) -> F64:
        """w of the first min(n, size) of the ranking, in that order. Not to be written to."""
        return self._best_weights[:n] if n <= LEAST else self.weights_at(self.ranking.first(n))

    @cached_property
    def _best_weights(self) -> F64:
        if self.parent is not None and self.is_head:
            return self.parent._best_weights[: self.size]
        return self.weights_at(self.ranking.first(LEAST))

    def positions(self, ids: I64) -> I64:
        """Where each of these ids [k] stands in the arrays; -1 if it is not alive."""
        if self.ids is None:
            return ids
        if not len(self.ids):
            return np.full(len(ids), -1)
        if self.ranking.is_sorted:
            at = (self.ids == ids[:, None]).argmax(axis=1)  # of [k, n]
        else:  # then ids ascend
            at = np.minimum(self.ids.searchsorted(ids), len(self.ids) - 1)
        return np.where(self.ids[at] == ids, at, -1)

    def position(self, token_id: int) -> int:
        """The same of one id."""
        if self.ids is None or not self.size:
            return token_id if self.size else -1
        at = int((self.ids == token_id).argmax() if self.ranking.is_sorted else self.ids.searchsorted(token_id))
        return at if at < self.size and self.ids[at] == token_id else -1

    def logprob(self, token_id: int) -> float:
        """log p from z, not from p: still exact where p itself underflows. -inf if not alive."""
        at = self.position(token_id)
        return (self.row.one(at) - self.shift) * self.beta - math.log1p(self.rest) if at >= 0 else -math.inf

    def probs(self, ids: I64) -> F64:
        """p of each of these ids [k]; 0 if it is not alive."""
        at = self.positions(ids)
        found = self.weights_at(np.maximum(at, 0)) / self.total
        found[at < 0] = 0.0
        return found

    def dense(self) -> F64:
        """p over every id, [V]."""
        out = np.zeros(self.vocab)
        at = np.arange(self.size)
        out[self.ids_at(at)] = self.weights_at(at) / self.total
        return out


def _sums(logits: F32 | F64, top: int, shift: float, beta: float) -> tuple[float, float]:
    """(sum of w over all but the position `top`, sum of w z) with w = exp(z). `top` may be -1: no best."""
    if logits.dtype == np.float32:
        row = np.ascontiguousarray(logits)
        out = np.array([shift, beta, 0.0, 0.0, 0.0, 0.0])
        load().weigh(row.ctypes.data, len(row), top, out.ctypes.data)
        return float(out[0]), float(out[1])
    z = (logits.astype(np.float64) - shift) * beta
    w = exp(z)
    weighted_z = float((w * z).sum())
    if top >= 0:
        w[top] = 0.0
    return float(w.sum()), weighted_z
