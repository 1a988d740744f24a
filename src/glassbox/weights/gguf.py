"""Reads a GGUF file: metadata and where each tensor lies. Comes in: a path. Goes out: `Gguf`.

Files are hostile: every count, length and offset is a Python int checked against the bytes that are left before
anything of that size is made. It does not decode weights (see quant.py) and does not interpret metadata.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; limits follow the reference reader's.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.types import U8
from glassbox.weights.quant import FORMATS, Format, format_by_code

MAGIC = b"GGUF"
MAX_STRING = 1 << 30
MAX_DEPTH = 4  # arrays of arrays of …
MAX_DIMS = 4
MAX_NAME = 64
MAX_ELEMENTS = (1 << 63) - 1

# type code -> (struct letter, size); 8 is string, 9 is array
SCALARS: Mapping[int, tuple[str, int]] = {
    0: ("B", 1), 1: ("b", 1), 2: ("H", 2), 3: ("h", 2), 4: ("I", 4), 5: ("i", 4),
    6: ("f", 4), 7: ("?", 1), 10: ("Q", 8), 11: ("q", 8), 12: ("d", 8),
}  # fmt: skip
STRING, ARRAY = 8, 9


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` is [rows, columns] as numpy has it (GGUF lists dimensions the other way round)."""

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int  # from the start of the file
    nbytes: int


