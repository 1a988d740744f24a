"""GGUF files that were cut into parts. Comes in: one part's path and metadata. Goes out: the paths of all.

Parts are named NAME-00001-of-00003.gguf and count themselves in `split.no` (from 0), `split.count` and
`split.tensors.count`; name and keys must agree. It opens nothing.

Format: llama.cpp's gguf-split; the key names are in ggml's gguf documents.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError

NO, COUNT, TENSORS = "split.no", "split.count", "split.tensors.count"
_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})(\.gguf)", re.DOTALL | re.IGNORECASE)


def part_names(name: str) -> list[str]:
    """The names of all parts, given one of them (with or without folders before it); of any other file, its own."""
    found = _NAME.fullmatch(name)
    if not found or not 1 <= int(found[2]) <= int(found[3]):
        return [name]
    return [f"{found[1]}-{i:05}-of-{found[3]}{found[4]}" for i in range(1, int(found[3]) + 1)]


def parts_of(path: Path, metadata: Mapping[str, Any]) -> list[Path]:
    """The paths of all parts of a file, itself among them. Raises ModelFormatError where its name does not fit."""
    count, no = _whole(path, metadata, COUNT), _whole(path, metadata, NO)
    if count <= 1 and no == 0:
        return [path]
    names = part_names(path.name)
    if len(names) != count or not no < count or names[no] != path.name:
        tail = f"-{no + 1:05}-of-{count:05}.gguf"
        raise ModelFormatError(
            f"says that this is part {no + 1} of {count}: the name must end in {tail}, or the others cannot be found",
            field=NO, path=str(path),
        )  # fmt: skip
    return [path.with_name(name) for name in names]


def check_part(path: Path, metadata: Mapping[str, Any], no: int, count: int, tensors: int) -> None:
    """One part against what it must be. `tensors`: of all parts together."""
    for key, wanted in ((NO, no), (COUNT, count), (TENSORS, tensors)):
        if key not in metadata:
            raise ModelFormatError(f"is missing, in part {no + 1} of {count}", field=key, path=str(path))
        if (value := _whole(path, metadata, key)) != wanted:
            raise ModelFormatError(f"is {value}, but {wanted} was expected", field=key, path=str(path))


def _whole(path: Path, metadata: Mapping[str, Any], key: str) -> int:
    value = metadata.get(key, 0)
    if type(value) is not int or value < 0:
        raise ModelFormatError(f"is {value!r:.60}, but must be a whole number", field=key, path=str(path))
    return value
