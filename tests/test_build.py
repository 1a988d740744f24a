"""The cache of compiled kernels: whole or not used, whatever happened to it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glassbox.errors import KernelError
from glassbox.model.kernels import build

START = "import sys; from glassbox.model.kernels.build import load; load(lambda text: print('compiled'))"


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of this machine's compiled kernels in a cache folder of its own."""
    build.load()
    code = build._kept(build.object_path())
    assert code is not None
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = build.object_path()
    build._keep(path, code)
    assert path.is_relative_to(tmp_path)
    return path


def start(folder: Path) -> tuple[int, str, str]:
    env = {**os.environ, "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, env=env, timeout=200)
    return done.returncode, done.stdout.strip(), done.stderr


def test_whole_kernels_are_used(kept: Path, tmp_path: Path) -> None:
    assert start(tmp_path) == (0, "", "")


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data[:5000] + bytes([data[5000] ^ 1]) + data[5001:],
        lambda data: os.urandom(len(data)),
    ],
)
def test_damaged_kernels_are_not_run(kept: Path, damage: Callable[[bytes], bytes]) -> None:
    kept.write_bytes(damage(kept.read_bytes()))
    assert build._kept(kept) is None


@pytest.mark.slow
def test_damaged_kernels_are_compiled_again(kept: Path, tmp_path: Path) -> None:
    kept.write_bytes(kept.read_bytes()[:-1])
    assert start(tmp_path) == (0, "compiled", "")
    assert start(tmp_path) == (0, "", "")


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_only_costs_time(tmp_path: Path) -> None:
    (tmp_path / "glassbox").write_text("a file where the folder should be")
    code, said, err = start(tmp_path)
    assert (code, said, err) == (0, "compiled\ncompiled", "")  # said once more: that each start will compile


def test_kernels_that_cannot_be_kept_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "glassbox").write_text("a file where the folder should be")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_compile_in_children", lambda: b"code")
    monkeypatch.setattr(build, "_link", lambda code: code)
    told: list[str] = []
    assert build._load(told.append) == b"code"  # type: ignore[comparison-overlap]
    where = tmp_path / "glassbox" / "kernels"
    assert told[1:] == [f"the kernels cannot be kept in {where}: every start will compile them"]


def test_an_interrupt_while_compiling_ends_the_children(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    children: list[subprocess.Popen[bytes]] = []
    popen = subprocess.Popen

    def interrupted(child: subprocess.Popen[bytes]) -> bytes:
        raise KeyboardInterrupt

    def begin(*args: Any, **more: Any) -> subprocess.Popen[bytes]:
        children.append(popen(*args, **more))
        return children[-1]

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(build, "_output", interrupted)
    monkeypatch.setattr(subprocess, "Popen", begin)
    with pytest.raises(KeyboardInterrupt):
        build._load(None)
    assert len(children) == build.PARTS
    assert all(child.returncode is not None for child in children)  # waited for: none runs on
    assert list(tmp_path.rglob("*")) == []


def test_a_compiler_that_fails_says_so_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('no numba here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with pytest.raises(KernelError, match=r"could not be compiled: ImportError: no numba here$"):
        build._compile_in_children()


def test_the_fingerprint_is_of_sources_and_target(monkeypatch: pytest.MonkeyPatch) -> None:
    before = build.fingerprint()
    build.fingerprint.cache_clear()
    monkeypatch.setattr(build, "TARGETS", {m: ("haswell", f) for m, (_, f) in build.TARGETS.items()})
    assert build.fingerprint() != before
    build.fingerprint.cache_clear()
    monkeypatch.undo()
    assert build.fingerprint() == before
