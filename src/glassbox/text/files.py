"""Files of a model's folder. Comes in: the folder and a name. Goes out: bytes, text or a JSON object, checked.

Files come from the folder alone: a link that leads out of it is refused, unless it leads into the store of the hub's
own cache. Only regular files are read, since a pipe or a device may never end. JSON is read as strictly as weights are:
UTF-8 without a mark in front, each key once in its object.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError, ModelNotFound


def member(folder: Path, name: str) -> Path:
    """The path of a file in a folder, unless it is a link that leads out. Raises ModelNotFound."""
    path = folder / name
    home, target = Path(os.path.realpath(folder)), Path(os.path.realpath(path))
    # The hub's cache: models--x/snapshots/COMMIT/name is a link to models--x/blobs/HASH.
    homes = [(home / name).parent, *([home.parent.parent / "blobs"] if home.parent.name == "snapshots" else [])]
    if target.parent not in homes:
        raise ModelNotFound(str(path), "is a link that leads out of the folder")
    return path


def is_there(folder: Path, name: str) -> bool:
    """Whether something of this name is there, be it a broken link."""
    return os.path.lexists(folder / name)


def read_bytes(folder: Path, name: str, most: int) -> bytes:
    """Raises ModelNotFound (a link out of the folder) and ModelFormatError."""
    path = member(folder, name)
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe without a writer would wait
        with os.fdopen(handle, "rb") as f:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise ModelFormatError("is no regular file", field=name, path=str(path))
            data = f.read(most + 1)
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise ModelFormatError(f"cannot be read: {why}", field=name, path=str(path)) from None
    if len(data) > most:
        raise ModelFormatError(f"has more than {most:,} bytes", field=name, path=str(path))
    return data


def read_text(folder: Path, name: str, most: int) -> str:
    """Raises as read_bytes does, and ModelFormatError where it is not UTF-8."""
    try:
        return read_bytes(folder, name, most).decode()
    except UnicodeDecodeError as e:
        raise ModelFormatError("is not UTF-8", field=name, offset=e.start, path=str(folder / name)) from None


def read_json(folder: Path, name: str, most: int) -> dict[str, Any]:
    """A JSON object. Raises as read_text does, and ModelFormatError where it is none."""
    path = str(folder / name)
    try:
        data = json.loads(read_text(folder, name, most), object_pairs_hook=once)
    except (ValueError, RecursionError) as e:
        raise ModelFormatError(f"is not JSON: {e}", field=name, path=path) from None
    if not isinstance(data, dict):
        raise ModelFormatError("must be an object", field=name, path=path)
    return data


def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object of JSON in which no key stands twice. Raises ValueError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for i, key in enumerate(keys) if key in keys[:i])
        raise ValueError(f"the key {twice[:80]!a} stands twice")
    return found
