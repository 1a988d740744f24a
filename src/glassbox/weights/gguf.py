"""An open GGUF file. Comes in: a path. Goes out: `Gguf`: its metadata, where each tensor lies, the tensors' bytes.

Bytes are read, not mapped: a file that somebody cuts short would kill the process that touches what is gone. It does
not decode weights (see quant.py) nor interpret metadata; header.py parses.
"""

from __future__ import annotations

import io
import stat
import threading
import weakref
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from glassbox.errors import ModelFormatError, ModelNotFound
from glassbox.types import U8
from glassbox.weights.header import SHRUNK, Header, TensorInfo, fill


class Gguf:
    """An open file: `metadata` is a plain dict, `tensors` says where each lies, `raw` gives the bytes."""

    def __init__(self, path: Path, file: io.FileIO, metadata: dict[str, Any], tensors: dict[str, TensorInfo]) -> None:
        self.path, self.metadata, self.tensors = path, metadata, tensors
        self._file, self._lock = file, threading.Lock()  # the file has one position
        weakref.finalize(self, file.close)

    def raw(self, name: str) -> U8:
        """The tensor's bytes as they lie in the file, uint8 [nbytes]."""
        out: U8 = np.empty(self.tensors[name].nbytes, np.uint8)
        self.read(name, 0, out)
        return out

    def read(self, name: str, at: int, into: U8) -> None:
        """Fill `into` with the tensor's bytes from `at` on. Raises ModelFormatError where the file was cut short."""
        begin = self.tensors[name].offset + at
        try:
            with self._lock:
                got = fill(self._file, begin, into.data)
        except OSError as e:
            raise _unreadable(self.path, e) from None
        if got < len(into):
            raise ModelFormatError(SHRUNK, field=f"{name} data", offset=begin + got, path=str(self.path))

    def __repr__(self) -> str:
        return f"<Gguf {self.path.name}: {len(self.metadata)} keys, {len(self.tensors)} tensors>"


def read_gguf(path: str | Path) -> Gguf:
    """Open and check a GGUF file. Raises ModelNotFound or ModelFormatError (with field and offset)."""
    path = Path(path)
    try:
        mode = path.stat().st_mode  # asked first: to open a pipe would wait for ever
        if not stat.S_ISREG(mode):
            what = "a directory" if stat.S_ISDIR(mode) else "a device or a pipe"
            raise ModelNotFound(str(path), f"is {what}, not a GGUF file")
        with ExitStack() as unless_kept:
            file = unless_kept.enter_context(io.FileIO(path))
            gguf = Gguf(path, file, *Header(file).read())
            unless_kept.pop_all()
            return gguf
    except FileNotFoundError:
        raise ModelNotFound(str(path), "no such file") from None
    except (OSError, ValueError) as e:  # ValueError: a NUL in the path
        raise _unreadable(path, e) from None
    except ModelFormatError as e:
        raise ModelFormatError(e.why, field=e.field, offset=e.offset, path=str(path)) from None


def _unreadable(path: Path, e: Exception) -> ModelNotFound:
    return ModelNotFound(str(path), f"cannot be read ({getattr(e, 'strerror', None) or e})")
