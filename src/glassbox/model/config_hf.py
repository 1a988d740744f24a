"""Reads a model's config.json, as transformers writes it. Comes in: the parsed JSON. Goes out: a `ModelSpec`.

A key that means what it means only to training, or to what stands around the forward pass, is named in SILENT; what is
not done here is in OFF with the value that says so; any other key is refused (fields.py).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from glassbox.errors import ModelFormatError, Unsupported
from glassbox.model.architectures import ARCHITECTURES, Architecture
from glassbox.model.config_rope import ropes
from glassbox.model.fields import EXPERTS, LAYERS, Fields, check_heads, check_sizes
from glassbox.model.spec import ModelSpec

ACTIVATIONS: Mapping[str, str] = {
    "silu": "silu", "swish": "silu", "gelu": "gelu_erf", "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu",
    "relu": "relu",
}  # fmt: skip
SILENT = frozenset({
    "_name_or_path", "_sliding_window_pattern", "activation_dropout", "architectures", "attention_dropout",
    "attention_softmax_in_fp32", "attn_pdrop", "auto_map", "bad_words_ids", "bias_dropout_fusion", "boi_token_id",
    "bos_token_id", "cache_implementation", "classifier_dropout", "dropout", "dtype", "embd_pdrop",
    "embedding_dropout", "eoi_token_id", "eos_token_id", "hidden_dropout", "hidden_dropout_prob", "id2label",
    "init_std", "initializer_range", "is_decoder", "is_llama_config", "label2id", "layerdrop", "masked_softmax_fusion",
    "max_window_layers", "model_max_length", "model_type", "n_ctx", "offset_alibi", "output_attentions",
    "output_hidden_states", "output_router_logits", "pad_token_id", "prefix", "pretraining_tp", "problem_type",
    "reorder_and_upcast_attn", "resid_pdrop", "residual_dropout", "return_dict", "router_aux_loss_coef",
    "router_jitter_noise", "seq_length", "skip_bias_add", "skip_bias_add_qkv", "slow_but_exact", "summary_activation",
    "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj", "task_specific_params",
    "tokenizer_class", "torch_dtype", "transformers.js_config", "transformers_version", "unk_token_id",
    "unsloth_fixed", "unsloth_version", "use_cache",
})  # fmt: skip
OFF: Mapping[str, Any] = {
    "_remove_final_layer_norm": False, "add_cross_attention": False, "apply_residual_connection_post_layernorm": False,
    "attention_bias": False, "attn_logit_softcapping": None, "clip_qkv": None, "decoder_sparse_step": 1,
    "do_layer_norm_before": True, "final_logit_softcapping": None, "full_attn_mod": 1, "interpolate_factor": 1,
    "is_encoder_decoder": False, "layer_norm_elementwise_affine": True, "lm_head_bias": False, "mlp_bias": False,
    "mlp_only_layers": [], "mlp_type": "default", "norm_type": "layer_norm", "pruned_heads": {}, "qk_layernorm": False,
    "rope_interleaved": False, "scale_attn_by_inverse_layer_idx": False, "scale_attn_weights": True,
    "use_bidirectional_attention": False, "use_mrope": False, "use_qk_norm": False, "use_sliding_window": False,
}  # fmt: skip
KEYS = {
    "heads": "num_attention_heads", "width": "hidden_size", "head_width": "head_dim", "kv_heads": "num_key_value_heads",
    "mlp_width": "intermediate_size",
    "experts_used": "num_experts_per_tok",
}  # fmt: skip


def spec_from_config(config: Mapping[str, Any]) -> ModelSpec:
    """Read and check the spec. Raises Unsupported or ModelFormatError."""
    name = config.get("model_type")
    if not isinstance(name, str):
        raise ModelFormatError("is missing, so this is no model", field="config.json model_type")
    row = ARCHITECTURES.get(name)
    if row is None:
        raise Unsupported("architecture", name, sorted(ARCHITECTURES))
    read = Fields(config, "config.json ")
    width = read.whole(("hidden_size", "n_embd", "n_embed"))
    heads = read.whole(("num_attention_heads", "n_head"))
    layers = read.whole(("num_hidden_layers", "n_layer", "num_layers"), most=LAYERS)
    head_width = _head_width(read, row, width, heads)
    check_heads(head_width, read, KEYS)
    context = read.whole(("max_position_embeddings", "n_positions"), row.context or None)
    rope, local_rope, context = ropes(read, row, head_width, context)
    no_rope = _no_rope(read, row, layers)
    window, local = _window(read, row, layers, no_rope)
    parallel = read.flag(row.parallel_key, row.parallel) if row.parallel_key else row.parallel
    spec = ModelSpec(
        architecture=name,
        layers=layers,
        width=width,
        heads=heads,
        kv_heads=read.whole("num_key_value_heads", heads if row.kv_default else None),
        head_width=head_width,
        mlp_width=_mlp_width(read, row, width),
        vocab=read.whole("vocab_size"),
        context=context,
        norm_eps=read.real(
            ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"), row.norm_eps or None
        ),
        activation=_activation(read, row),
        attn_scale=_attn_scale(read, row, head_width),
        rope=rope,
        local_rope=local_rope,
        no_rope=no_rope,
        qk_norm="heads" if row.qk_norm_key and read.flag(row.qk_norm_key) else row.qk_norm,
        parallel=parallel,
        shared_norm=parallel and row.shared_norm,
        embed_scale=_embed_scale(read, row, width),
        positions=0 if row.position_offset is None else context,
        position_offset=row.position_offset or 0,
        residual_scale=read.real("residual_multiplier", 1.0) if row.multipliers else 1.0,
        logit_scale=_logit_scale(read, row),
        attn_cap=0.0 if row.attn_cap is None else read.real_or_null("attn_logit_softcapping", row.attn_cap),
        logit_cap=0.0 if row.logit_cap is None else read.real_or_null("final_logit_softcapping", row.logit_cap),
        window=window,
        local=local,
        experts=read.whole(("num_local_experts", "num_experts"), most=EXPERTS) if row.experts else 0,
        experts_used=read.whole("num_experts_per_tok") if row.experts else 0,
        experts_normed=not row.expert_norm_key or read.flag(row.expert_norm_key),
        biases=_biases(read, row),
        tied=read.flag("tie_word_embeddings", row.tied),
        **row.facts(),
    )
    if read.whole("word_embed_proj_dim", width) != width:
        read.fail("word_embed_proj_dim", f"differs from the width of {width}, which is not supported")
    check_sizes(spec, read, KEYS)
    read.finish(OFF, SILENT)
    return spec


def _head_width(read: Fields, row: Architecture, width: int, heads: int) -> int:
    if not row.head_width and width % heads and read.get("head_dim") is None:
        read.fail("num_attention_heads", f"is {heads}, which does not divide the width of {width}")
    plain = row.head_width or width // heads
    return read.whole("head_dim", plain) if row.head_key else plain


def _mlp_width(read: Fields, row: Architecture, width: int) -> int:
    if row.expert_width_key:
        read.get("intermediate_size")  # of layers without experts, of which there are none
        return read.whole(row.expert_width_key)
    return read.whole(("intermediate_size", "n_inner", "ffn_dim"), row.mlp_times * width or None)


def _activation(read: Fields, row: Architecture) -> str:
    names = ("hidden_activation", "hidden_act", "activation_function")
    said = {ACTIVATIONS[read.word(key, ACTIVATIONS)] for key in names if read.get(key) is not None}
    if len(said) > 1:
        read.fail("hidden_act", "differs from hidden_activation")
    return said.pop() if said else row.activation


def _attn_scale(read: Fields, row: Architecture, head_width: int) -> float:
    if row.multipliers:
        return read.real("attention_multiplier", 1.0)
    return 1.0 / math.sqrt(read.real("query_pre_attn_scalar", row.query_scalar) if row.query_scalar else head_width)


def _embed_scale(read: Fields, row: Architecture, width: int) -> float:
    if row.multipliers:
        return read.real("embedding_multiplier", 1.0)
    return math.sqrt(width) if row.scaled_embedding else 1.0


def _logit_scale(read: Fields, row: Architecture) -> float:
    if row.multipliers:
        return 1.0 / read.real("logits_scaling", 1.0)
    return read.real("logit_scale", row.logit_scale) if row.logit_scale else 1.0


def _biases(read: Fields, row: Architecture) -> frozenset[str]:
    said = [matrix for key, (default, which) in row.bias_keys.items() if read.flag(key, default) for matrix in which]
    return frozenset([*row.biases, *said])


def _no_rope(read: Fields, row: Architecture, layers: int) -> frozenset[int]:
    if not row.no_rope_every:
        return frozenset()
    every = read.whole("no_rope_layer_interval", row.no_rope_every)
    has = read.several("no_rope_layers", layers, (int, bool))  # despite its name: 1 where there is one
    if has is not None:
        return frozenset(i for i, on in enumerate(has) if not on)
    return frozenset(range(every - 1, layers, every))


def _window(read: Fields, row: Architecture, layers: int, no_rope: frozenset[int]) -> tuple[int, frozenset[int]]:
    """The window, and the layers that have it."""
    if not row.window:
        return 0, frozenset()
    begin = read.whole("max_window_layers", 28, least=0) if row.window in ("from", "used") else 0
    pattern = 0
    if row.window == "sixth":
        pattern = read.whole(("sliding_window_pattern", "_sliding_window_pattern"), 6)
        read.get("_sliding_window_pattern")
    said = read.several("layer_types", layers, (str,)) if row.window not in ("all", "used") else None
    if row.window in ("from", "used", "no rope") and not read.flag("use_sliding_window"):
        if said is not None and set(said) != {"full_attention"}:
            read.fail("layer_types", "has windows, but use_sliding_window is false")
        read.whole_or_off("sliding_window")
        return 0, frozenset()
    width = _window_width(read, row, said is not None and "sliding_attention" in said)
    if not width:
        return 0, frozenset()
    if said is not None:
        if unknown := set(said) - {"full_attention", "sliding_attention"}:
            read.fail("layer_types", f"names {min(unknown)!r}, which is not supported")
        return width, frozenset(i for i, kind in enumerate(said) if kind == "sliding_attention")
    rule = WINDOWS[row.window]
    return width, frozenset(i for i in range(layers) if rule(i, begin, pattern, no_rope))


def _window_width(read: Fields, row: Architecture, needed: bool) -> int:
    """How wide it is; 0: there is none, which only null may say, and only where no layer needs one."""
    if "sliding_window" not in read.values:
        width = row.window_default
    else:
        width = 0 if read.get("sliding_window") is None else read.whole("sliding_window")
    if not width and (needed or row.window in ("alternate", "sixth")):
        read.fail("sliding_window", "is missing, but layers of this model have a window")
    return width


WINDOWS: Mapping[str, Callable[[int, int, int, frozenset[int]], bool]] = {
    "all": lambda i, begin, pattern, no_rope: True,
    "used": lambda i, begin, pattern, no_rope: True,  # if use_sliding_window says so
    "from": lambda i, begin, pattern, no_rope: i >= begin,
    "alternate": lambda i, begin, pattern, no_rope: i % 2 == 0,
    "sixth": lambda i, begin, pattern, no_rope: (i + 1) % pattern != 0,
    "no rope": lambda i, begin, pattern, no_rope: i in no_rope,
}
