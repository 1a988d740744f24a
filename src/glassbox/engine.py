"""Many sequences, one model: in each pass every running sequence gets its next token, and prompts are read in chunks.

Decodes come first and prompts share what is left of a pass, so a long prompt does not stop the others. A sequence is
let in when the pages it may come to need are there, in order of arrival. Who else is in a pass cannot change a
sequence's bits (model/kernels/matmul.py), so one sequence alone takes the same path.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator

import numpy as np

from glassbox.cache.pages import available_memory
from glassbox.cache.prefix import PrefixStore
from glassbox.errors import GlassboxError, OutOfMemory
from glassbox.generation import Generation, Step
from glassbox.model.execute import CHUNK, Part
from glassbox.model.intervene import digest
from glassbox.model.model import AnyModel
from glassbox.types import F32, Sums

BESIDE = 64  # prompt ids in a pass that also decodes: bounds how long the decodes wait
MOST_RUNNING = 64


class Engine:
    """The sequences of one model. Threads may use it at once: one of them runs a pass, for all."""

    def __init__(self, model: AnyModel, prefixes: PrefixStore | None = None) -> None:
        self.model, self.prefixes = model, prefixes
        self.waiting: deque[Generation] = deque()
        self.running: list[Generation] = []
        self.lock = threading.RLock()

    def add(self, generation: Generation) -> None:
        """Queue a sequence. Raises OutOfMemory if it could never fit."""
        pool, need = generation.cache.pool, self._need(generation)
        if need > pool.limit:
            raise OutOfMemory(f"a sequence of up to {self._length(generation)} positions", need, pool.limit)
        with self.lock:
            self.waiting.append(generation)

    def stream(self, generation: Generation) -> Iterator[Step]:
        """Add one sequence and run until it ends. Raises what ends it. Closing the iterator cancels it."""
        self.add(generation)
        try:
            while True:
                with self.lock:
                    while not generation.inbox and not generation.done:
                        self.step()
                    events = list(generation.inbox)
                    generation.inbox.clear()
                if not events:
                    return
                for event in events:
                    if isinstance(event, GlassboxError):
                        raise event
                    yield event
        finally:
            self.drop(generation)

    def drop(self, generation: Generation) -> None:
        """Take a sequence out, wherever it is, and give its pages back. Cancels it if it has not ended."""
        with self.lock:
            generation.stop("cancelled")
            self._leave(generation)

    def step(self) -> None:
        """One pass: every token it makes goes into its generation's inbox, every error too."""
        with self.lock:
            for generation in [*self.running, *self.waiting]:
                if generation.done:  # an interrupt came between its last token and its leaving
                    self._leave(generation)
                elif generation.late:
                    self._end(generation, "time")
            self._admit()
            chosen = [(g, ids) for g, ids in self._share_out() if self._ready(g, len(ids))]
            # Sequences whose inner values are changed in the same way share a pass, with nobody else in it.
            for changed in dict.fromkeys(g.request.interventions for g, _ in chosen):
                self._pass([(g, ids) for g, ids in chosen if g.request.interventions == changed])

    def _pass(self, chosen: list[tuple[Generation, list[int]]]) -> None:
        parts, counts, changed = [], [], chosen[0][0].request.interventions
        for generation, ids in chosen:
            generation.start()
            # Logits are needed of each id that may be followed by a new one: the last of a prompt, and every guess.
            whole = len(ids) == len(generation.pending)
            counts.append(len(ids) if generation.decoding else int(whole))
            parts.append(
                Part(np.array(ids, np.int64), generation.cache, range(len(ids) - counts[-1], len(ids)), changed)
            )
        begin = time.perf_counter_ns()
        betas = [
            generation.request.policy.betas for (generation, _), n in zip(chosen, counts, strict=True) for _ in range(n)
        ]
        try:
            logits = self.model.forward_parts(parts).logits  # [sum of counts, V]
            sums = self.model.sum_rows(logits, betas)
        except MemoryError:  # nothing of this pass has happened: no cache has grown
            for generation, _ in chosen:
                self._fail(generation, OutOfMemory("a pass of the model", self._pass_bytes(parts), available_memory()))
            return
        took = time.perf_counter_ns() - begin
        ends = np.cumsum(counts)
        for (generation, _), count, end in zip(chosen, counts, ends, strict=True):
            if count:
                self._accept(generation, logits[end - count : end], took, sums[end - count : end])
            generation.cache.trim()

    def _pass_bytes(self, parts: list[Part]) -> int:
        """What the logits of a pass take, the largest of its results."""
        return 4 * self.model.vocab_size * sum(len(p.rows) for p in parts)

    def _accept(self, generation: Generation, rows: F32, took: int, sums: list[Sums]) -> None:
        if generation.steps == len(generation.inherited):
            self._remember(generation, whole_pages=True)
        try:
            generation.accept(rows, took, sums)
        except GlassboxError as e:
            self._fail(generation, e)
            return
        if generation.done:
            self._remember(generation)
            self._leave(generation)

    def _remember(self, generation: Generation, *, whole_pages: bool = False) -> None:
        """Keep what it computed for later prompts that begin so."""
        if self.prefixes is not None and generation.request.reuse:
            key = generation.request.salt, digest(generation.request.interventions)
            self.prefixes.insert(generation.cache, generation.ids, *key, whole_pages=whole_pages)

    def _admit(self) -> None:
        """Let in whoever fits, in order of arrival."""
        while self.waiting and len(self.running) < MOST_RUNNING:
            generation = self.waiting[0]
            if sum(map(self._need, [*self.running, generation])) > generation.cache.pool.limit:
                return
            self.running.append(self.waiting.popleft())
            if self.prefixes is not None and generation.request.reuse:
                key = generation.request.salt, digest(generation.request.interventions)
                generation.reused = self.prefixes.attach(generation.cache, generation.ids, *key)

    def _length(self, generation: Generation) -> int:
        asked = len(generation.request.encoding.ids) + generation.request.max_tokens
        return min(asked, self.model.context)

    def _need(self, generation: Generation) -> int:
        """Bytes of pages it may come to hold, one page of each group more while a shared one is copied."""
        shape = generation.cache.pool.shape
        spare = sum(shape.page_bytes(g) for g in range(len(shape.groups)))
        return shape.sequence_bytes(self._length(generation)) + spare

    def _share_out(self) -> list[tuple[Generation, list[int]]]:
        """Which ids go into the next pass: at most CHUNK; first those that decode, then prompts, in equal shares."""
        decoding = [(g, g.pending) for g in self.running if g.decoding]
        reading = [(g, g.pending) for g in self.running if not g.decoding]
        room, chosen = CHUNK - len(decoding), []
        for generation, ids in decoding:
            chosen.append((generation, ids[: 1 + room]))  # guesses only as far as there is room
            room -= len(chosen[-1][1]) - 1
        if decoding:
            room = min(room, BESIDE)
        for i, (generation, ids) in enumerate(reading):
            share = min(len(ids), -(-room // (len(reading) - i)))
            if share > 0:
                chosen.append((generation, ids[:share]))
                room -= share
        return chosen

    def _ready(self, generation: Generation, count: int) -> bool:
        """Make its next positions writable; a sequence that cannot have them ends, and leaves the others alone."""
        try:
            generation.cache.reserve(generation.cache.length + count)
        except OutOfMemory as e:
            self._fail(generation, e)
            return False
        return True

    def _fail(self, generation: Generation, error: GlassboxError) -> None:
        generation.stop("error", str(error))
        generation.inbox.append(error)
        self._leave(generation)

    def _end(self, generation: Generation, kind: str) -> None:
        generation.stop("time" if kind == "time" else "cancelled")
        self._leave(generation)

    def _leave(self, generation: Generation) -> None:
        generation.cache.release()
        self.running = [g for g in self.running if g is not generation]
        self.waiting = deque(g for g in self.waiting if g is not generation)
