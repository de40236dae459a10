"""Inside the ranks: CPU time by thread group, DataLoader workers and other children, and where they may run."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from hindmost_agent.files import read_once
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.sampler import Host, Sampler, register

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.ranks import RankProcess

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
#: Threads of one rank that are looked at, at most; descendants likewise.
MOST_THREADS, MOST_CHILDREN, MOST_GROUPS = 1024, 256, 24

_BY = ("job", "rank")
GROUP_CPU = counter(
    "hindmost_process_thread_group_cpu_seconds_total", "CPU time of live threads, by their name.", *_BY, "threads"
)
GROUP_WAITED = counter(
    "hindmost_process_thread_group_runqueue_seconds_total",
    "Time in which live threads could have run but had no core, by their name.", *_BY, "threads",
)  # fmt: skip
ALLOWED = gauge("hindmost_process_allowed_cpus", "Cores on which the rank may run.", *_BY)
CHILDREN = gauge("hindmost_process_children", "Descendants of the rank: DataLoader workers and others.", *_BY)
CHILD_CPU = counter("hindmost_process_children_cpu_seconds_total", "CPU time of the rank's live descendants.", *_BY)
CHILD_MEMORY = gauge(
    "hindmost_process_children_resident_memory_bytes",
    "Resident memory of descendants, shared pages counted in each.",
    *_BY,
)


class Stat(NamedTuple):
    """What is needed of one line of stat; times in s, memory in bytes."""

    name: str
    cpu_s: float
    resident: int


def stat(data: bytes) -> Stat:
    """Parse a stat file of a process or a thread. Raises ``ValueError`` or ``IndexError`` when it is torn."""
    close = data.rindex(b")")
    fields = data[close + 2 :].split()
    name = data[data.index(b"(") + 1 : close].decode("utf-8", "replace")
    return Stat(name, (int(fields[11]) + int(fields[12])) / TICKS, int(fields[21]) * PAGE)


def group_name(name: str) -> str:
    """Threads of one kind share a name but for a number: ``pt_autograd_0`` and ``_1`` are ``pt_autograd``."""
    return re.sub(r"[-_#:/]?\d+$", "", name) or "unnamed"


@register
class ProcessThreads(Sampler):
    """Thread groups, affinity and descendants of each rank; a DataLoader's worker belongs to its rank."""

    name = "process_threads"
    period = 10.0
    source = "/proc/PID/task/*/{stat,schedstat,children}, /proc/PID/status"
    metrics = (GROUP_CPU, GROUP_WAITED, ALLOWED, CHILDREN, CHILD_CPU, CHILD_MEMORY)

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        for rank in self.host.ranks:
            found.update(_threads(self.host.proc / str(rank.pid), rank))
            found.update(_descendants(self.host, rank))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())


def _threads(folder: Path, rank: RankProcess) -> dict[Series, float]:
    cpu: defaultdict[str, float] = defaultdict(float)
    waited: defaultdict[str, float] = defaultdict(float)
    for task in _numbers(folder / "task")[:MOST_THREADS]:
        try:
            thread = stat(read_once(folder / f"task/{task}/stat", 4096))
            times = read_once(folder / f"task/{task}/schedstat", 256).split()
        except (OSError, ValueError, IndexError):  # the thread has ended
            continue
        name = group_name(thread.name)
        name = name if name in cpu or len(cpu) < MOST_GROUPS else "other"
        cpu[name] += thread.cpu_s
        waited[name] += int(times[1]) / 1e9 if len(times) == 3 else 0.0
    who = (rank.job_id, str(rank.rank))
    found = {series(GROUP_CPU, *who, name): value for name, value in cpu.items()}
    found.update({series(GROUP_WAITED, *who, name): value for name, value in waited.items()})
    allowed = _allowed(folder)
    return found if allowed is None else {**found, series(ALLOWED, *who): float(allowed)}


def _allowed(folder: Path) -> int | None:
    """Cores in ``Cpus_allowed_list: 0-31,64-95``; ``None`` when it cannot be read."""
    try:
        status = read_once(folder / "status", 65536)
        line = status[status.index(b"Cpus_allowed_list:") :].split(None, 2)[1]
        spans = [span.split(b"-") for span in line.split(b",")]
        return sum(int(span[-1]) - int(span[0]) + 1 for span in spans)
    except (OSError, ValueError, IndexError):
        return None


def _descendants(host: Host, rank: RankProcess) -> dict[Series, float]:
    """The descendants of a rank added up, without those that are ranks themselves; nothing where they are not told."""
    first = _children(host.proc / str(rank.pid))
    if first is None:
        return {}
    todo, found = first, list[Stat]()
    while todo and len(found) < MOST_CHILDREN:
        pid = todo.pop()
        if host.ranks.get(pid) is not None:
            continue
        try:
            found.append(stat(read_once(host.proc / f"{pid}/stat", 4096)))
        except (OSError, ValueError, IndexError):  # it has ended
            continue
        todo += _children(host.proc / str(pid)) or ()
    who = (rank.job_id, str(rank.rank))
    return {
        series(CHILDREN, *who): float(len(found)),
        series(CHILD_CPU, *who): sum(child.cpu_s for child in found),
        series(CHILD_MEMORY, *who): float(sum(child.resident for child in found)),
    }


def _children(folder: Path) -> list[int] | None:
    """Children of all threads of a process; ``None`` where the kernel does not list them."""
    found: list[int] | None = None
    for task in _numbers(folder / "task")[:MOST_THREADS]:
        try:
            listed = read_once(folder / f"task/{task}/children", 65536).split()
        except OSError:
            continue
        found = (found or []) + [int(pid) for pid in listed if pid.isdigit()]
    return found


def _numbers(folder: Path) -> list[int]:
    try:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    except OSError:
        return []
