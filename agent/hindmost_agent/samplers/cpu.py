"""CPU time of the whole node, context switches, load, and how many threads run or wait; for how long: `runqueue.py`."""

from __future__ import annotations

import os

from hindmost_agent.files import File
from hindmost_agent.metric import counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register

#: The columns of /proc/stat. guest and guest_nice are left out: the kernel has counted them in user and nice already.
MODES = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
TICKS = os.sysconf("SC_CLK_TCK")

CPU = counter("hindmost_node_cpu_seconds_total", "CPU time of all cores together, by mode.", "mode")
CORES = gauge("hindmost_node_cpus", "Cores that are online.")
SWITCHES = counter("hindmost_node_context_switches_total", "Context switches.")
FORKS = counter("hindmost_node_forks_total", "Processes and threads started.")
RUNNING = gauge("hindmost_node_processes_running", "Threads that run or wait for a core.")
BLOCKED = gauge("hindmost_node_processes_blocked", "Threads in an uninterruptible wait, mostly for I/O.")
LOADS = (
    gauge("hindmost_node_load1", "Load average over one minute, as the kernel gives it."),
    gauge("hindmost_node_load5", "Load average over five minutes."),
    gauge("hindmost_node_load15", "Load average over fifteen minutes."),
)


@register
class Cpu(Sampler):
    """CPU time by mode, summed over cores; per core it is in `cpu_core`."""

    name = "cpu"
    source = "/proc/stat, /proc/loadavg"
    metrics = (CPU, CORES, SWITCHES, FORKS, RUNNING, BLOCKED, *LOADS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._stat = File(host.proc / "stat", one_record=True)
        self._load = File(host.proc / "loadavg")
        self.series = (
            *(series(CPU, mode) for mode in MODES),
            *(series(metric) for metric in (CORES, SWITCHES, FORKS, RUNNING, BLOCKED, *LOADS)),
        )

    def sample(self) -> list[float]:
        data = self._stat.read()
        total = data[: data.index(b"\n")].split()
        if total[0] != b"cpu":
            raise ValueError(f"{self._stat.path} does not start with cpu")
        values = [int(ticks) / TICKS for ticks in total[1:9]]
        values += [NAN] * (len(MODES) - len(values))
        # The lines after the cores and the (very long) intr line, found from the end.
        rest = dict(line.split()[:2] for line in data[max(data.rfind(b"\nctxt"), 0) :].splitlines() if b" " in line)
        values.append(data.count(b"\ncpu"))
        values += [float(rest.get(key, NAN)) for key in (b"ctxt", b"processes", b"procs_running", b"procs_blocked")]
        one, five, fifteen = self._load.read().split()[:3]
        values += [float(one), float(five), float(fifteen)]
        return values
