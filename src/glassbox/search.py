"""A beam search on its way: one request, several sequences, all of them in each pass.

Comes in: a row of logits for every live beam. Goes out: the candidates of the step as rows, and at the end the steps
of the best hypothesis. The engine runs it beside other sequences, as a generation with more than one lane. Each beam is
a `Generation` with a past of its own: the policy, the stops and the limits are those of any sequence; only the draw is
missing. Which beams go on is for the rules in beam.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from glassbox.beam import Beam, BeamRow, Pool, State
from glassbox.cache.pages import Cache
from glassbox.choose import Choice
from glassbox.errors import EmptySupport
from glassbox.events import Step
from glassbox.generation import Generation
from glassbox.policy.policy import Shaped
from glassbox.request import Request
from glassbox.stop import Ending, Kind
from glassbox.text.tokenizer import Tokenizer
from glassbox.types import F32, Sums


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A hypothesis: a sequence, its score so far, and the step that made it of its parent."""

    sequence: Generation
    score: float = 0.0
    parent: Node | None = None
    step: Step | None = None

    @property
    def steps(self) -> list[Step]:
        way: list[Step] = []
        node: Node | None = self
        while node is not None and node.step is not None:
            way.append(node.step)
            node = node.parent
        return way[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Offer:
    """One candidate: its parent (and that one's place), its id, and its score. Nothing is left to index arithmetic."""

    parent: Node
    place: int
    shaped: Shaped
    id: int
    logprob: float
    score: float


@dataclass(slots=True, eq=False)
class Group:
    """Beams that compete with each other alone."""

    pool: Pool[Node]
    live: list[Node]


class BeamSearch(Generation):
    """One search. Its own ids and cache are the prompt's; `steps` and the outcome are the best hypothesis's."""

    def __init__(self, request: Request, tokenizer: Tokenizer, cache: Cache, context: int) -> None:
        super().__init__(request, tokenizer, cache, context)
        assert request.beam is not None
        self.beam: Beam = request.beam
        first = Node(Generation(request, tokenizer, cache, context))
        longest = min(request.max_tokens, context - len(self.ids))
        self._kept = self.beam.kept(len({*request.stop_ids, *(() if request.ignore_eos else tokenizer.eos_ids)}))
        self._groups = [Group(Pool(self.beam, longest), [first]) for _ in range(self.beam.groups)]
        self._held = [cache]  # every cache that has pages

    @property
    def lanes(self) -> Sequence[Generation]:
        nodes = (node for group in self._groups for node in group.live)
        return () if self.done else list(dict.fromkeys(node.sequence for node in nodes))

    def accept(self, rows: F32, model_ns: int, sums: Sequence[Sums] = ()) -> None:
        """One row of logits [V] for each lane. Raises NonFiniteLogits; EmptySupport where it holds for every beam."""
        begin = time.perf_counter_ns()
        shaped = self._shape(rows, sums)
        self._last_token = time.perf_counter_ns()
        if self._first_token is None:
            self._first_token = self._last_token
        made: list[BeamRow] = []
        taken: Counter[int] = Counter()  # what the groups before took
        for number, group in enumerate(self._groups):
            if group.live:
                self._grow(number, group, shaped, taken, made, model_ns, begin)
        self.steps += 1
        if made:
            self.inbox.append(tuple(made))
        if any(group.live for group in self._groups):
            self._pass_on()
        else:
            self._conclude(None)

    def _shape(self, rows: F32, sums: Sequence[Sums]) -> dict[Generation, Shaped]:
        """What the policy makes of each row. A beam that it leaves nothing cannot go on; one that can must be there."""
        shaped: dict[Generation, Shaped] = {}
        empty: EmptySupport | None = None
        for i, lane in enumerate(self.lanes):
            try:
                shaped[lane] = lane.shape(rows[i], sums[i] if sums else None)
            except EmptySupport as e:
                empty = e
        if empty is not None and not shaped and not any(group.pool.best for group in self._groups):
            raise empty
        return shaped

    def _grow(
        self, number: int, group: Group, shaped: dict[Generation, Shaped], taken: Counter[int], made: list[BeamRow],
        model_ns: int, begin: int,
    ) -> None:  # fmt: skip
        """One step of a group. Adds its rows to `made`, and the ids of its live beams to `taken`."""
        first, size = number * self.beam.size, self.beam.size
        live: list[Node] = []
        finished: list[tuple[float, Node]] = []
        for rank, offer in enumerate(self._offers(group, first, shaped, taken)):
            node = self._child(offer, model_ns, begin)
            assert node.step is not None
            state: State = "dropped"
            place: int | None = None
            if node.sequence.done and rank < size:  # only the best may end; the others are there to take their places
                state = "finished"
                finished.append((self.beam.score(node.score, self.steps + 1), node))
            elif not node.sequence.done and len(live) < size:
                state, place = "live", first + len(live)
                live.append(node)
            made.append(self._row(len(made), number, place, offer, node.step, state))
        group.pool.add(finished)
        if live:
            group.pool.settle(live[0].score, self.steps + 1)
        group.live = [] if group.pool.over else live
        taken.update(node.sequence.ids[-1] for node in live)

    def _offers(
        self, group: Group, first: int, shaped: dict[Generation, Shaped], taken: Counter[int]
    ) -> list[Offer]:  # fmt: skip
        """The best candidates of all beams of a group, best first; of equals, that of the earlier beam and lower id."""
        offers: list[Offer] = []
        for at, node in enumerate(group.live):
            if (s := shaped.get(node.sequence)) is None:
                continue
            # Those that the penalty may move down make room for as many below them.
            best = s.final.ids_at(s.final.ranking.first(self._kept + len(taken))).tolist()
            for i in best:
                logprob = s.final_logprob(i)
                score = node.score + logprob - self.beam.diversity_penalty * taken[i]
                offers.append(Offer(node, first + at, s, i, logprob, score))
        return sorted(offers, key=lambda offer: -offer.score)[: self._kept]

    def _child(self, offer: Offer, model_ns: int, begin: int) -> Node:
        sequence, s, i = offer.parent.sequence.fork(), offer.shaped, offer.id
        choice = Choice(
            id=i, u=None, cdf_lo=0.0, cdf_hi=1.0, counter=None, logprob_raw=s.raw_logprob(i),
            logprob_final=offer.logprob, rank_raw=s.raw_rank(i), ties=s.ties(i),
        )  # fmt: skip
        return Node(sequence, offer.score, offer.parent, sequence.take(choice, s, model_ns, begin))

    def _row(self, rank: int, group: int, place: int | None, offer: Offer, step: Step, state: State) -> BeamRow:
        parent = offer.place if self.steps else None
        return BeamRow(
            self.steps, rank, group, place, parent, offer.id, offer.logprob, offer.score, state, step.bytes, step.text
        )

    def _pass_on(self) -> None:
        """Each live beam gets its parent's pages: the first one the cache itself, the others forks of it."""
        before, held = list(self._held), list[Cache]()
        for lane in self.lanes:
            if any(lane.cache is cache for cache in held):
                lane.cache = lane.cache.fork()
                self._held.append(lane.cache)
            held.append(lane.cache)
        for cache in before:
            if not any(cache is kept for kept in held):
                cache.release()
        self._held = held

    def stop(self, kind: Kind, detail: str | None = None) -> None:
        """End it from outside. The best so far is what came of it, finished or not."""
        if self.outcome is None:
            for group in self._groups:
                cut = [node for node in group.live if node.step is not None]
                for node in cut:
                    node.sequence.stop(kind, detail)
                group.pool.add((self.beam.score(node.score, self.steps), node) for node in cut)
            self._conclude(Ending(kind, detail))

    def _conclude(self, ending: Ending | None) -> None:
        """Hand out the best hypothesis. ending: where it was not that hypothesis's own that ended the search."""
        found = [pair for group in self._groups for pair in group.pool.best]
        best = max(found, key=lambda pair: pair[0])[1] if found else None
        steps = [] if best is None else best.steps
        if best is not None:
            self._text, own = best.sequence._text, best.sequence.outcome
            ending = ending or (own.ending if own else None)
        self.steps = len(steps)
        self.inbox.extend(steps)
        assert ending is not None
        self._end(ending)
        self.release()

    def release(self) -> None:
        for cache in self._held:
            cache.release()
