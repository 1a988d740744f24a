"""Many sequences, one model: in each pass every running sequence gets its next token, and prompts are read in chunks.

Decodes come first and prompts share what is left of a pass, so a long prompt does not stop the others. Who else is in a
pass cannot change a sequence's bits (model/kernels/matmul.py), so one sequence alone takes the same path.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from glassbox.errors import GlassboxError
from glassbox.generation import Generation, Step
from glassbox.model.execute import CHUNK, Part
from glassbox.model.model import AnyModel


@dataclass(slots=True)
class Engine:
    """The sequences that are under way, in the order they came."""

    model: AnyModel
    running: list[Generation] = field(default_factory=list)

    def add(self, generation: Generation) -> None:
        self.running.append(generation)

    def step(self) -> list[tuple[Generation, Step | GlassboxError]]:
        """One pass. Returns each token it made; a sequence that fails gets its error and leaves the others alone."""
        chosen = self._share_out()
        parts, complete = [], []
        for generation, ids in chosen:
            generation.start()
            generation.cache.reserve(generation.cache.length + len(ids))
            complete.append(len(ids) == len(generation.pending))
            parts.append(Part(np.array(ids, np.int64), generation.cache, range(len(ids) - complete[-1], len(ids))))
        begin = time.perf_counter_ns()
        logits = self.model.forward_parts(parts).logits  # [sequences whose pending ids are all done, V]
        took = time.perf_counter_ns() - begin
        rows = iter(logits)
        made: list[tuple[Generation, Step | GlassboxError]] = []
        for (generation, _), ready in zip(chosen, complete, strict=True):
            if ready:
                made.append((generation, self._advance(generation, next(rows), took)))
        self.running = [g for g in self.running if not g.done]
        return made

    def stream(self, generation: Generation) -> Iterator[Step]:
        """Add one sequence and run until it ends. Raises what ends it. Closing the iterator cancels it."""
        self.add(generation)
        try:
            while not generation.done:
                for owner, event in self.step():
                    if owner is not generation:
                        continue
                    if isinstance(event, GlassboxError):
                        raise event
                    yield event
        finally:
            generation.stop("cancelled")
            generation.cache.release()
            self.running = [g for g in self.running if g is not generation]

    def _share_out(self) -> list[tuple[Generation, list[int]]]:
        """Which ids go into the next pass: at most CHUNK, single ids before prompts, prompts in order."""
        waiting = [(g, g.pending) for g in self.running]
        waiting.sort(key=lambda w: len(w[1]) > 1)  # stable: first come, first served among equals
        room, chosen = CHUNK, []
        for generation, ids in waiting:
            if room:
                chosen.append((generation, ids[:room]))
                room -= len(chosen[-1][1])
        return chosen

    def _advance(self, generation: Generation, logits: np.ndarray, took: int) -> Step | GlassboxError:
        try:
            return generation.advance(logits, took)
        except GlassboxError as e:
            generation.stop("error", str(e))
            return e
