"""A small model of tiny_weights.py as a GGUF file, as llama.cpp's converter would write it.

Names of tensors and metadata are the public `gguf` package's; what the converter does to rows is done here again.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from tiny_weights import Memory

ARCH = {
    "llama": "llama", "mixtral": "llama", "qwen2": "qwen2", "qwen3": "qwen3", "qwen3_moe": "qwen3moe", "gemma": "gemma",
    "gemma2": "gemma2", "gemma3_text": "gemma3", "phi3": "phi3", "gpt2": "gpt2", "olmo2": "olmo2", "granite": "granite",
    "starcoder2": "starcoder2", "stablelm": "stablelm", "gpt_neox": "gptneox", "cohere": "command-r", "bloom": "bloom",
    "smollm3": "smollm3",
}  # fmt: skip
PAIRED = ("llama", "granite", "smollm3")


def first(config: dict[str, Any], *keys: str) -> Any:
    return next((config[k] for k in keys if config.get(k) is not None), None)


def rounded(file: Memory, kind: gguf.GGMLQuantizationType) -> Memory:
    """The same model with its matrices as they are once they have been through a format."""
    arrays = {
        name: gguf.quants.dequantize(gguf.quants.quantize(a, kind), kind) if blocks(name, a, kind) else a
        for name, a in file.arrays.items()
    }
    return Memory(file.config, arrays)


def blocks(name: str, values: np.ndarray, kind: gguf.GGMLQuantizationType) -> bool:
    return values.ndim > 1 and "norm" not in name and values.shape[-1] % gguf.GGML_QUANT_SIZES[kind][0] == 0


def write(path: Path, file: Memory, kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32) -> Path:
    """kind: format of the matrices."""
    c = file.config
    arch = ARCH[c["model_type"]]
    w = gguf.GGUFWriter(path, arch)
    heads = first(c, "num_attention_heads", "n_head")
    layers = first(c, "num_hidden_layers", "n_layer")
    _sizes(w, c, heads, layers)
    _rope(w, c, arch, heads)
    _extras(w, c, arch)
    names = gguf.get_tensor_name_map(next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == arch), layers)
    for name, values in _converted(file, arch, heads):
        to = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert to is not None, name
        values = np.ascontiguousarray(values, np.float32)
        if blocks(name, values, kind):
            w.add_tensor(to, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            w.add_tensor(to, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _sizes(w: gguf.GGUFWriter, c: dict[str, Any], heads: int, layers: int) -> None:
    width = first(c, "hidden_size", "n_embd")
    w.add_context_length(first(c, "max_position_embeddings", "n_positions") or 2048)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(first(c, "intermediate_size", "n_inner") or 4 * width)
    w.add_head_count(heads)
    w.add_head_count_kv(c.get("num_key_value_heads") or heads)
    if c.get("head_dim"):
        w.add_key_length(c["head_dim"])
        w.add_value_length(c["head_dim"])
    if "rms_norm_eps" in c:
        w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    else:
        w.add_layer_norm_eps(first(c, "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"))
    if experts := first(c, "num_local_experts", "num_experts"):
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if c.get("moe_intermediate_size"):
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])


def _rope(w: gguf.GGUFWriter, c: dict[str, Any], arch: str, heads: int) -> None:
    rope = c.get("rope_parameters")
    if not rope:
        return
    if "full_attention" in rope:
        w.add_key_value(
            "gemma3.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"], gguf.GGUFValueType.FLOAT32
        )
        rope = rope["full_attention"]
    w.add_rope_freq_base(rope["rope_theta"])
    head = c.get("head_dim") or c["hidden_size"] // heads
    turned = int(head * rope.get("partial_rotary_factor", 1.0))
    if arch in ("llama", "phi3", "stablelm", "gptneox", "granite", "smollm3"):
        w.add_rope_dimension_count(turned)
    kind = rope["rope_type"]
    if arch == "command-r":
        w.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    elif kind in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(kind))
        w.add_rope_scaling_factor(rope["factor"])
        if kind == "yarn":
            w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    elif kind == "llama3":
        w.add_tensor("rope_freqs.weight", _llama3(rope, head))
    elif kind == "longrope":
        original = c["original_max_position_embeddings"]
        w.add_rope_scaling_orig_ctx_len(original)
        stretch = c["max_position_embeddings"] / original
        w.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(stretch) / math.log(original)))
        for which in ("long", "short"):
            w.add_tensor(f"rope_factors_{which}.weight", np.array(rope[f"{which}_factor"], np.float32))


def _llama3(rope: dict[str, Any], head: int) -> np.ndarray:
    out = []
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]
    for i in range(0, head, 2):
        turns = rope["original_max_position_embeddings"] / (2 * math.pi * rope["rope_theta"] ** (i / head))
        smooth = (turns - low) / (high - low)
        out.append(factor if turns < low else 1.0 if turns > high else 1 / ((1 - smooth) / factor + smooth))
    return np.array(out, np.float32)


def _extras(w: gguf.GGUFWriter, c: dict[str, Any], arch: str) -> None:
    if arch in ("gemma2", "gemma3", "phi3") and c.get("sliding_window"):
        w.add_sliding_window(c["sliding_window"])
    if arch == "gemma3":
        w.add_key_value("gemma3.attention.sliding_window_pattern", 2, gguf.GGUFValueType.UINT32)
    if arch in ("gemma2", "gemma3"):
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
        for key, put in (
            ("attn_logit_softcapping", w.add_attn_logit_softcapping),
            ("final_logit_softcapping", w.add_final_logit_softcapping),
        ):
            if c.get(key):
                put(c[key])
    if arch == "granite":
        w.add_attention_scale(c["attention_multiplier"])
        w.add_embedding_scale(c["embedding_multiplier"])
        w.add_residual_scale(c["residual_multiplier"])
        w.add_logit_scale(c["logits_scaling"])
    if arch == "command-r":
        w.add_logit_scale(c["logit_scale"])
    if arch in ("gptneox", "stablelm"):
        w.add_parallel_residual(c["use_parallel_residual"])


def _converted(file: Memory, arch: str, heads: int) -> list[tuple[str, np.ndarray]]:
    """The tensors under the names the converter looks up, their rows as it puts them."""
    stacked: dict[str, list[np.ndarray]] = {}
    out = []
    for name in sorted(file.arrays, key=lambda name: [int(s) if s.isdigit() else s for s in re.split(r"(\d+)", name)]):
        values = file.arrays[name]
        each = re.fullmatch(r"(.*)\.(?:experts|norms)\.\d+\.?(.*)\.weight", name)
        if each:
            kind = "experts." + each[2] if each[2] else ""
            stacked.setdefault(f"{each[1]}.{kind}".rstrip(".") + ".weight", []).append(values)
            continue
        if name == "lm_head.weight" and arch in ("gemma", "gemma2", "gemma3", "command-r"):
            continue
        to = name.removeprefix("transformer.") if arch == "bloom" else name
        out.append((to, _rows(name, values, file, arch, heads)))
    for name, each_values in stacked.items():
        if "block_sparse_moe" in name:  # LlamaModel looks its experts up by another name
            layer, which = re.findall(r"layers\.(\d+)\..*experts\.(w\d)", name)[0]
            name = f"layers.{layer}.feed_forward.experts.{which}.weight"
        out.append((name, np.stack(each_values)))
    return out


def _rows(name: str, values: np.ndarray, file: Memory, arch: str, heads: int) -> np.ndarray:
    kv = file.config.get("num_key_value_heads") or heads
    if arch in PAIRED and re.search(r"\.[qk]_proj\.", name):
        n = heads if ".q_proj." in name else kv
        return values.reshape(n, 2, values.shape[0] // n // 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
    if arch.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1)
    if arch == "gpt2" and re.search(r"\.c_\w+\.weight$", name):
        return values.T
    if "query_key_value" in name:
        parts = values.reshape(heads, 3, -1, *values.shape[1:])
        return np.concatenate([parts[:, i].reshape(-1, *values.shape[1:]) for i in range(3)])
    return values
