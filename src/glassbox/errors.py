"""Every error Glassbox raises on purpose, in one tree.

Each reads as a sentence to a person and carries, as attributes, what a program needs. Whatever else escapes is a bug.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class GlassboxError(Exception):
    """The root. `exit_code` is what the command line returns for it."""

    exit_code = 2

    def __reduce__(self) -> tuple[Any, ...]:
        """As it is, where Python would give the sentence to a class that asks for its parts: for other processes."""
        return _again, (type(self), self.args), self.__dict__


class ModelNotFound(GlassboxError):
    """No such model name or file, or it cannot be fetched. Attributes: name."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"model {name!r}: {why}")
        self.name = name


class ModelFormatError(GlassboxError):
    """A model file breaks its format. Attributes: path, field, offset (bytes from the start of the file, or None)."""

    def __init__(self, why: str, *, field: str, offset: int | None = None, path: str = "") -> None:
        where = f" at byte {offset}" if offset is not None else ""
        super().__init__(f"{path + ': ' if path else ''}{field}{where}: {why}")
        self.path, self.field, self.offset, self.why = path, field, offset, why


class Unsupported(GlassboxError):
    """The file is sound, but names something Glassbox does not know. Attributes: what, name, known."""

    def __init__(self, what: str, name: str, known: Sequence[str] = ()) -> None:
        tail = f" (known: {', '.join(known)})" if known else ""
        super().__init__(f"{what} {name!r} is not supported{tail}")
        self.what, self.name, self.known = what, name, tuple(known)


class ParameterError(GlassboxError):
    """A parameter is out of its range. Attributes: param, value, allowed."""

    def __init__(self, param: str, value: object, allowed: str) -> None:
        super().__init__(f"{param} is {_shown(value)}, but must be {allowed}")
        self.param, self.value, self.allowed = param, value, allowed


class PromptError(GlassboxError):
    """The prompt cannot be used as it is (empty, unknown ids, not expressible). Attributes: param."""

    def __init__(self, why: str, *, param: str = "prompt") -> None:
        super().__init__(why)
        self.param = param


class TemplateError(GlassboxError):
    """The chat template refused or failed; carries the template's own words. Attributes: param."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.param = "messages"


class ContextOverflow(GlassboxError):
    """More tokens than the context holds. Attributes: tokens, limit."""

    def __init__(self, tokens: int, limit: int, what: str = "the prompt") -> None:
        super().__init__(f"{what} has {tokens} tokens, but the context holds {limit}")
        self.tokens, self.limit = tokens, limit


class GrammarError(GlassboxError):
    """A grammar is wrong, beyond what is allowed, or not followed. Attributes: param, why, line, column (from 1, or
    None), at (the number of the output token, from 0, or None)."""

    def __init__(self, why: str, *, line: int | None = None, column: int | None = None, at: int | None = None) -> None:
        where = f" at line {line}, column {column}" if line is not None else ""
        when = f" at output token {at}" if at is not None else ""
        super().__init__(f"grammar{where}{when}: {why}")
        self.param, self.why, self.line, self.column, self.at = "grammar", why, line, column, at


class NonFiniteLogits(GlassboxError):
    """The model or a step produced NaN or +inf. Attributes: where, position (the id), at (the number of the output
    token, from 0, or None), seen (the point of the forward pass where it began, or None), tensor (whose weights have
    it, or None), ledger (rows of the policy as far as it came)."""

    def __init__(
        self, where: str, *, position: int | None = None, at: int | None = None, seen: str | None = None,
        tensor: str | None = None, ledger: Sequence[Any] = (),
    ) -> None:  # fmt: skip
        which = f" at id {position}" if position is not None else ""
        when = f" at step {at}" if at is not None else ""
        first = f", first seen at {seen}" if seen is not None else ""
        whose = f": the weights {tensor!r} are not finite" if tensor is not None else ""
        super().__init__(f"non-finite logits{when} after {where}{which}{first}{whose}")
        self.where, self.position, self.at = where, position, at
        self.seen, self.tensor, self.ledger = seen, tensor, tuple(ledger)


class EmptySupport(GlassboxError):
    """A policy step removed every token. Attributes: step, others (steps that removed tokens before it), at (the
    number of the output token, from 0, or None), ledger (rows of the policy, the last one that of this step)."""

    def __init__(
        self, step: str, others: Sequence[str] = (), at: int | None = None, ledger: Sequence[Any] = ()
    ) -> None:
        when = f" at step {at}" if at is not None else ""
        who = f"constraints {', '.join(others)} and {step}" if others else f"constraint {step}"
        super().__init__(f"no token allowed{when}: {who}")
        self.step, self.others, self.at, self.ledger = step, tuple(others), at, tuple(ledger)


class UnknownPoint(GlassboxError):
    """An inner value that does not exist was asked for. Attributes: point, known."""

    def __init__(self, point: str, known: Sequence[str]) -> None:
        super().__init__(f"no point {point!r}; there are: {', '.join(known)}")
        self.point, self.known = point, tuple(known)


class OutOfMemory(GlassboxError):
    """What was asked for does not fit. Attributes: needed, available (bytes)."""

    def __init__(self, what: str, needed: int, available: int) -> None:
        super().__init__(f"{what} needs {needed:,} bytes, but only {available:,} are available")
        self.needed, self.available = needed, available


class NotReproduced(GlassboxError):
    """A recorded run does not come again as it was, or cannot. Attributes: field (what differs), recorded, found."""

    exit_code = 1

    def __init__(self, why: str, *, field: str, recorded: str, found: str) -> None:
        super().__init__(why)
        self.field, self.recorded, self.found = field, recorded, found


class StoreError(GlassboxError):
    """A trace store cannot be opened, read or written. Attributes: path."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"trace store {path}: {why}")
        self.path = path


class RunNotFound(GlassboxError):
    """No run of this id in the store. Attributes: run_id."""

    def __init__(self, run_id: str, path: str) -> None:
        super().__init__(f"no run {run_id!r} in {path}")
        self.run_id = run_id


class StreamBusy(GlassboxError):
    """A stream was asked for a step, or closed, by one thread while another one takes a step of it."""

    def __init__(self) -> None:
        super().__init__("this stream is being read by another thread: one thread at a time may take its steps")


class KernelError(GlassboxError):
    """The compiled kernels cannot be built or loaded on this machine."""


def _again(kind: type[GlassboxError], args: tuple[Any, ...]) -> GlassboxError:
    return kind.__new__(kind, *args)  # which keeps them, and asks for nothing


def _shown(value: object) -> str:
    """A value as it would be typed, on one line, but not a million ids of it."""
    try:
        text = " ".join(repr(value).splitlines())
    except ValueError:  # a number of more digits than Python prints
        text = "a number of thousands of digits"
    except RecursionError:
        text = "lists in lists without end"
    return text if len(text) <= 200 else text[:160] + "…"
