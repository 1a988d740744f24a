"""What a model is stored in, whatever the kind of file: named tensors, and what is said about them.

`Checkpoint` is the face that a GGUF file (gguf.py) and a folder with safetensors (hf.py) share; `OpenFile` and `Stored`
are what both are made of. Bytes are read, not mapped: a file that somebody cuts short would kill the process that
touches what is gone. It interprets nothing.
"""

from __future__ import annotations

import io
import stat
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.types import U8
from glassbox.weights.header import SHRUNK, TensorInfo, fill, printable


class Checkpoint(Protocol):
    """An open model. `metadata` is a GGUF file's, and empty for a folder, which has a `config` instead."""

    @property
    def path(self) -> Path: ...
    @property
    def files(self) -> tuple[Path, ...]:
        """All that decides the model's numbers: what its digest is made over."""

    @property
    def metadata(self) -> Mapping[str, Any]: ...
    @property
    def tensors(self) -> Mapping[str, TensorInfo]: ...
    def raw(self, name: str) -> U8:
        """The tensor's bytes as they lie in the file, uint8 [nbytes]."""

    def read(self, name: str, at: int, into: U8) -> None:
        """Fill `into` with the tensor's bytes from `at` on. Raises ModelFormatError where the file was cut short."""


class OpenFile:
    """A regular file, open for reading until nobody holds it."""

    def __init__(self, path: Path, what: str) -> None:
        """`what`: the kind of file that is wanted, for the error. Raises ModelNotFound."""
        self.path, self._lock = path, threading.Lock()  # the file has one position
        try:
            mode = path.stat().st_mode  # asked first: to open a pipe would wait for ever
            if not stat.S_ISREG(mode):
                found = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
                raise ModelNotFound(str(path), f"is {found}, not {what}")
            self.file = io.FileIO(path)
            self.size = self.file.seek(0, 2)
        except FileNotFoundError:
            raise ModelNotFound(str(path), "no such file") from None
        except (OSError, ValueError) as e:  # ValueError: a NUL in the path
            raise unreadable(path, e) from None
        weakref.finalize(self, self.file.close)

    def read(self, at: int, into: U8, field: str) -> None:
        """Fill `into` from `at` on. Raises ModelFormatError where the file was cut short since it was opened."""
        try:
            with self._lock:
                got = fill(self.file, at, into.data)
        except OSError as e:
            raise unreadable(self.path, e) from None
        if got < len(into):
            raise ModelFormatError(SHRUNK, field=printable(field), offset=at + got, path=str(self.path))

    def take(self, at: int, nbytes: int, field: str) -> bytes:
        """`nbytes` from `at` on. Raises as `read`."""
        out: U8 = np.empty(nbytes, np.uint8)
        self.read(at, out, field)
        return out.tobytes()


class Stored:
    """Tensors, and the open file that each lies in."""

    def __init__(self, path: Path, files: Sequence[Path], homes: Mapping[str, tuple[TensorInfo, OpenFile]]) -> None:
        self.path, self.files = path, tuple(files)
        self.tensors: dict[str, TensorInfo] = {name: info for name, (info, _) in homes.items()}
        self._files = {name: file for name, (_, file) in homes.items()}

    def raw(self, name: str) -> U8:
        """The tensor's bytes as they lie in the file, uint8 [nbytes]."""
        out: U8 = np.empty(self.tensors[name].nbytes, np.uint8)
        self.read(name, 0, out)
        return out

    def read(self, name: str, at: int, into: U8) -> None:
        """Fill `into` with the tensor's bytes from `at` on. Raises ModelFormatError where the file was cut short."""
        self._files[name].read(self.tensors[name].offset + at, into, f"{name} data")


def unreadable(path: Path, e: Exception) -> ModelNotFound:
    return ModelNotFound(str(path), f"cannot be read ({getattr(e, 'strerror', None) or e})")
