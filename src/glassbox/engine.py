"""Many sequences, one model: in each pass every running sequence gets its next token, and prompts are read in chunks.

Decodes come first and prompts share what is left of a pass, so a long prompt does not stop the others. A sequence is
let in when the pages it may come to need are there, in order of arrival. Who else is in a pass cannot change a
sequence's bits (model/kernels/matmul.py), so one sequence alone takes the same path.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator
from itertools import groupby

import numpy as np

from glassbox.beam import MOST
from glassbox.cache.pages import PAGE, available_memory
from glassbox.cache.prefix import PrefixStore
from glassbox.errors import GlassboxError, NonFiniteLogits, OutOfMemory
from glassbox.events import Event
from glassbox.generation import Generation
from glassbox.interrupts import Uninterrupted
from glassbox.model.execute import CHUNK, Part
from glassbox.model.finite import located
from glassbox.model.intervene import digest
from glassbox.model.model import AnyModel
from glassbox.policy.shaped import FORWARD
from glassbox.types import F32, Sums

BESIDE = 64  # prompt ids in a pass that also decodes: bounds how long the decodes wait
MOST_RUNNING = MOST

Share = tuple[Generation, Generation, list[int]]  # a generation, one of its lanes, and the ids of it that are computed


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
            width = generation.request.width
            many = "a sequence" if width == 1 else f"a beam search of {width} sequences"
            raise OutOfMemory(f"{many} of up to {self._length(generation)} positions", need, pool.limit)
        with self.lock:
            self.waiting.append(generation)

    def stream(self, generation: Generation, took: Callable[[Event], None] | None = None) -> Generator[Event]:
        """Add one sequence and run until it ends. Raises what ends it. Closing the iterator cancels it.

        took: is given each event as it leaves the inbox, so that an interrupt finds it in the one place or the other.
        """
        try:
            self.add(generation)
            while True:
                with self.lock:
                    while not generation.inbox and not generation.done:
                        self.step()
                    if not generation.inbox:
                        return
                with Uninterrupted():
                    event = generation.inbox.popleft()  # the rest stays there: whoever leaves now may record it
                    if took is not None and not isinstance(event, Exception):
                        took(event)
                if isinstance(event, Exception):
                    raise event
                yield event
        finally:
            self.drop(generation)

    def drop(self, generation: Generation) -> None:
        """Take a sequence out, wherever it is, and give its pages back. Cancels it if it has not ended."""
        with self.lock, Uninterrupted():
            generation.stop("cancelled")
            self._leave(generation)

    def step(self) -> None:
        """One pass: every token it makes goes into its generation's inbox, every error too. It is made whole: ids, text
        and pages of a sequence, and its steps in the inbox, go on together, so Ctrl-C waits for the end of it."""
        with self.lock, Uninterrupted():
            for generation in [*self.running, *self.waiting]:
                if generation.done:  # an interrupt came between its last token and its leaving
                    self._leave(generation)
                elif generation.late:
                    self._end(generation, "time")
            self._admit()
            ready = [share for share in self._share_out() if self._ready(*share)]
            chosen = [share for share in ready if not share[0].done]  # a later lane of it may have found no room
            # Sequences whose inner values are changed in the same way share a pass, with nobody else in it.
            for changed in dict.fromkeys(g.request.interventions for g, *_ in chosen):
                self._pass([share for share in chosen if share[0].request.interventions == changed])

    def _pass(self, chosen: list[Share]) -> None:
        parts, counts, changed = [], [], chosen[0][0].request.interventions
        for generation, lane, ids in chosen:
            generation.start()
            # Logits are needed of each id that may be followed by a new one: the last of a prompt, and every guess;
            # of all ids of a prompt whose own likelihood was asked for.
            whole = len(ids) == len(lane.pending)
            every = lane.decoding or generation.request.prompt_logprobs
            counts.append(len(ids) if every else int(whole))
            parts.append(Part(np.array(ids, np.int64), lane.cache, range(len(ids) - counts[-1], len(ids)), changed))
        begin, before = time.perf_counter_ns(), [lane.cache.length for _, lane, _ in chosen]
        betas = [
            generation.request.policy.betas
            for (generation, *_), n in zip(chosen, counts, strict=True)
            for _ in range(n)
        ]
        try:
            logits = self.model.forward_parts(parts).logits  # [sum of counts, V]
            sums = self.model.sum_rows(logits, betas)
        except MemoryError:  # nothing of this pass has happened: no cache has grown
            for generation in dict.fromkeys(generation for generation, *_ in chosen):
                self._fail(generation, OutOfMemory("a pass of the model", self._pass_bytes(parts), available_memory()))
            return
        except BaseException:  # it goes to whoever ran this pass: for the others nothing has happened
            for (_, lane, _), length in zip(chosen, before, strict=True):
                lane.cache.truncate(length)
            raise
        took, at = time.perf_counter_ns() - begin, 0
        interrupt: BaseException | None = None
        for generation, lanes in groupby(zip(chosen, counts, strict=True), key=lambda pair: pair[0][0]):
            count = sum(n for _, n in lanes)
            try:
                if count:
                    self._accept(generation, logits[at : at + count], took, sums[at : at + count])
                for lane in generation.lanes:
                    lane.cache.trim()
            except Exception as e:  # a bug: it ends the sequence that met it
                self._fail(generation, e)
            except BaseException as e:  # an interrupt in the middle of this one; the others get their tokens first
                interrupt = e
                self._end(generation, "cancelled")
            at += count
        if interrupt is not None:
            raise interrupt

    def _pass_bytes(self, parts: list[Part]) -> int:
        """What the logits of a pass take, the largest of its results."""
        return 4 * self.model.vocab_size * sum(len(p.rows) for p in parts)

    def _accept(self, generation: Generation, rows: F32, took: int, sums: list[Sums]) -> None:
        try:
            if generation.request.prompt_logprobs and generation.steps == len(generation.inherited):
                taken = generation.read(rows, sums)
                rows, sums = rows[taken:], sums[taken:]
                if not len(rows):
                    return
            if generation.steps == len(generation.inherited):
                # Those that were asked for together begin alike: they may have the page that is not full, too.
                self._remember(generation, whole_pages=generation.request.group is None)
            generation.accept(rows, took, sums)
        except NonFiniteLogits as e:
            changed = generation.request.interventions
            self._fail(generation, located(e, self.model, generation.ids, changed) if e.where == FORWARD else e)
            return
        except MemoryError:
            self._fail(generation, OutOfMemory("the work on a token", rows.nbytes, available_memory()))
            return
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
        while self.waiting:
            generation = self.waiting[0]
            if sum(g.request.width for g in [*self.running, generation]) > MOST_RUNNING:
                return
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
        """Bytes of pages it may come to hold, one page of each group more while a shared one is copied, and those of
        its policy's further passes. What beams share at the least is the whole pages of the prompt."""
        shape, length = generation.cache.pool.shape, self._length(generation)
        prompt = len(generation.request.encoding.ids)
        need = generation.passes.nbytes(shape, prompt, length) if generation.passes else 0
        for group in range(len(shape.groups)):
            pages = shape.pages(group, length)
            own = min(pages, -(-length // PAGE) - prompt // PAGE)  # of each further beam
            need += (pages + (generation.request.width - 1) * own + 1) * shape.page_bytes(group)
        return need

    def _share_out(self) -> list[Share]:
        """Which ids go into the next pass: at most CHUNK; first those that decode, then prompts, in equal shares."""
        lanes = [(g, lane, lane.pending) for g in self.running for lane in g.lanes]
        decoding = [share for share in lanes if share[1].decoding]
        reading = [share for share in lanes if not share[1].decoding]
        room, chosen = CHUNK - len(decoding), []
        for generation, lane, ids in decoding:
            chosen.append((generation, lane, ids[: 1 + room]))  # guesses only as far as there is room
            room -= len(chosen[-1][2]) - 1
        if decoding:
            room = min(room, BESIDE)
        for i, (generation, lane, ids) in enumerate(reading):
            share = min(len(ids), -(-room // (len(reading) - i)))
            if share > 0:
                chosen.append((generation, lane, ids[:share]))
                room -= share
        return chosen

    def _ready(self, generation: Generation, lane: Generation, ids: list[int]) -> bool:
        """Make its next positions writable; a sequence that cannot have them ends, and leaves the others alone."""
        if generation.done:
            return False
        try:
            lane.cache.reserve(lane.cache.length + len(ids))
        except OutOfMemory as e:
            self._fail(generation, e)
            return False
        return True

    def _fail(self, generation: Generation, error: Exception) -> None:
        generation.stop("error", str(error))
        generation.inbox.append(error)
        self._leave(generation)

    def _end(self, generation: Generation, kind: str) -> None:
        generation.stop("time" if kind == "time" else "cancelled")
        self._leave(generation)

    def _leave(self, generation: Generation) -> None:
        generation.release()
        self.running = [g for g in self.running if g is not generation]
        self.waiting = deque(g for g in self.waiting if g is not generation)
