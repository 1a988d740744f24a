"""Where along one parameter a step's choice comes to be, or ceases to be, the recorded token: a scan, then bisection.

In: a parameter's name, the policy around it, the recorded id, and what a policy chooses at the step. Out: edges, in
ascending order, each verified at both of its sides.
But: a choice need not be monotonic in a parameter. Every change between two neighbours of the grid is found, one that
comes and goes between them is not; POINTS says how fine the grid is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from glassbox.errors import ParameterError
from glassbox.policy.policy import Policy

POINTS = 33  # of the grid
PRECISION = 1e-4  # of the range: how closely an edge is found; of whole numbers exactly
Choose = Callable[[Policy], int | None]

# parameter -> the range that is scanned; what is "off" at 0 and strictest just above begins above it
RANGES: Mapping[str, tuple[float, float]] = {
    "temperature": (0.0, 2.0), "top_p": (0.001, 1.0), "min_p": (0.0, 1.0), "typical_p": (0.001, 1.0),
    "epsilon_cutoff": (0.0, 0.5), "eta_cutoff": (0.0, 0.5), "top_n_sigma": (0.05, 6.0), "top_h": (0.001, 1.0),
    "xtc_probability": (0.0, 1.0), "xtc_threshold": (0.001, 0.5), "dynatemp_range": (0.0, 2.0),
    "dynatemp_exponent": (0.05, 4.0), "repetition_penalty": (0.5, 2.0), "frequency_penalty": (-2.0, 2.0),
    "presence_penalty": (-2.0, 2.0), "dry_multiplier": (0.0, 2.0), "dry_base": (1.0, 4.0),
}  # fmt: skip
WHOLE = ("top_k", "min_keep", "no_repeat_ngram_size")  # whole numbers: from 1 to the size of the vocabulary


@dataclass(frozen=True)
class Edge:
    """At `low` the choice is `below`, at `high` it is `above`, and one of them is the recorded id; between the two
    nobody looked. None: no token is left there."""

    low: float
    high: float
    below: int | None
    above: int | None


class Scan:
    """One parameter of a policy, over its range."""

    def __init__(self, parameter: str, policy: Policy, vocab: int, also: Iterable[Policy] = ()) -> None:
        """also: policies whose values are tried too, beside the policy's own.

        Raises ParameterError for a parameter that has no range, or that the rest of the policy does not let vary."""
        if not isinstance(parameter, str) or (parameter not in RANGES and parameter not in WHOLE):
            raise ParameterError("threshold", parameter, f"one of {', '.join([*RANGES, *WHOLE])}")
        self.parameter, self.policy, self.whole = parameter, policy, parameter in WHOLE
        low, high = (1, vocab) if self.whole else RANGES[parameter]
        grid = np.geomspace(low, high, POINTS).round() if self.whole else np.linspace(low, high, POINTS)
        known = [getattr(p, parameter) for p in (policy, *also)]
        values = {*grid.tolist(), *(x for x in known if low <= x <= high)}
        self.grid = [x for x in sorted(map(self._number, values)) if self._allowed(x)]
        if len(self.grid) < 2:
            raise ParameterError("threshold", parameter, "a parameter that the rest of the policy lets vary")
        self.precision = 1 if self.whole else PRECISION * (high - low)

    def edges(self, choose: Choose, recorded: int) -> tuple[Edge, ...]:
        """Where the choice becomes the recorded id or another one."""
        at = [(x, choose(self._policy(x))) for x in self.grid]
        return tuple(
            self._edge(choose, recorded, *low, *high)
            for low, high in pairwise(at)
            if (low[1] == recorded) != (high[1] == recorded)
        )

    def _edge(
        self, choose: Choose, recorded: int, low: float, below: int | None, high: float, above: int | None
    ) -> Edge:
        while high - low > self.precision:
            middle = self._number((low + high) / 2)
            found = choose(self._policy(middle))
            if (found == recorded) == (below == recorded):
                low, below = middle, found
            else:
                high, above = middle, found
        return Edge(low, high, below, above)

    def _number(self, x: float) -> float:
        return int(x) if self.whole else float(x)

    def _policy(self, x: float) -> Policy:
        return replace(self.policy, **{self.parameter: x})  # type: ignore[arg-type]

    def _allowed(self, x: float) -> bool:
        try:
            self._policy(x)
        except ParameterError:  # not together with the rest: temperature 0 with a dynamic one
            return False
        return True
