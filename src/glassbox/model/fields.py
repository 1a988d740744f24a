"""Reads what a file says of its model, key by key. A field is there, of its type and in range, or an error names it.

A key that nobody has read at the end is an error too: it may change the model, and a model that is nearly right is
worse than none. Keys whose value is null count as absent.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from reprlib import repr as short
from typing import Any, NoReturn, TypeVar

from glassbox.errors import ModelFormatError
from glassbox.model.spec import ModelSpec
from glassbox.weights.header import printable

MOST = 1 << 24
LAYERS = 1 << 12  # more than any model has
EXPERTS = 1 << 12
ROWS = 1 << 20  # of a matrix in a layer
T = TypeVar("T")
Key = str | Sequence[str]  # several names for one thing: the first that is there


class Fields:
    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        """place: what stands before a key in an error."""
        self.values, self.place = values, place
        self.unread = {key for key, value in values.items() if value is not None}

    def fail(self, key: Key, why: str) -> NoReturn:
        raise ModelFormatError(why, field=printable(self.place + self.name(key)))

    def name(self, key: Key) -> str:
        names = [key] if isinstance(key, str) else key
        return next((n for n in names if self.values.get(n) is not None), names[0])

    def get(self, key: Key) -> Any:
        self.unread.discard(self.name(key))
        return self.values.get(self.name(key))

    def whole(self, key: Key, default: int | None = None, *, least: int = 1, most: int = MOST) -> int:
        value = self.get(key)
        if value is None:
            return self._absent(key, default)
        if type(value) is not int or not least <= value <= most:
            self.fail(key, f"is {short(value)}, but must be a whole number from {least} to {most}")
        return int(value)

    def real(self, key: Key, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            return self._absent(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e12:
            self.fail(key, f"is {short(value)}, but must be a positive number")
        return float(value)

    def whole_or_off(self, key: str, default: int = 0) -> int:
        """The same where null, or 0, says that there is none; absent means the default."""
        if key in self.values and self.get(key) is None:
            return 0
        return self.whole(key, default, least=0)

    def real_or_off(self, key: str, default: float = 0.0) -> float:
        """As `whole_or_off`."""
        if key in self.values and self.get(key) in (None, 0, 0.0):
            return 0.0
        return self.real(key, default) if key in self.values else default

    def real_or_null(self, key: str, default: float) -> float:
        """0 where null says that there is none; a 0 in the file is an error."""
        return self.real(key) if self.values.get(key) is not None else 0.0 if key in self.values else default

    def flag(self, key: Key, default: bool = False) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if type(value) is not bool:
            self.fail(key, f"is {short(value)}, but must be true or false")
        return value

    def word(self, key: Key, words: Collection[str], default: str | None = None) -> str:
        value = self.get(key)
        if value is None:
            return self._absent(key, default)
        if not isinstance(value, str) or value not in words:
            self.fail(key, f"is {short(value)}, which is not supported (known: {', '.join(sorted(words))})")
        return value

    def several(self, key: str, count: int, kinds: tuple[type, ...]) -> list[Any] | None:
        """A list of `count` values of these types, or None."""
        value = self.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or len(value) != count or any(type(v) not in kinds for v in value):
            self.fail(
                key, f"is {short(value)}, but must be a list of {count} ({' or '.join(k.__name__ for k in kinds)})"
            )
        return value

    def finish(self, off: Mapping[str, Any], silent: Collection[str]) -> None:
        """off: keys of what is not done here, and the value that says it is off. silent: those that change nothing."""
        for key in sorted(self.unread & off.keys()):
            if self.get(key) != off[key]:
                self.fail(key, f"is {short(self.values[key])}, which is not supported; only {off[key]!r} is")
        for key in sorted(self.unread - set(silent)):
            self.fail(key, "is set, which Glassbox does not know")

    def _absent(self, key: Key, default: T | None) -> T:
        if default is None:
            self.fail(key, "is missing")
        return default


def check_heads(width: int, read: Fields, keys: Mapping[str, str]) -> None:
    """keys: the file's name of each size."""
    if width % 16 or not width:
        read.fail(keys["head_width"], f"is {width}, but a multiple of 16 is needed")


def check_sizes(spec: ModelSpec, read: Fields, keys: Mapping[str, str]) -> None:
    """What the kernels need of the other sizes."""
    for size in ("width", "mlp_width"):
        if getattr(spec, size) % 8:
            read.fail(keys[size], f"is {getattr(spec, size)}, but a multiple of 8 is needed")
    for size, rows in (
        ("heads", (spec.heads + 2 * spec.kv_heads) * spec.head_width),
        ("mlp_width", 2 * spec.mlp_width),
    ):
        if rows > ROWS:
            read.fail(keys[size], f"makes matrices of {rows} rows, over the limit of {ROWS}")
    if spec.heads % spec.kv_heads:
        read.fail(keys["kv_heads"], f"is {spec.kv_heads}, which does not divide {spec.heads} heads")
    if spec.experts_used > spec.experts:
        read.fail(keys["experts_used"], f"is {spec.experts_used}, but there are {spec.experts} experts")
