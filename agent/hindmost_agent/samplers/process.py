"""What each rank's process, its threads and its children did: CPU time, run-queue delay, memory, I/O, allowed CPUs."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hindmost_agent.jobs.processes import children_of_main, descendants
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.kernel_files import File, mount_text, numbers, read_once
from hindmost_agent.sampler import NAN, Host, Sampler, Series, TableSampler, counter, gauge, register, series

log = logging.getLogger(__name__)

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")

_BY = ("job", "rank")
CPU = counter(
    "hindmost_process_cpu_seconds_total", "CPU time of the rank's process, user and system, all threads.", *_BY
)
SYSTEM = counter("hindmost_process_system_seconds_total", "CPU time of the rank's process inside the kernel.", *_BY)
MINOR = counter("hindmost_process_minor_page_faults_total", "Page faults served without reading from disk.", *_BY)
MAJOR = counter("hindmost_process_major_page_faults_total", "Page faults that had to read from disk.", *_BY)
THREADS = gauge("hindmost_process_threads", "Threads of the rank's process.", *_BY)
RESIDENT = gauge("hindmost_process_resident_memory_bytes", "Resident memory, shared pages included.", *_BY)
RUNQUEUE = counter(
    "hindmost_process_runqueue_seconds_total", "Time in which the main thread could have run but had no core.", *_BY
)
SLICES = counter("hindmost_process_timeslices_total", "Times the main thread was given a core.", *_BY)
STOPPED = gauge(
    "hindmost_process_stopped", "1 if the process was stopped when sampled, by SIGSTOP or by a debugger, else 0.", *_BY
)
BLOCKED = gauge(
    "hindmost_process_blocked",
    "1 if the main thread was in an uninterruptible wait when sampled, mostly for storage, else 0.", *_BY,
)  # fmt: skip

#: State of what waits for what cannot be interrupted: storage, mostly.
UNINTERRUPTIBLE = "D"


class Stat(NamedTuple):
    """What is needed of one line of stat; times in s, memory in bytes, the start in clock ticks since boot."""

    name: str
    state: str
    cpu_s: float
    system_s: float
    minor_faults: int
    major_faults: int
    threads: int
    start: int
    resident: int


def stat(data: bytes) -> Stat:
    """Parse a stat file of a process or a thread. Raises ``ValueError`` or ``IndexError`` when it is torn."""
    # The name may hold spaces and brackets: the third field is the first after the last bracket.
    close = data.rindex(b")")
    fields = data[close + 2 :].split()
    name = data[data.index(b"(") + 1 : close].decode("utf-8", "replace")
    user, system = int(fields[11]), int(fields[12])
    minor, major, threads = int(fields[7]), int(fields[9]), int(fields[17])
    times = (user + system) / TICKS, system / TICKS
    return Stat(name, chr(fields[0][0]), *times, minor, major, threads, int(fields[19]), int(fields[21]) * PAGE)


class _StatWatch:
    """One process's ``stat`` and ``schedstat``, which stay open; the second may be out of reach."""

    def __init__(self, folder: str) -> None:
        self._stat = File(f"{folder}/stat")
        self._schedstat: File | None = None
        with contextlib.suppress(OSError):
            self._schedstat = File(f"{folder}/schedstat")
        self.whole = self._schedstat is not None

    def values(self) -> list[float]:
        """In the order of ``Process.metrics``; all missing once the process has gone."""
        try:
            now = stat(self._stat.read())
            queued: tuple[float, float] = NAN, NAN
            if self._schedstat is not None:
                _, waited, slices = self._schedstat.read().split()
                queued = int(waited) / 1e9, int(slices)
        except ProcessLookupError:
            return [NAN] * len(Process.metrics)
        # It is stopped by a signal, or by a debugger.
        stopped, blocked = float(now.state in "Tt"), float(now.state == UNINTERRUPTIBLE)
        faults = now.minor_faults, now.major_faults
        return [now.cpu_s, now.system_s, *faults, now.threads, now.resident, stopped, blocked, *queued]


