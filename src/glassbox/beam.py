"""The rules of beam search, as data and pure functions: what is asked, what is kept, and when nothing can improve.

In: candidates with their scores. Out: which go on, which are done, and the best of those. The rules are those of
transformers' `GenerationMixin._beam_search` (v5), and with groups those of Vijayakumar et al., "Diverse Beam Search"
(2016), as transformers v4 had them. But: no model is run and no policy; search.py does that.

The score of a hypothesis is sum / length ** length_penalty. The sum is of its tokens' log-probabilities after the
policy, the one that ended it included, less the diversity penalties; the length is how many tokens were generated, the
one that ended it included.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Generic, Literal, TypeVar

from glassbox.errors import ParameterError
from glassbox.policy.step import real, whole

MOST = 64  # beams: all of them go through the model in one pass
STEEPEST = 10.0  # a length penalty; beyond it a power of a length is no number any more
EARLY: tuple[bool | str, ...] = (False, True, "never")

State = Literal["live", "finished", "dropped"]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Beam:
    """What is asked of a beam search. Raises ParameterError."""

    width: int  # hypotheses that are followed at a time
    length_penalty: float = 1.0  # above 0 favours long ones, below 0 short ones
    early_stopping: bool | str = (
        False  # False: by a guess; True: as soon as `width` are finished; "never": only when sure
    )
    groups: int = 1  # that the beams are divided into
    diversity_penalty: float = 0.0  # for each beam of an earlier group that took the same token at this step
    returned: int = 1  # hypotheses that are wanted

    def __post_init__(self) -> None:
        width = whole("width", self.width, 1, MOST, f"a whole number from 1 to {MOST}")
        groups = whole("groups", self.groups, 1, width, f"a whole number from 1 to the {width} beams")
        returned = whole("returned", self.returned, 1, width, f"a whole number from 1 to the {width} beams")
        penalty = real(
            "length_penalty", self.length_penalty, -STEEPEST, STEEPEST, f"from -{STEEPEST:g} to {STEEPEST:g}"
        )
        apart = real("diversity_penalty", self.diversity_penalty, 0.0, 1e6, "a number of 0 or more")
        if not any(self.early_stopping is e or (isinstance(e, str) and self.early_stopping == e) for e in EARLY):
            raise ParameterError("early_stopping", self.early_stopping, "False, True or 'never'")
        if width % groups:
            raise ParameterError("groups", groups, f"a divisor of the {width} beams")
        if (groups > 1) != (apart > 0):
            allowed = "above 0 with groups, which without it are all alike" if groups > 1 else "0 without groups"
            raise ParameterError("diversity_penalty", apart, allowed)
        values = dict(width=width, length_penalty=penalty, groups=groups, diversity_penalty=apart, returned=returned)
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def size(self) -> int:
        """Beams of one group."""
        return self.width // self.groups

    def kept(self, endings: int) -> int:
        """How many candidates of a group are looked at, where `endings` ids end a text: enough that as many go on as
        there are beams. One beam alone is greedy, as it is in transformers: it looks at one."""
        return 1 if self.width == 1 else max(2, 1 + endings) * self.size

    def score(self, total: float, length: int) -> float:
        """Of a hypothesis of `length` generated tokens whose log-probabilities are `total` together."""
        return total / math.pow(length, self.length_penalty)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class BeamRow:
    """One candidate of one step: whom it continues, by what, and what became of it."""

    step: int
    rank: int  # among the candidates of this step; of one group, best first
    group: int
    beam: int | None  # the place among the live beams after this step; None: it is not among them
    parent: int | None  # the place, after the step before, of the one it continues; None: the prompt
    id: int
    logprob: float  # of the id, after the policy
    score: float  # the sum so far, with this id's logprob and diversity penalties
    state: State
    bytes: bytes = b""
    text: str = ""  # what became visible with it

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A way through the tree, with what its score is made of."""

    ids: tuple[int, ...]
    text: str
    logprobs: tuple[float, ...]
    total: float  # the sum, less diversity penalties
    score: float  # total / len(ids) ** length_penalty
    group: int
    finished: bool  # False: it was cut off

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class Pool(Generic[T]):
    """The finished hypotheses of one group, best first; of equals, the one that was finished first."""

    def __init__(self, beam: Beam, longest: int) -> None:
        """longest: tokens that can be generated at most."""
        self.beam, self.longest = beam, longest
        self.best: list[tuple[float, T]] = []
        self._improvable = True

    @property
    def full(self) -> bool:
        return len(self.best) >= self.beam.size

    def add(self, found: Iterable[tuple[float, T]]) -> None:
        """Scored hypotheses, the better before the worse; the worst beyond the group's size are forgotten."""
        self.best = sorted([*self.best, *found], key=lambda pair: -pair[0])[: self.beam.size]

    def settle(self, best_live: float, length: int) -> None:
        """After a step: `best_live` is the largest sum among the live, all of `length` tokens."""
        sure = self.beam.early_stopping == "never" and self.beam.length_penalty > 0
        hope = self.beam.score(best_live, self.longest if sure else length)
        self._improvable = not self.full or hope > self.best[-1][0]

    @property
    def over(self) -> bool:
        """Whether the live need not be followed any further."""
        return not self._improvable or (self.full and self.beam.early_stopping is True)


