"""Which templates may run in this process. Comes in: source. Goes out: whether it is tame.

minijinja's fuel bounds steps and text, but not values in values: lists that hold one another double in size at each
step, deep ones overflow the stack, slices of slices take ever longer; nothing in this process could stop that. A tame
template cannot make such values, by the words it uses: what it keeps, in variables and namespaces, is text, a number,
a piece of what it was given, or a literal. Most templates are. All others, and whatever is not understood here, run in
a process of their own (child.py), to the same text.
"""

from __future__ import annotations

from collections.abc import Sequence

from glassbox.text.blocks import BROKEN, Block, Token, blocks

# minijinja's parser recurses, and was seen to take 2,000 of each.
TOKENS, NESTING, OPEN, BRANCHES, VIEWS_KEPT = 500, 20, 40, 300, 100


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LITERALS = _words("true false none True False None")
KEYWORDS = _words("and or not in is if else")
ALONE = _words("else endif endfor break continue")
NEVER = _words("self super caller recursive varargs kwargs")
TEXTS = _words("bos_token eos_token")  # known to be text, so never to be set
FUNCTIONS = _words("raise_exception strftime_now")
METHODS = _words(
    "strip lstrip rstrip split startswith endswith replace upper lower title capitalize get items keys values"
)
FILTERS = _words(
    "trim length count tojson upper lower capitalize title string first last default d join replace int safe e"
)
VIEWS = _words("select reject selectattr rejectattr list items dictsort")  # may hold on to the list they come from
OPERATORS = _words("// == != <= >= < > = - + / % ~ | . , : ( ) [ ] { }")  # without those that repeat lists
OPENING, CLOSING = "([{", ")]}"
NAMESPACE = Token("name", "namespace")


def is_tame(source: str) -> bool:
    """Whether all that the template can do is seen by its fuel."""
    found = list(blocks(source))
    return BROKEN not in found and _Check(found).passes()


class _Check:
    """One pass over a template's blocks."""

    def __init__(self, found: Sequence[Block]) -> None:
        self.blocks = found
        # Namespaces may be looked into only: one that is handed on as a whole could come to hold itself.
        self.spaces = {"loop"} | {b.tokens[1].text for b in found if _makes_namespace(b.tokens)}
        self.open = self.loops = self.branches = self.views = 0

    def passes(self) -> bool:
        return all(len(b.tokens) <= TOKENS and self._block(b) for b in self.blocks)

    def _block(self, block: Block) -> bool:
        if block.tag == "{":
            return self._expression(block.tokens)
        word, rest = block.tokens[0].text, block.tokens[1:]
        if word in ALONE:
            self.open -= word in ("endif", "endfor")
            self.loops -= word == "endfor"
            return not rest
        self.open += word in ("if", "for")
        self.loops += word == "for"
        self.branches += word in ("if", "elif")
        if self.open > OPEN or self.branches > BRANCHES:
            return False
        if word in ("if", "elif"):
            return self._expression(rest)
        if word == "for":
            at = next((i for i, t in enumerate(rest) if t.text == "in"), len(rest))
            return self._may_set(rest[:at]) and self._expression(rest[at + 1 :], bound=True)
        return word == "set" and self._set(rest)

    def _set(self, tokens: Sequence[Token]) -> bool:
        """name = …, namespace.name = …, or name = namespace(…)."""
        at = next((i for i, t in enumerate(tokens) if t.text == "="), len(tokens))
        target, value = tokens[:at], tokens[at + 1 :]
        if at == 3 and (target[0].text not in self.spaces or target[1].text != "."):
            return False
        if at not in (1, 3) or not self._may_set(target[:1]):
            return False
        return self._expression(value, bound=True, kept=True, space=at == 1)

    def _may_set(self, target: Sequence[Token]) -> bool:
        return all(t.text == "," or (t.kind == "name" and t.text not in TEXTS | {"loop"}) for t in target)

    def _expression(
        self, tokens: Sequence[Token], *, bound: bool = False, kept: bool = False, space: bool = False
    ) -> bool:
        """bound: variables will be its value, or its parts; kept: its value; space: it may begin with namespace(."""
        around = _brackets(tokens)
        if around is None:
            return False
        for i, (token, brackets) in enumerate(zip(tokens, around, strict=True)):
            if token.kind == "name":
                if not self._name(tokens, i) and not (space and i == 0 and token == NAMESPACE):
                    return False
                if bound and token.text not in LITERALS and ("[" in brackets or "{" in brackets):
                    return False  # a list or dict of more than literals
            elif token.kind == "operator" and token.text not in OPERATORS:
                return False
            if bound and token.text == "," and brackets[-1:] in ("", "("):
                return False  # a tuple
            if kept and token == ("operator", "+") and not _adds_literal(tokens, i):
                return False  # may join lists
            if kept and ((token.text == ":" and brackets[-1:] == "x") or _is_view(tokens, i)):
                self.views += 1
                if self.loops or self.views > VIEWS_KEPT:
                    return False
        return True

    def _name(self, tokens: Sequence[Token], i: int) -> bool:
        word, before = tokens[i].text, tokens[i - 1].text if i else ""
        after = [t.text for t in tokens[i + 1 : i + 4]]
        called = after[:1] == ["("]
        if before == ".":
            return not called or word in METHODS
        if before == "|":
            return word in FILTERS or word in VIEWS
        if word in LITERALS or word in KEYWORDS:
            return True
        if word in self.spaces:
            return after[:1] == ["."] and after[2:] != ["("]  # nor may it be asked for all it has
        return word not in NEVER and (not called or word in FUNCTIONS)


def _brackets(tokens: Sequence[Token]) -> list[str] | None:
    """The brackets around each token, outermost first: f a call, x an index, ( a group, [ and { displays.

    None where they do not match, nest too deep, or call what an expression gives.
    """
    around, now = [], ""
    before = Token("operator", "")
    for token in tokens:
        if token.kind == "operator" and token.text in CLOSING:
            opened = {"f": "(", "x": "["}.get(now[-1:], now[-1:])
            if not opened or OPENING.index(opened) != CLOSING.index(token.text):
                return None
            now = now[:-1]
        around.append(now)
        if token.kind == "operator" and token.text in OPENING:
            value = before.text not in KEYWORDS and (before.kind != "operator" or before.text in tuple(CLOSING))
            if token.text == "(" and value and before.kind != "name":
                return None
            now += {"(": "f", "[": "x"}.get(token.text, token.text) if value else token.text
            if len(now) > NESTING:
                return None
        before = token
    return None if now else around


def _makes_namespace(tokens: Sequence[Token]) -> bool:
    return [t.text for t in (*tokens[:1], *tokens[2:5])] == ["set", "=", "namespace", "("]


def _is_view(tokens: Sequence[Token], i: int) -> bool:
    return i > 0 and tokens[i - 1].text == "|" and tokens[i].text in VIEWS


def _adds_literal(tokens: Sequence[Token], i: int) -> bool:
    """Whether the + at `i` has a text or number beside it, so that what it makes is one, or an error."""
    before, left, right, after = (tokens[k] if 0 <= k < len(tokens) else None for k in (i - 2, i - 1, i + 1, i + 2))
    if _is_text(left) and (before is None or before.text != "."):
        return True
    return _is_text(right) and (after is None or (after.kind != "string" and after.text not in (".", "[", "|")))


def _is_text(token: Token | None) -> bool:
    return token is not None and (token.kind in ("string", "number") or token.text in TEXTS)
