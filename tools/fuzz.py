"""Damages sound model files and reads them, for as long as asked: `python tools/fuzz.py SECONDS`.

With atheris installed it is guided by the code that each input reaches; else bytes are changed at random. Whatever is
not an error of Glassbox, or takes half a second, ends the run with status 1 and leaves the input in fuzz-crash/.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests")]

SLOW = 0.5  # seconds
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None  # files that live for a millisecond
SECONDS = int(sys.argv[1]) if len(sys.argv) > 1 else 60


def main() -> None:
    if find_spec("atheris"):
        guided()
    else:
        print("atheris is not installed: bytes are changed at random")
        at_random()


def seeds() -> list[bytes]:
    """Sound and faulty files of both kinds: what is known already is a good place to start from."""
    import gguf_cases
    import safetensors_cases
    import test_fuzz_files as own

    cases = [*gguf_cases.GOOD.values(), *safetensors_cases.GOOD.values()]
    cases += [raw for table in (gguf_cases.BAD, safetensors_cases.BAD) for raw, _, _ in table.values()]
    return [raw for raw in [own.GGUF, own.SAFE, own.INDEX, own.CONFIG, *cases] if len(raw) < 1 << 16]


def try_one(raw: bytes, folder: Path) -> None:
    """Read the bytes as a GGUF file, as safetensors, as an index and as a config."""
    import test_fuzz_files as own

    from glassbox.errors import GlassboxError
    from glassbox.weights.gguf import read_gguf
    from glassbox.weights.hf import read_folder

    names = {
        "config.json": own.CONFIG,
        "model.safetensors.index.json": own.INDEX,
        "s-00001-of-00001.safetensors": own.SAFE,
    }
    ways = [{"m.gguf": raw}, {"config.json": own.CONFIG, "model.safetensors": raw}, *(names | {n: raw} for n in names)]
    for way in ways:
        for old in folder.iterdir():
            old.unlink()
        for name, data in way.items():
            (folder / name).write_bytes(data)
        begin = time.process_time()
        try:
            found = read_gguf(folder / "m.gguf") if "m.gguf" in way else read_folder(folder)
            for t in found.tensors.values():
                assert len(found.raw(t.name)) == t.nbytes
        except GlassboxError as e:
            assert str(e).isprintable(), "an error that a terminal may obey"
        assert time.process_time() - begin < SLOW, "slow"


def at_random() -> None:
    rng, start, tried = random.Random(0), seeds(), 0
    end = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        while time.monotonic() < end:
            raw = bytearray(rng.choice(start))
            for _ in range(rng.randint(1, 8)):
                at, n = rng.randint(0, len(raw)), rng.choice((1, 1, 1, 2, 4, 8))
                raw[at : at + rng.choice((0, n))] = rng.choice(
                    (rng.randbytes(n), bytes(n), b"\xff" * n, b"[", b'"', b"9")
                )
            try:
                try_one(bytes(raw), Path(folder))
            except BaseException:
                keep(bytes(raw))
                raise
            tried += 1
    print(f"{tried} inputs, nothing found")


def keep(raw: bytes) -> None:
    Path("fuzz-crash").mkdir(exist_ok=True)
    path = Path("fuzz-crash") / f"{abs(hash(raw)):x}"
    path.write_bytes(raw)
    print(f"the input is in {path}", file=sys.stderr)


def guided() -> None:
    import atheris

    with atheris.instrument_imports(include=["glassbox.weights", "json"]):
        import glassbox.weights.hf  # noqa: F401
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder, tempfile.TemporaryDirectory() as corpus:
        for i, raw in enumerate(seeds()):
            (Path(corpus) / str(i)).write_bytes(raw)
        options = [sys.argv[0], corpus, f"-max_total_time={SECONDS}", "-artifact_prefix=fuzz-crash/", "-max_len=65536"]
        Path("fuzz-crash").mkdir(exist_ok=True)
        atheris.Setup(options, lambda raw: try_one(raw, Path(folder)))
        atheris.Fuzz()


if __name__ == "__main__":
    main()
