"""Plain data that a template can read but not change: one that could grow a list of ours would do so outside its fuel,
and leave it changed. Templates print, slice and search these as any other."""

from __future__ import annotations

from typing import Any, NoReturn

from glassbox.errors import TemplateError


def shown(value: object, marks: str) -> str:
    """As Python writes a value, but marks as they are, which it would write as escapes."""
    if isinstance(value, str) and marks:
        quote = '"' if "'" in value and '"' not in value else "'"
        parts = (c if c in marks or c in "'\"" else repr(c)[1:-1] for c in value)
        return quote + "".join("\\" + c if c == quote else c for c in parts) + quote
    if isinstance(value, dict):
        return "{" + ", ".join(f"{shown(k, marks)}: {shown(v, marks)}" for k, v in value.items()) + "}"
    if isinstance(value, list | tuple):
        inside = ", ".join(shown(v, marks) for v in value)
        return f"[{inside}]" if isinstance(value, list) else f"({inside}{',' * (len(value) == 1)})"
    return repr(value)


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TemplateError("the chat template tries to change what it was given")


class FrozenList(list[object]):
    marks = ""
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse

    def __repr__(self) -> str:
        return shown(self, self.marks)


class FrozenDict(dict[str, object]):
    marks = ""
    update = setdefault = pop = popitem = clear = _refuse

    def __repr__(self) -> str:
        return shown(self, self.marks)


def frozen(value: Any, marks: str = "") -> Any:
    """Lists and dicts, at any depth, as their frozen kind; they write themselves with `marks` as they are."""
    if isinstance(value, dict):
        kept: FrozenDict | FrozenList = FrozenDict({k: frozen(v, marks) for k, v in value.items()})
    elif isinstance(value, list):
        kept = FrozenList(frozen(v, marks) for v in value)
    else:
        return value
    if marks:
        kept.marks = marks
    return kept


def whole_floats(value: object) -> set[float]:
    """The floats in plain data that are whole numbers."""
    if isinstance(value, float):
        return {value} if value.is_integer() else set()
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return set().union(*map(whole_floats, parts))
