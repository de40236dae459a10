"""What disturbs a job from outside, with the names of the verdicts that tell the truth about it.

Each disturbance is a function that acts on the job's ranks, by their process ids, until the job has ended. Rank 1 is
the one disturbed, where one is. Control groups are those of Linux' first version, one controller a tree.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from programs import Program

CGROUPS = Path("/sys/fs/cgroup")
#: The disturbed rank waits for a CPU this many times as long as its peer, or other work disturbed that as much.
_SHOWS = 1.5
#: How long a rank is stopped for good before the job is ended.
HANG_S = 14.0


@dataclass
class Job:
    """A running job: the ids of its ranks' processes by rank, its folder, and whether it still runs."""

    ranks: dict[int, list[int]]
    folder: Path
    runs: Callable[[], bool]
    end: Callable[[], None]
    settle: float = 0.0
    #: Rank to the seconds for which its main thread waited for a CPU, as the kernel counted when it was last read.
    queued_s: dict[int, float] = field(default_factory=dict)

    def victim(self) -> int:
        """The process of rank 1."""
        return self.ranks[1][0]

    def look(self) -> None:
        """Read for how long the ranks have waited for a CPU."""
        for rank, (process, *_) in self.ranks.items():
            with contextlib.suppress(OSError, IndexError):
                waited = int(Path(f"/proc/{process}/schedstat").read_text().split()[1])
                self.queued_s[rank] = round(waited / 1e9, 2)


@dataclass(frozen=True)
class Disturbance:
    """What is done and what is true of it: who is to be named, in verdicts of which kinds, for which causes.

    ``ranks`` empty: no rank may be named. ``ended``: the job ends by it. ``dies``: rank 1 dies first, and ``causes``
    are how. ``queues``: it makes rank 1 wait for a CPU. ``before`` is put in front of the job's command, ``start`` gets
    each rank as soon as it is there, ``act`` the job once it works.
    """

    name: str
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    ended: bool = False
    dies: bool = False
    queues: bool = False
    before: tuple[str, ...] = ()
    start: Callable[[Job], contextlib.AbstractContextManager[None]] | None = None
    act: Callable[[Job], None] | None = None
    applies: Callable[[Program], bool] = lambda _: True
    lacks: Callable[[], str | None] = lambda: None

    def disappeared(self, queued_s: dict[str, float]) -> bool:
        """Whether other work on the machine made the peer wait for a CPU about as long as this did rank 1."""
        return self.queues and queued_s.get("1", 0.0) < _SHOWS * queued_s.get("0", 0.0)

    def applies_to(self, program: Program) -> bool:
        """Whether this program shows the disturbance."""
        return self.applies(program) and (program.trains or self.ended or not self.ranks)


def _stop_and_go(stopped_s: float, every_s: float) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        victim, due = job.victim(), time.monotonic()
        try:
            while job.runs():
                os.kill(victim, signal.SIGSTOP)
                time.sleep(stopped_s)
                os.kill(victim, signal.SIGCONT)
                due += every_s
                time.sleep(max(due - time.monotonic(), 0.0))
        except ProcessLookupError:
            return

    return act


def _send(number: signal.Signals) -> Callable[[Job], None]:
    def act(job: Job) -> None:
        time.sleep(job.settle)
        with contextlib.suppress(ProcessLookupError):
            os.kill(job.victim(), number)

    return act


def _out_of_memory(job: Job) -> None:
    """What rank 1 allocates from now on is charged to a group with next to nothing."""
    time.sleep(job.settle)
    with _group("memory", job, limit_in_bytes=str(2 << 20)):
        while job.runs():
            time.sleep(0.05)


def _hang(job: Job) -> None:
    time.sleep(job.settle)
    with contextlib.suppress(ProcessLookupError):
        os.kill(job.victim(), signal.SIGSTOP)
        time.sleep(HANG_S)
        job.end()
        for _ in range(100):  # what continued now would end in order, as no rank that hangs does
            if not job.runs():
                return
            time.sleep(0.1)
        os.kill(job.victim(), signal.SIGCONT)


