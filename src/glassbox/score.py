"""How likely a text is: of each token its log probability given the ones before it, and what they come to.

In: encodings. Out: a `Scored` for each. The logits are the model's own, without a policy: row t is about token t + 1,
so the first token has none. A text longer than the context goes through windows that overlap, as in transformers' guide
to the perplexity of models of fixed length: a window begins `stride` ids after the one before it and scores what that
one did not reach, so each token is scored once and, after the first window, with at least context - stride ids before
it. What company a text has, in the pass or in the list, changes no bit.
But: a later window begins in the middle of the text, without the BOS that the first may have.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from glassbox.cache.pages import Cache, available_memory
from glassbox.engine import Engine
from glassbox.errors import ContextOverflow, OutOfMemory
from glassbox.model.execute import CHUNK, Part
from glassbox.model.model import AnyModel
from glassbox.policy.judge import Judged, judge
from glassbox.policy.step import whole
from glassbox.text.tokenizer import Encoding
from glassbox.text.vocab import Vocab
from glassbox.types import I64


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """One token of a text, and how likely it was."""

    position: int
    id: int
    bytes: bytes
    kind: str
    span: tuple[int, int]  # bytes of the text; empty for what the tokenizer added
    logprob: float | None  # nats, given the ones before it; None for the first
    rank: int | None  # 0: the model's first
    seen: int  # how many ids before it the model saw; fewer than `position` where a window had cut them off


class Window(NamedTuple):
    """Positions begin … end - 1 went through the model together; those from `first` on were scored by it."""

    begin: int
    end: int
    first: int


@dataclass(frozen=True)
class Scored:
    """A text with its score. Sums are over the tokens that have a log probability: all but the first."""

    model: str
    text: str
    tokens: tuple[ScoredToken, ...]
    windows: tuple[Window, ...]
    context: int  # the most ids of a window
    stride: int  # from the beginning of one window to that of the next
    warnings: tuple[str, ...] = ()  # what the tokenizer could not say, or did unasked

    @property
    def ids(self) -> tuple[int, ...]:
        return tuple(t.id for t in self.tokens)

    @property
    def logprobs(self) -> tuple[float | None, ...]:
        return tuple(t.logprob for t in self.tokens)

    @property
    def tokens_scored(self) -> int:
        return sum(t.logprob is not None for t in self.tokens)

    @property
    def bytes(self) -> int:
        """Of the text, those that scored tokens stand for."""
        return sum(t.span[1] - t.span[0] for t in self.tokens if t.logprob is not None)

    @property
    def sum_logprob(self) -> float:
        """Nats."""
        found = [t.logprob for t in self.tokens if t.logprob is not None]
        return -math.inf if -math.inf in found else math.fsum(found)

    @property
    def perplexity(self) -> float | None:
        """exp(-sum of logprobs / tokens scored); None where none was."""
        if not self.tokens_scored:
            return None
        mean = -self.sum_logprob / self.tokens_scored
        return math.exp(mean) if mean < 700 else math.inf

    @property
    def bits_per_byte(self) -> float | None:
        """-sum of logprobs / (ln 2 · bytes): comparable between tokenizers. None where no byte was scored."""
        return -self.sum_logprob / (math.log(2) * self.bytes) if self.bytes else None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; what is infinite is null."""
        totals = {name: _finite(getattr(self, name)) for name in ("sum_logprob", "perplexity", "bits_per_byte")}
        return {
            "model": self.model,
            "text": self.text,
            "tokens": [_token_dict(t) for t in self.tokens],
            "tokens_scored": self.tokens_scored,
            "bytes": self.bytes,
            **totals,
            "context": self.context,
            "stride": self.stride,
            "windows": [w._asdict() for w in self.windows],
            "warnings": list(self.warnings),
        }

    def __repr__(self) -> str:
        return f"<Scored {len(self.tokens)} tokens, sum of logprobs {self.sum_logprob:.4f}>"


