"""Makes tests/data/tiny.json and tiny.npz: logits of small random models, by transformers in float32 on the CPU.

usage: python tools/make_tiny.py [CASE ...]   (needs torch, transformers and safetensors, and tests/ on the path)
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
from tiny_weights import DATA, ids_of, weights

# Two shapes: heads that share keys and values; and few of everything, with a vocabulary that fills no tile.
A = dict(width=64, heads=4, kv=2, mlp=96, layers=2, vocab=128)
B = dict(width=48, heads=3, kv=1, mlp=80, layers=3, vocab=123)
IDS = dict(bos_token_id=1, eos_token_id=2, pad_token_id=0)
CONTEXT = 64


def standard(s: dict[str, int], **more: Any) -> dict[str, Any]:
    return dict(
        hidden_size=s["width"], intermediate_size=s["mlp"], num_hidden_layers=s["layers"],
        num_attention_heads=s["heads"], num_key_value_heads=s["kv"], vocab_size=s["vocab"],
        max_position_embeddings=CONTEXT, **IDS,
    ) | more  # fmt: skip


def multi(s: dict[str, int], **more: Any) -> dict[str, Any]:
    """Without shared keys and values."""
    out = standard(s, **more)
    del out["num_key_value_heads"]
    return out


def gpt2(s: dict[str, int], **more: Any) -> dict[str, Any]:
    return dict(
        n_embd=s["width"], n_layer=s["layers"], n_head=s["heads"], n_positions=CONTEXT, vocab_size=s["vocab"], **IDS
    ) | more  # fmt: skip


def bloom(s: dict[str, int], **more: Any) -> dict[str, Any]:
    return dict(hidden_size=s["width"], n_layer=s["layers"], n_head=s["heads"], vocab_size=s["vocab"], **IDS) | more


def opt(s: dict[str, int], **more: Any) -> dict[str, Any]:
    out = multi(s, ffn_dim=s["mlp"], word_embed_proj_dim=s["width"], **more)
    del out["intermediate_size"]
    return out


def rope(kind: str, **more: Any) -> dict[str, Any]:
    return dict(rope_parameters=dict(rope_type=kind, rope_theta=10000.0, **more))


STRETCHED = dict(factor=4.0, original_max_position_embeddings=16)
LLAMA3 = dict(**STRETCHED, low_freq_factor=1.0, high_freq_factor=4.0)
FACTORS = dict(short_factor=[1.0 + 0.1 * i for i in range(8)], long_factor=[2.0 + 0.5 * i for i in range(8)])
LONG = dict(max_position_embeddings=192, original_max_position_embeddings=48)
HYBRID = ["sliding_attention", "full_attention"]

# case: (model_type, config of shape A, config of shape B)
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("llama", standard(A), standard(B, attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "mistral": ("mistral", standard(A, sliding_window=16), standard(B, sliding_window=7, head_dim=32)),
    "qwen2": ("qwen2", standard(A), standard(B, use_sliding_window=True, sliding_window=9, max_window_layers=1)),
    "qwen3": ("qwen3", standard(A, head_dim=32), standard(B, head_dim=16, attention_bias=True)),
    "qwen3_moe": (
        "qwen3_moe", standard(A, num_experts=6, num_experts_per_tok=2, moe_intermediate_size=24, norm_topk_prob=True,
                              head_dim=16),
        standard(B, num_experts=4, num_experts_per_tok=3, moe_intermediate_size=40, norm_topk_prob=False, head_dim=32),
    ),
    "mixtral": (
        "mixtral", standard(A, num_local_experts=4, num_experts_per_tok=2),
        standard(B, num_local_experts=3, num_experts_per_tok=1, sliding_window=8),
    ),
    "gemma": ("gemma", standard(A, head_dim=32), standard(B, head_dim=16)),
    "gemma2": (
        "gemma2", standard(A, head_dim=32, sliding_window=16, query_pre_attn_scalar=24),
        standard(B, head_dim=16, sliding_window=8, query_pre_attn_scalar=16, attn_logit_softcapping=2.0,
                 final_logit_softcapping=1.5),
    ),
    "gemma3": (
        "gemma3_text", standard(A, head_dim=32, sliding_window=16, layer_types=HYBRID),
        standard(B, head_dim=16, sliding_window=8, sliding_window_pattern=2, final_logit_softcapping=2.0),
    ),
    "phi3": ("phi3", standard(A, sliding_window=16), standard(B, **rope("default", partial_rotary_factor=0.75))),
    "phi3-longrope": (
        "phi3", standard(A, **LONG, **rope("longrope", **FACTORS)),
        standard(B, **LONG, **rope("longrope", **FACTORS)),
    ),
    "olmo2": ("olmo2", standard(A), standard(B)),
    "smollm3": (
        "smollm3", standard(A, no_rope_layer_interval=2), standard(B, no_rope_layers=[0, 1, 1], attention_bias=True)
    ),
    "smollm3-fourth": ("smollm3", standard(A | dict(layers=4)), standard(B | dict(layers=5))),
    "granite": (
        "granite",
        standard(A, embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.2),
        standard(B, embedding_multiplier=2.0, logits_scaling=0.5, residual_multiplier=0.25, attention_multiplier=0.1,
                 attention_bias=True),
    ),
    "starcoder2": ("starcoder2", standard(A, sliding_window=16), standard(B, use_bias=False, sliding_window=None)),
    "stablelm": (
        "stablelm", standard(A, use_qkv_bias=True),
        standard(B, qk_layernorm=True, use_parallel_residual=True, **rope("default", partial_rotary_factor=0.5)),
    ),
    "gpt_neox": (
        "gpt_neox", multi(A),
        multi(B, use_parallel_residual=False, **rope("default", partial_rotary_factor=1.0)),
    ),
    "cohere": ("cohere", standard(A), standard(B, use_qk_norm=True, logit_scale=0.5)),
    "gpt2": ("gpt2", gpt2(A), gpt2(B, n_inner=72, activation_function="relu")),
    "opt": ("opt", opt(A), opt(B, activation_function="gelu")),
    "bloom": ("bloom", bloom(A), bloom(B)),
    "llama-linear": ("llama", standard(A, **rope("linear", factor=4.0)), standard(B, **rope("linear", factor=2.0))),
    "llama-dynamic": ("llama", standard(A, **rope("dynamic", factor=2.0)), standard(B, **rope("dynamic", factor=4.0))),
    "llama-llama3": ("llama", standard(A, **rope("llama3", **LLAMA3)), standard(B, **rope("llama3", **LLAMA3))),
    "llama-yarn": (
        "llama", standard(A, **rope("yarn", **STRETCHED)),
        standard(B, **rope("yarn", **STRETCHED, mscale=0.8, mscale_all_dim=0.5, truncate=False, beta_fast=4.0)),
    ),
    "llama-longrope": (
        "llama", standard(A, max_position_embeddings=192, **rope(
            "longrope", **FACTORS, original_max_position_embeddings=48)),
        standard(B, max_position_embeddings=192, **rope(
            "longrope", **FACTORS, factor=3.0, original_max_position_embeddings=64)),
    ),
    "gemma3-linear": (
        "gemma3_text",
        standard(A, head_dim=16, sliding_window=8, layer_types=HYBRID, rope_parameters={
            "full_attention": dict(rope_type="linear", rope_theta=1e5, factor=8.0),
            "sliding_attention": dict(rope_type="default", rope_theta=5000.0),
        }),
        standard(B, head_dim=16, sliding_window=8, layer_types=[*HYBRID, "sliding_attention"]),
    ),
}  # fmt: skip


def make(case: str, kind: str, values: dict[str, Any]) -> tuple[dict[str, Any], np.ndarray]:
    """({config, shapes}, logits [T, V])."""
    import torch
    from safetensors.numpy import load_file, save_file
    from transformers import AutoConfig, AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **values))
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        file = Path(folder) / "model.safetensors"
        shapes = {name: list(a.shape) for name, a in sorted(load_file(file).items())}
        save_file(weights(case, shapes, shifted=kind.startswith("gemma")), file, metadata={"format": "pt"})
        config = json.loads((Path(folder) / "config.json").read_text())
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(torch.tensor([ids_of(case, values["vocab_size"])])).logits[0].numpy()
    return {"config": config, "shapes": shapes}, logits


def every() -> dict[str, tuple[str, dict[str, Any]]]:
    """case with its shape: (model_type, config)."""
    return {f"{name}-{s}": (kind, c) for name, (kind, a, b) in CASES.items() for s, c in (("a", a), ("b", b))}


def main(wanted: list[str]) -> None:
    cases: dict[str, Any] = {}
    logits: dict[str, np.ndarray] = {}
    if wanted:
        cases = json.loads((DATA / "tiny.json").read_text())
        logits = dict(np.load(DATA / "tiny.npz"))
    for name, (kind, values) in every().items():
        if not wanted or any(name.startswith(w) for w in wanted):
            cases[name], logits[name] = make(name, kind, values)
            print(name, float(np.abs(logits[name]).max()))
    lines = [f"{json.dumps(name)}: {json.dumps(case, sort_keys=True)}" for name, case in sorted(cases.items())]
    (DATA / "tiny.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    np.savez_compressed(DATA / "tiny.npz", **logits)


if __name__ == "__main__":
    main(sys.argv[1:])
