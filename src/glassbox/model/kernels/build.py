"""Compiles the kernels once, keeps the object code in the user's cache folder, and loads it: the only file that does.

The code is compiled for a pinned target, not for the host, so that every machine computes the same bits; and by child
processes, one a part, so that a start with cached kernels never imports the compiler. The fingerprint is a hash of the
kernel sources, the target and the compiler's versions: it names the object file and stands in every trace.
"""

from __future__ import annotations

import ctypes
import gc
import hashlib
import importlib.metadata
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import platformdirs

from glassbox.errors import KernelError
from glassbox.model.kernels.program import APART

SOURCES = (
    "simd",
    "simd64",
    "atomics",
    "words",
    "formats",
    "matmul",
    "products",
    "attention",
    "elementwise",
    "packing",
    "rows",
    "program",
    "team",
    "build",
)

# machine -> (LLVM cpu, LLVM features that must be there and are used)
TARGETS: Mapping[str, tuple[str, str]] = {
    "x86_64": ("x86-64-v3", "+avx2,+fma,+f16c,+bmi,+bmi2,+lzcnt,+movbe"),
    "aarch64": ("generic", "+neon,+fp-armv8"),
    "arm64": ("generic", "+neon,+fp-armv8"),
}

DIGEST = 32  # bytes of a sha256, which stand before the object code in its file
SIZE = 8  # bytes of a part's length, which stand before the part
PARTS = 2  # compiled at the same time: what is in FIRST, and the rest; they call each other by name
FIRST = ("glassbox_product_one", "glassbox_decode_rows", "glassbox_pack_tiles")

Run = Callable[[int, int], object]  # (address of a job's header, thread number)
ENTRIES = {  # name -> how many int64 it takes
    "glassbox_run": 2, "glassbox_serve": 2, "glassbox_weigh": 4, "glassbox_xxh64": 2,
    "glassbox_select": 4, "glassbox_compare": 3, "glassbox_exp": 3,
}  # fmt: skip


class Kernels(NamedTuple):
    """The compiled functions that Python calls; while one runs, other Python threads do too."""

    run: Run
    serve: Callable[[int, int], object]  # team.serve
    weigh: Callable[[int, int, int, int], object]  # rows.weigh
    xxh64: Callable[[int, int], int]  # rows.xxh64
    select: Callable[[int, int, int, int], int]  # rows.select
    compare: Callable[[int, int, int], object]  # rows.compare
    exp: Callable[[int, int, int], object]  # rows.exp_all


def target() -> tuple[str, str]:
    """LLVM cpu and features of this machine's pinned target. Raises KernelError."""
    machine = {"amd64": "x86_64"}.get(platform.machine().lower(), platform.machine().lower())
    if machine not in TARGETS:
        raise KernelError(f"there is no kernel target for {machine} machines (there are: {', '.join(TARGETS)})")
    return TARGETS[machine]


@cache
def fingerprint() -> str:
    """16 hex digits over kernel sources, target and compiler: equal fingerprints compute equal bits."""
    h = hashlib.sha256()
    here = Path(__file__).parent
    for name in SOURCES:
        h.update((here / f"{name}.py").read_bytes())
    versions = [importlib.metadata.version(p) for p in ("numba", "llvmlite")]
    h.update("\0".join([*target(), *versions, sys.platform, platform.machine()]).encode())
    return h.hexdigest()[:16]


def object_path() -> Path:
    # Bytecode, and with it the compiled code's text, differs between Python versions; its arithmetic does not.
    python = f"{sys.version_info.major}{sys.version_info.minor}"
    return Path(platformdirs.user_cache_path("glassbox")) / "kernels" / f"{fingerprint()}-py{python}.o"


def load(announce: Callable[[str], None] | None = None) -> Kernels:
    """The compiled kernels. Compiles first if this machine has not yet. Raises KernelError."""
    with _loading:
        if not _loaded:
            _loaded.append(_load(announce))
    return _loaded[0]


_loading = threading.Lock()
_loaded: list[Kernels] = []


def _load(announce: Callable[[str], None] | None) -> Kernels:
    _check_host()
    path = object_path()
    code = _kept(path)
    if code is None:
        if announce is not None:
            announce("compiling the kernels for this machine (once; 10 to 30 seconds)")
        code = _compile_in_children()
        if not _keep(path, code) and announce is not None:
            announce(f"the kernels cannot be kept in {path.parent}: every start will compile them")
    return _link(code)


def _kept(path: Path) -> bytes | None:
    """The object code in the cache, if it is whole: running a damaged one would crash, or worse, compute other bits."""
    try:
        data = path.read_bytes()
    except OSError:
        return None
    digest, code = data[:DIGEST], data[DIGEST:]
    return code if hashlib.sha256(code).digest() == digest else None


