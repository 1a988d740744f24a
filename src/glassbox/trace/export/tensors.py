"""A safetensors file, as https://huggingface.co/docs/safetensors describes it: a length, a JSON header, the values."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from glassbox.errors import ParameterError

# Header's name of a type, by numpy's.
DTYPES = {
    "float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8",
    "uint64": "U64", "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL",
}  # fmt: skip


def safetensors_bytes(tensors: Mapping[str, np.ndarray[Any, Any]], metadata: Mapping[str, str] | None = None) -> bytes:
    """The file's bytes, little-endian, in the order of names. Raises ParameterError for a type it cannot hold."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    parts: list[bytes] = []
    end = 0
    for name, value in sorted(tensors.items()):
        if value.dtype.name not in DTYPES or name == "__metadata__":
            raise ParameterError("tensors", f"{name} ({value.dtype})", f"of a type among {', '.join(DTYPES)}")
        parts.append(np.ascontiguousarray(value.astype(value.dtype.newbyteorder("<"), copy=False)).tobytes())
        begin, end = end, end + len(parts[-1])
        header[name] = {"dtype": DTYPES[value.dtype.name], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % 8)  # values begin at a multiple of 8
    return struct.pack("<Q", len(text)) + text + b"".join(parts)
