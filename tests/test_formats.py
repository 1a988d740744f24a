"""Products over packed codes, for every format, against decode-then-multiply; and small models of them."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import random_gguf
import reference_forward
from format_blocks import FILLS, blocks, reference

from glassbox.model.kernels import program as pr
from glassbox.model.kernels.build import load
from glassbox.model.kernels.pack import LAYOUTS, pack, packed_size
from glassbox.model.kernels.program import Matrix, Program
from glassbox.model.model import TransformerModel, forward
from glassbox.model.threads import Job, Team, claim_counters
from glassbox.types import F32, U8
from glassbox.weights.gguf import read_gguf
from glassbox.weights.quant import FORMATS, Format

ROWS, COLUMNS = 24, 512
every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda f: f.name)


class Packed:
    """A matrix of `raw` blocks, [ROWS, columns], in the kernels' layout."""

    def __init__(self, fmt: Format, raw: U8, rows: int = ROWS) -> None:
        self.rows, self.columns = rows, raw.size // fmt.bytes * fmt.elements // rows
        layout = LAYOUTS[fmt.layout]
        self.bytes = np.zeros(packed_size(layout, rows, self.columns), np.uint8)
        pack(layout, raw.reshape(-1), rows, self.columns, self.bytes)
        self.matrix = Matrix(self.bytes.ctypes.data, layout.number, rows, self.columns)
        self.team = Team(load(), 1)

    def _run(self, program: Program, buffers: list[F32], tokens: int) -> None:
        code, counters, ids = program.array(), claim_counters(1, 1), np.arange(tokens)
        addresses = np.array([b.ctypes.data for b in buffers])
        strides = np.array([b.strides[0] for b in buffers])
        scratch = np.zeros(8 * (self.columns + 16) + 64 * tokens, np.float32)
        header = np.zeros(pr.HEADER, np.int64)
        header[[
            pr.PROGRAM, pr.LENGTH, pr.BUFFERS, pr.STRIDES, pr.TOKENS, pr.IDS, pr.CLAIMS, pr.DONE, pr.SCRATCH,
            pr.SCRATCH_STRIDE,
        ]] = [
            code.ctypes.data, 1, addresses.ctypes.data, strides.ctypes.data, tokens, ids.ctypes.data,
            counters.ctypes.data, counters[-1:].ctypes.data, scratch.ctypes.data, scratch.nbytes,
        ]  # fmt: skip
        self.team.run(Job(header, (code, counters, ids, addresses, strides, scratch)))

    def times(self, x: F32) -> F32:
        """[T, columns] -> [T, rows]: by the kernel for one token if T is 1, else by the one for many."""
        program = Program()
        a, b = program.buffer(self.columns), program.buffer(self.rows)
        program.matmul(b, a, self.matrix)
        buffers = [np.zeros((len(x), w), np.float32) for w in program.widths]
        buffers[a][:, : self.columns] = x
        self._run(program, buffers, len(x))
        return buffers[b][:, : self.rows]

    def decoded(self) -> F32:
        """The rows as the embedding takes them: [rows, columns]."""
        program = Program()
        a = program.buffer(self.columns)
        program.embed(a, self.matrix)
        out = np.zeros((self.rows, program.widths[a]), np.float32)
        self._run(program, [out], self.rows)
        return out[:, : self.columns]


