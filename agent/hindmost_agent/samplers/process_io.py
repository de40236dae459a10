"""What the job's training processes read and write: the kernel sums it over all their threads when it is asked."""

from __future__ import annotations

import os

from hindmost_agent.files import File, RankFiles
from hindmost_agent.metric import counter
from hindmost_agent.sampler import NAN, register

_BY = ("job", "rank")
READ_CALLS = counter("hindmost_process_read_calls_total", "read() and similar calls, cached or not.", *_BY)
READ_ANY = counter(
    "hindmost_process_read_characters_total", "Bytes requested by read() and similar calls, cached or not.", *_BY
)
READ = counter("hindmost_process_read_bytes_total", "Bytes fetched from storage.", *_BY)
WRITTEN = counter("hindmost_process_written_bytes_total", "Bytes sent to storage.", *_BY)


class ProcessWatch:
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

    def watch(self, folder: str) -> ProcessWatch:
        return ProcessWatch(folder)
