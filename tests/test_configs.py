"""Configs as they were published with well-known models: every key is known, and the spec is what the model is."""

from __future__ import annotations

from typing import Any

import pytest

from glassbox.errors import ModelFormatError
from glassbox.model.config_hf import spec_from_config
from glassbox.model.spec import Rope

AROUND = {
    "architectures": ["X"], "bos_token_id": 1, "eos_token_id": [2, 3], "initializer_range": 0.02, "use_cache": True,
    "torch_dtype": "bfloat16", "transformers_version": "4.44.0", "_name_or_path": "/tmp/x",
}  # fmt: skip


def sizes(width: int, heads: int, kv: int, layers: int, mlp: int, vocab: int, context: int) -> dict[str, Any]:
    return AROUND | {
        "hidden_size": width, "num_attention_heads": heads, "num_key_value_heads": kv, "num_hidden_layers": layers,
        "intermediate_size": mlp, "vocab_size": vocab, "max_position_embeddings": context,
    }  # fmt: skip


LLAMA3 = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
# name: (config, what the spec must say)
PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama 3.2 1b": (
        sizes(2048, 32, 8, 16, 8192, 128256, 131072) | {
            "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "head_dim": 64,
            "hidden_act": "silu", "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_scaling": LLAMA3, "rope_theta": 500000.0, "tie_word_embeddings": True,
        },
        dict(head_width=64, tied=True, biases=frozenset(), attn_scale=0.125,
             rope=Rope(500000.0, 64, "llama3", factor=32.0, original=8192, low=1.0, high=4.0)),
    ),
    "smollm2": (
        sizes(576, 9, 3, 30, 1536, 49152, 8192) | {
            "model_type": "llama", "attention_bias": False, "attention_dropout": 0.0, "hidden_act": "silu",
            "is_llama_config": True, "mlp_bias": False, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
            "rope_interleaved": False, "rope_scaling": None, "rope_theta": 100000, "tie_word_embeddings": True,
            "transformers.js_config": {"kv_cache_dtype": {}},
        },
        dict(head_width=64, rope=Rope(100000.0, 64), local=frozenset()),
    ),
    "mistral 7b v0.1": (
        sizes(4096, 32, 8, 32, 14336, 32000, 32768) | {
            "model_type": "mistral", "hidden_act": "silu", "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
            "sliding_window": 4096, "tie_word_embeddings": False,
        },
        dict(window=4096, local=frozenset(range(32)), tied=False),
    ),
    "qwen2.5 0.5b": (
        sizes(896, 14, 2, 24, 4864, 151936, 32768) | {
            "model_type": "qwen2", "attention_dropout": 0.0, "hidden_act": "silu", "max_window_layers": 24,
            "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": True,
            "use_mrope": False, "use_sliding_window": False,
        },
        dict(biases=frozenset({"q", "k", "v"}), local=frozenset(), rope=Rope(1e6, 64)),
    ),
    "qwen3 0.6b": (
        sizes(1024, 16, 8, 28, 3072, 151936, 40960) | {
            "model_type": "qwen3", "attention_bias": False, "attention_dropout": 0.0, "head_dim": 128,
            "hidden_act": "silu", "max_window_layers": 28, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 1000000, "sliding_window": None, "tie_word_embeddings": True, "use_sliding_window": False,
        },
        dict(head_width=128, qk_norm="head", local=frozenset()),
    ),
    "gemma 2 2b": (
        sizes(2304, 8, 4, 26, 9216, 256000, 8192) | {
            "model_type": "gemma2", "attention_bias": False, "attention_dropout": 0.0, "attn_logit_softcapping": 50.0,
            "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "head_dim": 256,
            "hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0,
            "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
        },
        dict(tied=True, window=4096, local=frozenset(range(0, 26, 2)), attn_cap=50.0, logit_cap=30.0, embed_scale=48.0),
    ),
    "gemma 3 1b": (
        sizes(1152, 4, 1, 26, 6912, 262144, 32768) | {
            "model_type": "gemma3_text", "attention_bias": False, "attention_dropout": 0.0,
            "attn_logit_softcapping": None, "cache_implementation": "hybrid", "final_logit_softcapping": None,
            "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "query_pre_attn_scalar": 256,
            "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": None, "rope_theta": 1000000,
            "sliding_window": 512, "sliding_window_pattern": 6,
        },
        dict(window=512, local=frozenset(range(26)) - {5, 11, 17, 23}, rope=Rope(1e6, 256), local_rope=Rope(1e4, 256)),
    ),
    "phi 3 mini 128k": (
        sizes(3072, 32, 32, 32, 8192, 32064, 131072) | {
            "model_type": "phi3", "attention_bias": False, "attention_dropout": 0.0, "auto_map": {"AutoConfig": "x"},
            "embd_pdrop": 0.0, "hidden_act": "silu", "original_max_position_embeddings": 4096, "pad_token_id": 32000,
            "resid_pdrop": 0.0, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 262144,
            "tie_word_embeddings": False,
            "rope_scaling": {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [2.0] * 48},
        },
        dict(context=4096, head_width=96, rope=Rope(1e4, 96, divisors=(1.0,) * 48, gain=(1 + 5 / 12) ** 0.5)),
    ),
    "pythia 70m": (
        AROUND | {
            "model_type": "gpt_neox", "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048,
            "layer_norm_eps": 1e-05, "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 6,
            "rotary_emb_base": 10000, "rotary_pct": 0.25, "tie_word_embeddings": False, "use_parallel_residual": True,
            "vocab_size": 50304,
        },
        dict(parallel=True, rope=Rope(1e4, 16), activation="gelu_erf", kv_heads=8,
             biases=frozenset({"q", "k", "v", "o", "up", "down"})),
    ),
    "gpt2": (
        AROUND | {
            "model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1, "embd_pdrop": 0.1,
            "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024,
            "resid_pdrop": 0.1, "summary_activation": None, "summary_first_dropout": 0.1,
            "summary_proj_to_labels": True, "summary_type": "cls_index", "summary_use_proj": True,
            "task_specific_params": {"text-generation": {"max_length": 50}}, "vocab_size": 50257,
        },
        dict(tied=True, mlp_width=3072, positions=1024, rope=None, activation="gelu"),
    ),
    "opt 125m": (
        AROUND | {
            "model_type": "opt", "_remove_final_layer_norm": False, "activation_dropout": 0.0,
            "activation_function": "relu", "attention_dropout": 0.0, "do_layer_norm_before": True, "dropout": 0.1,
            "ffn_dim": 3072, "hidden_size": 768, "init_std": 0.02, "layerdrop": 0.0, "max_position_embeddings": 2048,
            "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1, "prefix": "</s>",
            "vocab_size": 50272, "word_embed_proj_dim": 768,
        },
        dict(norm_eps=1e-5, positions=2048, position_offset=2, tied=True),
    ),
    "bloom 560m": (
        AROUND | {
            "model_type": "bloom", "apply_residual_connection_post_layernorm": False, "attention_dropout": 0.0,
            "attention_softmax_in_fp32": True, "bias_dropout_fusion": True, "hidden_dropout": 0.0,
            "layer_norm_epsilon": 1e-05, "masked_softmax_fusion": True, "n_embed": 1024, "n_inner": None, "n_layer": 24,
            "num_attention_heads": 16, "offset_alibi": 100, "pad_token_id": 3, "pretraining_tp": 1,
            "skip_bias_add": True, "skip_bias_add_qkv": False, "unk_token_id": 0, "vocab_size": 250880,
        },
        dict(alibi=True, embed_norm=True, mlp_width=4096, tied=True),
    ),
    "qwen3 30b a3b": (
        sizes(2048, 32, 4, 48, 6144, 151936, 40960) | {
            "model_type": "qwen3_moe", "attention_bias": False, "attention_dropout": 0.0, "decoder_sparse_step": 1,
            "head_dim": 128, "hidden_act": "silu", "max_window_layers": 48, "mlp_only_layers": [],
            "moe_intermediate_size": 768, "norm_topk_prob": True, "num_experts": 128, "num_experts_per_tok": 8,
            "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None, "rope_theta": 1000000.0,
            "router_aux_loss_coef": 0.001, "sliding_window": None, "tie_word_embeddings": False,
            "use_sliding_window": False,
        },
        dict(experts=128, experts_used=8, experts_normed=True, mlp_width=768),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_are_read(name: str) -> None:
    config, right = PUBLISHED[name]
    spec = spec_from_config(config)
    assert {key: getattr(spec, key) for key in right} == right


@pytest.mark.parametrize("name", PUBLISHED)
def test_one_more_key_is_refused(name: str) -> None:
    with pytest.raises(ModelFormatError, match=r"config\.json attention_sinks: is set, which Glassbox does not know"):
        spec_from_config(PUBLISHED[name][0] | {"attention_sinks": 4})


# --- what transformers 5.24 ignores or fails at, so that no right answer is known ---

GPT_NEOX, GEMMA2, GEMMA3, MISTRAL = (
    PUBLISHED[n][0] for n in ("pythia 70m", "gemma 2 2b", "gemma 3 1b", "mistral 7b v0.1")
)
NO_PARTIAL = [n for n in PUBLISHED if PUBLISHED[n][0]["model_type"] not in ("phi3", "gpt_neox", "gpt2", "opt", "bloom")]


@pytest.mark.parametrize("key", ["partial_rotary_factor", "rotary_pct"])
@pytest.mark.parametrize("name", NO_PARTIAL)
def test_a_part_of_a_head_is_refused_where_the_code_rotates_all(name: str, key: str) -> None:
    config = PUBLISHED[name][0]
    assert spec_from_config(config | {key: 1.0}) == spec_from_config(config)
    with pytest.raises(ModelFormatError, match=rf"config\.json {key}: is 0\.5, but this architecture does not read it"):
        spec_from_config(config | {key: 0.5})
    with pytest.raises(ModelFormatError, match=f"{key}: is True, but must be a positive number"):
        spec_from_config(config | {key: True})


@pytest.mark.parametrize("name", NO_PARTIAL)
def test_so_it_is_inside_rope_parameters(name: str) -> None:
    config = {key: value for key, value in PUBLISHED[name][0].items() if key != "rope_scaling"}
    nested = config["model_type"] == "gemma3_text"
    for kind in ("full_attention", "sliding_attention") if nested else ("",):
        for part in (1.0, 0.5):
            rope: dict[str, Any] = {"rope_type": "default", "partial_rotary_factor": part}
            changed = config | {"rope_parameters": {kind: rope} if nested else rope}
            if part == 1.0:
                assert spec_from_config(changed) == spec_from_config(config)
            else:
                with pytest.raises(
                    ModelFormatError, match=r"partial_rotary_factor: is 0\.5, but this architecture rot"
                ):
                    spec_from_config(changed)


def test_each_architecture_has_its_own_spelling() -> None:
    assert spec_from_config(GPT_NEOX | {"rotary_pct": 0.5}).rope == Rope(1e4, 32)
    for key, same, other in (("partial_rotary_factor", 0.25, 0.5), ("rope_theta", 10000, 500.0)):
        assert spec_from_config(GPT_NEOX | {key: same}) == spec_from_config(GPT_NEOX)
        with pytest.raises(ModelFormatError, match=f"{key}: is {other}, but this architecture does not read it"):
            spec_from_config(GPT_NEOX | {key: other})
    with pytest.raises(ModelFormatError, match=r"rotary_emb_base: is 500\.0, but this architecture does not read it"):
        spec_from_config(MISTRAL | {"rotary_emb_base": 500})


@pytest.mark.parametrize(
    "old", [{"type": "linear", "factor": 4.0}, LLAMA3 | {"factor": 8.0}, {"rope_type": "default"}], ids=str
)
def test_two_spellings_must_agree(old: dict[str, Any]) -> None:
    config = PUBLISHED["llama 3.2 1b"][0]
    both = config | {"rope_parameters": LLAMA3 | {"rope_theta": 500000.0}}
    assert spec_from_config(both) == spec_from_config(config)
    with pytest.raises(ModelFormatError, match=r"config\.json rope_scaling: differs from rope_parameters"):
        spec_from_config(both | {"rope_scaling": old})
    with pytest.raises(ModelFormatError, match=r"config\.json rope_scaling: differs from rope_parameters"):
        spec_from_config(GEMMA3 | {"rope_parameters": {"full_attention": LLAMA3}, "rope_scaling": old})


def test_of_two_original_lengths_the_one_beside_the_sizes_counts() -> None:  # as in transformers
    config = PUBLISHED["llama 3.2 1b"][0]
    rope = spec_from_config(config | {"original_max_position_embeddings": 4096}).rope
    assert rope is not None and rope.original == 4096 and LLAMA3["original_max_position_embeddings"] == 8192


def test_caps_are_positive_or_null_and_only_where_they_are() -> None:
    for config, key in (
        (GEMMA2, "attn_logit_softcapping"),
        (GEMMA2, "final_logit_softcapping"),
        (GEMMA3, "final_logit_softcapping"),
    ):
        for zero in (0.0, 0):
            with pytest.raises(ModelFormatError, match=f"{key}: is {zero}, but must be a positive number"):
                spec_from_config(config | {key: zero})
    assert spec_from_config(GEMMA3 | {"final_logit_softcapping": 30.0}).logit_cap == 30.0
    for value in (50.0, 0.0):
        with pytest.raises(ModelFormatError, match=f"attn_logit_softcapping: is {value}, which is not supported"):
            spec_from_config(GEMMA3 | {"attn_logit_softcapping": value})


def test_windows_are_none_only_where_they_may_be() -> None:
    phi3 = PUBLISHED["phi 3 mini 128k"][0]
    mixtral = MISTRAL | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}
    for config in (GEMMA2, GEMMA3, MISTRAL, mixtral, phi3):
        with pytest.raises(ModelFormatError, match="sliding_window: is 0, but must be a whole number from 1"):
            spec_from_config(config | {"sliding_window": 0})
    for config in (MISTRAL, mixtral, phi3):
        assert not spec_from_config(config | {"sliding_window": None}).local
    qwen = PUBLISHED["qwen3 0.6b"][0]
    windowed = qwen | {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 28}
    for config in (GEMMA2 | {"sliding_window": None}, GEMMA3 | {"sliding_window": None}, windowed):
        with pytest.raises(
            ModelFormatError, match="sliding_window: is missing, but layers of this model have a window"
        ):
            spec_from_config(config)
    assert not spec_from_config(qwen | {"sliding_window": 0}).local, "it is not used"
    with pytest.raises(ModelFormatError, match="sliding_window: is 'x', but must be a whole number"):
        spec_from_config(qwen | {"sliding_window": "x"})
