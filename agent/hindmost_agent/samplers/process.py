"""What each rank's process did: CPU time, queueing for a CPU, memory, its own I/O, which CPUs it may use."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING

from hindmost_agent.files import File, RankFiles, read_once
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.sampler import NAN, Sampler, register

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.jobs.ranks import RankProcess

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

#: State of a thread in an uninterruptible wait.
_BLOCKED_STATE = b"D"
#: States of a stopped process: by a signal, and by a debugger.
_STOPPED_STATES = (b"T", b"t")


class _StatWatch:
    """One process's ``stat`` and ``schedstat``; the second may be out of reach."""

    def __init__(self, folder: str) -> None:
        self._stat = File(f"{folder}/stat")
        self._schedstat: File | None = None
        self.out_of_reach = ""
        try:
            self._schedstat = File(f"{folder}/schedstat")
        except OSError:
            self.out_of_reach = "schedstat"

    def values(self) -> list[float]:
        return [*_stat(self._stat.read()), *_schedstat(self._schedstat)]


def _stat(data: bytes) -> tuple[float, ...]:
    # The command's name may hold spaces and brackets: the third field is the first after the last bracket.
    fields = data[data.rindex(b")") + 2 :].split()
    user, system = int(fields[11]), int(fields[12])
    return (
        (user + system) / TICKS,
        system / TICKS,
        int(fields[7]),
        int(fields[9]),
        int(fields[17]),
        int(fields[21]) * PAGE,
        float(fields[0] in _STOPPED_STATES),
        float(fields[0] == _BLOCKED_STATE),
    )


def _schedstat(file: File | None) -> tuple[float, ...]:
    if file is None:
        return NAN, NAN
    _, waited, slices = file.read().split()
    return int(waited) / 1e9, int(slices)


@register
class Process(RankFiles):
    """The ranks of this node, one process each; see `process_threads` and `process_children`."""

    name = "process"
    source = "/proc/PID/{stat,schedstat}"
    metrics = (CPU, SYSTEM, MINOR, MAJOR, THREADS, RESIDENT, STOPPED, BLOCKED, RUNQUEUE, SLICES)

    def watch(self, folder: str) -> _StatWatch:
        return _StatWatch(folder)


READ_CALLS = counter("hindmost_process_read_calls_total", "read() and similar calls, cached or not.", *_BY)
READ_ANY = counter(
    "hindmost_process_read_characters_total", "Bytes requested by read() and similar calls, cached or not.", *_BY
)
READ = counter("hindmost_process_read_bytes_total", "Bytes fetched from storage.", *_BY)
WRITTEN = counter("hindmost_process_written_bytes_total", "Bytes sent to storage.", *_BY)


class _IoWatch:
    """One process's ``io``."""

    def __init__(self, folder: str) -> None:
        self._io: File | None = None
        self.out_of_reach = ""
        try:
            self._io = File(f"{folder}/io")
            self._io.read()
        except OSError:  # another user's process, of which mostly opening works and reading does not; or no such file
            if not os.path.exists(f"{folder}/stat"):  # noqa: PTH110 - the process itself has ended
                raise
            self._io, self.out_of_reach = None, "io"

    def values(self) -> list[float]:
        if self._io is None:
            return [NAN] * len(ProcessIo.metrics)
        fields = self._io.read().split()
        return [int(fields[5]), int(fields[1]), int(fields[9]), int(fields[11])]


@register
class ProcessIo(RankFiles):
    """Reads and writes of the ranks of this node; `process_children` has those of their DataLoader workers."""

    name = "process_io"
    period = 5.0
    source = "/proc/PID/io"
    metrics = (READ_CALLS, READ_ANY, READ, WRITTEN)

    def watch(self, folder: str) -> _IoWatch:
        return _IoWatch(folder)


ALLOWED = gauge("hindmost_process_allowed_cpus", "Cores on which the rank may run.", *_BY)
AFFINITY = gauge("hindmost_process_affinity_info", "1; the list of cores on which the rank may run.", *_BY, "cpus")
VOLUNTARY = counter("hindmost_process_voluntary_switches_total", "Times the main thread gave up its core.", *_BY)
INVOLUNTARY = counter("hindmost_process_involuntary_switches_total", "Times the main thread was preempted.", *_BY)

#: Of some sixty lines of status, those that are read.
STATUS = re.compile(rb"^(Cpus_allowed_list|(?:non)?voluntary_ctxt_switches):\s*(.*?)\s*$", re.MULTILINE)


@register
class ProcessStatus(Sampler):
    """Affinity and context switches of each rank's main thread."""

    name = "process_status"
    period = 5.0  # a job of seconds is judged by it as well
    source = "/proc/PID/status"
    metrics = (ALLOWED, AFFINITY, VOLUNTARY, INVOLUNTARY)

    def sample(self) -> list[float]:
        found: dict[Series, float] = {}
        for rank in self.host.ranks.shown():
            found.update(_status(self.host.proc / str(rank.pid), rank))
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())


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