def _keep(path: Path, code: bytes) -> bool:
    """Put object code into the cache, whole or not at all. Whether it could be written; if not, each start compiles."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".tmp", delete=False) as f:
            f.write(hashlib.sha256(code).digest() + code)
            f.flush()
            os.fsync(f.fileno())
        os.replace(f.name, path)
    except OSError:
        return False
    for left in path.parent.glob("*.tmp"):  # of a process that was killed while it wrote
        with suppress(OSError):
            if time.time() - left.stat().st_mtime > 3600:
                left.unlink()
    return True


_alive: list[object] = []  # the engine owns the code; it must outlive every call


def _link(code: bytes) -> Kernels:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(*_machine_options())
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    while code:
        end = SIZE + int.from_bytes(code[:SIZE], "little")
        engine.add_object_file(llvm.ObjectFileRef.from_data(code[SIZE:end]))
        code = code[end:]
    engine.finalize_object()
    _alive.append(engine)
    return Kernels(*(_function(engine, name, count) for name, count in ENTRIES.items()))


def _function(engine: Any, name: str, count: int) -> Callable[..., int]:
    address = engine.get_function_address(name)
    if not address:
        raise KernelError(f"the compiled kernels lack {name}")
    return ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * count)(address)


def _machine_options() -> tuple[str, str, int]:
    cpu, features = target()
    return cpu, features, 3


def _check_host() -> None:
    """The pinned target needs its features on the host, or the first kernel would die without a word."""
    import llvmlite.binding as llvm

    have = llvm.get_host_cpu_features()
    wanted = [f[1:] for f in target()[1].split(",") if f[0] == "+"]
    missing = [f for f in wanted if not have.get(f, sys.platform == "darwin")]
    if missing:
        raise KernelError(f"this processor lacks {', '.join(missing)}, which the kernels are compiled for")


def _compile_in_children() -> bytes:
    """The object code of all parts, each compiled by a process of its own. None outlives this call."""
    cpu, features = target()
    env = {**os.environ, "NUMBA_CPU_NAME": cpu, "NUMBA_CPU_FEATURES": features, "NUMBA_DISABLE_JIT": "0"}
    command = [sys.executable, "-m", "glassbox.model.kernels.build"]
    children: list[subprocess.Popen[bytes]] = []
    try:
        for part in range(PARTS):
            children.append(
                subprocess.Popen([*command, str(part)], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            )
        codes = [_output(child) for child in children]
    except OSError as e:
        raise KernelError(f"the kernels could not be compiled: {e.strerror or e}") from None
    finally:
        for child in children:
            with child:
                child.kill()
    return b"".join(len(code).to_bytes(SIZE, "little") + code for code in codes)


def _output(child: subprocess.Popen[bytes]) -> bytes:
    code, messages = child.communicate()
    if child.returncode:
        tail = (messages.decode(errors="replace").strip().splitlines() or ["no message"])[-1]
        raise KernelError(f"the kernels could not be compiled: {tail}")
    return code


def compile_part(part: int) -> bytes:
    """Compile the functions of a part to relocatable object code.

    numba's own wrappers, which call into Python to raise errors, are left out: the kernels cannot raise.
    """
    import llvmlite.binding as llvm
    from numba.core import types

    from glassbox.model.kernels import packing, products, rows, team

    apart = (
        products.product_one, products.decode_rows, packing.pack_tiles, team.do_attend, team.do_rows, team.run,
    )  # fmt: skip
    functions = dict(zip(APART, apart, strict=True))
    entries = (team.run, team.serve, rows.weigh, rows.xxh64, rows.select, rows.compare, rows.exp_all)
    functions |= dict(zip(ENTRIES, entries, strict=True))
    for name in APART:
        llvm.add_symbol(name, 1)  # numba links what it compiles; nothing is called here
    module = None
    for name, function in functions.items():
        if (name in FIRST) != (part == 0):
            continue
        kinds = (types.int64,) * function.py_func.__code__.co_argcount
        function.compile(kinds)
        compiled = function.overloads[kinds]
        entry = _entry(name, compiled.fndesc.llvm_func_name, len(kinds))
        piece = llvm.parse_assembly(compiled.library.get_llvm_str() + entry)
        piece.verify()
        if module is None:
            module = piece
        else:
            module.link_in(piece)
    assert module is not None
    machine = llvm.Target.from_default_triple().create_target_machine(
        *_machine_options(), reloc="pic", codemodel="default"
    )
    return bytes(machine.emit_object(module))


def _entry(name: str, native: str, count: int) -> str:
    """A C function of `count` int64 that calls numba's: results and errors come back through pointers there."""
    given = ", ".join(f"i64 %a{i}" for i in range(count))
    return f"""
define i64 @{name}({given}) {{
  %result = alloca i64
  %error = alloca ptr
  store i64 0, ptr %result
  %status = call i32 @"{native}"(ptr %result, ptr %error, {given})
  %value = load i64, ptr %result
  ret i64 %value
}}
"""


if __name__ == "__main__":
    gc.disable()  # little of what the compiler makes is garbage, and it is over soon
    out, sys.stdout = sys.stdout.buffer, sys.stderr  # the code alone goes out
    out.write(compile_part(int(sys.argv[1])))