@contextlib.contextmanager
def _group(controller: str, job: Job, **limits: str) -> Iterator[None]:
    """Rank 1 in a control group of its own with these limits."""
    group = CGROUPS / controller / f"public-programs-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in limits.items():
            (group / f"{controller}.{name.replace('__', '.')}").write_text(value)
        for process in job.ranks[1]:
            with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
                (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (CGROUPS / controller / "cgroup.procs").write_text(left)
        for _ in range(50):  # until the last one is gone
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            time.sleep(0.1)


@contextlib.contextmanager
def _stress(*options: str) -> Iterator[None]:
    found = subprocess.Popen(
        ["stress-ng", *options, "--timeout", "120"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        found.terminate()
        found.wait()


@contextlib.contextmanager
def _stressed_core(job: Job) -> Iterator[None]:
    """Rank 1 shares the last core with two programs that compute; rank 0 has the others."""
    cores = sorted(os.sched_getaffinity(0))
    for rank, processes in job.ranks.items():
        for process in processes:
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread.name), cores[-1:] if rank == 1 else cores[:-1])
    with _stress("--cpu", "2", "--taskset", str(cores[-1])):
        yield


@contextlib.contextmanager
def _slow_disk(job: Job) -> Iterator[None]:
    """Rank 1 reads its records at 4 MB/s; none of them stays in the page cache."""
    device = job.folder.stat().st_dev
    limit = f"{os.major(device)}:{os.minor(device)} {4 << 20}"
    with _group("blkio", job, throttle__read_bps_device=limit), _uncached(job):
        yield


@contextlib.contextmanager
def _uncached(job: Job) -> Iterator[None]:
    child = os.fork()
    if child == 0:
        while True:
            for path in job.folder.glob("records.*"):
                with contextlib.suppress(OSError):
                    file = os.open(path, os.O_RDONLY)
                    os.fdatasync(file)
                    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(file)
            time.sleep(0.05)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def _has_group(controller: str) -> Callable[[], str | None]:
    def lacks() -> str | None:
        folder = CGROUPS / controller
        return None if os.access(folder / "cgroup.procs", os.W_OK) else f"cannot write in {folder} (cgroup v1, root)"

    return lacks


def _has_stress() -> str | None:
    return None if shutil.which("stress-ng") else "no stress-ng: apt-get install stress-ng"


_SLOW = ("straggler", "intermittent")
#: A stall is no verdict: reports list stalls of jobs without steps.
_STOPPED = ("hang", "desync", "stall")


def _death(name: str, cause: str, act: Callable[[Job], None], **more: Any) -> Disturbance:
    """Rank 1 dies, and with it the job."""
    return Disturbance(name, (1,), _STOPPED, (cause,), ended=True, dies=True, act=act, **more)


DISTURBANCES = {
    one.name: one
    for one in (
        Disturbance("none"),
        Disturbance("stopped 250 ms every 2 s", (1,), _SLOW, ("stopped",), act=_stop_and_go(0.25, 2.0)),
        Disturbance("stopped 30 ms every 100 ms", (1,), _SLOW, ("stopped",), act=_stop_and_go(0.03, 0.1)),
        Disturbance(
            "half a core by quota",
            (1,),
            _SLOW,
            ("stopped", "cpu_contention"),  # the kernel stops a group that has used up its quota
            queues=True,
            start=lambda job: _group("cpu", job, cfs_period_us="100000", cfs_quota_us="50000"),
            lacks=_has_group("cpu"),
        ),
        Disturbance(
            "core shared with stress-ng",
            (1,),
            _SLOW,
            ("cpu_contention",),
            queues=True,
            start=_stressed_core,
            lacks=_has_stress,
        ),
        Disturbance(
            "both ranks on one core", (0, 1), ("oversubscribed",), ("cpu_contention",), before=("taskset", "-c", "0")
        ),
        Disturbance(
            "disk at 4 MB/s",
            (1,),
            _SLOW,
            ("input", "io"),
            start=_slow_disk,
            applies=lambda program: program.reads,
            lacks=_has_group("blkio"),
        ),
        _death(
            "memory limited",
            "out of memory",
            _out_of_memory,
            applies=lambda program: program.python,
            lacks=_has_group("memory"),
        ),
        _death("killed", "SIGKILL", _send(signal.SIGKILL)),
        _death("segmentation fault", "SIGSEGV", _send(signal.SIGSEGV)),
        _death("exception", "KeyboardInterrupt", _send(signal.SIGINT), applies=lambda program: program.python),
        Disturbance("stopped for good", (1,), _STOPPED, ("stopped",), ended=True, act=_hang),
    )
}
