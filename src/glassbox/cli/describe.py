"""What a model's files say of it, as plain data. Comes in: a name or path. Goes out: a dict that JSON can hold.

Only headers and configs are read, never weights. What Glassbox cannot run is described as far as it goes, with the
reason: `problem` is null only where everything is known.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from glassbox.cache.pages import KINDS
from glassbox.errors import GlassboxError, ParameterError
from glassbox.model.config import spec_of
from glassbox.model.spec import ModelSpec
from glassbox.model.weights import check_weights
from glassbox.opening import said_by, tokenizer_of
from glassbox.provenance import tokenizer_digest
from glassbox.text.absent import NoTokenizer
from glassbox.text.template_files import templates_from_folder, templates_from_gguf
from glassbox.text.tokenizer import Tokenizer
from glassbox.weights.checkpoint import Checkpoint
from glassbox.weights.gguf import Gguf
from glassbox.weights.hf import Folder
from glassbox.weights.kinds import refuse_what_is_no_model
from glassbox.weights.opening import open_checkpoint


def describe(path: Path, context: int | None = None) -> dict[str, Any]:
    """context: positions that keys and values are counted for; the model's own when not given.

    Raises ParameterError, and as open_checkpoint does.
    """
    if context is not None and not 0 < context <= 1 << 32:
        raise ParameterError("context", context, f"from 1 to {1 << 32}")
    file = open_checkpoint(path)
    config = file.config if isinstance(file, Folder) else {}
    spec, problem = None, None
    try:
        refuse_what_is_no_model(file)
        spec = spec_of(file)
        check_weights(file, spec)
    except GlassboxError as e:
        problem = str(e)
    tokenizer, text_problem = _tokenizer(file)
    templates, template_problem = _templates(file)
    return {
        "path": str(file.path),
        "files": [{"name": p.name, "bytes": p.stat().st_size} for p in file.files],
        "kind": "GGUF" if isinstance(file, Gguf) else "safetensors",
        "name": file.metadata.get("general.name") or config.get("_name_or_path") or None,
        "architecture": file.metadata.get("general.architecture") or config.get("model_type"),
        "problem": problem,
        "spec": None if spec is None else _plain(asdict(spec)),
        **_tensors(file),
        "tokenizer": {"problem": text_problem} if tokenizer is None else _tokens(tokenizer, file),
        "templates": templates,
        "template_problem": template_problem,
        "memory": None if spec is None else memory(file, spec, context or spec.context),
    }


def memory(file: Checkpoint, spec: ModelSpec, context: int) -> dict[str, Any]:
    """Bytes: the weights as they lie in the file, and keys and values of one sequence for each way to keep them.

    tokens x layers x 2 x key-value heads x (head width x bytes + bytes of a scale); a layer with a window keeps no more
    tokens than that.
    """
    seen = sum(min(context, spec.window_of(i) or context) for i in range(spec.layers))
    kv = {
        kind: seen * 2 * spec.kv_heads * (spec.head_width * number + scale) for kind, (number, scale) in KINDS.items()
    }
    return {"context": context, "weights": sum(t.nbytes for t in file.tensors.values()), "kv": kv}


def _tensors(file: Checkpoint) -> dict[str, Any]:
    count: Counter[str] = Counter()
    size: Counter[str] = Counter()
    parameters = 0
    for t in file.tensors.values():
        count[t.format.name] += 1
        size[t.format.name] += t.nbytes
        parameters += t.nbytes // t.format.bytes * t.format.elements
    formats = [{"name": name, "tensors": count[name], "bytes": size[name]} for name in sorted(size, key=size.get)]  # type: ignore[arg-type]
    return {"parameters": parameters, "tensors": len(file.tensors), "formats": formats[::-1]}


def _tokenizer(file: Gguf | Folder) -> tuple[Tokenizer | None, str | None]:
    try:
        tokenizer = tokenizer_of(file)
    except GlassboxError as e:
        return None, str(e)
    if isinstance(tokenizer, NoTokenizer):
        return None, str(tokenizer.problem or "the folder holds no tokenizer") + ": ids only"
    return tokenizer, None


def _tokens(tokenizer: Tokenizer, file: Gguf | Folder) -> dict[str, Any]:
    vocab, facts = tokenizer.vocab, tokenizer.facts
    kinds = Counter(vocab.kind_of(i) for i in range(len(vocab)))
    return {
        "problem": None,
        "model": facts.model,
        "pre": facts.pre,
        "tokens": len(vocab),
        "kinds": dict(kinds),
        "special": {name: [i, vocab.pieces[i]] for name, i in facts.special.items()},
        "ends": sorted(tokenizer.eos_ids),
        "missing_bytes": len(vocab.missing_bytes),
        "assumptions": tokenizer.assumptions,
        "sha256": tokenizer_digest(said_by(file)),
    }


def _templates(file: Gguf | Folder) -> tuple[list[dict[str, Any]], str | None]:
    """The chat templates by name, that which is used first; or why they cannot be read."""
    try:
        found = templates_from_gguf(file.metadata) if isinstance(file, Gguf) else templates_from_folder(file.path)
    except GlassboxError as e:
        return [], str(e)
    names = sorted(found, key=lambda name: (name != "default", name))
    digests = {name: hashlib.sha256(found[name].encode("utf-8", "surrogatepass")).hexdigest() for name in names}
    return [{"name": name, "characters": len(found[name]), "sha256": digests[name]} for name in names], None


def _plain(spec: Mapping[str, Any]) -> dict[str, Any]:
    """What a spec says, in types that JSON has."""
    return {k: sorted(v) if isinstance(v, (set, frozenset)) else v for k, v in spec.items()}
