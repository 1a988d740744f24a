"""Digests of what a run was made with: the model file and the tokenizer."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from glassbox.weights.known import KNOWN


def file_digest(path: Path) -> str:
    """sha256 of a model file. One that we pulled was hashed then; only its size is looked at again."""
    for known in KNOWN:
        if path == known.path and known.pulled:
            return known.sha256
    with path.open("rb") as f:
        return hashlib.file_digest(f, "sha256").hexdigest()


def tokenizer_digest(metadata: Mapping[str, Any]) -> str:
    """sha256 over everything in the metadata that decides ids: the tokenizer's keys but the template, in order."""
    h = hashlib.sha256()
    for key in sorted(k for k in metadata if k.startswith("tokenizer.") and "chat_template" not in k):
        h.update(json.dumps([key, metadata[key]], ensure_ascii=False).encode("utf-8", "surrogatepass"))
    return h.hexdigest()
