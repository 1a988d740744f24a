"""Files that are no model Glassbox could run, and what they are. Comes in: a checkpoint, or the names in a folder.
Goes out: nothing, or Unsupported that calls the thing by its name.

A LoRA adapter, a vocabulary, or codes of a quantiser that is not known would give wrong text or none.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn

from glassbox.errors import ModelFormatError, ModelNotFound, Unsupported
from glassbox.weights.checkpoint import Checkpoint
from glassbox.weights.foreign import DTYPES
from glassbox.weights.header import printable
from glassbox.weights.quant import FORMATS

KNOWN_WEIGHTS = ("safetensors", "GGUF")
_ADAPTER, _VISION, _IMATRIX = "LoRA adapter", "mmproj (the vision or audio part of a model)", "importance matrix"

# what `general.type` and `general.architecture` of a GGUF file say of things that are no model
TYPES: Mapping[str, str] = {
    "adapter": _ADAPTER, "mmproj": _VISION, "imatrix": _IMATRIX, "vocab": "vocabulary without weights",
    "dataset": "data set", "controlvector": "control vector",
}  # fmt: skip
ARCHITECTURES: Mapping[str, str] = {"clip": _VISION, "imatrix": _IMATRIX, "controlvector": "control vector"}

# how a file's name ends -> what its weights are kept as
SUFFIXES: Mapping[str, str] = {
    ".bin": "PyTorch pickle", ".pt": "PyTorch pickle", ".pth": "PyTorch pickle", ".ckpt": "PyTorch pickle",
    ".pkl": "Python pickle", ".h5": "Keras HDF5", ".msgpack": "Flax msgpack", ".onnx": "ONNX", ".npz": "NumPy archive",
    ".tflite": "TensorFlow Lite", ".nemo": "NeMo archive", ".llamafile": "llamafile", ".ggml": "GGML before GGUF",
}  # fmt: skip
_ADAPTERS = frozenset({"adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"})
_ASIDE = ("training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state.pth")  # of a training, not the weights
# what `architectures` of config.json says of a model whose last layer gives something else than the next token
_NO_LM = re.compile(r"For(?!CausalLM$)[A-Z]\w*$")
_PICKLED = re.compile(rb"PK\x03\x04|\x80[\x02-\x05]")  # a zip archive, as torch.save writes, or a bare pickle

# Masks and tables that old checkpoints carry along and the architecture works out for itself.
_BUFFER = re.compile(r"(^|\.)(attn|attention|self_attn)\.(bias|masked_bias)$|position_ids$|inv_freq$")


def refuse_folder(path: Path, names: Collection[str]) -> NoReturn:
    """Says what a folder holds instead of safetensors."""
    refuse_adapter(path, names)
    if found := sorted(n for n in names if n.endswith(".gguf")):
        raise ModelNotFound(str(path), f"is a folder that holds {_few(found)}: name the file")
    refuse_other_weights(path, names)
    if found := sorted(n for n in names if n.endswith(".safetensors")):
        why = f"holds {_few(found)}, but neither model.safetensors nor model.safetensors.index.json"
        raise ModelNotFound(str(path), why)
    raise ModelNotFound(str(path), "is a folder without model.safetensors or model.safetensors.index.json")


def refuse_other_weights(path: Path, names: Collection[str]) -> None:
    """Weights kept in a way that is not read here, by what it is called."""
    for name in sorted(names):
        if (suffix := Path(name).suffix.lower()) in SUFFIXES and name not in _ASIDE:
            raise _unsupported(path, "format of the weights", f"{SUFFIXES[suffix]} ({name})", KNOWN_WEIGHTS)


def refuse_adapter(path: Path, names: Collection[str]) -> None:
    """An adapter may lie beside the model it changes: without it the text would be another."""
    if not _ADAPTERS.isdisjoint(names):
        raise _unsupported(path, "kind of folder", _ADAPTER, ("model",))


def refuse_framework(path: Path, notes: Mapping[str, str]) -> None:
    """Tensors that another framework wrote have other names and lie transposed."""
    if (framework := notes.get("format", "pt")) not in ("pt", "mlx"):
        raise _unsupported(path, "framework", framework[:60], ("pt", "mlx"))


def refuse_file(path: Path, first: bytes) -> None:
    """Says what a single file is, if it is known and no GGUF. `first`: its first bytes."""
    name, suffix = path.name.lower(), path.suffix.lower()
    if first.startswith(b"GGUF"):
        return
    if name.startswith("adapter_model."):
        raise _unsupported(path, "kind of file", _ADAPTER, ("model",))
    if suffix in (".safetensors", ".json", ".model"):
        both = " and config.json" if suffix == ".safetensors" else ""
        raise ModelNotFound(str(path), f"is a part of a model: name the folder that holds it{both}")
    if suffix in SUFFIXES or _PICKLED.match(first):
        raise _unsupported(path, "format of the weights", SUFFIXES.get(suffix, "PyTorch pickle"), KNOWN_WEIGHTS)
    if first[:4] in (b"lmgg", b"fmgg", b"tjgg", b"algg"):
        raise _unsupported(path, "format of the weights", SUFFIXES[".ggml"], KNOWN_WEIGHTS)


def refuse_what_is_no_model(file: Checkpoint) -> None:
    """Raises Unsupported for a checkpoint that is something else than a model, or is kept in an unknown way."""
    said = file.metadata
    texts = [_text(file, key) for key in ("general.type", "general.architecture")]
    kind = TYPES.get(texts[0]) or ARCHITECTURES.get(texts[1])
    if kind is None and any(key.startswith("adapter.") for key in said):
        kind = _ADAPTER
    if kind is None and said and not file.tensors:
        kind = TYPES["vocab"] if any(key.startswith("tokenizer.") for key in said) else "metadata without weights"
    if kind is not None:
        raise _unsupported(file.path, "kind of file", kind, ("model",))
    config: Mapping[str, Any] = getattr(file, "config", {})
    for key in ("quantization_config", "quantization", "compression_config"):
        if (found := config.get(key)) is not None:
            method = found.get("quant_method", "?") if isinstance(found, dict) else found
            raise _unsupported(file.path, f"quantisation ({key})", str(method)[:60], ("none",))
    heads = config.get("architectures")
    for name in heads if isinstance(heads, list) else ():
        if isinstance(name, str) and _NO_LM.search(name):
            raise _unsupported(file.path, "kind of model", printable(name), ("…ForCausalLM",))
    known = DTYPES if config else tuple(FORMATS)
    for t in file.tensors.values():
        if not t.format.layout and not _BUFFER.search(t.name):
            raise _unsupported(file.path, f"format of the tensor {t.name}:", t.format.name, known)


def _text(file: Checkpoint, key: str) -> str:
    if not isinstance(value := file.metadata.get(key, ""), str):
        raise ModelFormatError(f"is {value!r:.60}, but must be a string", field=key, path=str(file.path))
    return value


def _unsupported(path: Path, what: str, name: str, known: tuple[str, ...]) -> Unsupported:
    return Unsupported(f"{path}: {what}", name, known)


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")
