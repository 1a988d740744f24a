"""The weights of a model, packed for the kernels. Comes in: an open file and its spec. Goes out: `Weights`.

Every tensor of the file must find its place and every place its tensor. What they are called is in names.py, how they
are read in tensors.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from glassbox.errors import ModelFormatError
from glassbox.model.architectures import ARCHITECTURES
from glassbox.model.arena import Arena
from glassbox.model.kernels.program import Experts, Matrix
from glassbox.model.names import FUSED, Names, names_of
from glassbox.model.rope import slopes
from glassbox.model.spec import ModelSpec
from glassbox.model.tensors import Headers, ModelFile, Reader
from glassbox.model.threads import Team
from glassbox.types import F32


@dataclass(frozen=True, slots=True)
class Norm:
    """Addresses of float32; bias is 0 where there is none."""

    weight: int
    bias: int = 0


@dataclass(frozen=True, slots=True)
class Linear:
    """A packed matrix, and the address of what is added to its product, or 0."""

    matrix: Matrix
    bias: int = 0


@dataclass(frozen=True, slots=True)
class Routed:
    """A layer's experts, and the matrix whose product tells which of them a token takes."""

    router: Matrix  # [E, D]
    gate: Experts  # [F, D] each
    up: Experts
    down: Experts  # [D, F] each


@dataclass(frozen=True, slots=True)
class Layer:
    """One block. What a model has not is None."""

    attn_norm: Norm | None
    q: Linear  # [H·W, D]
    k: Linear  # [K·W, D]
    v: Linear  # [K·W, D]
    o: Linear  # [D, H·W]
    q_norm: Norm | None  # [W], [H, W] or [H·W]
    k_norm: Norm | None
    attn_post_norm: Norm | None
    mlp_norm: Norm | None
    gate: Linear | None  # [F, D]
    up: Linear | None  # [F, D]
    down: Linear | None  # [D, F]
    routed: Routed | None
    mlp_post_norm: Norm | None


@dataclass(frozen=True, slots=True)
class Weights:
    embedding: Matrix  # [V, D]
    positions: Matrix | None
    embed_norm: Norm | None
    layers: tuple[Layer, ...]
    final_norm: Norm
    head: Matrix  # [V, D]; the embedding itself where it is tied
    slopes: int  # address of ALiBi's, a float32 a head, or 0
    nbytes: int
    arena: Arena  # keeps the addresses alive
    kept: tuple[F32, ...]


def load_weights(file: ModelFile, spec: ModelSpec, team: Team) -> Weights:
    """Pack every tensor. Raises ModelFormatError naming a tensor that is missing, misshapen or unknown."""
    names = _names(file, spec)
    weights = _read(Reader(file, team), spec, names)
    head, embedding = names.roles["head"] + ".weight", names.roles["embed"] + ".weight"
    if spec.tied and head in file.tensors and not np.array_equal(file.raw(head), file.raw(embedding)):
        raise ModelFormatError("is not the embedding, but the file says that it is", field=head)
    return weights


def check_weights(file: ModelFile, spec: ModelSpec) -> None:
    """Raise what load_weights would of names, shapes and formats, without reading any weights."""
    _read(Headers(file), spec, _names(file, spec))


def _names(file: ModelFile, spec: ModelSpec) -> Names:
    names = names_of(spec, file.tensors, hf=hasattr(file, "config"))
    table = file.tensors.get(names.roles["embed"] + ".weight")
    if table is not None and len(table.shape) != 2:
        why = f"has shape {list(table.shape)}, but a row of {spec.width} numbers for each token is needed"
        raise ModelFormatError(why, field=table.name)
    return names


def _read(tensors: Reader, spec: ModelSpec, names: Names) -> Weights:
    shifted = hasattr(tensors.file, "config") and ARCHITECTURES[spec.architecture].norms_shifted
    read = _Roles(tensors, spec, names, shifted=shifted)
    embedding = read.table("embed", spec.vocab)
    positions = read.table("positions", spec.positions + spec.position_offset) if spec.positions else None
    layers = tuple(_layer(read, spec, i) for i in range(spec.layers))
    final_norm = read.norm("final_norm", 0, spec.width)
    head = embedding if spec.tied else read.table("head", spec.vocab)
    embed_norm = read.norm("embed_norm", 0, spec.width) if spec.embed_norm else None
    tensors.pack_queued()
    _check_unused(tensors.file, spec, names, tensors.seen)
    falls = slopes(spec.heads if spec.alibi else 1)
    return Weights(
        embedding, positions, embed_norm, layers, final_norm, head, falls.ctypes.data if spec.alibi else 0,
        tensors.nbytes, tensors.arena, (falls,),
    )  # fmt: skip