def matrix_of(fmt: Format, fill: str) -> tuple[Packed, F32]:
    """A packed matrix with the edges of a format, and its weights as the reference decodes them."""
    raw = blocks(fmt, fill, ROWS * COLUMNS // fmt.elements)
    if fmt.name == "MXFP4":
        raw[:, 0] %= 253  # above, weights are infinite, and a sum with them is no number
    return Packed(fmt, raw), reference(fmt, raw).reshape(ROWS, COLUMNS)


@every_format
def test_a_product_is_decode_then_multiply(fmt: Format) -> None:
    rng = np.random.default_rng(1)
    raw = blocks(fmt, "random", ROWS * COLUMNS // fmt.elements)
    if fmt.name == "MXFP4":
        raw[:, 0] = rng.integers(120, 130, len(raw))
    packed, w = Packed(fmt, raw), reference(fmt, raw).reshape(ROWS, COLUMNS).astype(np.float64)
    x = rng.standard_normal((7, COLUMNS)).astype(np.float32)
    many = packed.times(x)
    assert (np.abs(many - x @ w.T) <= 1e-6 * (np.abs(x) @ np.abs(w).T)).all()
    for n in (1, 2, 3, 5):  # each count of tokens goes through other kernels
        assert packed.times(x[:n]).tobytes() == many[:n].tobytes(), f"{n} tokens"


@pytest.mark.parametrize("fill", FILLS)
@every_format
def test_a_single_column_is_the_reference_exactly(fmt: Format, fill: str) -> None:
    """With one 1 among zeros a product is one weight, whole, in the kernel for one token and in that for many."""
    packed, w = matrix_of(fmt, fill)
    assert np.array_equal(packed.decoded(), w)
    one_hot = np.eye(COLUMNS, dtype=np.float32)
    assert np.array_equal(packed.times(one_hot), w.T)
    assert all(np.array_equal(packed.times(one_hot[c : c + 1])[0], w[:, c]) for c in range(COLUMNS))


@every_format
def test_any_bytes_at_all_decode_as_in_the_reference(fmt: Format) -> None:
    """Where a scale is infinite, both have no finite number there; else the same, infinities and NaNs included."""
    raw = np.random.default_rng(2).integers(0, 256, (400 * 256 // fmt.elements, fmt.bytes), np.uint8)
    ours, theirs = Packed(fmt, raw, 400).decoded(), reference(fmt, raw).reshape(400, 256)
    usable = np.isfinite(theirs)
    assert not usable.all()
    assert np.array_equal(ours[usable], theirs[usable])
    assert not np.isfinite(ours[~usable]).any()


def test_mxfp4_at_its_largest() -> None:
    """Shared exponents whose larger codes overflow: the smaller ones are weights all the same."""
    fmt, rng = FORMATS["MXFP4"], np.random.default_rng(3)
    codes = rng.choice([0, 1, 8, 9], (2, 8 * 32, 16))
    raw = np.concatenate([rng.integers(253, 256, (8 * 32, 1)), codes[0] | codes[1] << 4], 1).astype(np.uint8)
    packed, w = Packed(fmt, raw, 8), reference(fmt, raw).reshape(8, -1)
    assert np.isfinite(w).all() and np.abs(w).max() == 2.0**127
    one_hot = np.eye(packed.columns, dtype=np.float32)
    assert np.array_equal(packed.times(one_hot), w.T)
    assert np.array_equal(packed.times(one_hot[5:6])[0], w[:, 5])


@pytest.mark.parametrize("names", [[name] for name in FORMATS] + [list(FORMATS)], ids=[*FORMATS, "all"])
def test_a_whole_model(names: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against the textbook's pass in float64: in float32 that one is as far from the truth as ours is."""
    kinds = [gguf.GGMLQuantizationType[name] for name in names]
    file = read_gguf(random_gguf.write(tmp_path / "m.gguf", "llama", "wide", kinds, tied=False))
    assert {t.format.name for t in file.tensors.values() if len(t.shape) == 2} == set(names)
    ids = [int(i) for i in np.random.default_rng(3).integers(0, random_gguf.VOCAB, 19)]
    decoded = reference_forward.tensor
    monkeypatch.setattr(reference_forward, "tensor", lambda *which: decoded(*which).astype(np.float64))
    monkeypatch.setattr(reference_forward, "F", np.float64)
    right = reference_forward.forward(file, ids)["logits"]
    assert right.dtype == np.float64
    model = TransformerModel(file, threads=2)
    logits = {}
    for chunk in (1, 64):
        cache = model.new_cache()
        logits[chunk], _ = forward(model, ids, cache, rows="all", chunk=chunk)
        cache.release()
    assert logits[1].tobytes() == logits[64].tobytes()
    assert np.abs(logits[64] - right).max() < 2e-5 * np.abs(right).max()


@pytest.mark.parametrize("values", [range(16), [255, 0] * 8, np.random.default_rng(4).integers(0, 256, 16).tolist()])
def test_looking_up_is_the_same_without_an_instruction_for_it(values: list[int]) -> None:
    from numba import njit

    from glassbox.model.kernels.simd import load8i, store8
    from glassbox.model.kernels.words import bits8, look_up

    by_instruction, plain = look_up(list(values)), look_up(list(values), plain=True)

    @njit
    def both(p, to):  # type: ignore[no-untyped-def]
        store8(to, bits8(by_instruction(load8i(p))))
        store8(to + 32, bits8(plain(load8i(p))))

    codes, out = np.random.default_rng(5).integers(0, 16, 32).astype(np.uint8), np.zeros((2, 32), np.uint8)
    both(codes.ctypes.data, out.ctypes.data)
    assert np.array_equal(out, np.array(values, np.uint8)[codes][None].repeat(2, 0))
