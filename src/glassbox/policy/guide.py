"""Which ids may follow: a grammar and a vocabulary, compiled.

In: the ids of the output so far. Out: the ids that may be next, and whether the text is whole. A function of the ids
alone: it keeps a parser that is moved on where they go on, and back where they do not, so that forks, beams and a
replay may ask in any order.
But: no tokens of its own. Control and unused ids are never allowed; what ends the text is, where the grammar may end.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from glassbox.errors import GrammarError
from glassbox.policy.grammar import Grammar
from glassbox.policy.lark import lark_of
from glassbox.text.vocab import Vocab
from glassbox.types import I64

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

Mask = npt.NDArray[np.bool_]
SECONDS = 2.0  # for compiling
STACK = 64 << 20  # bytes for compiling: the library follows rules into rules by calling itself (lark.py bounds how far)
LIMITS: dict[str, Any] = {
    "initial_lexer_fuel": 200_000,
    "max_lexer_states": 50_000,
}  # beside the library's own for each token

_OUTSIDE = ("control", "unused")  # ids of these kinds say nothing
_tokenizers: WeakKeyDictionary[Vocab, tuple[LLTokenizer, Mask]] = WeakKeyDictionary()  # and the ids of texts


class Guide:
    """What a grammar allows after any output. One at a time may ask it (an engine's lock sees to that)."""

    def __init__(self, matcher: LLMatcher, tokenizer: LLTokenizer, legal: Mask, end_ids: I64) -> None:
        """matcher: at the beginning. legal [V]: which ids may stand in a text. end_ids: those that end it."""
        self._clean, self._tokenizer, self._end_ids, self._legal = matcher, tokenizer, end_ids, legal.copy()
        self._legal[end_ids] = False
        self._ends = frozenset(end_ids.tolist())
        self._matcher, self._ids = matcher.deep_copy(), list[int]()

    def allowed(self, ids: Sequence[int]) -> I64:
        """The ids that may follow these, ascending; none at a dead end. Raises GrammarError where `ids` themselves do
        not follow the grammar, and where the parser meets a limit."""
        if not self._move(ids):
            return self._end_ids
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        if self._matcher.is_error():
            at, why = len(self._ids), self._matcher.get_error()
            dead = why.startswith("NoExtensionBias")  # no id leads on, and the text is not whole
            self._begin()
            if dead:
                return np.array([], dtype=np.int64)
            raise GrammarError(_first_line(why), at=at)
        mask = np.unpackbits(bits, count=len(self._legal), bitorder="little").view(np.bool_) & self._legal  # [V]
        if self._matcher.is_accepting():
            mask[self._end_ids] = True
        return np.flatnonzero(mask)

    def finished(self, ids: Sequence[int]) -> bool:
        """Whether the text is whole and nothing but its end can follow. Raises as `allowed` does."""
        return not self._move(ids) or (self._matcher.is_accepting() and self._matcher.is_stopped())

    def forced(self, ids: Sequence[int]) -> int:
        """In how many tokens what must follow can be said, 0 where there is a choice. Raises as `allowed` does."""
        if not self._move(ids) or self._matcher.is_accepting():
            return 0
        text = self._matcher.compute_ff_bytes().decode("utf-8", "ignore")
        return len(self._tokenizer.greedy_tokenize(text)) if text else 0

    def _move(self, ids: Sequence[int]) -> bool:
        """Bring the parser behind these ids. False where they have come to an end of text."""
        body = list(ids)
        while body and body[-1] in self._ends:
            body.pop()
        same = next((i for i, (a, b) in enumerate(zip(self._ids, body, strict=False)) if a != b), None)
        if same is None:
            same = min(len(self._ids), len(body))
        back = len(self._ids) - same
        if back and not self._matcher.rollback(back):
            self._matcher, same = self._clean.deep_copy(), 0
        del self._ids[same:]
        for token in body[same:]:
            if not self._legal[token] or not self._matcher.consume_token(token):
                at, why = len(self._ids), self._matcher.get_error()
                self._begin()
                raise GrammarError(_first_line(why) or f"id {token} has no place in it", at=at)
            self._ids.append(token)
        if len(body) < len(ids) and not self._matcher.is_accepting():
            raise GrammarError("the text ends before it is whole", at=len(body))
        return len(body) == len(ids)

    def _begin(self) -> None:
        self._matcher, self._ids = self._clean.deep_copy(), []


def compiled(grammar: Grammar, vocab: Vocab, eos_ids: Iterable[int]) -> Guide:
    """The guide of a grammar for one vocabulary. Raises GrammarError for one that is wrong or beyond the limits."""
    from llguidance import LLMatcher, LLParserLimits  # costs time that a run without a grammar need not spend

    text, made = lark_of(grammar), list[LLMatcher]()
    (tokenizer, legal), ends = _tokenizer(vocab), np.array(sorted(set(eos_ids)), dtype=np.int64)

    def compile_it() -> None:
        limits = LLParserLimits(verbose_errors=False, **LIMITS)
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=limits)
        if not matcher.is_error():
            matcher.deep_copy().compute_bitmask()  # what is made when first needed takes its time here
        made.append(matcher)

    _in_a_thread(compile_it)
    if not made:
        raise GrammarError(f"it is not compiled after {SECONDS:g} seconds")
    if why := made[0].get_error():
        raise _refusal(why, written=grammar.kind == "lark")
    guide = Guide(made[0], tokenizer, legal, ends)
    if not len(guide.allowed(())):
        raise GrammarError("no text of this vocabulary follows it")
    return guide


