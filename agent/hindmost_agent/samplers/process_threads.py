"""Inside the ranks: CPU time by thread group, DataLoader workers and other children, and where they may run."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

from hindmost_agent.descendants import descendants
from hindmost_agent.files import numbers, read_once
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register
from hindmost_agent.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hindmost_agent.ranks import RankProcess

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
#: Threads of one rank that are looked at, at most.
MOST_THREADS = 1024

_BY = ("job", "rank")
GROUP_CPU = counter("hindmost_process_thread_group_cpu_seconds_total", "CPU time by thread name.", *_BY, "threads")
GROUP_WAITED = counter(
    "hindmost_process_thread_group_runqueue_seconds_total",
    "Time in which threads of this name could have run but had no core.", *_BY, "threads",
)  # fmt: skip
ALL_WAITED = counter(
    "hindmost_process_threads_runqueue_seconds_total",
    "Time in which any thread of the rank could have run but had no core, added up.", *_BY,
)  # fmt: skip
ALLOWED = gauge("hindmost_process_allowed_cpus", "Cores on which the rank may run.", *_BY)
AFFINITY = gauge("hindmost_process_affinity_info", "1; the list of cores on which the rank may run.", *_BY, "cpus")
VOLUNTARY = counter("hindmost_process_voluntary_switches_total", "Times the main thread gave up its core.", *_BY)
INVOLUNTARY = counter("hindmost_process_involuntary_switches_total", "Times the main thread was preempted.", *_BY)
CHILDREN = gauge("hindmost_process_children", "Descendants of the rank: DataLoader workers and others.", *_BY)
CHILD_CPU = counter("hindmost_process_children_cpu_seconds_total", "CPU time of the rank's descendants.", *_BY)
CHILD_MEMORY = gauge(
    "hindmost_process_children_resident_memory_bytes",
    "Resident memory of descendants, shared pages counted in each.", *_BY,
)  # fmt: skip
CHILD_READ = counter(
    "hindmost_process_children_read_bytes_total", "Bytes that the rank's descendants fetched from storage.", *_BY
)

#: Of some sixty lines of status, those that are read.
STATUS = re.compile(rb"^(Cpus_allowed_list|(?:non)?voluntary_ctxt_switches):\s*(.*?)\s*$", re.MULTILINE)


class Stat(NamedTuple):
    """What is needed of one line of stat; times in s, memory in bytes, the start in clock ticks since boot."""

    name: str
    cpu_s: float
    start: int
    resident: int


def stat(data: bytes) -> Stat:
    """Parse a stat file of a process or a thread. Raises ``ValueError`` or ``IndexError`` when it is torn."""
    close = data.rindex(b")")
    fields = data[close + 2 :].split()
    name = data[data.index(b"(") + 1 : close].decode("utf-8", "replace")
    return Stat(name, (int(fields[11]) + int(fields[12])) / TICKS, int(fields[19]), int(fields[21]) * PAGE)


@lru_cache(maxsize=1024)
def group_name(name: str) -> str:
    """Threads of one kind share a name but for a number: ``pt_autograd_0`` and ``_1`` are ``pt_autograd``."""
    return re.sub(r"[-_#:/]?\d+$", "", name) or "unnamed"


@register
class ProcessThreads(Sampler):
    """Threads, affinity, context switches and descendants of each rank; DataLoader workers count with their rank."""

    name = "process_threads"
    period = 15.0
    source = "/proc/PID/task/*/{stat,schedstat,children}, /proc/PID/{status,io}"
    metrics = (
        GROUP_CPU, GROUP_WAITED, ALL_WAITED, ALLOWED, AFFINITY, VOLUNTARY, INVOLUNTARY,
        CHILDREN, CHILD_CPU, CHILD_MEMORY, CHILD_READ,
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._threads: defaultdict[tuple[int, int], Sums] = defaultdict(Sums)
        self._children: defaultdict[tuple[int, int], Sums] = defaultdict(Sums)

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        live = {(rank.pid, rank.start_ticks): rank for rank in self.host.ranks.shown()}
        for table in (self._threads, self._children):
            for key in table.keys() - live.keys():
                del table[key]
        for key, rank in live.items():
            folder = self.host.proc / str(rank.pid)
            found.update(_threads(folder, rank, self._threads[key]))
            found.update(_status(folder, rank))
            found.update(_descendants(self.host, rank, self._children[key]))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())


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
            waited = _waited(f"{folder}/task/{task}")
        except (OSError, ValueError, IndexError, OverflowError):
            continue
        yield (task, thread.start), (group_name(thread.name), thread.cpu_s, waited)


def _waited(thread: str) -> float:
    """Run-queue wait of a thread, s; missing where the kernel keeps none. Raises ``OSError`` when it has ended."""
    try:
        times = read_once(f"{thread}/schedstat", 256).split()
    except FileNotFoundError:
        if not os.path.exists(thread):  # noqa: PTH110 - a thread
            raise
        return NAN
    return int(times[1]) / 1e9 if len(times) == 3 else NAN


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


def _descendants(host: Host, rank: RankProcess, sums: Sums) -> dict[Series, float]:
    """The descendants of a rank added up, without those that are ranks; nothing where the kernel lists none."""
    pids = descendants(host, rank.pid)
    if pids is None:
        return {}
    found: dict[tuple[int, int], tuple[str, float, float]] = {}
    resident = 0
    for pid in pids:
        try:
            child = stat(read_once(f"{host.proc}/{pid}/stat", 4096))
        except (OSError, ValueError, IndexError, OverflowError):  # it has ended
            continue
        found[pid, child.start] = "all", child.cpu_s, _read_bytes(host.proc / f"{pid}/io")
        resident += child.resident
    sums.add(found)
    cpu, read = sums.groups.get("all", (0.0, 0.0))
    who = (rank.job_id, str(rank.rank))
    return {
        series(CHILDREN, *who): float(len(found)),
        series(CHILD_CPU, *who): cpu,
        series(CHILD_MEMORY, *who): float(resident),
        series(CHILD_READ, *who): read,
    }


def _read_bytes(path: Path) -> float:
    """What a process fetched from storage; missing where it may not be read or the kernel does not keep it."""
    try:
        return float(read_once(path, 4096).split()[9])
    except ProcessLookupError:  # it has ended
        return 0.0
    except FileNotFoundError:
        return NAN if path.parent.exists() else 0.0
    except (OSError, ValueError, IndexError):
        return NAN