def _check_unused(file: ModelFile, spec: ModelSpec, names: Names, seen: set[str]) -> None:
    if spec.tied:  # some files have it twice
        seen = seen | {names.roles["head"] + ".weight"}
    left = sorted(name for name in set(file.tensors) - seen if not names.ignored.search(name))
    if left:
        raise ModelFormatError(
            f"is not part of the {spec.architecture} architecture as Glassbox knows it", field=left[0]
        )


def _layer(read: _Roles, spec: ModelSpec, i: int) -> Layer:
    d, w, f = spec.width, spec.head_width, spec.mlp_width
    q_norm, k_norm = (spec.heads * w, spec.kv_heads * w) if spec.qk_norm == "row" else (w, w)
    own = spec.qk_norm == "heads"
    return Layer(
        attn_norm=read.norm("attn_norm", i, d) if spec.pre_norms else None,
        q=read.linear("q", i, spec.heads * w, d),
        k=read.linear("k", i, spec.kv_heads * w, d),
        v=read.linear("v", i, spec.kv_heads * w, d),
        o=read.linear("o", i, d, spec.heads * w),
        q_norm=read.norm("q_norm", i, q_norm, bias=False, heads=spec.heads if own else 0) if spec.qk_norm else None,
        k_norm=read.norm("k_norm", i, k_norm, bias=False, heads=spec.kv_heads if own else 0) if spec.qk_norm else None,
        attn_post_norm=read.norm("attn_post_norm", i, d) if spec.post_norms else None,
        mlp_norm=read.norm("mlp_norm", i, d) if spec.pre_norms and not spec.shared_norm else None,
        gate=read.linear("gate", i, f, d) if spec.gated and not spec.experts else None,
        up=None if spec.experts else read.linear("up", i, f, d),
        down=None if spec.experts else read.linear("down", i, d, f),
        routed=_routed(read, spec, i) if spec.experts else None,
        mlp_post_norm=read.norm("mlp_post_norm", i, d) if spec.post_norms else None,
    )


def _routed(read: _Roles, spec: ModelSpec, i: int) -> Routed:
    d, f = spec.width, spec.mlp_width
    return Routed(
        router=read.linear("router", i, spec.experts, d).matrix,
        gate=read.experts("gate", i, f, d),
        up=read.experts("up", i, f, d),
        down=read.experts("down", i, d, f),
    )


class _Roles:
    """Reads what a role needs, wherever the file has it."""

    def __init__(self, tensors: Reader, spec: ModelSpec, names: Names, *, shifted: bool) -> None:
        """shifted: norms' weights are stored less 1."""
        self.tensors, self.spec, self.names, self.shifted = tensors, spec, names, shifted

    def table(self, role: str, rows: int) -> Matrix:
        return self.tensors.matrix(self.names.roles[role] + ".weight", rows, self.spec.width)

    def norm(self, role: str, layer: int, n: int, *, bias: bool = True, heads: int = 0) -> Norm:
        """heads: each has n weights of its own."""
        name = self.names.roles[role]
        if heads and name.count("{}") == 2:
            each = [self.tensors.values(name.format(layer, h) + ".weight", n) for h in range(heads)]
            values: F32 = np.concatenate(each)
        else:
            values = self.tensors.values(name.format(layer) + ".weight", n * max(heads, 1), per=n if heads else 0)
        kept = self.tensors.keep(values + np.float32(1) if self.shifted else values)
        if not (bias and self.spec.norm_bias):
            return Norm(kept)
        return Norm(kept, self.tensors.keep(self.tensors.values(name.format(layer) + ".bias", n)))

    def linear(self, role: str, layer: int, rows: int, columns: int) -> Linear:
        name = (self.names.of(role) or "").format(layer)
        take, of = self.names.rows(role, self.spec), self._rows_of(role)
        read = self.tensors.transposed if self.names.transposed else self.tensors.matrix
        matrix = read(name + ".weight", rows, columns, take, of=of)
        if role not in self.spec.biases:
            return Linear(matrix)
        return Linear(matrix, self.tensors.keep(self.tensors.values(name + ".bias", rows, take, of=of)))

    def _rows_of(self, role: str) -> int:
        """How many rows the tensor has that holds this role's; 0: just those."""
        s = self.spec
        if role in self.names.roles:
            return 0
        return {"qkv": (s.heads + 2 * s.kv_heads) * s.head_width, "gate_up": 2 * s.mlp_width}.get(
            FUSED.get(role, ""), 0
        )

    def experts(self, role: str, layer: int, rows: int, columns: int) -> Experts:
        name, count = self.names.roles[role], self.spec.experts
        if name.count("{}") == 1:
            each = self.tensors.slices(name.format(layer) + ".weight", count, rows, columns)
        else:
            each = [self.tensors.matrix(name.format(layer, e) + ".weight", rows, columns) for e in range(count)]
        if len({m.layout for m in each}) > 1:
            raise ModelFormatError("differ in format from expert to expert", field=name.format(layer, "*"))
        return Experts(each[0], each[1].address - each[0].address if count > 1 else 0)