def _in_a_thread(work: Any) -> None:
    """With STACK bytes and for SECONDS at most: what takes longer is left to itself."""
    thread = threading.Thread(target=work, daemon=True)
    with _SIZING:
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
    thread.join(SECONDS)


_SIZING = threading.Lock()  # the size of a new thread's stack is the whole process's


class _Pieces:
    """A vocabulary as the library asks for it. One id more than there are is its end of text; what cannot stand in a
    text is marked as special. It never has to cut text into tokens: nothing is forced (lark.py)."""

    is_tokenizer_wrapper, bos_token_id = True, None

    def __init__(self, vocab: Vocab) -> None:
        n = len(vocab)
        self.eos_token_id = n
        self.special_token_ids = [*(i for i in range(n) if vocab.kind_of(i) in _OUTSIDE), n]
        self.tokens = [vocab.text_bytes(i) for i in range(n)] + [b""]
        for i in self.special_token_ids:
            self.tokens[i] = b"\xff[%d]" % i

    def __call__(self, text: object) -> list[int]:
        return []


def _tokenizer(vocab: Vocab) -> tuple[LLTokenizer, Mask]:
    """Made once for a vocabulary: it takes a second or two of 262,144 pieces."""
    if vocab not in _tokenizers:
        from llguidance import LLTokenizer

        pieces: Any = _Pieces(vocab)
        legal = np.ones(len(vocab), dtype=np.bool_)
        legal[pieces.special_token_ids[:-1]] = False
        _tokenizers[vocab] = LLTokenizer(pieces, eos_token=len(vocab)), legal
    return _tokenizers[vocab]


_AT = re.compile(r"(?:at )?(\d+)\((\d+)\): ")


def _refusal(why: str, *, written: bool) -> GrammarError:
    """What the library says; a place only where the text it names is the one that was written."""
    at, line = _AT.match(why), _first_line(_AT.sub("", why, count=1))
    return GrammarError(line, line=int(at[1]), column=int(at[2])) if at and written else GrammarError(line)


def _first_line(why: str) -> str:
    """The library's words: their first line, without what it adds for its own makers."""
    line = why.strip().partition("\n")[0].partition("<non-verbose/>")[0].strip()
    return line[:300] or ("nothing can be made of it" if why else "")
