"""What the job's training processes use: CPU, run-queue wait, memory; whether they are stopped or blocked."""

from __future__ import annotations

import os

from hindmost_agent.files import File, RankFiles
from hindmost_agent.metric import counter, gauge
from hindmost_agent.sampler import NAN, register

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


class ProcessWatch:
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

    def watch(self, folder: str) -> ProcessWatch:
        return ProcessWatch(folder)
