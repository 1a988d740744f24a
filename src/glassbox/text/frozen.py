"""Plain data that a template can read but not change: one that could grow a list of ours would do so outside its fuel,
and leave it changed. Templates print, slice and search these as any other."""

from __future__ import annotations

from typing import Any, NoReturn

from glassbox.errors import TemplateError


def _refuse(*_: object, **__: object) -> NoReturn:
    raise TemplateError("the chat template tries to change what it was given")


class FrozenList(list[object]):
    append = extend = insert = pop = remove = clear = sort = reverse = _refuse


class FrozenDict(dict[str, object]):
    update = setdefault = pop = popitem = clear = _refuse


def frozen(value: Any) -> Any:
    """Lists and dicts, at any depth, as their frozen kind."""
    if isinstance(value, dict):
        return FrozenDict({k: frozen(v) for k, v in value.items()})
    return FrozenList(map(frozen, value)) if isinstance(value, list) else value