class Gguf:
    """An open GGUF file. `metadata` is a plain dict; `tensors` maps names to `TensorInfo`; `raw(name)` is the bytes."""

    def __init__(self, path: Path, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.path, self.metadata, self.tensors = path, metadata, tensors
        self._data = data

    def raw(self, name: str) -> U8:
        """The tensor's bytes as they lie in the file, uint8 [nbytes]. A view: copy it to keep it."""
        t = self.tensors[name]
        return np.frombuffer(self._data, np.uint8, t.nbytes, t.offset)

    def __repr__(self) -> str:
        return f"<Gguf {self.path.name}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def read_gguf(path: str | Path) -> Gguf:
    """Open and check a GGUF file. Raises ModelNotFound or ModelFormatError (with field and offset)."""
    path = Path(path)
    if path.is_dir():
        raise ModelNotFound(str(path), "is a directory, not a GGUF file")
    try:
        with path.open("rb") as f:
            size = f.seek(0, 2)
            if size == 0:
                raise ModelFormatError("the file is empty", field="header", offset=0, path=str(path))
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(str(path), "no such file") from None
    except OSError as e:
        raise ModelNotFound(str(path), f"cannot be read ({e.strerror})") from None
    try:
        metadata, tensors = _Reader(data, size).file()
    except ModelFormatError as e:
        data.close()
        raise ModelFormatError(e.why, field=e.field, offset=e.offset, path=str(path)) from None
    return Gguf(path, data, metadata, tensors)


class _Reader:
    """A cursor over the bytes; every read says which field it is for."""

    def __init__(self, data: mmap.mmap, size: int) -> None:
        self.data, self.size, self.at = data, size, 0

    def fail(self, field: str, why: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(why, field=field, offset=self.at if at is None else at)

    def need(self, n: int, field: str) -> int:
        """Check that n bytes are left, step over them, return where they began."""
        at = self.at
        if n > self.size - at:
            raise self.fail(field, f"needs {n} bytes, but the file ends after {self.size - at} more (truncated?)")
        self.at += n
        return at

    def number(self, letter: str, size: int, field: str) -> Any:
        return struct.unpack_from("<" + letter, self.data, self.need(size, field))[0]

    def u32(self, field: str) -> int:
        return int(self.number("I", 4, field))

    def u64(self, field: str) -> int:
        return int(self.number("Q", 8, field))

    def string(self, field: str, limit: int = MAX_STRING) -> str:
        at = self.at
        n = self.u64(field + " length")
        if n > limit:
            raise self.fail(field, f"length {n} is over the limit of {limit}", at)
        begin = self.need(n, field)
        try:
            return self.data[begin : begin + n].decode("utf-8")
        except UnicodeDecodeError as e:
            raise self.fail(field, "is not UTF-8", begin + e.start) from None

    def file(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        self.magic()
        n_tensors, n_kv = self.u64("tensor count"), self.u64("metadata count")
        # The least a tensor entry and a metadata entry can take bounds what the file can hold.
        for field, n, least in (("tensor count", n_tensors, 24), ("metadata count", n_kv, 13)):
            if n * least > self.size - self.at:
                raise self.fail(field, f"{n} entries cannot fit in the {self.size - self.at} bytes left", 8)
        metadata: dict[str, Any] = {}
        for i in range(n_kv):
            at = self.at
            key = self.string(f"metadata key {i}", MAX_NAME * 1024)
            if not key:
                raise self.fail(f"metadata key {i}", "is empty", at)
            if key in metadata:
                raise self.fail(key, "stands twice", at)
            metadata[key] = self.value(key, self.u32(f"{key} type"))
        return metadata, self.tensor_table(n_tensors, self.alignment(metadata))

    def magic(self) -> None:
        begin = self.need(4, "magic")
        magic = self.data[begin : begin + 4]
        if magic != MAGIC:
            lfs = self.data[:8] == b"version "
            why = "is a Git LFS pointer, not the file it points to" if lfs else f"is {magic!r}: not a GGUF file"
            raise self.fail("magic", why, 0)
        version = self.u32("version")
        if version in (0x02000000, 0x03000000):
            raise self.fail("version", "big-endian GGUF is not supported", 4)
        if version not in (2, 3):
            raise self.fail("version", f"is {version}; versions 2 and 3 are supported", 4)

    def value(self, key: str, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.number(*SCALARS[kind], key)
        if kind == STRING:
            return self.string(key)
        if kind != ARRAY:
            raise self.fail(key, f"has unknown type {kind}", self.at - 4)
        if depth == MAX_DEPTH:
            raise self.fail(key, f"arrays nest deeper than {MAX_DEPTH}")
        item, n = self.u32(f"{key} item type"), self.u64(f"{key} length")
        if item in SCALARS:
            letter, size = SCALARS[item]
            return np.frombuffer(self.data, "<" + _numpy(letter), n, self.need(n * size, key)).tolist()
        if item not in (STRING, ARRAY):
            raise self.fail(key, f"has unknown item type {item}", self.at - 12)
        if n * (8 if item == STRING else 12) > self.size - self.at:
            raise self.fail(key, f"{n} items cannot fit in the {self.size - self.at} bytes left", self.at - 8)
        read: Callable[[], Any] = (lambda: self.string(key)) if item == STRING else (
            lambda: self.value(key, ARRAY, depth + 1)
        )  # fmt: skip
        return [read() for _ in range(n)]

    def alignment(self, metadata: Mapping[str, Any]) -> int:
        align = metadata.get("general.alignment", 32)
        if type(align) is not int or align <= 0 or align & (align - 1) or align > 1 << 31:
            raise self.fail("general.alignment", f"is {align!r}, but must be a power of two")
        return align

    def tensor_table(self, n: int, align: int) -> dict[str, TensorInfo]:
        entries: list[tuple[TensorInfo, int]] = []
        seen: set[str] = set()
        for i in range(n):
            at = self.at
            t = self.tensor_entry(i)
            if t.name in seen:
                raise self.fail(t.name, "stands twice", at)
            seen.add(t.name)
            entries.append((t, at))
        base = -(-self.at // align) * align
        running, tensors = 0, {}
        for t, at in entries:
            # Tensors follow one another without gap or overlap; anything else is corruption or an attack.
            if t.offset != running:
                raise self.fail(f"{t.name} offset", f"is {t.offset}, but {running} was expected", at)
            running += -(-t.nbytes // align) * align
            if t.nbytes and base + t.offset + t.nbytes > self.size:
                end = base + t.offset + t.nbytes
                raise self.fail(f"{t.name} data", f"ends at byte {end}, but the file has {self.size} (truncated?)", at)
            tensors[t.name] = TensorInfo(t.name, t.shape, t.format, base + t.offset, t.nbytes)
        return tensors

    def tensor_entry(self, i: int) -> TensorInfo:
        """One entry of the tensor table; `offset` is still relative to the data section."""
        at = self.at
        name = self.string(f"tensor {i} name", MAX_NAME - 1)
        n_dims = self.u32(f"{name} dimensions")
        if not 0 <= n_dims <= MAX_DIMS:
            raise self.fail(name, f"has {n_dims} dimensions, at most {MAX_DIMS} are allowed", at)
        dims = [self.u64(f"{name} shape") for _ in range(n_dims)]
        code_at = self.at
        code = self.u32(f"{name} format")
        fmt = format_by_code(code)
        if fmt is None:
            known = ", ".join(FORMATS)
            raise self.fail(f"{name} format", f"code {code} is not supported (known: {known})", code_at)
        count = 1
        for d in dims:
            count *= d
            if d > MAX_ELEMENTS or count > MAX_ELEMENTS:
                raise self.fail(f"{name} shape", f"{dims} has too many elements", at)
        if (dims[0] if dims else 1) % fmt.elements:
            raise self.fail(f"{name} shape", f"{dims[0]} columns are no multiple of the block of {fmt.elements}", at)
        offset = self.u64(f"{name} offset")
        return TensorInfo(name, tuple(reversed(dims)), fmt, offset, count // fmt.elements * fmt.bytes)


def _numpy(letter: str) -> str:
    return {"B": "u1", "b": "i1", "H": "u2", "h": "i2", "I": "u4", "i": "i4", "f": "f4", "?": "?", "Q": "u8", "q": "i8", "d": "f8"}[letter]  # fmt: skip  # noqa: E501
