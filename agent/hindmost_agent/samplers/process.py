"""What the job's training processes use: CPU, waiting for a core, memory, I/O."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from hindmost_agent.files import File
from hindmost_agent.metric import counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register

if TYPE_CHECKING:
    from hindmost_agent.ranks import RankProcess

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
READ_CALLS = counter("hindmost_process_read_calls_total", "read() calls and the like, cached or not.", *_BY)
READ_ANY = counter(
    "hindmost_process_read_characters_total", "Bytes asked for by read() and the like, cached or not.", *_BY
)
READ = counter("hindmost_process_read_bytes_total", "Bytes fetched from storage.", *_BY)
WRITTEN = counter("hindmost_process_written_bytes_total", "Bytes sent to storage.", *_BY)


class Watch:
    """The open files of one process. ``io`` and ``schedstat`` may be out of reach: then their values are missing, and
    ``out_of_reach`` names them."""

    def __init__(self, host: Host, rank: RankProcess) -> None:
        folder = host.proc / str(rank.pid)
        self.stat = File(folder / "stat")
        self.schedstat = _maybe(folder / "schedstat")
        self.io = _maybe(folder / "io")
        if self.io is not None and not _readable(self.io):
            self.io = None
        self.out_of_reach = [name for name in ("schedstat", "io") if getattr(self, name) is None]

    def values(self) -> list[float]:
        """In the order of ``Process.metrics``; all missing once the process has gone."""
        try:
            return [*_stat(self.stat.read()), *_schedstat(self.schedstat), *_io(self.io)]
        except ProcessLookupError:
            return [NAN] * len(Process.metrics)


def _maybe(path: os.PathLike[str]) -> File | None:
    try:
        return File(os.fspath(path))
    except OSError:
        return None


def _readable(file: File) -> bool:
    try:
        file.read()
    except PermissionError:  # another user's process: opening works, reading does not
        return False
    return True


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
    )


def _schedstat(file: File | None) -> tuple[float, ...]:
    if file is None:
        return NAN, NAN
    _, waited, slices = file.read().split()
    return int(waited) / 1e9, int(slices)


def _io(file: File | None) -> tuple[float, ...]:
    if file is None:
        return NAN, NAN, NAN, NAN
    fields = file.read().split()
    return int(fields[5]), int(fields[1]), int(fields[9]), int(fields[11])


@register
class Process(Sampler):
    """The ranks of this node, one process each; see `process_threads` for their threads and DataLoader workers."""

    name = "process"
    source = "/proc/PID/{stat,schedstat,io}"
    metrics = (
        CPU, SYSTEM, MINOR, MAJOR, THREADS, RESIDENT, RUNQUEUE, SLICES,
        READ_CALLS, READ_ANY, READ, WRITTEN,
    )  # fmt: skip

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._generation = -1
        self._watched: dict[RankProcess, Watch] = {}
        self._said = False

    def sample(self) -> list[float]:
        if self.host.ranks.generation != self._generation:
            self._follow()
        values: list[float] = []
        for watch in self._watched.values():
            values += watch.values()
        return values

    def _watch(self, rank: RankProcess) -> Watch | None:
        try:
            watch = Watch(self.host, rank)
        except (FileNotFoundError, ProcessLookupError):  # it has ended in the meantime
            return None
        if watch.out_of_reach and not self._said:
            self._said = True
            log.warning("/proc/%d: %s cannot be read (said once)", rank.pid, ", ".join(watch.out_of_reach))
        return watch

    def _follow(self) -> None:
        """Take on new ranks, leave those that went."""
        followed = {rank: self._watched.get(rank) or self._watch(rank) for rank in self.host.ranks.shown()}
        self._watched = watched = {rank: watch for rank, watch in followed.items() if watch}
        self._generation = self.host.ranks.generation
        self.series = tuple(series(metric, rank.job_id, str(rank.rank)) for rank in watched for metric in self.metrics)