@dataclass(frozen=True)
class Beams:
    """A beam search as a trace has it: every candidate of every step, and what is wanted of them."""

    beam: Beam
    rows: tuple[BeamRow, ...]
    cut: bool = False  # it was ended from outside: what was live then counts as a hypothesis

    def at(self, step: int) -> tuple[BeamRow, ...]:
        """The candidates of one step."""
        return tuple(row for row in self.rows if row.step == step)

    @property
    def steps(self) -> int:
        return self.rows[-1].step + 1 if self.rows else 0

    @cached_property
    def _live(self) -> dict[tuple[int, int | None], BeamRow]:
        return {(row.step, row.beam): row for row in self.rows if row.beam is not None}

    def path(self, row: BeamRow) -> tuple[BeamRow, ...]:
        """The rows from the prompt to this one."""
        way = [row]
        while way[-1].parent is not None and way[-1].step:
            way.append(self._live[way[-1].step - 1, way[-1].parent])
        return tuple(reversed(way))

    @cached_property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """Those that are returned, best first."""
        return tuple(self._hypothesis(score, row) for score, row in self._ends)

    @cached_property
    def winner(self) -> tuple[BeamRow, ...]:
        """The rows of the best hypothesis, one for each of its tokens; () where there is none."""
        return self.path(self._ends[0][1]) if self._ends else ()

    @cached_property
    def _ends(self) -> list[tuple[float, BeamRow]]:
        """The last row of each that is returned, with its score."""
        ends: dict[int, list[tuple[float, BeamRow]]] = defaultdict(list)
        rows = [row for row in self.rows if row.state == "finished"]
        if self.cut and self.rows:
            rows += [row for row in self.at(self.steps - 1) if row.state == "live"]
        for row in rows:
            ends[row.group].append((self.beam.score(row.score, row.step + 1), row))
        kept = [pair for _, group in sorted(ends.items()) for pair in _best(group)[: self.beam.size]]
        return _best(kept)[: self.beam.returned]

    def _hypothesis(self, score: float, row: BeamRow) -> Hypothesis:
        path = self.path(row)
        return Hypothesis(
            ids=tuple(r.id for r in path), text="".join(r.text for r in path), logprobs=tuple(r.logprob for r in path),
            total=row.score, score=score, group=row.group, finished=row.state == "finished",
        )  # fmt: skip

    def to_dict(self) -> dict[str, Any]:
        return {
            **self.beam.to_dict(),
            "rule": "score = total / tokens ** length_penalty, the token that ends it counted in both",
            "hypotheses": [h.to_dict() for h in self.hypotheses],
            "rows": [row.to_dict() for row in self.rows],
        }


def _best(pairs: list[tuple[float, BeamRow]]) -> list[tuple[float, BeamRow]]:
    return sorted(pairs, key=lambda pair: -pair[0])
