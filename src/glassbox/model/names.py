"""What a model's tensors are called in its file, and which of their rows make which matrix. A row a family.

A name has `{}` for the layer, and a second one for the expert or head. `qkv` and `gate_up` are matrices that hold the
rows of several.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import numpy as np

from glassbox.model.spec import ModelSpec
from glassbox.types import I64


@dataclass(frozen=True, slots=True)
class Names:
    roles: Mapping[str, str]
    by_head: bool = False  # qkv has q, k and v of one head after another; else all of q, then k, then v
    transposed: bool = False  # matrices in layers lie [columns, rows]
    ignored: re.Pattern[str] = field(default=re.compile(r"$^"))  # tensors that the model does not need

    def of(self, role: str) -> str | None:
        """The tensor that holds a role's rows, `{}` still in it; None if there is none."""
        return self.roles.get(role) or self.roles.get(FUSED.get(role, ""))

    def rows(self, role: str, spec: ModelSpec) -> I64 | None:
        """Numbers of the rows that are this role's, in the model's order; None: all of them as they are."""
        first, count = 0, 0
        h, k, w = spec.heads, spec.kv_heads, spec.head_width
        sizes = {"q": h * w, "k": k * w, "v": k * w}
        if role in sizes and role not in self.roles:
            if self.by_head:
                begin = w * list(sizes).index(role)
                return np.asarray(np.arange(h)[:, None] * 3 * w + begin + np.arange(w)).reshape(-1)
            first = sum(list(sizes.values())[: list(sizes).index(role)])
            count = sizes[role]
        elif role in ("gate", "up") and "gate_up" in self.roles:
            first, count = spec.mlp_width * (role == "up"), spec.mlp_width
        if spec.paired_rope and role in ("q", "k"):
            return first + unpaired(sizes[role], w)
        return first + np.arange(count) if count else None


FUSED = {"q": "qkv", "k": "qkv", "v": "qkv", "gate": "gate_up", "up": "gate_up"}


