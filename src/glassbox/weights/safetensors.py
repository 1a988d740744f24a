"""Reads the header of a safetensors file. Comes in: an open file. Goes out: where each tensor lies.

Files are hostile: every length and offset is a Python int, checked against the file before anything of that size is
made. The tensors must cover the data without hole or overlap, as the format demands. It reads no tensor.

Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
from typing import Any

from glassbox.errors import ModelFormatError
from glassbox.weights.checkpoint import OpenFile
from glassbox.weights.foreign import dtype_format
from glassbox.weights.header import MAX_ELEMENTS, TensorInfo, printable
from glassbox.weights.strict_json import parse_json

MAX_HEADER = 16 << 20  # about 120,000 tensors
MAX_DIMS = 8
KEYS = {"dtype", "shape", "data_offsets"}


def read_safetensors(file: OpenFile) -> tuple[dict[str, TensorInfo], dict[str, str]]:
    """The tensors by name, and the file's own notes. Raises ModelFormatError (with field and offset)."""
    try:
        header = _header(file)
        notes = header.pop("__metadata__", {})
        if type(notes) is not dict or not all(type(v) is str for v in notes.values()):
            raise ModelFormatError("must be an object of strings", field="__metadata__", offset=8)
        return _Entries(file, header).read(), notes
    except ModelFormatError as e:
        at = e.offset if e.offset is not None else 8
        raise ModelFormatError(e.why, field=printable(e.field), offset=at, path=str(file.path)) from None


def _header(file: OpenFile) -> dict[str, Any]:
    field, left = "header length", file.size - 8
    if left < 0:
        why = f"needs 8 bytes, but the file has {file.size}" if file.size else "the file is empty"
        raise ModelFormatError(why, field=field, offset=0)
    first = file.take(0, 8, field)
    if first == b"version ":
        raise ModelFormatError("is a Git LFS pointer, not the file it points to", field=field, offset=0)
    length = int.from_bytes(first, "little")
    if length > left:
        why = f"is {length}, but {left} bytes follow (truncated, or no safetensors file)"
        raise ModelFormatError(why, field=field, offset=0)
    if length > MAX_HEADER:
        raise ModelFormatError(f"is {length}, over the limit of {MAX_HEADER}", field=field, offset=0)
    data = file.take(8, length, "header")
    if not data.startswith(b"{"):
        raise ModelFormatError("is not JSON: it must begin with {", field="header", offset=8)
    header: dict[str, Any] = parse_json(data, "header", at=8)
    return header


class _Entries:
    """Checks the entries of a header one by one, then together."""

    def __init__(self, file: OpenFile, header: dict[str, Any]) -> None:
        self.file, self.header = file, header
        self.length = int.from_bytes(file.take(0, 8, "header length"), "little")
        self.begin = 8 + self.length
        self.size = file.size - self.begin  # bytes of data

    def fail(self, name: str, why: str, part: str = "") -> ModelFormatError:
        """An error that points at the tensor's entry."""
        at = self.file.take(8, self.length, "header").find(json.dumps(name).encode())
        return ModelFormatError(why, field=f"{name} {part}".strip(), offset=8 + max(at, 0))

    def read(self) -> dict[str, TensorInfo]:
        found = {name: self.entry(name, entry) for name, entry in self.header.items()}
        running = 0
        for t in sorted(found.values(), key=lambda t: (t.offset, t.nbytes)):
            at = t.offset - self.begin
            if at != running:
                what = "overlaps the tensor before it" if at < running else "leaves a hole before it"
                raise self.fail(t.name, f"begins at {at}, but {running} was expected: it {what}", "data_offsets")
            running += t.nbytes
        if running != self.size:
            why = f"{self.size - running} bytes after the last tensor belong to none"
            raise ModelFormatError(why, field="data", offset=self.begin + running)
        return found

    def entry(self, name: str, entry: Any) -> TensorInfo:
        if not _unicode(name):
            raise self.fail(name, "is not Unicode")
        if type(entry) is not dict or set(entry) != KEYS:
            raise self.fail(name, f"must be an object of {', '.join(sorted(KEYS))}")
        dtype, shape = entry["dtype"], entry["shape"]
        fmt = dtype_format(dtype) if type(dtype) is str else None
        if fmt is None:
            raise self.fail(name, f"is {dtype!r:.60}, which nobody here knows", "dtype")
        if type(shape) is not list or len(shape) > MAX_DIMS or not all(_whole(d) for d in shape):
            raise self.fail(name, f"must be a list of at most {MAX_DIMS} whole numbers", "shape")
        count = 1
        for d in shape:
            count *= d
            if count > MAX_ELEMENTS:
                raise self.fail(name, "has too many elements", "shape")
        begin, end = self.offsets(name, entry["data_offsets"])
        if count % fmt.elements or count // fmt.elements * fmt.bytes != end - begin:
            need = f"{count} elements of {fmt.name} are {count * fmt.bytes / fmt.elements:g} bytes"
            raise self.fail(name, f"{need}, but data_offsets span {end - begin}", "data_offsets")
        return TensorInfo(name, tuple(shape), fmt, self.begin + begin, end - begin)

    def offsets(self, name: str, given: Any) -> tuple[int, int]:
        if type(given) is not list or len(given) != 2 or not all(_whole(n) for n in given) or given[0] > given[1]:
            raise self.fail(name, "must be two whole numbers, begin and end", "data_offsets")
        if given[1] > self.size:
            why = f"end at byte {given[1]} of the data, but there are {self.size} (truncated?)"
            raise self.fail(name, why, "data_offsets")
        return given[0], given[1]


def _whole(n: Any) -> bool:
    return type(n) is int and 0 <= n <= MAX_ELEMENTS


def _unicode(name: str) -> bool:
    """Whether there is no half of a surrogate pair in it, which JSON's escapes can spell."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
