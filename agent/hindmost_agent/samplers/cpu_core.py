"""CPU time core by core: one hot core, and one that a training process shares, are seen only here."""

from __future__ import annotations

from hindmost_agent.files import File
from hindmost_agent.metric import counter, series
from hindmost_agent.sampler import Host, Sampler, register
from hindmost_agent.samplers.cpu import MODES, TICKS

CORE = counter("hindmost_node_cpu_core_seconds_total", "CPU time of each core, by mode.", "cpu", "mode")


@register
class CpuCore(Sampler):
    """CPU time of each core; less often than the sum, because a node may have hundreds."""

    name = "cpu_core"
    period = 15.0
    source = "/proc/stat"
    metrics = (CORE,)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._stat = File(host.proc / "stat", one_record=True)
        self._cores: list[bytes] = []

    def sample(self) -> list[float]:
        cores, values = [], []
        for line in self._stat.read().splitlines()[1:]:
            fields = line.split(None, 9)
            if not fields or not fields[0].startswith(b"cpu"):
                break
            times = [int(ticks) / TICKS for ticks in fields[1:9]]
            if len(times) == len(MODES):
                cores.append(fields[0][3:])
                values += times
        if cores != self._cores:  # a core was taken off or put on line
            self._cores = cores
            self.series = tuple(series(CORE, core.decode("ascii", "replace"), mode) for core in cores for mode in MODES)
        return values
