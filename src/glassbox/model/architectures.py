"""The architectures, one row each: what their files leave unsaid. Adding one is a row, its names (names.py), a test.

Keyed by `model_type` of config.json; `gguf` is llama.cpp's name where it has one. What a file may say is read by
config_hf.py and config_gguf.py; defaults are those of the code that made the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

QKV, QKVO = ("q", "k", "v"), ("q", "k", "v", "o")
MLP, TWO = ("gate", "up", "down"), ("up", "down")


@dataclass(frozen=True, slots=True)
class Architecture:
    # --- the model, as in ModelSpec
    norm: str = "rms"
    norm_bias: bool = False
    gated: bool = True
    pre_norms: bool = True
    post_norms: bool = False
    qk_norm: str = ""
    parallel: bool = False
    shared_norm: bool = False  # where they are parallel
    scaled_embedding: bool = False  # the embedding is multiplied by √D
    embed_norm: bool = False
    alibi: bool = False
    rotary: bool = True
    neighbours: bool = False
    position_offset: int | None = None  # not None: positions are learned
    biases: tuple[str, ...] = ()  # always there
    experts: bool = False
    attn_cap: float | None = None  # not None: files may cap scores; so if they say nothing
    logit_cap: float | None = None  # the same of logits
    multipliers: bool = False  # files may scale the embedding, the residuals, the scores and the logits
    logit_scale: float = 0.0  # not 0: files may scale the logits
    # --- config.json
    activation: str = "silu"
    tied: bool = False
    theta: float = 10000.0
    local_theta: float = 0.0  # not 0: local layers have a rotary embedding of their own
    theta_key: str = "rope_theta"
    partial: float = 0.0  # not 0: files may rotate only a part of a head; this part if they say nothing
    partial_key: str = "partial_rotary_factor"
    head_width: int = 0  # 0: width / heads
    head_key: bool = True  # files may say head_dim
    kv_default: bool = False  # as many key-value heads as heads, if files say nothing
    mlp_times: int = 0  # the MLP's width over D, if files say nothing
    context: int = 0
    norm_eps: float = 0.0
    bias_keys: Mapping[str, tuple[bool, tuple[str, ...]]] = field(default_factory=dict)  # key: (default, which)
    window: str = ""  # which layers have one: a key of config_hf.WINDOWS
    window_default: int = 0
    query_scalar: int = 0  # not 0: scores are scaled by 1/√query_pre_attn_scalar
    norms_shifted: bool = False  # norms' weights are stored less 1
    # names of keys that not every architecture has
    qk_norm_key: str = ""  # whether there is one, each head its own
    parallel_key: str = ""  # whether it is so; `parallel` if files say nothing
    expert_width_key: str = ""  # the experts' width, if it is not intermediate_size
    expert_norm_key: str = ""  # whether the chosen experts' weights are made to sum to 1; else they are
    # --- GGUF
    gguf: str = ""
    gguf_paired: bool = False  # Q and K rows were put into pairs of neighbours
    gguf_pattern: int = 0  # with a window: every n-th layer sees everything; 0: none does
    scale_by_width: int = 0  # the model of so many layers scales scores by 1/√(D/H), all others by 1/√W
    no_rope_every: int = 0  # every n-th layer has no rotary embedding
    logits_divided: bool = False  # what files call the logits' scale divides them

    def facts(self) -> dict[str, Any]:
        """What every model of the architecture has in common, as fields of its spec."""
        return {name: getattr(self, name) for name in FACTS}


FACTS = ("neighbours", "norm", "norm_bias", "gated", "pre_norms", "post_norms", "embed_norm", "alibi")
BIAS = {"attention_bias": (False, QKVO)}
BOTH = {**BIAS, "mlp_bias": (False, MLP)}
LAYER: Mapping[str, Any] = dict(norm="layer", norm_bias=True)

ARCHITECTURES: Mapping[str, Architecture] = {
    "llama": Architecture(gguf="llama", gguf_paired=True, kv_default=True, bias_keys=BOTH),
    "mistral": Architecture(window="all", window_default=4096),
    "mixtral": Architecture(experts=True, window="all", theta=1e6),
    "qwen2": Architecture(gguf="qwen2", biases=QKV, window="from", window_default=4096),
    "qwen3": Architecture(
        gguf="qwen3", qk_norm="head", head_width=128, bias_keys=BIAS, window="from", window_default=4096
    ),
    "qwen3_moe": Architecture(
        gguf="qwen3moe", qk_norm="head", bias_keys=BIAS, experts=True, window="used", window_default=4096,
        expert_width_key="moe_intermediate_size", expert_norm_key="norm_topk_prob",
    ),
    "gemma": Architecture(
        gguf="gemma", activation="gelu", scaled_embedding=True, tied=True, head_width=256, norms_shifted=True,
        bias_keys=BIAS,
    ),
    "gemma2": Architecture(
        gguf="gemma2", activation="gelu", post_norms=True, scaled_embedding=True, tied=True, head_width=256,
        attn_cap=50.0, logit_cap=30.0, window="alternate", window_default=4096, query_scalar=256, norms_shifted=True,
        bias_keys=BIAS, gguf_pattern=2, scale_by_width=46,  # 46: Gemma 2 27B
    ),
    "gemma3_text": Architecture(
        gguf="gemma3", activation="gelu", qk_norm="head", post_norms=True, scaled_embedding=True, tied=True,
        head_width=256, logit_cap=0.0, window="sixth", window_default=4096, query_scalar=256, theta=1e6,
        local_theta=10000.0, norms_shifted=True, bias_keys=BIAS, gguf_pattern=6,
        scale_by_width=62,  # 62: Gemma 3 27B, as in llama.cpp's llama-model.cpp
    ),
    "phi3": Architecture(gguf="phi3", kv_default=True, partial=1.0, window="all"),
    "olmo2": Architecture(
        gguf="olmo2", kv_default=True, pre_norms=False, post_norms=True, qk_norm="row", bias_keys=BIAS
    ),
    "smollm3": Architecture(
        gguf="smollm3", gguf_paired=True, tied=True, theta=2e6, bias_keys=BOTH, window="no rope", no_rope_every=4
    ),
    "granite": Architecture(
        gguf="granite", gguf_paired=True, kv_default=True, bias_keys=BOTH, multipliers=True, logits_divided=True
    ),
    "starcoder2": Architecture(
        **LAYER, gguf="starcoder2", gated=False, activation="gelu", tied=True, window="all",
        bias_keys={"use_bias": (True, (*QKVO, *TWO))},
    ),
    "stablelm": Architecture(
        **LAYER, gguf="stablelm", partial=0.25, head_key=False, bias_keys={"use_qkv_bias": (False, QKV)},
        qk_norm_key="qk_layernorm", parallel_key="use_parallel_residual", shared_norm=True,
    ),
    "gpt_neox": Architecture(
        **LAYER, gguf="gptneox", gated=False, activation="gelu_erf", parallel=True, partial=0.25, head_key=False,
        kv_default=True, biases=TWO, bias_keys={"attention_bias": (True, QKVO)},
        parallel_key="use_parallel_residual", theta_key="rotary_emb_base", partial_key="rotary_pct",
    ),
    "cohere": Architecture(
        norm="layer", gguf="command-r", kv_default=True, parallel=True, shared_norm=True, tied=True, theta=500000.0,
        neighbours=True, logit_scale=0.0625, bias_keys=BIAS, qk_norm_key="use_qk_norm",
    ),
    "gpt2": Architecture(
        **LAYER, gguf="gpt2", gated=False, activation="gelu", rotary=False, position_offset=0, tied=True,
        head_key=False, kv_default=True, mlp_times=4, biases=(*QKVO, *TWO),
    ),
    "opt": Architecture(
        **LAYER, gated=False, activation="relu", rotary=False, position_offset=2, tied=True, head_key=False,
        kv_default=True, norm_eps=1e-5, bias_keys={"enable_bias": (True, (*QKVO, *TWO))},
    ),
    "bloom": Architecture(
        **LAYER, gguf="bloom", gated=False, activation="gelu", rotary=False, alibi=True, embed_norm=True, tied=True,
        head_key=False, kv_default=True, mlp_times=4, context=2048, biases=(*QKVO, *TWO),
    ),
}  # fmt: skip

GGUF: Mapping[str, Architecture] = {row.gguf: row for row in ARCHITECTURES.values() if row.gguf}
