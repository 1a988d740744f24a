"""Builds GGUF files byte by byte, sound or faulty: every count, length and offset can be made to lie.

The public writer is an oracle for sound files; it cannot be made to write the others.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

UINT8, INT32, UINT32, BOOL, STRING, ARRAY = 0, 5, 4, 7, 8, 9
F32, F16, Q8_0 = 0, 1, 8


def u32(n: int) -> bytes:
    return struct.pack("<I", n)


def u64(n: int) -> bytes:
    return struct.pack("<Q", n)


def text(s: str | bytes, *, length: int | None = None) -> bytes:
    raw = s.encode() if isinstance(s, str) else s
    return u64(len(raw) if length is None else length) + raw


def kv(key: str | bytes, kind: int, value: bytes) -> bytes:
    return text(key) + u32(kind) + value


def array(item: int, *items: bytes, count: int | None = None) -> bytes:
    return u32(item) + u64(len(items) if count is None else count) + b"".join(items)


def tensor(
    name: str | bytes, dims: Sequence[int], code: int = F32, offset: int = 0, *, n_dims: int | None = None
) -> bytes:
    """One entry of the tensor table; `dims` as the file has them, columns first."""
    n = u32(len(dims) if n_dims is None else n_dims)
    return text(name) + n + b"".join(map(u64, dims)) + u32(code) + u64(offset)


def build(
    kvs: Sequence[bytes] = (),
    tensors: Sequence[bytes] = (),
    data: bytes | None = None,
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_kv: int | None = None,
    n_tensors: int | None = None,
    align: int = 32,
) -> bytes:
    """A whole file. `data` begins at the next multiple of `align`; None: the file ends with its tables."""
    head = magic + u32(version)
    head += u64(len(tensors) if n_tensors is None else n_tensors) + u64(len(kvs) if n_kv is None else n_kv)
    head += b"".join(kvs) + b"".join(tensors)
    return head if data is None else head + bytes(-len(head) % align) + data
