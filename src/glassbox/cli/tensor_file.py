"""Arrays as a file and as a few numbers. In: named float32 arrays. Out: a .npy, .npz or .safetensors file, whole or not
at all.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from glassbox.errors import ParameterError
from glassbox.trace.export.tensors import safetensors_bytes
from glassbox.types import F32

FIRST = 6  # values that are shown
SAFE = ".safetensors"


def save(name: str, values: Mapping[str, F32]) -> str:
    """Write one array as .npy, several as .npz, adding the ending where it is missing, as numpy does; any number as
    .safetensors where the name ends so. Returns the path.

    A file that is there is replaced; one that cannot be written whole leaves nothing. Raises ParameterError, OSError.
    """
    ending = SAFE if name.endswith(SAFE) else ".npy" if len(values) == 1 else ".npz"
    if name.endswith((".npy", ".npz")) and not name.endswith(ending):
        raise ParameterError("out", name, f"a name that ends in {ending} for {len(values)} point(s)")
    path = Path(name if name.endswith(ending) else name + ending)
    if path.is_dir():
        raise ParameterError("out", name, "a file, not a folder")
    try:
        handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    except OSError as e:  # of the folder; it names a file nobody asked for
        raise OSError(e.errno, e.strerror, str(path)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            if ending == SAFE:
                file.write(safetensors_bytes(values))
            elif len(values) == 1:
                np.save(file, next(iter(values.values())))
            else:
                np.savez(file, **dict(values))  # type: ignore[arg-type]  # no point is called allow_pickle
        os.chmod(partial, 0o600)  # as a trace: for its user alone
        os.replace(partial, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(partial)
        raise
    return str(path)


def summary(value: F32) -> dict[str, Any]:
    """Shape, statistics over what is finite (attention scores are -inf where a query may not look), first values."""
    flat = value.reshape(-1)
    finite = flat[np.isfinite(flat)].astype(np.float64)
    told: dict[str, Any] = {"shape": list(value.shape), "dtype": str(value.dtype)}
    for name, of in (("min", np.min), ("max", np.max), ("mean", np.mean), ("std", np.std), ("norm", np.linalg.norm)):
        told[name] = float(of(finite)) if len(finite) else None
    told["not_finite"] = int(flat.size - len(finite))
    told["first"] = [float(v) if np.isfinite(v) else None for v in flat[:FIRST]]
    return told
