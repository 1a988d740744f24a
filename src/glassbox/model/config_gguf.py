"""Reads a model's spec from a GGUF file's metadata, by llama.cpp's keys. Goes out: a `ModelSpec`, every number checked.

A key of the architecture that nobody here reads is refused (fields.py). Of biases the metadata says nothing: those that
the file has are the model's.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.model.architectures import GGUF, Architecture
from glassbox.model.fields import EXPERTS, LAYERS, Fields, check_heads, check_sizes
from glassbox.model.rope import yarn_gain
from glassbox.model.spec import ModelSpec, Rope

# Keys that change nothing here, whatever they say: of training, or of what is refused where it is on.
SILENT = frozenset({
    "vocab_size", "tensor_data_layout", "rope.scaling.original_context_length", "rope.scaling.finetuned",
    "mm.tokens_per_image",
})  # fmt: skip
# Keys of what is not done here, or not by every architecture, and the value that says it is off.
OFF: Mapping[str, Any] = {
    "attention.causal": True, "attention.clamp_kqv": 0.0, "attention.max_alibi_bias": 0.0,
    "attn_logit_softcapping": 0.0, "embedding_scale": 1.0, "expert_count": 0, "expert_used_count": 0,
    "expert_shared_count": 0, "final_logit_softcapping": 0.0, "logit_scale": 1.0, "residual_scale": 1.0,
    "rope.scale_linear": 1.0, "rope.scaling.attn_factor": 1.0, "rope.scaling.factor": 1.0,
    "rope.scaling.type": "none", "use_parallel_residual": False,
}  # fmt: skip
KEYS = {
    "heads": "attention.head_count", "width": "embedding_length", "head_width": "attention.key_length",
    "kv_heads": "attention.head_count_kv", "mlp_width": "feed_forward_length", "experts_used": "expert_used_count",
}  # fmt: skip
SCALINGS = ("none", "linear", "yarn", "longrope")
ROLES = {
    "attn_q": "q", "attn_k": "k", "attn_v": "v", "attn_output": "o", "ffn_gate": "gate", "ffn_up": "up",
    "ffn_down": "down",
}  # fmt: skip


def spec_from_gguf(metadata: Mapping[str, Any], vocab: int, tensors: Collection[str] = ()) -> ModelSpec:
    """Read and check the spec. `vocab`: rows of the embedding. Raises Unsupported or ModelFormatError."""
    name = metadata.get("general.architecture")
    if not isinstance(name, str):
        raise ModelFormatError("is missing, so this is no model", field="general.architecture")
    row = GGUF.get(name)
    if row is None:
        raise Unsupported("architecture", name, sorted(GGUF))
    if vocab < 1:
        raise ModelFormatError("has no rows, so there is no vocabulary", field="token_embd.weight")
    mine = name + "."
    read = Fields({k.removeprefix(mine): v for k, v in metadata.items() if k.startswith(mine)}, mine)
    width, heads = read.whole("embedding_length"), read.whole("attention.head_count")
    layers = read.whole("block_count", most=LAYERS)
    head_width = read.whole("attention.key_length", width // heads)
    context = read.whole("context_length")
    check_heads(head_width, read, KEYS)
    window, local = _window(read, row, layers, context)
    rope, context = _rope(read, row, head_width, context, "rope_factors_short.weight" in tensors)
    experts = _experts(read, row, name)
    parallel = _parallel(read, row, tensors)
    mlp_width = read.whole(("expert_feed_forward_length", "feed_forward_length") if experts else "feed_forward_length")
    if experts:
        read.get("feed_forward_length")
    spec = ModelSpec(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=read.whole("attention.head_count_kv", heads),
        head_width=head_width,
        mlp_width=mlp_width,
        vocab=vocab,
        context=context,
        norm_eps=read.real("attention.layer_norm_rms_epsilon" if row.norm == "rms" else "attention.layer_norm_epsilon"),
        activation=row.activation,
        attn_scale=_attn_scale(read, row, layers, width / heads, head_width),
        rope=rope,
        local_rope=Rope(read.real("rope.freq_base_swa", row.local_theta), head_width) if row.local_theta else None,
        no_rope=frozenset(range(row.no_rope_every - 1, layers, row.no_rope_every))
        if row.no_rope_every
        else frozenset(),
        qk_norm=row.qk_norm or ("heads" if "blk.0.attn_q_norm.weight" in tensors else ""),
        parallel=parallel,
        shared_norm=parallel and row.shared_norm,
        embed_scale=_embed_scale(read, row, width),
        positions=0 if row.position_offset is None else context,
        residual_scale=read.real("residual_scale", 1.0) if row.multipliers else 1.0,
        logit_scale=_logit_scale(read, row),
        attn_cap=0.0 if row.attn_cap is None else read.real_or_off("attn_logit_softcapping", row.attn_cap),
        logit_cap=0.0 if row.logit_cap is None else read.real_or_off("final_logit_softcapping", row.logit_cap),
        window=window,
        local=local,
        experts=experts,
        experts_used=read.whole("expert_used_count") if experts else 0,
        biases=_biases(tensors),
        tied="output.weight" not in tensors,
        paired_rope=row.gguf_paired,
        **row.facts(),
    )
    if read.whole("attention.value_length", head_width) != head_width:
        read.fail("attention.value_length", "differs from the key length, which is not supported")
    check_sizes(spec, read, KEYS)
    read.finish(OFF, SILENT)
    return spec


def _window(read: Fields, row: Architecture, layers: int, context: int) -> tuple[int, frozenset[int]]:
    window = read.whole_or_off("attention.sliding_window")
    if row.gguf_pattern:
        every = read.whole("attention.sliding_window_pattern", row.gguf_pattern)
        return window, frozenset(i for i in range(layers) if window and (i + 1) % every)
    if row.window == "all" and window:
        return window, frozenset(range(layers))
    if 0 < window < context:
        why = f"is {window}, but layers of this architecture see every position"
        read.fail("attention.sliding_window", why)
    return 0, frozenset()


def _rope(read: Fields, row: Architecture, head_width: int, context: int, divided: bool) -> tuple[Rope | None, int]:
    """The rope, and how many positions it is good for. divided: the file has longrope's tensors (see config.py), which
    need not be said otherwise."""
    if not row.rotary:
        return None, context
    base, width = read.real("rope.freq_base", 10000.0), read.whole("rope.dimension_count", head_width)
    if base <= 1:
        read.fail("rope.freq_base", f"is {base}, but must be over 1")
    if width % 2 or width > head_width or (row.gguf_paired and width != head_width):
        read.fail("rope.dimension_count", f"is {width}, which is not supported for heads of {head_width}")
    kind = read.word("rope.scaling.type", SCALINGS, "longrope" if divided else "none")
    original = read.whole("rope.scaling.original_context_length", context)
    gain = read.real("rope.scaling.attn_factor", 1.0) if kind in ("yarn", "longrope") else 1.0
    if kind == "linear":
        return Rope(base, width, kind, factor=read.real("rope.scaling.factor")), context
    if kind == "yarn":
        factor = read.real("rope.scaling.factor")
        fast, slow = read.real("rope.scaling.yarn_beta_fast", 32.0), read.real("rope.scaling.yarn_beta_slow", 1.0)
        gain *= yarn_gain(factor)
        return Rope(base, width, kind, factor=factor, original=original, fast=fast, slow=slow, gain=gain), context
    if kind == "longrope":  # the tensors for longer sequences are not used: see config_rope.py
        return Rope(base, width, gain=gain), min(context, original)
    return Rope(base, width), context


def _experts(read: Fields, row: Architecture, name: str) -> int:
    """llama.cpp's llama is also mixtral."""
    return read.whole("expert_count", 0, least=0, most=EXPERTS) if row.experts or name == "llama" else 0


