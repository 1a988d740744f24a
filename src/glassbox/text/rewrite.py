"""A template in jinja2's dialect to one that minijinja reads alike. Comes in: source. Goes out: source.

The two differ in small things that templates of models use: what escapes say, methods of strings, tests of what is not
there, loops over null, floats that go through filters of ours. Each is mended by an edit of a few tokens, so that all
else stays as it is written; what jinja2 does not know, or means otherwise and cannot be mended, is refused by name.
But: it checks no grammar, which is left to minijinja. Where ours stays laxer than jinja2: docs/templates.md.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassbox.errors import TemplateError
from glassbox.text.blocks import BROKEN, Block, Token, blocks, said
from glassbox.text.filters import (
    ITERATING,
    METHOD,
    METHODS,
    NULL,
    UNDEFINED,
    UNDEFINED_TESTS,
    WITH_UNDEFINED,
)
from glassbox.text.tame import KEYWORDS

GENERATION = {"generation": "if true", "endgeneration": "endif"}
GENERATED = {"generation": "filter glassbox_generated", "endgeneration": "endfilter"}
REFUSED_TAGS = frozenset({"do", "include", "import", "from", "extends"})  # of another template, or no tag of jinja2's
BOUND = frozenset({"items", "keys", "values", "get", "pop", "update", "copy", "clear", "setdefault", "popitem"})
CAPTURING = frozenset({"macro", "call", "filter", "generation", "with", "block"})
COMPARING = frozenset({"==", "!=", "<", ">", "<=", ">=", "in"})
SPLITTING = frozenset({"and", "or", "not", "if", "else", ",", ":", "=", "is"})  # between two comparisons

PATH = 12  # tokens of a value that may be written twice
PATHS = frozenset({".", "[", "]", "-"})

Edit = tuple[int, int, str]  # begin, end, what stands there instead


def without_generation(source: str) -> str:
    """The template without the tags by which transformers finds the assistant's tokens."""
    return _apply(source, [e for b in blocks(source) for e in _generation(b, GENERATION)])


def rewritten(source: str, *, spans: bool = False) -> str:
    """What minijinja is to run. spans: what generation tags enclose goes through a filter that marks it.

    Raises TemplateError, naming what is refused.
    """
    source = source.replace("\r\n", "\n").replace("\r", "\n")
    found = list(blocks(source))
    if BROKEN in found:
        raise TemplateError("the chat template has a block without end, with what is no word of Jinja's, or too long")
    edits: list[Edit] = []
    spaces = {b.tokens[1].text for b in found if [t.text for t in (*b.tokens[:1], *b.tokens[2:4])] == _SPACE} | {"loop"}
    for block in found:
        if block.word in REFUSED_TAGS:
            raise TemplateError(f"the chat template uses {{% {block.word} %}}, which is not supported")
        edits += _generation(block, GENERATED if spans else GENERATION)
        edits += _Expression(block, spaces).edits()
    _check_breaks(found)
    return _apply(source, edits)


def _check_breaks(found: Sequence[Block]) -> None:
    """Out of what is captured, or of a loop's else, no break leads: minijinja loses text there, or fails."""
    around: list[str] = []
    for b in found:
        if (
            b.word in ("for", "if")
            or b.word in CAPTURING
            or (b.word == "set" and Token("operator", "=") not in b.tokens)
        ):
            around.append(b.word)
        elif b.word == "else" and around[-1:] == ["for"]:
            around[-1] = "else"
        elif b.word.startswith("end") and around:
            around.pop()
        elif b.word in ("break", "continue") and next((w for w in reversed(around) if w != "if"), None) != "for":
            raise TemplateError(f"the chat template uses {{% {b.word} %}} outside a loop's own body: not supported")


_SPACE = ["set", "=", "namespace"]


def _apply(source: str, edits: Sequence[Edit]) -> str:
    parts, at = [], 0
    for begin, end, text in sorted(edits, key=lambda e: e[:2]):
        parts += [source[at:begin], text]
        at = end
    return "".join([*parts, source[at:]])


def _generation(block: Block, words: dict[str, str]) -> list[Edit]:
    return [(*block.spans[0], words[block.word])] if block.word in words and len(block.tokens) == 1 else []


