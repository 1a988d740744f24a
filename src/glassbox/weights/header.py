"""Reads the header of a GGUF file: metadata, and where each tensor lies. Comes in: an open file. Goes out: plain data.

Files are hostile: every count, length and offset is a Python int, checked against the bytes that are left and against
the limits below before anything of that size is read or made. Nothing is mapped: a file that somebody cuts short would
kill the process that touches what is gone. It does not interpret metadata.

Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md; limits of depth, dimensions and names follow the
reference reader's; those of size leave several times the room of the largest vocabularies (262,144 tokens: 20 MB).
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from glassbox.errors import ModelFormatError
from glassbox.weights.foreign import ggml_format
from glassbox.weights.quant import FORMATS, Format, name_of_code

MAGIC = b"GGUF"
MAX_HEADER = 256 << 20  # bytes before the tensors
MAX_STRING = 64 << 20
MAX_ENTRIES = 1 << 20  # tensors, and keys of metadata
MAX_ITEMS = 8 << 20  # of all arrays together; each is a Python object
MAX_DEPTH = 4  # arrays of arrays of …
MAX_DIMS = 4
MAX_NAME = 64
MAX_ELEMENTS = (1 << 63) - 1
PIECE = 1 << 18  # bytes of the header that are read at first
SHRUNK = "was truncated while being read"

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


def printable(name: str) -> str:
    """A name from the file, for an error: it must not bring line breaks or escape codes to a terminal, or fill it."""
    name = name if name.isprintable() else ascii(name)[1:-1]
    return name if len(name) <= 160 else name[:120] + "…" + name[-30:]


def fill(file: io.FileIO, at: int, into: memoryview) -> int:
    """Read from `at` on until `into` is full or the file ends; returns how many bytes came."""
    file.seek(at)
    got = 0
    while got < len(into) and (n := file.readinto(into[got:])):
        got += n
    return got


class Header:
    """A cursor over the bytes; every read says which field it is for. `data`: the file's beginning, as far as read."""

    def __init__(self, file: io.FileIO) -> None:
        self.source, self.size, self.at = file, file.seek(0, 2), 0
        self.items = 0  # of arrays, so far
        self.data = bytearray()

    def fail(self, field: str, why: str, at: int | None = None) -> ModelFormatError:
        return ModelFormatError(why, field=printable(field), offset=self.at if at is None else at)

    def need(self, n: int, field: str) -> int:
        """Check that n bytes are left, step over them, return where they began."""
        at = self.at
        if n > self.size - at:
            left = self.size - at
            raise self.fail(field, f"needs {n} bytes, but the file ends after {left} more (truncated?)")
        if at + n > MAX_HEADER:
            raise self.fail(field, f"needs {n} bytes, but a header of more than {MAX_HEADER} is refused")
        self.at += n
        if self.at > len(self.data):
            self.load(self.at, field)
        return at

    def load(self, end: int, field: str) -> None:
        """Have the bytes up to `end` at least, and as many again as there are: ever larger pieces, few of them."""
        have = len(self.data)
        piece = bytearray(min(max(end, 2 * have, PIECE), self.size) - have)
        got = fill(self.source, have, memoryview(piece))
        del piece[got:]
        self.data += piece
        if len(self.data) < end:
            raise self.fail(field, SHRUNK, have + got)

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

    def strings(self, field: str, count: int) -> list[str]:
        """What `string` gives `count` times, in a third of the time: vocabularies have hundreds of thousands."""
        items: list[str] = []
        while len(items) < count:
            items.append(self.string(field))  # the careful way, which reads on or says what is wrong
            data, at = bytes(self.data[:MAX_HEADER]), self.at
            with suppress(UnicodeDecodeError):
                for _ in range(count - len(items)):
                    begin = at + 8
                    end = begin + int.from_bytes(data[at:begin], "little")
                    if end > len(data) or end - begin > MAX_STRING:
                        break
                    items.append(str(data[begin:end], "utf-8"))
                    at = end
            self.at = at
        return items

    def read(self) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
        if not self.size:
            raise self.fail("header", "the file is empty")
        self.magic()
        n_tensors, n_kv = self.u64("tensor count"), self.u64("metadata count")
        # The least a tensor entry and a metadata entry can take bounds what the file can hold.
        left = self.size - self.at
        for field, n, least, at in (("tensor count", n_tensors, 24, 8), ("metadata count", n_kv, 14, 16)):
            if n * least > left:
                raise self.fail(field, f"{n} entries cannot fit in the {left} bytes left", at)
            if n > MAX_ENTRIES:
                raise self.fail(field, f"{n} is over the limit of {MAX_ENTRIES}", at)
        metadata: dict[str, Any] = {}
        for i in range(n_kv):
            at = self.at
            key = self.string(f"metadata key {i}", MAX_NAME * 1024)
            if not key:
                raise self.fail(f"metadata key {i}", "is empty", at)
            if key in metadata:
                raise self.fail(key, "stands twice", at)
            kind = self.u32(f"{key} type")
            try:
                metadata[key] = value = self.value(key, kind)
            except MemoryError:
                raise self.fail(key, f"its {self.at - at:,} bytes take more memory than there is", at) from None
            if key == ALIGNMENT and (kind != UINT32 or value == 0 or value & (value - 1)):
                raise self.fail(key, "must be a uint32 and a power of two", at)
        return metadata, self.tensor_table(n_tensors, metadata.get(ALIGNMENT, 32))

    def magic(self) -> None:
        begin = self.need(4, "magic")
        magic = bytes(self.data[begin : begin + 4])
        if magic != MAGIC:
            if self.data[:8] == b"version ":
                raise self.fail("magic", "is a Git LFS pointer, not the file it points to", 0)
            raise self.fail("magic", f"is {magic!r}: not a GGUF file", 0)
        version = self.u32("version")
        if version in (0x02000000, 0x03000000):
            raise self.fail(
                "version", "is that of a big-endian file, which is not supported: convert it to little-endian", 4
            )
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
        if item not in (*SCALARS, STRING, ARRAY):
            raise self.fail(key, f"has unknown item type {item}", self.at - 12)
        self.items += n
        if self.items > MAX_ITEMS:
            why = f"{n} items, {self.items} with those of the arrays before, are over the limit of {MAX_ITEMS}"
            raise self.fail(key, why, self.at - 8)
        if item in SCALARS:
            return self.scalars(key, item, n)
        if n * (8 if item == STRING else 12) > self.size - self.at:
            raise self.fail(key, f"{n} items cannot fit in the {self.size - self.at} bytes left", self.at - 8)
        if item == STRING:
            return self.strings(key, n)
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
        if 0 in dims:
            raise self.fail(f"{name} shape", f"{dims} has no elements", at)
        code_at = self.at
        code = self.u32(f"{name} format")
        fmt = ggml_format(code)
        if fmt is None:
            known = ", ".join(FORMATS)
            raise self.fail(f"{name} format", f"{name_of_code(code)} is not supported (known: {known})", code_at)
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