@register
class Process(Sampler):
    """The ranks of this node, one process each; see `process_threads` and `process_children`."""

    name = "process"
    source = "/proc/PID/{stat,schedstat}"
    metrics = (CPU, SYSTEM, MINOR, MAJOR, THREADS, RESIDENT, STOPPED, BLOCKED, RUNQUEUE, SLICES)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._generation = -1
        self._watched: dict[RankProcess, _StatWatch] = {}
        self._said = False

    def sample(self) -> list[float]:
        if self.host.ranks.generation != self._generation:
            self._follow()
        return [value for watch in self._watched.values() for value in watch.values()]

    def _follow(self) -> None:
        """Take on new ranks, leave those that went."""
        followed = {rank: self._watched.get(rank) or self._open(rank) for rank in self.host.ranks.shown()}
        self._watched = watched = {rank: watch for rank, watch in followed.items() if watch}
        self._generation = self.host.ranks.generation
        self.series = tuple(series(metric, rank.job_id, str(rank.rank)) for rank in watched for metric in self.metrics)

    def _open(self, rank: RankProcess) -> _StatWatch | None:
        try:
            watch = _StatWatch(f"{self.host.proc}/{rank.pid}")
        except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
            return None
        if not watch.whole and not self._said:
            self._said = True
            log.warning("/proc/%d: schedstat cannot be read (logged once)", rank.pid)
        return watch


ALLOWED = gauge("hindmost_process_allowed_cpus", "Cores on which the rank may run.", *_BY)
AFFINITY = gauge("hindmost_process_affinity_info", "1; the list of cores on which the rank may run.", *_BY, "cpus")
MEMORY_NODES = gauge(
    "hindmost_process_memory_nodes_info", "1; the list of NUMA nodes from which the rank may have memory.",
    *_BY, "numa_nodes",
)  # fmt: skip
VOLUNTARY = counter("hindmost_process_voluntary_switches_total", "Times the main thread gave up its core.", *_BY)
INVOLUNTARY = counter("hindmost_process_involuntary_switches_total", "Times the main thread was preempted.", *_BY)

#: Of some sixty lines of status, those that are read.
STATUS = re.compile(rb"^((?:Cpus|Mems)_allowed_list|(?:non)?voluntary_ctxt_switches):\s*(.*?)\s*$", re.MULTILINE)


@register
class ProcessStatus(TableSampler):
    """Affinity and context switches of each rank's main thread."""

    name = "process_status"
    period = 5.0  # a job of seconds is judged by it as well
    source = "/proc/PID/status"
    metrics = (ALLOWED, AFFINITY, MEMORY_NODES, VOLUNTARY, INVOLUNTARY)

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for rank in self.host.ranks.shown():
            found.update(_status(self.host.proc / str(rank.pid), rank))
        return found


def _status(folder: Path, rank: RankProcess) -> dict[Series, float]:
    """Affinity and context switches of the main thread; nothing of what cannot be read."""
    who = (rank.job_id, str(rank.rank))
    try:
        table = dict(STATUS.findall(read_once(f"{folder}/status", 65536)))
        found = {
            series(metric, *who): float(int(table[key]))
            for metric, key in ((VOLUNTARY, b"voluntary_ctxt_switches"), (INVOLUNTARY, b"nonvoluntary_ctxt_switches"))
            if key in table
        }
        if b"Mems_allowed_list" in table:
            found[series(MEMORY_NODES, *who, table[b"Mems_allowed_list"].decode("ascii", "replace"))] = 1.0
        listed = table[b"Cpus_allowed_list"].decode("ascii", "replace")
        found[series(ALLOWED, *who)] = float(_cores(listed))
        found[series(AFFINITY, *who, listed)] = 1.0
    except (OSError, ValueError, KeyError, OverflowError):
        return {}
    return found


def _cores(listed: str) -> int:
    """How many cores ``0-31,64-95`` are."""
    spans = [span.split("-") for span in listed.split(",")]
    return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)


#: Threads of one rank that are looked at, at most.
MOST_THREADS = 1024

#: The group of a thread or process, and its counters.
Counted: TypeAlias = "tuple[str, float, float] | tuple[str, float, float, float]"

#: Groups of one rank; what is in none of the first is in ``other``.
MOST_GROUPS = 24
#: Threads or processes whose counters are remembered, ended ones included: one missing from a list may be back.
MOST_REMEMBERED = 2048


GROUP_CPU = counter("hindmost_process_thread_group_cpu_seconds_total", "CPU time by thread name.", *_BY, "threads")
GROUP_WAITED = counter(
    "hindmost_process_thread_group_runqueue_seconds_total",
    "Time in which threads of this name could have run but had no core.", *_BY, "threads",
)  # fmt: skip
ALL_WAITED = counter(
    "hindmost_process_threads_runqueue_seconds_total",
    "Time in which any thread of the rank could have run but had no core, added up.", *_BY,
)  # fmt: skip


