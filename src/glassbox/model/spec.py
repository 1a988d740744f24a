"""What distinguishes one architecture from another, as data. One forward pass reads it; no class per architecture.

Comes in: a GGUF file's metadata. Goes out: a `ModelSpec`, every number checked. A key of the architecture that nobody
here reads is an error: it may change the model, and a model that is nearly right is worse than none.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from reprlib import repr as short
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.weights.header import printable


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Sizes and choices of one model. Widths are numbers of float32."""

    architecture: str
    layers: int
    width: int  # D, of the residual stream
    heads: int  # H
    kv_heads: int  # K
    head_width: int  # W
    mlp_width: int  # F
    vocab: int  # V
    context: int  # positions the model was made for
    norm_eps: float
    rope_base: float
    activation: str  # "silu" | "gelu"
    attn_scale: float
    embed_scale: float = 1.0
    qk_norm: bool = False  # norms over each query and key head
    post_norms: bool = False  # norms also after attention and after the MLP
    window: int = 0  # positions a local layer sees, itself included; 0: every layer sees all
    global_every: int = 0  # with a window: every n-th layer sees all
    local_rope_base: float = 0.0  # rotary base of local layers
    paired_rope: bool = False  # the file's Q and K rows stand in adjacent pairs, not in halves

    def window_of(self, layer: int) -> int:
        """How many positions a query of this layer sees; 0: all."""
        local = self.window and (not self.global_every or (layer + 1) % self.global_every)
        return self.window if local else 0

    @property
    def windows(self) -> tuple[int, ...]:
        """The different windows of this model's layers, those that see all first."""
        return tuple(sorted({self.window_of(i) for i in range(self.layers)}))

    def place_of(self, layer: int) -> tuple[int, int]:
        """(group of layers with the same window, which layer of that group): where its keys and values lie."""
        window = self.window_of(layer)
        return self.windows.index(window), sum(self.window_of(i) == window for i in range(layer))

    def rope_base_of(self, layer: int) -> float:
        return self.local_rope_base if self.window_of(layer) and self.local_rope_base else self.rope_base


@dataclass(frozen=True, slots=True)
class Architecture:
    """One row: which fields of the spec differ from the plain ones, given the width and head width."""

    activation: str = "silu"
    qk_norm: bool = False
    post_norms: bool = False
    scaled_embedding: bool = False  # the embedding is multiplied by √D
    global_every: int = 0  # not 0: its files may set a window
    local_rope_base: float = 0.0
    paired_rope: bool = False
    scale_by_width: int = 0  # the model of so many layers scales scores by 1/√(D/H), all others by 1/√W


ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(paired_rope=True),
    "gemma3": Architecture(
        activation="gelu", qk_norm=True, post_norms=True, scaled_embedding=True, global_every=6,
        local_rope_base=10000.0, scale_by_width=62,  # 62: Gemma 3 27B, as in llama.cpp's llama-model.cpp
    ),
}  # fmt: skip

# Keys that change nothing here, whatever they say: of training, or of a scaling that is refused where it is on.
SILENT = frozenset({
    "vocab_size", "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "mm.tokens_per_image",
})  # fmt: skip
# Keys of what is not done here, and the value that says it is off.
OFF: Mapping[str, Any] = {
    "attention.causal": True, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0, "embedding_scale": 1.0, "expert_count": 0, "expert_used_count": 0,
    "final_logit_softcapping": 0.0, "logit_scale": 1.0, "residual_scale": 1.0, "rope.scale_linear": 1.0,
    "rope.scaling.attn_factor": 1.0, "rope.scaling.factor": 1.0, "rope.scaling.type": "none",
    "use_parallel_residual": False,
}  # fmt: skip


