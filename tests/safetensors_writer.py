"""Builds safetensors files byte by byte, sound or faulty, and folders that hold them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

DTYPES = {"float32": "F32", "float16": "F16", "int64": "I64", "bool": "BOOL", "uint16": "BF16"}


def entry(dtype: str, shape: list[int], begin: int, end: int) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


def build(header: Any, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A file. `header`: an object, or the bytes that stand in its place; `length`: what the file says of it."""
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def tensors(arrays: Mapping[str, np.ndarray[Any, Any]], notes: dict[str, str] | None = None) -> bytes:
    """A sound file. uint16 stands for bfloat16, which numpy lacks."""
    header: dict[str, Any] = {} if notes is None else {"__metadata__": notes}
    data = b""
    for name, a in arrays.items():
        header[name] = entry(DTYPES[a.dtype.name], list(a.shape), len(data), len(data) + a.nbytes)
        data += a.tobytes()
    return build(header, data)


def folder(path: Path, files: Mapping[str, Any]) -> Path:
    """A folder of files: bytes as they are, objects as JSON."""
    path.mkdir(exist_ok=True)
    for name, what in files.items():
        (path / name).write_bytes(what if isinstance(what, bytes) else json.dumps(what).encode())
    return path