def unpaired(rows: int, width: int) -> I64:
    """Rows of heads from adjacent pairs (0, 1), (2, 3) … to halves: 0, 2, 4 … then 1, 3, 5 …

    Files of the llama family are converted for a rotary embedding over neighbours; the original model, the names of its
    inner values and our kernel have it over halves.
    """
    return np.arange(rows).reshape(-1, width // 2, 2).swapaxes(1, 2).reshape(-1)


def _in(prefix: str, **names: str) -> dict[str, str]:
    return {role: prefix + name for role, name in names.items()}


LAYERS = "model.layers.{}."
STANDARD = {
    "embed": "model.embed_tokens", "final_norm": "model.norm", "head": "lm_head",
    **_in(LAYERS, attn_norm="input_layernorm", mlp_norm="post_attention_layernorm"),
    **_in(LAYERS + "self_attn.", q="q_proj", k="k_proj", v="v_proj", o="o_proj", q_norm="q_norm", k_norm="k_norm"),
    **_in(LAYERS + "mlp.", gate="gate_proj", up="up_proj", down="down_proj"),
}  # fmt: skip
POSTED = {
    **STANDARD,
    **_in(LAYERS, attn_post_norm="post_attention_layernorm", mlp_norm="pre_feedforward_layernorm",
          mlp_post_norm="post_feedforward_layernorm"),
}  # fmt: skip


def _without(names: Mapping[str, str], *roles: str) -> dict[str, str]:
    return {role: name for role, name in names.items() if role not in roles}


HF: Mapping[str, Names] = {
    "": Names(STANDARD, ignored=re.compile(r"\.rotary_emb\.inv_freq$")),
    "gemma2": Names(POSTED),
    "gemma3_text": Names(POSTED),
    "olmo2": Names(POSTED),
    "phi3": Names({
        **_without(STANDARD, "q", "k", "v", "gate", "up"),
        "qkv": LAYERS + "self_attn.qkv_proj", "gate_up": LAYERS + "mlp.gate_up_proj",
    }),
    "starcoder2": Names({**STANDARD, **_in(LAYERS + "mlp.", up="c_fc", down="c_proj")}),
    "stablelm": Names({
        **STANDARD, **_in(LAYERS + "self_attn.", q_norm="q_layernorm.norms.{}", k_norm="k_layernorm.norms.{}"),
    }, ignored=re.compile(r"\.rotary_emb\.inv_freq$")),
    "mixtral": Names({
        **STANDARD, "router": LAYERS + "block_sparse_moe.gate",
        **_in(LAYERS + "block_sparse_moe.experts.{}.", gate="w1", up="w3", down="w2"),
    }),
    "qwen3_moe": Names({
        **STANDARD, "router": LAYERS + "mlp.gate",
        **_in(LAYERS + "mlp.experts.{}.", gate="gate_proj", up="up_proj", down="down_proj"),
    }),
    "gpt2": Names({
        **_in("transformer.", embed="wte", positions="wpe", final_norm="ln_f"), "head": "lm_head",
        **_in("transformer.h.{}.", attn_norm="ln_1", qkv="attn.c_attn", o="attn.c_proj", mlp_norm="ln_2",
              up="mlp.c_fc", down="mlp.c_proj"),
    }, transposed=True, ignored=re.compile(r"\.attn\.(masked_)?bias$")),
    "gpt_neox": Names({
        **_in("gpt_neox.", embed="embed_in", final_norm="final_layer_norm"), "head": "embed_out",
        **_in("gpt_neox.layers.{}.", attn_norm="input_layernorm", qkv="attention.query_key_value", o="attention.dense",
              mlp_norm="post_attention_layernorm", up="mlp.dense_h_to_4h", down="mlp.dense_4h_to_h"),
    }, by_head=True, ignored=re.compile(r"\.attention\.((masked_)?bias|rotary_emb\.inv_freq)$")),
    "bloom": Names({
        **_in("transformer.", embed="word_embeddings", embed_norm="word_embeddings_layernorm", final_norm="ln_f"),
        "head": "lm_head",
        **_in("transformer.h.{}.", attn_norm="input_layernorm", qkv="self_attention.query_key_value",
              o="self_attention.dense", mlp_norm="post_attention_layernorm", up="mlp.dense_h_to_4h",
              down="mlp.dense_4h_to_h"),
    }, by_head=True),
    "opt": Names({
        **_in("model.decoder.", embed="embed_tokens", positions="embed_positions", final_norm="final_layer_norm"),
        "head": "lm_head",
        **_in("model.decoder.layers.{}.", attn_norm="self_attn_layer_norm", mlp_norm="final_layer_norm", up="fc1",
              down="fc2"),
        **_in("model.decoder.layers.{}.self_attn.", q="q_proj", k="k_proj", v="v_proj", o="out_proj"),
    }),
}  # fmt: skip

GGUF = {
    "embed": "token_embd", "positions": "position_embd", "embed_norm": "token_embd_norm", "final_norm": "output_norm",
    "head": "output",
    **_in("blk.{}.", attn_norm="attn_norm", q="attn_q", k="attn_k", v="attn_v", o="attn_output", q_norm="attn_q_norm",
          k_norm="attn_k_norm", attn_post_norm="post_attention_norm", mlp_norm="ffn_norm", gate="ffn_gate", up="ffn_up",
          down="ffn_down", mlp_post_norm="post_ffw_norm", router="ffn_gate_inp"),
}  # fmt: skip
EXPERTS = _in("blk.{}.", gate="ffn_gate_exps", up="ffn_up_exps", down="ffn_down_exps")
DIVISORS = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")


def names_of(spec: ModelSpec, tensors: Collection[str], *, hf: bool) -> Names:
    """The names of this model's tensors in a file that has these."""
    if hf:
        names = HF.get(spec.architecture, HF[""])
        whole = names.roles["embed"] + ".weight"
        prefix, bare = whole.split(".", 1)
        if whole in tensors or bare not in tensors:
            return names
        # saved without what is around the body: its names lack their first part
        roles = {role: name.removeprefix(prefix + ".") for role, name in names.roles.items()}
        return Names(roles, names.by_head, names.transposed, names.ignored)
    roles = {**GGUF, **(EXPERTS if spec.experts else {})}
    if "blk.0.attn_qkv.weight" in tensors:
        roles = {**_without(roles, "q", "k", "v"), "qkv": "blk.{}.attn_qkv"}
    if spec.gated and not spec.experts and "blk.0.ffn_gate.weight" not in tensors:
        roles = {**_without(roles, "gate", "up"), "gate_up": "blk.{}.ffn_up"}
    return Names(roles, ignored=re.compile("|".join(map(re.escape, DIVISORS))))
