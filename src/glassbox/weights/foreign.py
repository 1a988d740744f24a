"""Formats that Glassbox can name and measure, but not decode: a file that holds them can be shown, and is refused by
name when it is loaded.

Rows as in quant.py. `layout` is empty: no kernel streams them.
"""

from __future__ import annotations

from collections.abc import Mapping

from glassbox.errors import Unsupported
from glassbox.types import F32, U8
from glassbox.weights.quant import FORMATS, Format, format_by_code


def _foreign(name: str, code: int, elements: int, nbytes: int) -> Format:
    def decode(_: U8) -> F32:
        raise Unsupported("tensor format", name, tuple(FORMATS))

    return Format(name, code, elements, nbytes, decode, "")


# GGML's other types: number, elements and bytes of a block (ggml.h, ggml-common.h)
_GGML = {
    f.code: f
    for f in (
        _foreign(name, code, elements, nbytes)
        for name, code, elements, nbytes in (
            ("Q8_1", 9, 32, 36), ("Q8_K", 15, 256, 292), ("IQ2_XXS", 16, 256, 66), ("IQ2_XS", 17, 256, 74),
            ("IQ3_XXS", 18, 256, 98), ("IQ1_S", 19, 256, 50), ("IQ3_S", 21, 256, 110), ("IQ2_S", 22, 256, 82),
            ("I8", 24, 1, 1), ("I16", 25, 1, 2), ("I32", 26, 1, 4), ("I64", 27, 1, 8), ("F64", 28, 1, 8),
            ("IQ1_M", 29, 256, 56), ("BF16", 30, 1, 2), ("TQ1_0", 34, 256, 54), ("TQ2_0", 35, 256, 66),
            ("NVFP4", 40, 64, 36),
        )
    )
}  # fmt: skip
# Numbers that once were types, and what they were: their blocks are no longer described.
GONE: Mapping[int, str] = {
    4: "Q4_2", 5: "Q4_3", 31: "Q4_0_4_4", 32: "Q4_0_4_8", 33: "Q4_0_8_8", 36: "IQ4_NL_4_4", 37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}  # fmt: skip

_SAFETENSORS = {
    name: _foreign(name, -1, elements, nbytes)
    for name, elements, nbytes in (
        ("BOOL", 1, 1), ("U8", 1, 1), ("I8", 1, 1), ("I16", 1, 2), ("U16", 1, 2), ("I32", 1, 4), ("U32", 1, 4),
        ("I64", 1, 8), ("U64", 1, 8), ("F64", 1, 8), ("C64", 1, 8), ("F8_E5M2", 1, 1), ("F8_E4M3", 1, 1),
        ("F8_E8M0", 1, 1), ("F8_E4M3FNUZ", 1, 1), ("F8_E5M2FNUZ", 1, 1), ("F6_E2M3", 4, 3), ("F6_E3M2", 4, 3),
        ("F4", 2, 1), ("BF16", 1, 2),
    )
}  # fmt: skip


def ggml_format(code: int) -> Format | None:
    """The format of a GGML type number, decoded here or not; None if nobody knows it."""
    return format_by_code(code) or _GGML.get(code)


def dtype_format(name: str) -> Format | None:
    """The format of a safetensors dtype, decoded here or not; None if nobody knows it."""
    return FORMATS[name] if name in ("F32", "F16", "BF16") and name in FORMATS else _SAFETENSORS.get(name)
