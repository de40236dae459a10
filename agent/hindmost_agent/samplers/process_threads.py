"""Inside the ranks: CPU time and run-queue wait by thread group, added up so that the sums only grow."""

from __future__ import annotations

import math
import os
import re
from collections import defaultdict
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from hindmost_agent.files import numbers, read_once
from hindmost_agent.metric import Series, counter, series
from hindmost_agent.sampler import NAN, Host, Sampler, register

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from hindmost_agent.jobs.ranks import RankProcess

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
#: Threads of one rank that are looked at, at most.
MOST_THREADS = 1024

#: The group of a thread or process, and its counters.
Counted: TypeAlias = "tuple[str, float, float] | tuple[str, float, float, float]"

#: Groups of one rank; what is in none of the first is in ``other``.
MOST_GROUPS = 24
#: Threads or processes whose counters are remembered, ended ones included: one missing from a list may be back.
MOST_REMEMBERED = 2048

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


class Stat(NamedTuple):
    """What is needed of one line of stat; times in s, memory in bytes, the start in clock ticks since boot."""

    name: str
    state: str
    cpu_s: float
    start: int
    resident: int


def stat(data: bytes) -> Stat:
    """Parse a stat file of a process or a thread. Raises ``ValueError`` or ``IndexError`` when it is torn."""
    close = data.rindex(b")")
    fields = data[close + 2 :].split()
    name = data[data.index(b"(") + 1 : close].decode("utf-8", "replace")
    cpu_s = (int(fields[11]) + int(fields[12])) / TICKS
    return Stat(name, chr(fields[0][0]), cpu_s, int(fields[19]), int(fields[21]) * PAGE)


@lru_cache(maxsize=1024)
def group_name(name: str) -> str:
    """Threads of one kind share a name but for a number: ``pt_autograd_0`` and ``_1`` are ``pt_autograd``."""
    return re.sub(r"[-_#:/]?\d+$", "", name) or "unnamed"


@register
class ProcessThreads(Sampler):
    """Threads of each rank, those of one name together; see `process_children` for its DataLoader workers."""

    name = "process_threads"
    period = 15.0
    source = "/proc/PID/task/*/{stat,schedstat}"
    metrics = (GROUP_CPU, GROUP_WAITED, ALL_WAITED)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._threads: defaultdict[tuple[int, int], Sums] = defaultdict(Sums)

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        live = {(rank.pid, rank.start_ticks): rank for rank in self.host.ranks.shown()}
        for key in self._threads.keys() - live.keys():
            del self._threads[key]
        for key, rank in live.items():
            found.update(_threads(self.host.proc / str(rank.pid), rank, self._threads[key]))
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
            self._last[key] = tuple(
                self._count(name, place, *both) for place, both in enumerate(zip(now, before, strict=True))
            )
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