def score(
    engine: Engine, name: str, vocab: Vocab, encodings: Sequence[Encoding], context: int | None, stride: int | None
) -> list[Scored]:
    """Score texts, several short ones in a pass. context: None is the model's; stride: None is half of it.

    Holds the logits of one pass at a time, CHUNK rows. Raises ParameterError, OutOfMemory, NonFiniteLogits.
    """
    model = engine.model
    most = model.context if context is None else _whole_of("context", context, 2, model.context)
    step = max(1, most // 2) if stride is None else _whole_of("stride", stride, 1, most - 1)
    if most < 2 and any(len(e.ids) > 1 for e in encodings):  # a model of one position says nothing of a second
        raise ContextOverflow(2, most)
    texts = [
        [_Job(np.array(e.ids[w.begin : w.end], np.int64), w) for w in windows_of(len(e.ids), most, step)]
        for e in encodings
    ]
    for group in _groups(model, [job for jobs in texts for job in jobs]):
        with engine.lock:
            _judge(model, group)
    return [
        Scored(
            name, e.text, tuple(_tokens(e, vocab, jobs)), tuple(job.window for job in jobs), most, step,
            (*e.lossy, *e.notes),
        )
        for e, jobs in zip(encodings, texts, strict=True)
    ]  # fmt: skip


def windows_of(length: int, context: int, stride: int) -> list[Window]:
    """The windows over so many ids; one that holds all of them where it can."""
    out, done = [], 0
    for begin in range(0, length, stride):
        end = min(begin + context, length)
        out.append(Window(begin, end, done))
        done = end
        if end == length:
            break
    return out


class _Job:
    """One window on its way through the model, and what was found of the tokens it scores."""

    def __init__(self, ids: I64, window: Window) -> None:
        self.ids, self.window = ids, window
        self.found: list[Judged] = []

    @property
    def rows(self) -> tuple[int, int]:
        """Whose logits are wanted, counted from the window's begin: each row is about the token after it."""
        w = self.window
        return max(w.first, 1) - 1 - w.begin, w.end - 1 - w.begin

    def part(self, at: int, cache: Cache) -> Part:
        """The ids from `at` on, as many as go into a pass."""
        piece = self.ids[at : at + CHUNK]
        low, high = (min(max(row - at, 0), len(piece)) for row in self.rows)
        return Part(piece, cache, range(low, high))


def _groups(model: AnyModel, jobs: Sequence[_Job]) -> Iterator[list[_Job]]:
    """Neighbours that fit into one pass and into memory together; a window that fills one is alone."""
    pool = model.new_cache().pool
    group: list[_Job] = []
    tokens = held = 0
    for job in jobs:
        need = pool.shape.sequence_bytes(len(job.ids))
        if need > pool.limit:
            raise OutOfMemory(f"a window of {len(job.ids)} positions", need, pool.limit)
        if group and (tokens + len(job.ids) > CHUNK or held + need > pool.limit):
            yield group
            group, tokens, held = [], 0, 0
        group.append(job)
        tokens, held = tokens + len(job.ids), held + need
    if group:
        yield group


def _judge(model: AnyModel, group: Sequence[_Job]) -> None:
    """Take the windows through the model, each with a cache of its own."""
    caches = [model.new_cache() for _ in group]
    try:
        for at in range(0, max(len(job.ids) for job in group), CHUNK):
            parts = [job.part(at, cache) for job, cache in zip(group, caches, strict=True)]
            for p in parts:
                p.cache.reserve(p.cache.length + len(p.ids))
            rows = sum(len(p.rows) for p in parts)
            try:
                logits = model.forward_parts(parts).logits  # [rows, V]
                sums = model.sum_rows(logits, [(1.0,)] * rows)
            except MemoryError:
                raise OutOfMemory("a pass of the model", 4 * model.vocab_size * rows, available_memory()) from None
            row = 0
            for job, p in zip(group, parts, strict=True):
                for i in p.rows:
                    job.found.append(judge(logits[row], int(job.ids[at + i + 1]), sums[row]))
                    row += 1
                p.cache.trim()
    finally:
        for cache in caches:
            cache.release()


def _tokens(encoding: Encoding, vocab: Vocab, jobs: Sequence[_Job]) -> Iterator[ScoredToken]:
    for job in jobs:
        begin, end, first = job.window
        found = iter(job.found)
        for at in range(first, end):
            known = next(found) if at else None
            yield ScoredToken(
                at, encoding.ids[at], vocab.bytes_of(encoding.ids[at]), encoding.kinds[at], encoding.spans[at],
                None if known is None else known.logprob, None if known is None else known.rank, at - begin,
            )  # fmt: skip


def _token_dict(token: ScoredToken) -> dict[str, Any]:
    data = token.bytes
    shown = {"text": data.decode("utf-8", "backslashreplace"), "bytes": list(data), "span": list(token.span)}
    return asdict(token) | shown | {"logprob": _finite(token.logprob)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _whole_of(name: str, value: object, low: int, high: int) -> int:
    return whole(name, value, low, high, f"a whole number from {low} to {high}")
