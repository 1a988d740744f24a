"""The team's threads outside compiled code: they sleep until there is a job, then enter it."""

from __future__ import annotations

import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from glassbox.errors import ParameterError
from glassbox.model.kernels import program as pr
from glassbox.model.kernels.build import Kernels
from glassbox.model.kernels.program import Program
from glassbox.types import I64

MAX_THREADS = 256
MOST_INTERRUPTS = 1000  # of one pass: who presses Ctrl-C so often wants out


def thread_count() -> int:
    """GLASSBOX_THREADS, or the physical cores this process may use. Raises ParameterError."""
    asked = os.environ.get("GLASSBOX_THREADS")
    if not asked:
        return _physical_cores()
    if not asked.isdecimal() or not 1 <= int(asked) <= MAX_THREADS:
        raise ParameterError("GLASSBOX_THREADS", asked, f"a whole number from 1 to {MAX_THREADS}")
    return int(asked)


def check_threads(threads: object) -> int:
    """The number, if it is one of threads. Raises ParameterError."""
    if not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS:
        raise ParameterError("threads", threads, f"a whole number from 1 to {MAX_THREADS}")
    return threads


def _physical_cores() -> int:
    """Hyperthreads of one core share its arithmetic, so they are counted once."""
    if not hasattr(os, "sched_getaffinity"):
        return os.cpu_count() or 1
    cores = set()
    for cpu in os.sched_getaffinity(0):
        try:
            siblings = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text()
        except OSError:
            siblings = str(cpu)
        cores.add(siblings)
    return len(cores)


@dataclass(frozen=True, slots=True)
class Job:
    """A job's header, and the arrays it points to: a helper that comes late must still find them."""

    header: I64
    arrays: tuple[object, ...]


class Team:
    """The caller and `count` - 1 helpers. `run(job)` returns when the whole job is done."""

    def __init__(self, kernels: Kernels, count: int) -> None:
        self.count = count
        self._kernels = kernels
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        slots = np.zeros((self.count - 1, 8), np.int64)  # a helper's slot has a cache line of its own
        slots[:, 0] = pr.ASLEEP
        queues: list[SimpleQueue[Job | None]] = [SimpleQueue() for _ in range(self.count - 1)]
        self._slots, self._queues = slots, queues
        self._late: list[Job] = []  # a helper may still look at them; the helpers hold this list, it outlives the team
        dismiss = weakref.finalize(self, _dismiss, queues, slots)  # first: Ctrl-C may come while the helpers start
        for i, queue in enumerate(queues):
            arguments = (self._kernels, queue, slots[i], i + 1, self._late)
            helper = threading.Thread(target=_serve, args=arguments, daemon=True, name=f"glassbox-{i + 1}")
            try:
                helper.start()
            except RuntimeError:
                dismiss()
                raise ParameterError("threads", self.count, f"at most {i + 1}: the system starts no more") from None

    def run(self, job: Job) -> None:
        """Returns when the whole job is done, even if an exception (Ctrl-C) arrives meanwhile: the helpers are in its
        memory. Running a finished job again does nothing, so after an exception it is simply run to its end."""
        if self._process != os.getpid():  # a fork has the memory, but not the helpers
            self._start()
        interrupt: BaseException | None = None
        job.header[[pr.THREADS, pr.SLOTS]] = [self.count, self._slots.ctypes.data]
        self._late[:] = [*(j for j in self._late if self._used(j)), job]
        for _ in range(MOST_INTERRUPTS):
            try:
                if interrupt is None:
                    for slot, queue in zip(self._slots, self._queues, strict=True):
                        if slot[0] == pr.ASLEEP:
                            queue.put(job)
                self._kernels.run(job.header.ctypes.data, 0)
                break
            except BaseException as e:  # a signal's: compiled code raises nothing
                interrupt = e
        if not self._used(job):
            self._late[:] = [j for j in self._late if j is not job]
        if interrupt is not None:
            raise interrupt

    def _used(self, job: Job) -> bool:
        return bool((self._slots[:, 0] == job.header.ctypes.data).any())


def claim_counters(instructions: int, threads: int) -> I64:
    """For each thread one counter an instruction; the last number, in a cache line of its own, counts units done."""
    return np.zeros(threads * instructions + 16, np.int64)


def run_program(team: Team, program: Program, arrays: tuple[object, ...] = ()) -> None:
    """Run instructions that need neither tokens nor buffers. arrays: what they point to."""
    code = program.array()
    counters, nothing = claim_counters(len(code), team.count), np.zeros(8, np.int64)
    header = np.zeros(pr.HEADER, np.int64)
    header[[pr.PROGRAM, pr.LENGTH, pr.BUFFERS, pr.STRIDES, pr.TOKENS, pr.CLAIMS, pr.DONE]] = [
        code.ctypes.data, len(code), nothing.ctypes.data, nothing.ctypes.data, 1, counters.ctypes.data,
        counters[-1:].ctypes.data,
    ]  # fmt: skip
    team.run(Job(header, (code, counters, nothing, arrays)))


def _serve(kernels: Kernels, queue: SimpleQueue[Job | None], slot: I64, thread: int, late: list[Job]) -> None:
    """A helper's life. It holds `late` so that jobs stay in memory while it may be in one."""
    while (job := queue.get()) is not None:
        slot[0] = pr.AWAKE
        kernels.run(job.header.ctypes.data, thread)
        job = None
        slot[0] = pr.IDLE
        kernels.serve(slot.ctypes.data, thread)


def _dismiss(queues: list[SimpleQueue[Job | None]], slots: I64) -> None:
    """Send helpers away, wherever they wait: in compiled code or here."""
    slots[:, 1] = 1
    for queue in queues:
        queue.put(None)
