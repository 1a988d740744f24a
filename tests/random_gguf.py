"""A small random model as a GGUF file, written by the public `gguf` package, in any mix of formats."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np

T = gguf.GGMLQuantizationType
VOCAB, CONTEXT = 96, 256

# format of every matrix; K-quants need widths that are multiples of 256
SHAPES = {
    "llama": dict(width=64, heads=4, kv_heads=2, head_width=16, mlp=96, layers=3),
    "gemma3": dict(width=64, heads=4, kv_heads=1, head_width=32, mlp=128, layers=7),
    "wide": dict(width=256, heads=4, kv_heads=2, head_width=64, mlp=512, layers=2),
}


def write(
    path: Path, arch: str, shape: str, kinds: list[T], *, seed: int = 0, window: int = 8, tied: bool = True
) -> Path:
    """Write the model; matrices take the formats of `kinds` in turn."""
    rng = np.random.default_rng(seed)
    s = SHAPES[shape]
    w = gguf.GGUFWriter(path, arch)
    w.add_context_length(CONTEXT)
    w.add_embedding_length(s["width"])
    w.add_block_count(s["layers"])
    w.add_feed_forward_length(s["mlp"])
    w.add_head_count(s["heads"])
    w.add_head_count_kv(s["kv_heads"])
    w.add_key_length(s["head_width"])
    w.add_value_length(s["head_width"])
    w.add_layer_norm_rms_eps(1e-5)
    w.add_rope_freq_base(10000.0 if arch == "llama" else 1e6)
    if arch == "gemma3":
        w.add_sliding_window(window)
    _vocabulary(w)
    _tensors(w, rng, arch, s, kinds, tied)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


def _vocabulary(w: gguf.GGUFWriter) -> None:
    """One printable character a token (and one merge), by byte-level rules; the last one ends a text."""
    tokens = [chr(c) for c in range(33, 126)] + ["ab", "Ġ", "<|end|>"]
    w.add_tokenizer_model("gpt2")
    w.add_tokenizer_pre("gpt-2")
    w.add_token_list(tokens)
    w.add_token_types([1] * (len(tokens) - 1) + [3])
    w.add_token_merges(["a b"])
    w.add_eos_token_id(len(tokens) - 1)


def _tensors(
    w: gguf.GGUFWriter, rng: np.random.Generator, arch: str, s: dict[str, int], kinds: list[T], tied: bool
) -> None:
    made = 0

    def matrix(name: str, rows: int, columns: int, scale: float) -> None:
        nonlocal made
        kind = kinds[made % len(kinds)]
        made += 1
        values = (rng.standard_normal((rows, columns)) * scale).astype(np.float32)
        w.add_tensor(name + ".weight", encode(values, kind), raw_dtype=kind)

    def norm(name: str, n: int) -> None:
        w.add_tensor(name + ".weight", (1 + 0.2 * rng.standard_normal(n)).astype(np.float32))

    d, q, k = s["width"], s["heads"] * s["head_width"], s["kv_heads"] * s["head_width"]
    matrix("token_embd", VOCAB, d, 0.3)
    for i in range(s["layers"]):
        b = f"blk.{i}."
        norm(b + "attn_norm", d)
        matrix(b + "attn_q", q, d, 0.3)
        matrix(b + "attn_k", k, d, 0.3)
        matrix(b + "attn_v", k, d, 0.2)
        matrix(b + "attn_output", d, q, 0.2)
        norm(b + "ffn_norm", d)
        matrix(b + "ffn_gate", s["mlp"], d, 0.2)
        matrix(b + "ffn_up", s["mlp"], d, 0.2)
        matrix(b + "ffn_down", d, s["mlp"], 0.2)
        if arch == "gemma3":
            for name, n in (
                ("attn_q_norm", s["head_width"]), ("attn_k_norm", s["head_width"]), ("post_attention_norm", d),
                ("post_ffw_norm", d),
            ):  # fmt: skip
                norm(b + name, n)
    norm("output_norm", d)
    if not tied:
        matrix("output", VOCAB, d, 0.3)


def encode(values: np.ndarray, kind: T) -> np.ndarray:
    """Values in a format: as the public package encodes it, or random codes with a small scale where it cannot."""
    if kind in (T.F32, T.F16):
        return values.astype(np.float32 if kind == T.F32 else np.float16)
    try:
        return gguf.quants.quantize(values, kind)
    except NotImplementedError:  # the package reads this format, but does not write it
        return _random_blocks(values, kind)


# Of formats that the package cannot write: where the scales lie, and by what they must be smaller than the weights.
SCALES = {
    T.Q2_K: ((80, 15), (82, 10)), T.Q3_K: ((108, 42),), T.Q4_K: ((0, 400), (2, 60)), T.Q5_K: ((0, 800), (2, 52)),
    T.Q6_K: ((208, 1200),), T.IQ4_NL: ((0, 66),), T.IQ4_XS: ((0, 1200),),
}  # fmt: skip


def _random_blocks(values: np.ndarray, kind: T) -> np.ndarray:
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(values.size)
    raw = rng.integers(0, 256, (values.shape[0], values.shape[1] // elements, size), dtype=np.uint8)
    for at, smaller in SCALES[kind]:
        scale = float(values.std()) / smaller
        raw[..., at : at + 2] = np.full(raw.shape[:2], scale, np.float16)[..., None].view(np.uint8)
    return raw.reshape(values.shape[0], -1)
