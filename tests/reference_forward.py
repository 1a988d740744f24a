"""The forward pass as one would write it on a blackboard: numpy over decoded weights, no cache, all at once.

Slow and simple: the oracle of model/transformer.py and its kernels. It knows nothing of them.
"""

from __future__ import annotations

import numpy as np

from glassbox.model.config_gguf import spec_from_gguf
from glassbox.model.spec import ModelSpec
from glassbox.weights.gguf import Gguf
from glassbox.weights.quant import decode

F = np.float32


def tensor(file: Gguf, name: str) -> np.ndarray:
    t = file.tensors[name + ".weight"]
    return decode(t.format, file.raw(t.name), t.shape)


def rms_norm(x: np.ndarray, weight: np.ndarray, eps: float) -> np.ndarray:
    return x / np.sqrt((x * x).mean(-1, keepdims=True, dtype=F) + F(eps)) * weight


def rotate(x: np.ndarray, base: float, paired: bool) -> np.ndarray:
    """Rotary embedding of [T, heads, W], pairs side by side or half a head apart."""
    t, _, w = x.shape
    angle = np.arange(t)[:, None] * base ** (-np.arange(0, w, 2) / w)  # [T, W/2]
    cos, sin = np.cos(angle).astype(F)[:, None], np.sin(angle).astype(F)[:, None]
    a, b = (x[..., 0::2], x[..., 1::2]) if paired else (x[..., : w // 2], x[..., w // 2 :])
    out = np.empty_like(x)
    if paired:
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, b * cos + a * sin
    else:
        out[..., : w // 2], out[..., w // 2 :] = a * cos - b * sin, b * cos + a * sin
    return out


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def activation(spec: ModelSpec, x: np.ndarray) -> np.ndarray:
    if spec.activation == "silu":
        return x / (1 + np.exp(-x))
    return F(0.5) * x * (1 + np.tanh(F(np.sqrt(2 / np.pi)) * (x + F(0.044715) * x**3)))


def attention(file: Gguf, spec: ModelSpec, i: int, x: np.ndarray, out: dict[str, np.ndarray]) -> np.ndarray:
    b, t, w = f"blk.{i}.", len(x), spec.head_width
    q = (x @ tensor(file, b + "attn_q").T).reshape(t, spec.heads, w)
    k = (x @ tensor(file, b + "attn_k").T).reshape(t, spec.kv_heads, w)
    v = (x @ tensor(file, b + "attn_v").T).reshape(t, spec.kv_heads, w)
    if spec.qk_norm:
        q = rms_norm(q, tensor(file, b + "attn_q_norm"), spec.norm_eps)
        k = rms_norm(k, tensor(file, b + "attn_k_norm"), spec.norm_eps)
    q, k = (rotate(y, spec.rope_of(i).base, spec.paired_rope) for y in (q, k))
    group = spec.heads // spec.kv_heads
    scores = np.einsum("thw,shw->ths", q, k.repeat(group, 1)) * F(spec.attn_scale)  # [T, H, S]
    rows, columns = np.arange(t)[:, None], np.arange(t)[None]
    hidden = columns > rows
    if spec.window_of(i):
        hidden |= columns <= rows - spec.window_of(i)
    scores = np.where(hidden[:, None], F(-np.inf), scores)
    probs = softmax(scores)
    out[f"attn_scores.{i}"], out[f"attn_probs.{i}"], out[f"v.{i}"] = scores, probs, v
    mixed = np.einsum("ths,shw->thw", probs, v.repeat(group, 1)).reshape(t, -1)
    return mixed @ tensor(file, b + "attn_output").T


def forward(file: Gguf, ids: list[int]) -> dict[str, np.ndarray]:
    """Every point of the model, [T, …], and `logits` [T, V]."""
    spec = spec_from_gguf(file.metadata, file.tensors["token_embd.weight"].shape[0])
    out: dict[str, np.ndarray] = {}
    embedding = tensor(file, "token_embd")
    x = out["embed"] = embedding[ids] * F(spec.embed_scale)
    for i in range(spec.layers):
        b = f"blk.{i}."
        out[f"resid_pre.{i}"] = x
        a = out[f"attn_norm.{i}"] = rms_norm(x, tensor(file, b + "attn_norm"), spec.norm_eps)
        a = attention(file, spec, i, a, out)
        if spec.post_norms:
            a = rms_norm(a, tensor(file, b + "post_attention_norm"), spec.norm_eps)
        out[f"attn_out.{i}"] = a
        x = out[f"resid_mid.{i}"] = x + a
        m = out[f"mlp_norm.{i}"] = rms_norm(x, tensor(file, b + "ffn_norm"), spec.norm_eps)
        gate, up = m @ tensor(file, b + "ffn_gate").T, m @ tensor(file, b + "ffn_up").T
        m = out[f"mlp_act.{i}"] = activation(spec, gate) * up
        m = m @ tensor(file, b + "ffn_down").T
        if spec.post_norms:
            m = rms_norm(m, tensor(file, b + "post_ffw_norm"), spec.norm_eps)
        out[f"mlp_out.{i}"] = m
        x = out[f"resid_post.{i}"] = x + m
    x = out["final_norm"] = rms_norm(x, tensor(file, "output_norm"), spec.norm_eps)
    head = tensor(file, "output") if "output.weight" in file.tensors else embedding
    out["logits"] = x @ head.T
    return out