def _attn_scale(read: Fields, row: Architecture, layers: int, plain_width: float, head_width: int) -> float:
    return read.real("attention.scale", 1.0 / math.sqrt(plain_width if row.scale_by_width == layers else head_width))


def _embed_scale(read: Fields, row: Architecture, width: int) -> float:
    if row.multipliers:
        return read.real("embedding_scale", 1.0)
    return math.sqrt(width) if row.scaled_embedding else 1.0


def _logit_scale(read: Fields, row: Architecture) -> float:
    if not row.multipliers and not row.logit_scale:
        return 1.0
    scale = read.real("logit_scale", 1.0)
    return 1.0 / scale if row.logits_divided else scale


def _parallel(read: Fields, row: Architecture, tensors: Collection[str]) -> bool:
    if row.gguf == "stablelm":  # as llama.cpp tells it: by what is not there
        read.get("use_parallel_residual")
        return "blk.0.ffn_norm.weight" not in tensors
    return read.flag("use_parallel_residual", True) if row.gguf == "gptneox" else row.parallel


def _biases(tensors: Collection[str]) -> frozenset[str]:
    found = {role for name, role in ROLES.items() if f"blk.0.{name}.bias" in tensors}
    if "blk.0.attn_qkv.bias" in tensors:
        found |= {"q", "k", "v"}
    return frozenset(found)