def spec_from_gguf(metadata: Mapping[str, Any], vocab: int) -> ModelSpec:
    """Read and check the spec. `vocab`: rows of the embedding. Raises Unsupported or ModelFormatError."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelFormatError("is missing, so this is no model", field="general.architecture")
    row = ARCHITECTURES.get(name)
    if row is None:
        raise Unsupported("architecture", name, sorted(ARCHITECTURES))
    if vocab < 1:
        raise ModelFormatError("has no rows, so there is no vocabulary", field="token_embd.weight")
    read = _Fields(metadata, name)
    width, heads, layers = (read.whole(k) for k in ("embedding_length", "attention.head_count", "block_count"))
    head_width = read.whole("attention.key_length", width // heads)
    if head_width % 16 or not head_width:
        read.fail("attention.key_length", f"is {head_width}, but a multiple of 16 is needed")
    by_width = row.scale_by_width == layers
    window = read.whole("attention.sliding_window", 0, least=0)
    spec = ModelSpec(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=read.whole("attention.head_count_kv", heads),
        head_width=head_width,
        mlp_width=read.whole("feed_forward_length"),
        vocab=vocab,
        context=read.whole("context_length"),
        norm_eps=read.real("attention.layer_norm_rms_epsilon"),
        rope_base=read.real("rope.freq_base", 10000.0),
        activation=row.activation,
        attn_scale=read.real("attention.scale", 1.0 / math.sqrt(width / heads if by_width else head_width)),
        embed_scale=math.sqrt(width) if row.scaled_embedding else 1.0,
        qk_norm=row.qk_norm,
        post_norms=row.post_norms,
        paired_rope=row.paired_rope,
    )
    if row.global_every:
        spec = replace(
            spec,
            window=window,
            global_every=read.whole("attention.sliding_window_pattern", row.global_every),
            local_rope_base=read.real("rope.freq_base_swa", row.local_rope_base),
        )
    elif 0 < window < spec.context:
        read.fail("attention.sliding_window", f"is {window}, but layers of this architecture see every position")
    _check(spec, read)
    return spec


def _check(spec: ModelSpec, read: _Fields) -> None:
    if spec.heads % spec.kv_heads:
        read.fail("attention.head_count_kv", f"is {spec.kv_heads}, which does not divide {spec.heads} heads")
    if read.whole("attention.value_length", spec.head_width) != spec.head_width:
        read.fail("attention.value_length", "differs from the key length, which is not supported")
    if read.whole("rope.dimension_count", spec.head_width) != spec.head_width:
        read.fail("rope.dimension_count", "rotates a part of a head only, which is not supported for this architecture")
    for key, off in OFF.items():
        if read.get(key) not in (None, off):
            read.fail(key, f"is {short(read.get(key))}, which is not supported; only {off!r} is")
    for key in sorted(read.unread - SILENT):
        read.fail(key, "is set, which Glassbox does not know")


class _Fields:
    """Reads the metadata of one architecture; a field is there, of its type and in range, or an error names it."""

    def __init__(self, metadata: Mapping[str, Any], architecture: str) -> None:
        self.metadata, self.prefix = metadata, architecture
        mine = architecture + "."
        self.unread = {key.removeprefix(mine) for key in metadata if key.startswith(mine)}

    def fail(self, key: str, why: str) -> None:
        raise ModelFormatError(why, field=printable(f"{self.prefix}.{key}"))

    def get(self, key: str) -> Any:
        self.unread.discard(key)
        return self.metadata.get(f"{self.prefix}.{key}")

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        value = self.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return int(default or 0)
        if type(value) is not int or not least <= value <= 1 << 24:
            self.fail(key, f"is {short(value)}, but must be a whole number from {least} to {1 << 24}")
        return int(value)

    def real(self, key: str, default: float | None = None) -> float:
        value = self.get(key)
        if value is None:
            if default is None:
                self.fail(key, "is missing")
            return float(default or 0.0)
        if type(value) not in (int, float) or not 0 < value < 1e12:
            self.fail(key, f"is {short(value)}, but must be a positive number")
        return float(value)
