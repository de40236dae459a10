"""On which cores the ranks may run, and how often they left one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hindmost_agent.files import read_once
from hindmost_agent.metric import Series, counter, gauge, series
from hindmost_agent.sampler import Sampler, register

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_agent.jobs.ranks import RankProcess

_BY = ("job", "rank")
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
