"""One product and one decoder for each layout, and the two functions that choose among them by its number.

The compiler sees these apart from their callers (build.py): together it would optimise all of them again with each.
"""

from __future__ import annotations

from glassbox.model.kernels import formats as fm
from glassbox.model.kernels import matmul as mm
from glassbox.model.kernels.formats import kernel

one_f32, tile_f32 = mm.one_token(*fm.F32), mm.decode_tile(*fm.F32)
one_f16, tile_f16 = mm.one_token(*fm.F16), mm.decode_tile(*fm.F16)
one_q4_1, tile_q4_1 = mm.one_token(*fm.Q4_1), mm.decode_tile(*fm.Q4_1)
one_q5_0, tile_q5_0 = mm.one_token(*fm.Q5_0), mm.decode_tile(*fm.Q5_0)
one_q8_0, tile_q8_0 = mm.one_token(*fm.Q8_0), mm.decode_tile(*fm.Q8_0)
one_q4_k, tile_q4_k = mm.one_token(*fm.Q4_K), mm.decode_tile(*fm.Q4_K)
one_q6_k, tile_q6_k = mm.one_token(*fm.Q6_K), mm.decode_tile(*fm.Q6_K)
one_bf16, tile_bf16 = mm.one_token(*fm.BF16), mm.decode_tile(*fm.BF16)
one_q4_0, tile_q4_0 = mm.one_token(*fm.Q4_0), mm.decode_tile(*fm.Q4_0)
one_q5_1, tile_q5_1 = mm.one_token(*fm.Q5_1), mm.decode_tile(*fm.Q5_1)
one_q2_k, tile_q2_k = mm.one_token(*fm.Q2_K), mm.decode_tile(*fm.Q2_K)
one_q3_k, tile_q3_k = mm.one_token(*fm.Q3_K), mm.decode_tile(*fm.Q3_K)
one_q5_k, tile_q5_k = mm.one_token(*fm.Q5_K), mm.decode_tile(*fm.Q5_K)
one_iq4_nl, tile_iq4_nl = mm.one_token(*fm.IQ4_NL), mm.decode_tile(*fm.IQ4_NL)
one_iq4_xs, tile_iq4_xs = mm.one_token(*fm.IQ4_XS), mm.decode_tile(*fm.IQ4_XS)
one_mxfp4, tile_mxfp4 = mm.one_token(*fm.MXFP4), mm.decode_tile(*fm.MXFP4)


@kernel
def product_one(layout, w, x, out, columns, tile, end):
    """out = w · x for one token, tiles `tile` … `end`."""
    if layout == 0:
        one_f32(w, x, out, columns, tile, end)
    elif layout == 1:
        one_f16(w, x, out, columns, tile, end)
    elif layout == 2:
        one_q4_1(w, x, out, columns, tile, end)
    elif layout == 3:
        one_q5_0(w, x, out, columns, tile, end)
    elif layout == 4:
        one_q8_0(w, x, out, columns, tile, end)
    elif layout == 5:
        one_q4_k(w, x, out, columns, tile, end)
    elif layout == 6:
        one_q6_k(w, x, out, columns, tile, end)
    elif layout == 7:
        one_bf16(w, x, out, columns, tile, end)
    elif layout == 8:
        one_q4_0(w, x, out, columns, tile, end)
    elif layout == 9:
        one_q5_1(w, x, out, columns, tile, end)
    elif layout == 10:
        one_q2_k(w, x, out, columns, tile, end)
    elif layout == 11:
        one_q3_k(w, x, out, columns, tile, end)
    elif layout == 12:
        one_q5_k(w, x, out, columns, tile, end)
    elif layout == 13:
        one_iq4_nl(w, x, out, columns, tile, end)
    elif layout == 14:
        one_iq4_xs(w, x, out, columns, tile, end)
    elif layout == 15:
        one_mxfp4(w, x, out, columns, tile, end)


@kernel
def decode_rows(layout, w, to, columns, tile):
    """Tile `tile` as float32 [8, columns] at `to`, rows mm.row_stride apart."""
    if layout == 0:
        tile_f32(w, to, columns, tile)
    elif layout == 1:
        tile_f16(w, to, columns, tile)
    elif layout == 2:
        tile_q4_1(w, to, columns, tile)
    elif layout == 3:
        tile_q5_0(w, to, columns, tile)
    elif layout == 4:
        tile_q8_0(w, to, columns, tile)
    elif layout == 5:
        tile_q4_k(w, to, columns, tile)
    elif layout == 6:
        tile_q6_k(w, to, columns, tile)
    elif layout == 7:
        tile_bf16(w, to, columns, tile)
    elif layout == 8:
        tile_q4_0(w, to, columns, tile)
    elif layout == 9:
        tile_q5_1(w, to, columns, tile)
    elif layout == 10:
        tile_q2_k(w, to, columns, tile)
    elif layout == 11:
        tile_q3_k(w, to, columns, tile)
    elif layout == 12:
        tile_q5_k(w, to, columns, tile)
    elif layout == 13:
        tile_iq4_nl(w, to, columns, tile)
    elif layout == 14:
        tile_iq4_xs(w, to, columns, tile)
    elif layout == 15:
        tile_mxfp4(w, to, columns, tile)
