"""Priority, open-file limit and allocator of the daemons, agent and collector, which give way to their node's ranks.

On full cores what they take comes off the job's time.

A nice value compares threads of one scheduling group. Where the kernel makes a group of each session (autogroup), it
shares the CPU between sessions first, by the nice value in ``/proc/PID/autogroup``: a daemon in a session of its own
gets as much as the whole job, whatever the nice values of its threads. So both are set. Under a control group with a
CPU controller (Slurm, a container) there are no autogroups, and the threads' values decide.

``SCHED_BATCH``, because a thread that wakes up then does not interrupt a rank. Not ``SCHED_IDLE``: in one group with a
spinning rank it gets 0.3 % of a core, too little to read the rings in time. Nothing here needs a privilege; what a
system refuses stays as it was.
"""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

log = logging.getLogger(__name__)

#: Of threads, for good: no user may raise them again. The collector keeps a tenth of a core next to a rank that
#: spins, so that a report is made while another job runs. An agent keeps a quarter: it reads rings and stacks in time.
NICE, AGENT_THREADS = 10, 5
#: Of sessions, which can be raised again: a tenth of what a job gets. At 19 it is a seventieth, and where other
#: sessions keep the cores full a collector cannot even start in time.
COLLECTOR_SESSION, AGENT_SESSION = 10, 10
#: The kernel lets a user set autogroups once in a tenth of a second.
TRIES, PAUSE_S = 3, 0.12


def lower_priority(session: int, process: Path = Path("/proc/self"), nice: int = NICE) -> None:
    """Lower the priority of every thread of this process to ``nice``, and of its session to ``session``.

    A thread that is lower already stays so, and a session that others share, as a terminal's, stays as it is. Takes
    up to ``TRIES * PAUSE_S``, as ``set_session_priority`` does: an event loop calls them in another thread.
    """
    for task in _threads(process):
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, task, max(nice, os.getpriority(os.PRIO_PROCESS, task)))
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(task) == os.SCHED_OTHER:
                os.sched_setscheduler(task, os.SCHED_BATCH, os.sched_param(0))
    set_session_priority(session, process)


def set_session_priority(session: int, process: Path = Path("/proc/self")) -> None:
    """Give the session of this process a nice value, 0 for as much as any other, where it is its own."""
    with contextlib.suppress(OSError):
        if _is_alone():
            _write(session, process / "autogroup")


def _is_alone() -> bool:
    """Whether this process leads its session, or is alone in it, as when the shell that led it has ended.

    Raises ``OSError`` where ``/proc`` cannot be read.
    """
    own, session = os.getpid(), os.getsid(0)
    others = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return own == session or not any(_session(pid) == session for pid in others if pid != own)


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:  # it has ended
        return None


def _threads(process: Path) -> list[int]:
    try:
        return [int(task.name) for task in (process / "task").iterdir()]
    except OSError:
        return [os.getpid()]


def _write(nice: int, autogroup: Path) -> None:
    for _ in range(TRIES):
        with contextlib.suppress(BlockingIOError):
            autogroup.write_text(str(nice))
            return
        time.sleep(PAUSE_S)


#: While cores are full, agents make batches at the multiples of so many seconds of the wall clock, and a collector
#: works on earlier ones at the same times: ranks wait for all of them at once, not for one after the other. A collector
#: takes a node for lost that is silent for 15 s.
FULL_PERIOD_S = 8
#: Less than this much of one core idle, of all cores together, is none: ranks wait for each other now and then.
IDLE_CORES = 0.5
#: Seconds between two looks: the file is as long as the machine has cores and interrupts.
LOOK_S = 1.0


class FullCores:
    """Whether the cores that this process may use are all busy: then whatever it does, a rank waits for.

    Looks at their idle time, once a second at most.

    Args:
        stat: ``/proc/stat``. Where it cannot be read cores count as free.
        cores: the numbers of those that this process may run on.
        clock: seconds of a monotonic clock.
    """

    def __init__(
        self,
        stat: Path = Path("/proc/stat"),
        cores: Collection[int] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stat, self._clock = stat, clock
        self._names = {b"cpu%d" % core for core in (os.sched_getaffinity(0) if cores is None else cores)}
        self._tick_s = 1 / os.sysconf("SC_CLK_TCK")
        self._then, self._idle_s = clock(), self._read()
        self._full = False

    def __call__(self) -> bool:
        """Whether they were, when last looked at."""
        now = self._clock()
        passed = now - self._then
        if passed < LOOK_S:
            return self._full
        before, self._idle_s, self._then = self._idle_s, self._read(), now
        known = before is not None and self._idle_s is not None
        self._full = known and self._idle_s - before < IDLE_CORES * passed  # type: ignore[operator]
        return self._full

    def _read(self) -> float | None:
        """Seconds that the cores were idle or waited for a disk, all together."""
        try:
            lines = self._stat.read_bytes().splitlines()
            return sum(
                (int(fields[4]) + int(fields[5])) * self._tick_s
                for fields in (line.split() for line in lines if line.startswith(b"cpu"))
                if fields[0] in self._names
            )
        except (OSError, ValueError, IndexError):
            return None


#: More open files than any node or collector needs, and few enough to close one by one before a child is run.
MOST_FILES = 65536


def raise_open_file_limit() -> None:
    """Raise the soft limit as far as that is free: samplers keep their files open, and each agent is a connection."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays %d: %s", soft, error)


#: malloc.h's numbers of options, and their values. Threads share two heaps: each would keep what the largest flush, or
#: report, that it ever made took. Blocks below 4 MiB come from a heap, which keeps 16 MiB of what is free: else a batch
#: of many calls is mapped, faulted in page by page and unmapped, for which the kernel stops every thread.
MALLOC = {"M_ARENA_MAX": (-8, 2), "M_MMAP_THRESHOLD": (-3, 4 << 20), "M_TRIM_THRESHOLD": (-1, 16 << 20)}


def set_up_allocator() -> None:
    """Set up glibc's malloc for a process of a few threads and many short-lived blocks."""
    with contextlib.suppress(ImportError, OSError, AttributeError):  # another C library
        import ctypes  # noqa: PLC0415 - of a daemon, not of everything that imports this

        library = ctypes.CDLL(None)
        for option, value in MALLOC.values():
            library.mallopt(option, value)