class _Expression:
    """One pass over a block's tokens, which knows where the value begins that a dot or a bar comes after."""

    def __init__(self, block: Block, spaces: set[str]) -> None:
        self.tokens, self.spans, self.spaces = block.tokens, block.spans, spaces
        self.first = 1 if block.tag == "%" else 0  # the statement's word is no value
        self.found: list[Edit] = []
        self.last_argument = (-1, "")  # the bracket of a call, and what is to be its last argument
        self.filtered = -2  # the last token of a filter
        self.start = 0  # the first token of the value that is being read
        # Of each bracket: the start before it, what becomes of it where it closes, its own place.
        self.open: list[tuple[int, str, int]] = []
        self.compared = [False]  # at each depth: whether a comparison could be chained to what comes

    def edits(self) -> list[Edit]:
        if self._text(0) == "for" and self.first:
            self._iterated()
        for i, token in enumerate(self.tokens):
            if token.kind == "string":
                self._string(i)
            elif token.kind == "name":
                self._name(i)
            elif token.kind == "number":
                self.start = i if self._text(i - 1) != "." else self.start
            else:
                self._operator(i)
            self._compare(i)
        return self.found

    def _text(self, i: int) -> str:
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def _string(self, i: int) -> None:
        """Escapes are written out, and strings side by side become one, as jinja2 reads them."""
        if i and self.tokens[i - 1].kind == "string":
            return
        self.start, end = i, i + 1
        while end < len(self.tokens) and self.tokens[end].kind == "string":
            end += 1
        words = [t.text for t in self.tokens[i:end]]
        if len(words) == 1 and "\\" not in words[0]:
            return
        text = _joined(words)
        if text is not None:
            quoted = "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
            self.found.append((self.spans[i][0], self.spans[end - 1][1], quoted))

    def _name(self, i: int) -> None:
        word, before, called = self.tokens[i].text, self._text(i - 1), self._text(i + 1) == "("
        if before == ".":
            if word in METHODS and called:
                at, end = self.spans[self.start][0], self.spans[i][1]
                self.found.append((at, at, "("))
                self.found.append((self.spans[i - 1][0], end, f"|{METHOD}{word}"))
            elif word in BOUND and not called and self._text(self.start) not in self.spaces:
                raise TemplateError(f"the chat template takes .{word} for a value, which jinja2 takes for a method")
        elif before == "|":
            self.filtered = i
            if word in WITH_UNDEFINED:
                self._insert(i, f"default({UNDEFINED})|")
                if word == "tojson":
                    self._floats(i)
            elif word in ITERATING:
                self._not_null(self.start, i - 1)
        elif before == "is" or (before == "not" and self._text(i - 2) == "is"):
            if word in UNDEFINED_TESTS:
                at = self.spans[i - (1 if before == "is" else 2)][0]
                self.found.append((at, at, f"|default({UNDEFINED}) "))
        elif word not in KEYWORDS:
            self.start = i

    def _path(self, begin: int, end: int) -> str | None:
        """What stands there, if it is a name or a path of names, numbers and strings: that may be written twice."""
        if self._text(begin) == "(" and self._text(end - 1) == ")":
            begin, end = begin + 1, end - 1
        part = self.tokens[begin:end]
        if not part or len(part) > PATH or part[0].kind not in ("name", "number"):
            return None
        for kind, text in part:
            if text not in PATHS if kind == "operator" else "\\" in text or text in KEYWORDS:
                return None
        return " ".join(t.text for t in part)

    def _floats(self, i: int) -> None:
        """minijinja hands 1.0 to a filter as 1: it is told whether what stands before it was a float."""
        if (path := self._path(self.start, i - 1)) is None:
            return
        given = f"glassbox_float=({path}) is float"
        if self._text(i + 1) == "(":
            self.last_argument = (i + 1, given if self._text(i + 2) == ")" else ", " + given)
        else:
            self.found.append((self.spans[i][1], self.spans[i][1], f"({given})"))

    def _not_null(self, begin: int, end: int, *, defined: bool = False) -> None:
        """Null, and in a slice what is undefined, are errors to jinja2, and empty lists to minijinja."""
        if (path := self._path(begin, end)) is not None:
            self._insert(begin, "(")
            at, also = self.spans[end - 1][1], f" and ({path}) is defined" if defined else ""
            self.found.append((at, at, f" if ({path}) is not none{also} else {NULL}())"))

    def _insert(self, i: int, text: str) -> None:
        self.found.append((self.spans[i][0], self.spans[i][0], text))

    def _iterated(self) -> None:
        words = [t.text if t.kind != "string" else "" for t in self.tokens]
        begin = words.index("in") + 1 if "in" in words else len(words)
        depth, end = 0, begin
        while end < len(words) and (depth or words[end] not in ("if", "recursive")):
            depth += (words[end] in ("(", "[", "{")) - (words[end] in (")", "]", "}"))
            end += 1
        self._not_null(begin, end)

    def _operator(self, i: int) -> None:
        word = self.tokens[i].text
        if word in (".", "[") and self.filtered == i - 1:
            raise TemplateError(f"the chat template has {word} right behind a filter, which jinja2 does not take")
        if word in "([{":
            before = self.tokens[i - 1] if i else Token("operator", "")
            follows = before.text in tuple(")]}") or (before.kind != "operator" and before.text not in KEYWORDS)
            method = word == "(" and self._text(i - 2) == "." and before.text in METHODS
            follows = follows and i > self.first
            kind = "method" if method else "index" if word == "[" and follows else ""
            self.open.append((self.start if follows else i, kind, i))
            self.compared.append(False)
        elif word in ")]}" and self.open:
            self.start, kind, opened = self.open.pop()
            self.compared.pop()
            if self._text(opened - 2) == "|" and word == ")":
                self.filtered = i
            if opened == self.last_argument[0]:
                self._insert(i, self.last_argument[1])
            if kind == "method":
                self.found.append((self.spans[i][1], self.spans[i][1], ")"))
            elif kind == "slice":
                self._not_null(self.start, opened, defined=True)
        elif word == ":" and self.open and self.open[-1][1] == "index":
            self.open[-1] = (self.open[-1][0], "slice", self.open[-1][2])

    def _compare(self, i: int) -> None:
        word = self.tokens[i].text
        if self.tokens[i].kind == "string" or not self.compared:
            return
        if word in SPLITTING and not (word == "not" and self._text(i + 1) == "in"):
            self.compared[-1] = False
        elif word in COMPARING and not (word == "in" and self._text(0) == "for" and len(self.compared) == 1):
            if self.compared[-1]:
                raise TemplateError(f"the chat template chains comparisons (… {word} …), which is not supported")
            self.compared[-1] = True


def _joined(words: Sequence[str]) -> str | None:
    """What string literals say together; None where that is no text."""
    text = "".join(map(said, words))
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        return None
