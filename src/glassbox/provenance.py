"""Digests of what a run was made with: the model's files and the tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from glassbox.errors import ModelNotFound
from glassbox.weights.hf import TOKENIZER, member
from glassbox.weights.known import KNOWN


def model_digest(files: Sequence[Path]) -> str:
    """sha256 of a model: of its file; of several, of the lines `sha256sum` would print for them in order of name."""
    if len(files) == 1:
        return file_digest(files[0])
    lines = [f"{file_digest(p)}  {p.name}\n" for p in sorted(files, key=lambda p: p.name)]
    return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def file_digest(path: Path) -> str:
    """sha256 of a model file. Of one that has a name it is known, and checked once after each change of the file: one
    that differs raises ModelNotFound."""
    known = next((k for k in KNOWN if path == k.path), None)
    if known is not None and known.verified:
        return known.sha256
    with path.open("rb") as f:
        found = hashlib.file_digest(f, "sha256").hexdigest()
    if known is not None:
        if found != known.sha256:
            how = f"`glassbox pull {known.name}` fetches it anew"
            raise ModelNotFound(known.name, f"{path} is damaged: its hash is another; {how}")
        known.note_verified()
    return found


def tokenizer_digest(metadata: Mapping[str, Any]) -> str:
    """sha256 over everything in the metadata that decides ids: the tokenizer's keys but the template, in order."""
    h = hashlib.sha256()
    for key in sorted(k for k in metadata if k.startswith("tokenizer.") and "chat_template" not in k):
        h.update(json.dumps([key, metadata[key]], ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return h.hexdigest()


# what a folder's generation_config.json says -> the key under which a GGUF file says it
SAMPLING: Mapping[str, str] = {
    "temperature": "general.sampling.temp", "top_k": "general.sampling.top_k", "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
}  # fmt: skip


def folder_metadata(folder: Path, generation_config: Mapping[str, Any]) -> dict[str, Any]:
    """What a folder says beside its weights, under a GGUF file's keys: sampling, and the digests of the tokenizer.

    Sampling counts only where the folder asks for it (`do_sample`), as transformers has it; where it asks for none, the
    temperature is 0.
    """
    said: dict[str, Any] = {}
    if generation_config.get("do_sample") is False:
        said["general.sampling.temp"] = 0.0
    elif generation_config.get("do_sample") is True:
        found = {SAMPLING[k]: generation_config[k] for k in SAMPLING if generation_config.get(k) is not None}
        said |= {k: v for k, v in found.items() if type(v) in (int, float)}
    for name in TOKENIZER:
        if (folder / name).exists() and not name.startswith("chat_template"):
            said[f"tokenizer.file.{name}"] = _text_digest(member(folder, name))
    return said


def _text_digest(path: Path) -> str:
    """sha256 of a tokenizer's file; the chat template that may stand in one has a digest of its own."""
    data = path.read_bytes()
    if path.name == "tokenizer_config.json":
        try:
            said = json.loads(data)
            said.pop("chat_template", None)
            data = json.dumps(said, sort_keys=True).encode()
        except (ValueError, AttributeError, RecursionError):
            pass  # whoever reads it for what it says will complain
    return hashlib.sha256(data).hexdigest()
