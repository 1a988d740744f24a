"""Small models without files: weights from a seed, a config and names and shapes of tensors from tests/data/tiny.json.

The same numbers went through transformers to make the golden logits (tools/make_tiny.py), so nothing but logits needs
to be kept. Numbers come from the raw output of a bit generator, which numpy promises never to change.
"""

from __future__ import annotations

import json
import re
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from glassbox.weights.header import TensorInfo
from glassbox.weights.quant import FORMATS

DATA = Path(__file__).parent / "data"
IDS = 40  # tokens of each golden


def numbers(key: str, shape: tuple[int, ...]) -> np.ndarray:
    """float32 from -1 to 1."""
    count = int(np.prod(shape))
    raw = np.random.PCG64(zlib.crc32(key.encode())).random_raw(count)
    return ((raw >> np.uint64(40)).astype(np.float32) / np.float32(1 << 23) - np.float32(1)).reshape(shape)


def weights(case: str, shapes: dict[str, list[int]], *, shifted: bool) -> dict[str, np.ndarray]:
    """shifted: norms' weights are stored less 1."""
    out = {}
    for name, shape in shapes.items():
        values = numbers(f"{case} {name}", tuple(shape))
        is_norm = re.search(r"(norm|norms\.\d+|ln_\w+)\.weight$", name) is not None
        if name.endswith(".bias"):
            values *= np.float32(0.2)
        elif is_norm:
            values = values * np.float32(0.3) + np.float32(0 if shifted else 1)
        else:
            values *= np.float32(0.4)
        out[name] = values
    return out


def ids_of(case: str, vocab: int) -> list[int]:
    return [int(i) for i in np.random.PCG64(zlib.crc32(case.encode())).random_raw(IDS) % np.uint64(vocab)]


class Memory:
    """A folder of safetensors, as glassbox.weights.hf gives it, but of arrays."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
        self.path, self.config, self.metadata = Path("memory"), config, {}
        self.arrays = {name: np.ascontiguousarray(a) for name, a in tensors.items()}
        kinds = {"float32": "F32", "float16": "F16", "uint16": "BF16"}
        self.tensors = {
            name: TensorInfo(name, a.shape, FORMATS[kinds[str(a.dtype)]], 0, a.nbytes)
            for name, a in self.arrays.items()
        }

    def raw(self, name: str) -> np.ndarray:
        return self.arrays[name].reshape(-1).view(np.uint8).copy()

    def read(self, name: str, at: int, into: np.ndarray) -> None:
        into[:] = self.raw(name)[at : at + len(into)]


def load() -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """({case: {config, shapes}}, {case: logits [T, V]})."""
    cases = json.loads((DATA / "tiny.json").read_text())
    with np.load(DATA / "tiny.npz") as logits:
        return cases, {name: logits[name] for name in logits.files}


def checkpoint(case: str, cases: dict[str, Any]) -> Memory:
    c = cases[case]
    shifted = c["config"]["model_type"].startswith("gemma")
    return Memory(dict(c["config"]), weights(case, c["shapes"], shifted=shifted))
