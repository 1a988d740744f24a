"""The spec of a model's file, whichever kind of file it is."""

from __future__ import annotations

from dataclasses import replace

from glassbox.errors import ModelFormatError
from glassbox.model.config_gguf import spec_from_gguf
from glassbox.model.config_hf import spec_from_config
from glassbox.model.names import DIVISORS
from glassbox.model.spec import ModelSpec
from glassbox.model.tensors import ModelFile
from glassbox.weights.quant import decode


def spec_of(file: ModelFile) -> ModelSpec:
    """From config.json, or from a GGUF file's metadata. Raises Unsupported or ModelFormatError."""
    config = getattr(file, "config", None)
    if config is not None:
        return spec_from_config(config)
    table = file.tensors.get("token_embd.weight")
    spec = spec_from_gguf(file.metadata, table.shape[0] if table and len(table.shape) == 2 else 1, file.tensors.keys())
    for name in DIVISORS[:2]:
        if name in file.tensors:
            spec = _divided(file, spec, name)
    return spec


def _divided(file: ModelFile, spec: ModelSpec, name: str) -> ModelSpec:
    """A GGUF file may have a tensor of divisors of the rotary frequencies: llama 3's, or longrope's."""
    t = file.tensors[name]
    if spec.rope is None or t.shape != (spec.rope.width // 2,):
        need = [] if spec.rope is None else [spec.rope.width // 2]
        raise ModelFormatError(f"has shape {list(t.shape)}, but {need} is needed", field=name)
    divisors = tuple(decode(t.format, file.raw(name), t.shape).tolist())
    if not all(d > 0 for d in divisors):
        raise ModelFormatError("must be positive numbers", field=name)
    return replace(spec, rope=replace(spec.rope, divisors=divisors))
