"""An open GGUF file, or one that was split. Comes in: a path. Goes out: `Gguf`: its metadata, where each tensor lies,
the tensors' bytes.

It does not decode weights (see quant.py) nor interpret metadata; header.py parses, split.py finds the other parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.weights.checkpoint import OpenFile, Stored, unreadable
from glassbox.weights.header import Header, TensorInfo
from glassbox.weights.split import check_part, parts_of


class Gguf(Stored):
    """An open file: `metadata` is a plain dict, `tensors` says where each lies, `raw` gives the bytes."""

    def __init__(
        self, files: Sequence[Path], metadata: dict[str, Any], homes: Mapping[str, tuple[TensorInfo, OpenFile]]
    ) -> None:
        super().__init__(files[0], files, homes)
        self.metadata = metadata

    def __repr__(self) -> str:
        return f"<Gguf {self.path.name}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


_Part = tuple[OpenFile, dict[str, Any], dict[str, TensorInfo]]


def read_gguf(path: str | Path) -> Gguf:
    """Open and check a GGUF file; given any part of a split one, all of it.

    Raises ModelNotFound or ModelFormatError (with field and offset).
    """
    path = Path(path)
    given = _open(path)
    paths = parts_of(path, given[1])
    if len(paths) == 1:
        return Gguf(paths, given[1], {name: (info, given[0]) for name, info in given[2].items()})
    parts = [given if p == path else _open_other(p, i, len(paths)) for i, p in enumerate(paths)]
    homes: dict[str, tuple[TensorInfo, OpenFile]] = {}
    for file, _, tensors in parts:
        for name, info in tensors.items():
            if name in homes:
                why = f"stands in {homes[name][1].path.name} too"
                raise ModelFormatError(why, field=name, offset=info.offset, path=str(file.path))
            homes[name] = (info, file)
    for i, (file, metadata, _) in enumerate(parts):
        check_part(file.path, metadata, i, len(parts), len(homes))
    return Gguf(paths, parts[0][1], homes)


def _open(path: Path) -> _Part:
    file = OpenFile(path, "a GGUF file")
    try:
        metadata, tensors = Header(file.file).read()
    except OSError as e:
        raise unreadable(path, e) from None
    except ModelFormatError as e:
        raise ModelFormatError(e.why, field=e.field, offset=e.offset, path=str(path)) from None
    return file, metadata, tensors


def _open_other(path: Path, no: int, count: int) -> _Part:
    if not path.exists():
        raise ModelNotFound(str(path), f"no such file: it is part {no + 1} of {count}")
    return _open(path)
