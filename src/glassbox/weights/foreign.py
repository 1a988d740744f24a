"""Formats that Glassbox can name and measure, but not decode: a file that holds them can be shown, and is refused by
name when it is loaded.

Rows as in quant.py. `layout` is empty: no kernel streams them.
"""

from __future__ import annotations

from glassbox.errors import Unsupported
from glassbox.types import F32, U8
from glassbox.weights.quant import FORMATS, OTHERS, Format, format_by_code


def _foreign(name: str, code: int, elements: int, nbytes: int) -> Format:
    def decode(_: U8) -> F32:
        raise Unsupported("tensor format", name, tuple(FORMATS))

    return Format(name, code, elements, nbytes, decode, "")


# of GGML's other types whose blocks are known: number, elements and bytes of a block (ggml.h, ggml-common.h)
_GGML = {
    code: _foreign(OTHERS[code], code, elements, nbytes)
    for code, elements, nbytes in (
        (16, 256, 66), (17, 256, 74), (18, 256, 98), (19, 256, 50), (21, 256, 110),
        (22, 256, 82), (24, 1, 1), (25, 1, 2), (26, 1, 4), (27, 1, 8), (28, 1, 8), (29, 256, 56), (34, 256, 54),
        (35, 256, 66), (40, 64, 36),
    )
}  # fmt: skip

DTYPES = ("F32", "F16", "BF16")  # of safetensors, that are decoded

# safetensors' other dtypes: elements and bytes
_SAFETENSORS = {
    name: _foreign(name, -1, elements, nbytes)
    for name, elements, nbytes in (
        ("BOOL", 1, 1), ("U8", 1, 1), ("I8", 1, 1), ("I16", 1, 2), ("U16", 1, 2), ("I32", 1, 4), ("U32", 1, 4),
        ("I64", 1, 8), ("U64", 1, 8), ("F64", 1, 8), ("C64", 1, 8), ("F8_E5M2", 1, 1), ("F8_E4M3", 1, 1),
        ("F8_E8M0", 1, 1), ("F8_E4M3FNUZ", 1, 1), ("F8_E5M2FNUZ", 1, 1), ("F6_E2M3", 4, 3), ("F6_E3M2", 4, 3),
        ("F4", 2, 1),
    )
}  # fmt: skip


def ggml_format(code: int) -> Format | None:
    """The format of a GGML type number, decoded here or not; None if nobody knows it."""
    return format_by_code(code) or _GGML.get(code)


def dtype_format(name: str) -> Format | None:
    """The format of a safetensors dtype, decoded here or not; None if nobody knows it."""
    return FORMATS[name] if name in DTYPES else _SAFETENSORS.get(name)
