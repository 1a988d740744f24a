"""Added tokens of a tokenizer.json, with their flags. Comes in: texts. Goes out: where such tokens stand in them.

What the flags mean: https://huggingface.co/docs/tokenizers/api/added-tokens.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from glassbox.text.matcher import Accept, Matcher

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

    def cut(self, text: str, accept: Accept | None = None) -> Iterator[tuple[str, int | None]]:
        """The parts of `text` in order, none empty: (part, id), and (part, None) for what lies between."""
        found = [m for m in self._matcher.find(text, accept) if self._stands_alone(text, *m)]
        limits = [*(begin for begin, _, _ in found[1:]), len(text)]
        done = 0
        for (begin, end, token), limit in zip(found, limits, strict=False):
            flags = self._by_id[token]
            while flags.lstrip and begin > done and _SPACES.fullmatch(text[begin - 1]):
                begin -= 1
            if flags.rstrip and (spaces := _SPACES.match(text, end)):
                end = min(spaces.end(), limit)  # white space that is a token itself stays one
            if begin > done:
                yield text[done:begin], None
            yield text[begin:end], token
            done = end
        if done < len(text):
            yield text[done:], None

    def is_special(self, token: int) -> bool:
        """Whether the token counts only where trusted text wrote it."""
        return self._by_id[token].special

    def _stands_alone(self, text: str, begin: int, end: int, token: int) -> bool:
        if not self._by_id[token].single_word:
            return True
        before = begin > 0 and _WORD.match(text[begin - 1])
        return not before and not (end < len(text) and _WORD.match(text[end]))
