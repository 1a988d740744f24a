"""Packing: compiled and plain agree byte for byte, lose nothing, and take no more room than the file."""

from __future__ import annotations

import numpy as np
import pytest

from glassbox.model.kernels.build import load
from glassbox.model.kernels.pack import LAYOUTS, pack, packed_size
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.threads import Team, run_program
from glassbox.weights.quant import FORMATS


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(("rows", "columns"), [(8, 256), (40, 768)])
def test_compiled_packing_is_the_plain_one(name: str, rows: int, columns: int) -> None:
    fmt = FORMATS[name]
    raw = np.random.default_rng(5).integers(0, 256, rows * columns // fmt.elements * fmt.bytes, dtype=np.uint8)
    layout = LAYOUTS[fmt.layout]
    size = packed_size(layout, rows, columns)
    assert size <= raw.size, "larger than in the file"
    plain, compiled = np.zeros(size, np.uint8), np.zeros(size, np.uint8)
    pack(layout, raw, rows, columns, plain)
    program = Program()
    matrix = Matrix(compiled.ctypes.data, layout.number, rows, columns)
    program.pack(matrix, raw.ctypes.data, raw.size // rows)
    run_program(Team(load(), 2), program)
    assert np.array_equal(plain, compiled)


@pytest.mark.parametrize("name", FORMATS)
def test_packing_loses_nothing(name: str) -> None:
    """Every bit of a row lies somewhere in its lane: flipping any of them changes the packed bytes."""
    fmt = FORMATS[name]
    layout, columns = LAYOUTS[fmt.layout], max(256, fmt.elements)
    raw = np.zeros(8 * columns // fmt.elements * fmt.bytes, np.uint8)
    packed = np.zeros(packed_size(layout, 8, columns), np.uint8)
    pack(layout, raw, 8, columns, packed)
    seen = {packed.tobytes()}
    for bit in range(8 * fmt.bytes):
        changed = raw.copy()
        changed[bit // 8] ^= 1 << bit % 8
        pack(layout, changed, 8, columns, packed)
        seen.add(packed.tobytes())
    assert len(seen) == 8 * fmt.bytes + 1
