"""Opens a model, whatever it is kept in. Comes in: a path. Goes out: a `Gguf` or a `Folder`."""

from __future__ import annotations

from pathlib import Path

from glassbox.weights.checkpoint import OpenFile
from glassbox.weights.gguf import Gguf, read_gguf
from glassbox.weights.hf import Folder, read_folder
from glassbox.weights.kinds import refuse_file


def open_checkpoint(path: Path) -> Gguf | Folder:
    """A .gguf file (or any part of a split one), or a folder with config.json and safetensors.

    Raises ModelNotFound, ModelFormatError, and Unsupported for what is something else.
    """
    if path.is_dir():
        return read_folder(path)
    file = OpenFile(path, "a GGUF file")
    refuse_file(path, file.take(0, min(8, file.size), "header"))
    return read_gguf(path)
