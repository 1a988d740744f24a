"""Reads a GGUF file: metadata and where each tensor lies. Comes in: a path. Goes out: `Gguf`.

Files are hostile: every count, length and offset is a Python int, checked against the bytes that are left
before anything of that size is made. It does not decode weights (see quant.py) nor interpret metadata.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; limits follow the reference reader's.
"""

from __future__ import annotations

import mmap
import stat
from collections.abc import Mapping
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

# type code -> numpy's name for it
SCALARS: Mapping[int, str] = {
    0: "u1", 1: "i1", 2: "u2", 3: "i2", 4: "u4", 5: "i4", 6: "f4", 7: "?", 10: "u8", 11: "i8", 12: "f8",
}  # fmt: skip
UINT32, BOOL, STRING, ARRAY = 4, 7, 8, 9
ALIGNMENT = "general.alignment"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: `shape` is [rows, columns] as numpy has it (GGUF lists dimensions the other way round)."""

    name: str
    shape: tuple[int, ...]
    format: Format
    offset: int  # from the start of the file
    nbytes: int


class Gguf:
    """An open file: `metadata` is a plain dict, `tensors` says where each lies, `raw` gives the bytes."""

    def __init__(self, path: Path, data: mmap.mmap, metadata: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.path, self.metadata, self.tensors = path, metadata, tensors
        self._data = data

    def raw(self, name: str) -> U8:
        """The tensor's bytes as they lie in the file, uint8 [nbytes]. A view: copy it to keep it."""
        t = self.tensors[name]
        return np.frombuffer(self._data, np.uint8)[t.offset : t.offset + t.nbytes]

    def forget(self, name: str) -> None:
        """Let the tensor's bytes leave memory; they are read again when asked for."""
        t = self.tensors[name]
        begin = -(-t.offset // mmap.PAGESIZE) * mmap.PAGESIZE  # pages that hold nothing else
        whole = (t.offset + t.nbytes) // mmap.PAGESIZE * mmap.PAGESIZE - begin
        if whole > 0 and hasattr(mmap, "MADV_DONTNEED"):
            self._data.madvise(mmap.MADV_DONTNEED, begin, whole)

    def __repr__(self) -> str:
        return f"<Gguf {self.path.name}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def read_gguf(path: str | Path) -> Gguf:
    """Open and check a GGUF file. Raises ModelNotFound or ModelFormatError (with field and offset)."""
    path = Path(path)
    try:
        mode = path.stat().st_mode  # asked first: to open a pipe would wait for ever
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise ModelNotFound(str(path), f"is {what}, not a GGUF file")
        with path.open("rb") as f:
            size = f.seek(0, 2)
            if size == 0:
                raise ModelFormatError("the file is empty", field="header", offset=0, path=str(path))
            data = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError:
        raise ModelNotFound(str(path), "no such file") from None
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        raise ModelNotFound(str(path), f"cannot be read ({getattr(e, 'strerror', None) or e})") from None
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
        # Names come from the file: one must not bring line breaks or escape codes to a terminal, or fill it.
        field = field if field.isprintable() else ascii(field)[1:-1]
        field = field if len(field) <= 160 else field[:120] + "…" + field[-30:]
        return ModelFormatError(why, field=field, offset=self.at if at is None else at)

    def need(self, n: int, field: str) -> int:
        """Check that n bytes are left, step over them, return where they began."""
        at = self.at
        if n > self.size - at:
            left = self.size - at
            raise self.fail(field, f"needs {n} bytes, but the file ends after {left} more (truncated?)")
        self.at += n
        return at

    def u32(self, field: str) -> int:
        at = self.need(4, field)
        return int.from_bytes(self.data[at : at + 4], "little")

    def u64(self, field: str) -> int:
        at = self.need(8, field)
        return int.from_bytes(self.data[at : at + 8], "little")

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
        left = self.size - self.at
        for field, n, least, at in (("tensor count", n_tensors, 24, 8), ("metadata count", n_kv, 14, 16)):
            if n * least > left:
                raise self.fail(field, f"{n} entries cannot fit in the {left} bytes left", at)
        metadata: dict[str, Any] = {}
        for i in range(n_kv):
            at = self.at
            key = self.string(f"metadata key {i}", MAX_NAME * 1024)
            if not key:
                raise self.fail(f"metadata key {i}", "is empty", at)
            if key in metadata:
                raise self.fail(key, "stands twice", at)
            kind = self.u32(f"{key} type")
            metadata[key] = value = self.value(key, kind)
            if key == ALIGNMENT and (kind != UINT32 or value == 0 or value & (value - 1)):
                raise self.fail(key, "must be a uint32 and a power of two", at)
        return metadata, self.tensor_table(n_tensors, metadata.get(ALIGNMENT, 32))

    def magic(self) -> None:
        begin = self.need(4, "magic")
        magic = self.data[begin : begin + 4]
        if magic != MAGIC:
            if self.data[:8] == b"version ":
                raise self.fail("magic", "is a Git LFS pointer, not the file it points to", 0)
            raise self.fail("magic", f"is {magic!r}: not a GGUF file", 0)
        version = self.u32("version")
        if version in (0x02000000, 0x03000000):
            raise self.fail("version", "big-endian GGUF is not supported", 4)
        if version not in (2, 3):
            raise self.fail("version", f"is {version}; versions 2 and 3 are supported", 4)

    def value(self, key: str, kind: int, depth: int = 0) -> Any:
        if kind in SCALARS:
            return self.scalars(key, kind, 1)[0]
        if kind == STRING:
            return self.string(key)
        if kind != ARRAY:
            raise self.fail(key, f"has unknown type {kind}", self.at - 4)
        if depth == MAX_DEPTH:
            raise self.fail(key, f"arrays nest deeper than {MAX_DEPTH}")
        item, n = self.u32(f"{key} item type"), self.u64(f"{key} length")
        if item in SCALARS:
            return self.scalars(key, item, n)
        if item not in (STRING, ARRAY):
            raise self.fail(key, f"has unknown item type {item}", self.at - 12)
        if n * (8 if item == STRING else 12) > self.size - self.at:
            raise self.fail(key, f"{n} items cannot fit in the {self.size - self.at} bytes left", self.at - 8)
        if item == STRING:
            return [self.string(key) for _ in range(n)]
        return [self.value(key, ARRAY, depth + 1) for _ in range(n)]

    def scalars(self, key: str, kind: int, n: int) -> list[Any]:
        dtype = np.dtype("<" + SCALARS[kind])
        at = self.need(n * dtype.itemsize, key)
        if kind == BOOL and (wrong := self.data[at : at + n].strip(b"\0\1")):
            raise self.fail(key, f"a bool is {wrong[0]}, but must be 0 or 1", self.data.find(wrong, at))
        items: list[Any] = np.frombuffer(self.data, dtype, n, at).tolist()
        return items

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
                why = f"ends at byte {base + t.offset + t.nbytes}, but the file has {self.size} (truncated?)"
                raise self.fail(f"{t.name} data", why, at)
            tensors[t.name] = TensorInfo(t.name, t.shape, t.format, base + t.offset, t.nbytes)
        return tensors

    def tensor_entry(self, i: int) -> TensorInfo:
        """One entry of the tensor table; `offset` is still relative to the data section."""
        at = self.at
        name = self.string(f"tensor {i} name", MAX_NAME - 1)
        n_dims = self.u32(f"{name} dimensions")
        if n_dims > MAX_DIMS:
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
        columns = dims[0] if dims else 1
        if columns % fmt.elements:
            raise self.fail(f"{name} shape", f"{columns} columns are no multiple of the block of {fmt.elements}", at)
        offset = self.u64(f"{name} offset")
        return TensorInfo(name, tuple(reversed(dims)), fmt, offset, count // fmt.elements * fmt.bytes)
