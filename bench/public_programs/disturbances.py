"""What disturbs a job from outside, with the names of the verdicts that tell the truth about it.

Each disturbance is a function that acts on the job's ranks, by their process ids, until the job has ended. Rank 1 is
the one disturbed, where one is. Control groups of both versions of Linux' are known, and nothing is done to cores
that the bench itself may not use.
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
    are how. ``queues``: it makes rank 1 wait for a CPU. ``one_core``: the job has one core. ``start`` gets each rank as
    soon as it is there, ``act`` the job once it works.
    """

    name: str
    ranks: tuple[int, ...] = ()
    kinds: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()
    ended: bool = False
    dies: bool = False
    queues: bool = False
    one_core: bool = False
    start: Callable[[Job], contextlib.AbstractContextManager[None]] | None = None
    act: Callable[[Job], None] | None = None
    applies: Callable[[Program], bool] = lambda _: True
    lacks: Callable[[], str | None] = lambda: None

    def disappeared(self, queued_s: dict[str, float]) -> bool:
        """Whether other work on the machine made the peer wait for a CPU about as long as this did rank 1."""
        return self.queues and queued_s.get("1", 0.0) < _SHOWS * queued_s.get("0", 0.0)

    def before(self) -> list[str]:
        """What is put in front of the job's command."""
        return ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if self.one_core else []

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


def _from_then_on(state: Callable[[Job], contextlib.AbstractContextManager[None]]) -> Callable[[Job], None]:
    """Have the job in this state until it ends."""

    def act(job: Job) -> None:
        time.sleep(job.settle)
        with state(job):
            while job.runs():
                time.sleep(0.05)

    return act


def _no_memory(job: Job) -> contextlib.AbstractContextManager[None]:
    """What rank 1 allocates is charged to a group with next to nothing."""
    limit = str(2 << 20)
    return _group("memory", job, {"memory.limit_in_bytes": limit}, {"memory.max": limit})


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


def _tree(controller: str) -> Path:
    """Where groups with this controller are: all in one tree, or, of the first version, in a tree for each."""
    return CGROUPS if (CGROUPS / "cgroup.controllers").exists() else CGROUPS / controller


@contextlib.contextmanager
def _group(controller: str, job: Job, first: dict[str, str], second: dict[str, str]) -> Iterator[None]:
    """Rank 1 in a control group of its own with limits as the ``first`` or the ``second`` version writes them."""
    tree = _tree(controller)
    group = tree / f"public-programs-{os.getpid()}"
    group.mkdir()
    try:
        for name, value in (second if tree == CGROUPS else first).items():
            (group / name).write_text(value)
        for process in job.ranks[1]:
            with contextlib.suppress(ProcessLookupError):  # one that has ended meanwhile
                (group / "cgroup.procs").write_text(str(process))
        yield
    finally:
        for left in (group / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (tree / "cgroup.procs").write_text(left)
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
    number = f"{os.major(device)}:{os.minor(device)}"
    first = {"blkio.throttle.read_bps_device": f"{number} {4 << 20}"}
    with _group("blkio", job, first, {"io.max": f"{number} rbps={4 << 20}"}), _uncached(job):
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


def _quota(job: Job) -> contextlib.AbstractContextManager[None]:
    first = {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "50000"}
    return _group("cpu", job, first, {"cpu.max": "50000 100000"})


def _has_group(controller: str, second: str) -> Callable[[], str | None]:
    """Whether groups can have limits by ``controller`` of the first version, or ``second`` of the other."""

    def lacks() -> str | None:
        tree = _tree(controller)
        if tree == CGROUPS and second not in (tree / "cgroup.subtree_control").read_text().split():
            return f"no {second} in {tree}/cgroup.subtree_control"
        return None if os.access(tree / "cgroup.procs", os.W_OK) else f"cannot write in {tree} (control groups, root)"

    return lacks


def _has_stress() -> str | None:
    return None if shutil.which("stress-ng") else "no stress-ng: apt-get install stress-ng"


_SLOW = ("straggler", "intermittent")
#: A stall is no verdict: reports list stalls of jobs without steps.
_STOPPED = ("hang", "desync", "stall")


def _limited(name: str, **how: Any) -> Disturbance:
    """Rank 1 has a quota of CPU time: the kernel stops a group that has used it up."""
    causes = ("stopped", "cpu_contention")
    return Disturbance(name, (1,), _SLOW, causes, queues=True, lacks=_has_group("cpu", "cpu"), **how)


def _death(name: str, cause: str, act: Callable[[Job], None], **more: Any) -> Disturbance:
    """Rank 1 dies, and with it the job."""
    return Disturbance(name, (1,), _STOPPED, (cause,), ended=True, dies=True, act=act, **more)


DISTURBANCES = {
    one.name: one
    for one in (
        Disturbance("none"),
        Disturbance("stopped 250 ms every 2 s", (1,), _SLOW, ("stopped",), act=_stop_and_go(0.25, 2.0)),
        Disturbance("stopped 100 ms every 500 ms", (1,), _SLOW, ("stopped",), act=_stop_and_go(0.1, 0.5)),
        Disturbance("stopped 30 ms every 100 ms", (1,), _SLOW, ("stopped",), act=_stop_and_go(0.03, 0.1)),
        _limited("half a core by quota", start=_quota),
        _limited("half a core by quota, later", act=_from_then_on(_quota)),
        Disturbance(
            "core shared with stress-ng",
            (1,),
            _SLOW,
            ("cpu_contention",),
            queues=True,
            start=_stressed_core,
            lacks=_has_stress,
        ),
        Disturbance("both ranks on one core", (0, 1), ("oversubscribed",), ("cpu_contention",), one_core=True),
        Disturbance(
            "disk at 4 MB/s",
            (1,),
            _SLOW,
            ("input", "io"),
            start=_slow_disk,
            applies=lambda program: program.reads,
            lacks=_has_group("blkio", "io"),
        ),
        _death(
            "memory limited",
            "out of memory",
            _from_then_on(_no_memory),
            applies=lambda program: program.python,
            lacks=_has_group("memory", "memory"),
        ),
        _death("killed", "SIGKILL", _send(signal.SIGKILL)),
        _death("segmentation fault", "SIGSEGV", _send(signal.SIGSEGV)),
        _death("exception", "KeyboardInterrupt", _send(signal.SIGINT), applies=lambda program: program.python),
        Disturbance("stopped for good", (1,), _STOPPED, ("stopped",), ended=True, act=_hang),
    )
}
