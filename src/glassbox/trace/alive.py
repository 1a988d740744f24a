"""Who writes a run, and does that process still live?

A run without an ending is either under way or was cut off by a crash. A heartbeat would call a process that
was merely stopped (SIGSTOP, a laptop lid) dead, and would write while nothing happens. So each run names its
writer: machine, process id and the moment the process started, which together the kernel never gives twice.
Checking that is exact on the machine (and in the container) that wrote it. From elsewhere the process cannot
be seen; there a store that changed in the last minute counts as alive.
"""

from __future__ import annotations

import hashlib
import os
import socket
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

RECENT_S = 60.0


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


@cache
def _machine() -> str:
    """This host, this boot, this process namespace; hashed, so that a shared trace does not name the host."""
    try:
        namespace = str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        namespace = ""
    words = "|".join((socket.gethostname(), _read("/proc/sys/kernel/random/boot_id").strip(), namespace))
    return hashlib.blake2b(words.encode("utf-8", "surrogateescape"), digest_size=6).hexdigest()


def _started(pid: int) -> str | None:
    """When process `pid` started, in the kernel's unit. "" if there is none, None if it cannot be told."""
    if Path("/proc/self/stat").exists():
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        # A killed process whose parent has not collected it yet is still listed, as a zombie.
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
    if sys.platform == "win32":
        return None
    done = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return done.stdout.strip().replace(" ", "_").replace(":", ".")


def owner() -> str:
    """This process, as `machine:pid:start`."""
    return f"{_machine()}:{os.getpid()}:{_started(os.getpid()) or ''}"


def is_alive(who: str, store: Path) -> bool:
    """Whether the process `who` (as `owner` gave it) still lives."""
    machine, _, rest = who.partition(":")
    pid, _, start = rest.partition(":")
    if machine == _machine() and pid.isdecimal():
        now = _started(int(pid))
        if now is not None:
            return now != "" and now == start
        if int(pid) == os.getpid():
            return True
    for path in (store.with_name(store.name + "-wal"), store):
        try:
            if time.time() - path.stat().st_mtime < RECENT_S:
                return True
        except OSError:
            continue
    return False
