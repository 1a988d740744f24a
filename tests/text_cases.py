"""Small hand-made vocabularies for the tests of text/."""

from __future__ import annotations

from typing import Any

from glassbox.text.vocab import ALPHABET

NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6


def spm(
    scored: dict[str, float],
    *,
    control: tuple[str, ...] = ("<unk>", "<s>", "</s>"),
    byte: bool = False,
    user: tuple[str, ...] = (),
    **flags: Any,
) -> dict[str, Any]:
    """GGUF metadata of a SentencePiece tokenizer: control, byte, user-defined, then scored pieces."""
    pieces = [*control, *(f"<0x{b:02X}>" for b in range(256) if byte), *user, *scored]
    types = [CONTROL] * len(control) + [BYTE] * (256 * byte) + [USER] * len(user) + [NORMAL] * len(scored)
    if control[0] == "<unk>":
        types[0] = UNKNOWN
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.scores": [0.0] * (len(pieces) - len(scored)) + list(scored.values()),
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.ggml.add_space_prefix": False,
    }
    return metadata | {f"tokenizer.ggml.{k}": v for k, v in flags.items()}


def byte_level(
    merges: tuple[str, ...] = (),
    *,
    control: tuple[str, ...] = ("<|end|>", "<|turn|>"),
    user: tuple[str, ...] = (),
    without: bytes = b"",
    **flags: Any,
) -> dict[str, Any]:
    """GGUF metadata of a byte-level BPE: control, user-defined, single bytes, then what merges make."""
    letters = [c for c, b in ALPHABET.items() if b not in without]
    pieces = [*control, *user, *letters, *(m.replace(" ", "") for m in merges)]
    metadata: dict[str, Any] = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": pieces,
        "tokenizer.ggml.token_type": [CONTROL] * len(control)
        + [USER] * len(user)
        + [NORMAL] * (len(pieces) - len(control) - len(user)),
        "tokenizer.ggml.merges": list(merges),
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
    }
    return metadata | {f"tokenizer.ggml.{k}": v for k, v in flags.items()}