@lru_cache(maxsize=1024)
def group_name(name: str) -> str:
    """Threads of one kind share a name but for a number: ``pt_autograd_0`` and ``_1`` are ``pt_autograd``."""
    return re.sub(r"[-_#:/]?\d+$", "", name) or "unnamed"


@register
class ProcessThreads(TableSampler):
    """Threads of each rank, those of one name together; see `process_children` for its DataLoader workers."""

    name = "process_threads"
    period = 15.0
    source = "/proc/PID/task/*/{stat,schedstat}"
    metrics = (GROUP_CPU, GROUP_WAITED, ALL_WAITED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._threads: defaultdict[tuple[int, int], Sums] = defaultdict(Sums)

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        live = {(rank.pid, rank.start_ticks): rank for rank in self.host.ranks.shown()}
        for key in self._threads.keys() - live.keys():
            del self._threads[key]
        for key, rank in live.items():
            found.update(_threads(self.host.proc / str(rank.pid), rank, self._threads[key]))
        return found


def _threads(folder: Path, rank: RankProcess, sums: Sums) -> dict[Series, float]:
    sums.add(dict(_each_thread(folder)))
    who = (rank.job_id, str(rank.rank))
    found = {series(GROUP_CPU, *who, name): cpu for name, (cpu, _) in sums.groups.items()}
    found.update({series(GROUP_WAITED, *who, name): waited for name, (_, waited) in sums.groups.items()})
    if sums.groups:
        found[series(ALL_WAITED, *who)] = sum(waited for _, waited in sums.groups.values())
    return found


def _each_thread(folder: Path) -> Iterator[tuple[tuple[int, int], tuple[str, float, float]]]:
    """Id and start of each thread, and its group, CPU time and waiting; those that ended meanwhile are left out."""
    try:
        tasks = numbers(f"{folder}/task")
    except OSError:
        return
    for task in tasks[:MOST_THREADS]:
        try:
            thread = stat(read_once(f"{folder}/task/{task}/stat", 4096))
            queued = waited(f"{folder}/task/{task}")
        except (OSError, ValueError, IndexError, OverflowError):
            continue
        yield (task, thread.start), (group_name(thread.name), thread.cpu_s, queued)


def waited(thread: str) -> float:
    """Run-queue wait of a thread, or of a process's main thread, s, by its folder; missing where the kernel keeps none.

    Raises ``OSError`` when it has ended.
    """
    try:
        times = read_once(f"{thread}/schedstat", 256).split()
    except FileNotFoundError:
        if not os.path.exists(thread):  # noqa: PTH110 - a thread
            raise
        return NAN
    return int(times[1]) / 1e9 if len(times) == 3 else NAN


class Sums:
    """Counters of what comes and goes, added up by group: what an ended thread had used stays in its group's sum.

    While a counter of one that is there has never been read, that sum is missing. One that is not listed once, or whose
    counter is not read once, is not counted anew when it is back.
    """

    def __init__(self) -> None:
        self._last: dict[tuple[int, int], tuple[float, ...]] = {}
        self._totals: dict[str, list[float]] = {}
        self._unread: set[tuple[str, int]] = set()

    @property
    def groups(self) -> dict[str, tuple[float, ...]]:
        """The sums of each group, in the order in which the counters were given; ``NAN``: missing."""
        return {
            name: tuple(NAN if (name, place) in self._unread else total for place, total in enumerate(totals))
            for name, totals in self._totals.items()
        }

    def add(self, found: Mapping[tuple[int, int], Counted]) -> None:
        """Take in the counters of each thread or process, by its id and start, with the group that it is in."""
        self._unread.clear()
        for key, (group, *now) in found.items():
            name = group if group in self._totals or len(self._totals) < MOST_GROUPS else "other"
            before = self._last.pop(key, (NAN,) * len(now))
            self._totals.setdefault(name, [NAN] * len(now))
            changes = enumerate(zip(now, before, strict=True))
            self._last[key] = tuple(self._count(name, place, *change) for place, change in changes)
        for key in list(self._last)[: max(len(self._last) - MOST_REMEMBERED, 0)]:
            del self._last[key]

    def _count(self, name: str, place: int, now: float, before: float) -> float:
        """Add what a counter has grown; returns what is known of it from now on."""
        total = self._totals[name]
        if math.isnan(now):
            if math.isnan(before):
                self._unread.add((name, place))
            return before
        grown = max(now if math.isnan(before) else now - before, 0.0)
        total[place] = grown if math.isnan(total[place]) else total[place] + grown
        return now


CHILDREN = gauge("hindmost_process_children", "Descendants of the rank: DataLoader workers and others.", *_BY)
CHILD_CPU = counter("hindmost_process_children_cpu_seconds_total", "CPU time of the rank's descendants.", *_BY)
CHILD_WAITED = counter(
    "hindmost_process_children_runqueue_seconds_total",
    "Time in which descendants' main threads could have run but had no core, added up.", *_BY,
)  # fmt: skip
CHILD_MEMORY = gauge(
    "hindmost_process_children_resident_memory_bytes",
    "Resident memory of descendants, shared pages counted in each.", *_BY,
)  # fmt: skip
READ = counter("hindmost_process_read_bytes_total", "Bytes fetched from storage.", *_BY)
WRITTEN = counter("hindmost_process_written_bytes_total", "Bytes sent to storage.", *_BY)
CHILD_READ = counter(
    "hindmost_process_children_read_bytes_total", "Bytes that the rank's descendants fetched from storage.", *_BY
)
READ_CALLS = counter(
    "hindmost_process_read_calls_total", "read() and such calls of the rank and its descendants, cached or not.", *_BY
)
READ_ANY = counter(
    "hindmost_process_read_characters_total",
    "Bytes that the rank and its descendants got from read() and such calls, cached or not.", *_BY,
)  # fmt: skip
CHILD_BLOCKED = gauge(
    "hindmost_process_children_blocked", "Descendants in an uninterruptible wait, mostly for storage.", *_BY
)
MOUNT_BLOCKED = gauge(
    "hindmost_process_mount_blocked",
    "Of the rank and its descendants, those in an uninterruptible wait with a file of this mount open.",
    *_BY, "device", "mountpoint",
)  # fmt: skip

#: All threads are asked for their children in one of so many samples; in the others the main threads are.
THOROUGH = 3
#: File systems whose files are in memory.
IN_MEMORY = {b"tmpfs", b"devtmpfs", b"ramfs", b"proc", b"sysfs", b"devpts", b"hugetlbfs", b"cgroup", b"cgroup2"}
#: Open files of one process that are looked at, the newest first.
MOST_FILES = 64


class _Below:
    """What is remembered of the descendants of one rank."""

    def __init__(self) -> None:
        self.pids: list[int] | None = None
        self.sums = Sums()
        self.mounts: set[tuple[str, str]] = set()
        self._calls: dict[int, tuple[float, float, bool]] = {}

    def grown(self, place: int, total: float) -> float:
        """The total of a rank and its live descendants, never less than before; missing where the rank's own is.

        The kernel's count of a process includes the children that it waited for. One that has just ended is in neither.
        What is still missing at the next sample never comes: the rank ignores SIGCHLD.
        """
        if math.isnan(total):
            return NAN
        gone, highest, fell = self._calls.get(place, (0.0, 0.0, False))
        missing = highest - gone - total
        if fell and missing > 0:
            gone += missing
        self._calls[place] = (gone, max(highest, gone + total), missing > 0)
        return self._calls[place][1]


@register
class ProcessChildren(TableSampler):
    """Storage that each rank read and wrote, and its descendants; a rank's DataLoader workers count with it."""

    name = "process_children"
    period = 5.0
    source = "/proc/PID/{stat,schedstat,io,fd,mounts}, /proc/PID/task/*/children"
    metrics = (
        *(CHILDREN, CHILD_CPU, CHILD_WAITED, CHILD_MEMORY, CHILD_READ, READ_CALLS, READ_ANY, CHILD_BLOCKED),
        *(READ, WRITTEN, MOUNT_BLOCKED),
    )

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._below: dict[tuple[int, int], _Below] = {}
        self._samples = 0
        self._said = False

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        live = {(rank.pid, rank.start_ticks): rank for rank in self.host.ranks.shown()}
        self._below = {key: self._below.get(key) or _Below() for key in live}
        thorough = self._samples % THOROUGH == 0
        self._samples += 1
        for rank, below in zip(live.values(), self._below.values(), strict=True):
            if thorough or below.pids is None:
                pids = descendants(self.host, rank.pid)
            else:
                pids = list(dict.fromkeys([*below.pids, *children_of_main(self.host, rank.pid)]))
            if pids is not None:  # else the kernel lists none
                below.pids = pids
            found.update(self._of_rank(rank, below, pids))
        return found

    def _of_rank(self, rank: RankProcess, below: _Below, pids: list[int] | None) -> dict[Series, float]:
        """The descendants of a rank added up, without those that are ranks; without them, the mounts it waits for."""
        proc, who = self.host.proc, (rank.job_id, str(rank.rank))
        children = {pid: one for pid in pids or () if (one := _stat_of(proc, pid)) is not None}
        files = {pid: _io(proc / str(pid)) for pid in (rank.pid, *children)}
        found = {}
        if pids is not None:
            found = _added_up(proc, who, children, below.sums, files)
            for metric, place in ((READ_CALLS, _CALLS), (READ_ANY, _ASKED)):
                own, *workers = (counts[place] for counts in files.values())
                total = own + sum(count for count in workers if not math.isnan(count))
                found[series(metric, *who)] = below.grown(place, total)
        main = _stat_of(proc, rank.pid)
        states = {rank.pid: main} if main is not None else {}
        if states:
            fetched, sent = files[rank.pid][_FETCHED:]
            found |= {series(READ, *who): fetched, series(WRITTEN, *who): sent}
            if math.isnan(fetched) and not self._said:
                self._said = True
                log.warning("/proc/%d: io cannot be read (logged once)", rank.pid)
        blocked = [pid for pid, one in (states | children).items() if one.state == UNINTERRUPTIBLE]
        mounts = [mount for pid in blocked if (mount := newest_mount(proc / str(pid))) is not None]
        below.mounts.update(mounts)
        for mount in sorted(below.mounts):
            found[series(MOUNT_BLOCKED, *who, *mount)] = float(mounts.count(mount))
        return found


def _stat_of(proc: Path, pid: int) -> Stat | None:
    try:
        return stat(read_once(f"{proc}/{pid}/stat", 4096))
    except (OSError, ValueError, IndexError, OverflowError):  # it has ended
        return None


def _added_up(
    proc: Path, who: tuple[str, str], children: dict[int, Stat], sums: Sums, files: Mapping[int, Sequence[float]]
) -> dict[Series, float]:
    sums.add(
        {
            (pid, one.start): ("all", one.cpu_s, files[pid][_FETCHED], _waited(f"{proc}/{pid}"))
            for pid, one in children.items()
        }
    )
    cpu, read, queued = sums.groups.get("all", (0.0, 0.0, 0.0))
    return {
        series(CHILDREN, *who): float(len(children)),
        series(CHILD_CPU, *who): cpu,
        series(CHILD_WAITED, *who): queued,
        series(CHILD_MEMORY, *who): float(sum(child.resident for child in children.values())),
        series(CHILD_READ, *who): read,
        series(CHILD_BLOCKED, *who): float(sum(child.state == UNINTERRUPTIBLE for child in children.values())),
    }


def _waited(folder: str) -> float:
    try:
        return waited(folder)
    except (OSError, ValueError):
        return NAN


#: Places in what :func:`_io` gives.
_ASKED, _CALLS, _FETCHED = range(3)


def _io(folder: Path) -> tuple[float, ...]:
    """Bytes that a process got from reads, the calls, bytes that it fetched from storage and sent there; missing where
    they may not be read, or the kernel does not keep them.
    """
    try:
        words = read_once(folder / "io", 4096).split()
        return float(words[1]), float(words[5]), float(words[9]), float(words[11])
    except ProcessLookupError:  # it has ended
        return (0.0,) * 4
    except FileNotFoundError:
        return (NAN if folder.exists() else 0.0,) * 4
    except (OSError, ValueError, IndexError):
        return (NAN,) * 4


def newest_mount(folder: Path) -> tuple[str, str] | None:
    """Device and mount point of the file that a process opened last, of those on storage; ``None`` where it has none,
    or may not be looked at.
    """
    try:
        opened = [os.readlink(f"{folder}/fd/{fd}") for fd in numbers(f"{folder}/fd")[: -MOST_FILES - 1 : -1]]  # noqa: PTH115
        mounts = [line.split()[:3] for line in read_once(f"{folder}/mounts").splitlines()]
    except OSError:
        return None
    for path in opened:
        mount = _mount_of(path, [fields for fields in mounts if len(fields) == 3]) if path.startswith("/") else None
        if mount is not None:
            return mount
    return None


def _mount_of(path: str, mounts: list[list[bytes]]) -> tuple[str, str] | None:
    """The deepest mount that a path is below; ``None`` where its files are in memory."""
    below = [
        (len(point), device, point, kind)
        for device, point, kind in ((mount_text(device), mount_text(point), kind) for device, point, kind in mounts)
        if point in ("/", path) or path.startswith(point + "/")
    ]
    if not below:
        return None
    *_, device, point, kind = max(below, key=lambda one: one[0])
    return None if kind in IN_MEMORY else (device, point)
