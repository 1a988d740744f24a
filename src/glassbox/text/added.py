"""Added tokens of a tokenizer.json, with their flags. Comes in: texts. Goes out: where such tokens stand in them.

What the flags mean: https://huggingface.co/docs/tokenizers/api/added-tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from glassbox.text.matcher import Matcher

# White space and word characters as the reference's regular expressions have them (Python's count U+001C to U+001F).
_SPACES = re.compile(r"[\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]*")
_WORD = re.compile(r"\w")
# What turn markers look like. Where a file calls one ordinary, any message could forge a turn.
MARKER = re.compile(r"<[|｜].+[|｜]>", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Added:
    """A token that is cut out of the text before anything else.

    `lstrip`, `rstrip`: white space beside it is part of it; `normalized`: it is looked for in the normalised text.
    """

    id: int
    content: str
    special: bool
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False


class AddedMatcher:
    """Cuts texts at added tokens: leftmost first, then longest, then as their flags say."""

    def __init__(self, tokens: Collection[Added]) -> None:
        self._by_id = {t.id: t for t in tokens}
        self._matcher = Matcher({t.content: t.id for t in tokens})
        self.flagged = any(t.single_word or t.lstrip or t.rstrip for t in tokens)

    def __bool__(self) -> bool:
        return bool(self._by_id)

    def cut(self, text: str) -> Iterator[tuple[str, int | None]]:
        """The parts of `text` in order, none empty: (part, id), and (part, None) for what lies between."""
        if not self.flagged:
            yield from self._matcher.cut(text)
            return
        done = at = 0
        for part, token in self._matcher.cut(text):
            begin, end = at, at + len(part)
            at = end
            if token is None or begin < done or not self._stands_alone(text, begin, end, token):
                continue
            flags = self._by_id[token]
            if flags.lstrip:
                while begin > done and _SPACES.fullmatch(text[begin - 1]):
                    begin -= 1
            if flags.rstrip and (match := _SPACES.match(text, end)):
                end = match.end()
            if begin > done:
                yield text[done:begin], None
            yield text[begin:end], token
            done = end
        if done < len(text):
            yield text[done:], None

    def _stands_alone(self, text: str, begin: int, end: int, token: int) -> bool:
        if not self._by_id[token].single_word:
            return True
        before = begin > 0 and _WORD.match(text[begin - 1])
        return not before and not (end < len(text) and _WORD.match(text[end]))
