"""CPU time of the node and its cores, context switches, load and clocks; waits for a core: `runqueue.py`."""

import os
from collections.abc import Iterator

from hindmost_agent.kernel_files import File, NumberFile, NumberFiles
from hindmost_agent.sampler import NAN, Host, Sampler, counter, gauge, register, series

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


FREQUENCY = gauge("hindmost_node_cpu_frequency_hertz", "Clock of each core.", "cpu")
HIGHEST = gauge("hindmost_node_cpu_frequency_max_hertz", "Highest clock of each core.", "cpu")
CORE_THROTTLED = counter("hindmost_node_cpu_core_throttles_total", "Times a core was slowed down for its heat.", "cpu")
PACKAGE_THROTTLED = counter(
    "hindmost_node_cpu_package_throttles_total", "Times the core's package was slowed down for its heat.", "cpu"
)
FILES = (
    (FREQUENCY, "cpufreq/scaling_cur_freq", 1e3),
    (HIGHEST, "cpufreq/cpuinfo_max_freq", 1e3),
    (CORE_THROTTLED, "thermal_throttle/core_throttle_count", 1.0),
    (PACKAGE_THROTTLED, "thermal_throttle/package_throttle_count", 1.0),
)


@register
class CpuFrequency(NumberFiles):
    """Clock and thermal throttling of each core. Reading a clock may interrupt the core, so it is read rarely."""

    name = "cpu_frequency"
    period = 30.0
    source = "/sys/devices/system/cpu/cpu*/{cpufreq,thermal_throttle}"
    metrics = (FREQUENCY, HIGHEST, CORE_THROTTLED, PACKAGE_THROTTLED)

    def scan(self) -> Iterator[NumberFile]:
        cores = self.host.sys / "devices/system/cpu"
        numbered = sorted(int(path.name[3:]) for path in cores.glob("cpu[0-9]*") if path.name[3:].isdigit())
        for metric, name, unit in FILES:
            for core in numbered:
                yield NumberFile(series(metric, str(core)), cores / f"cpu{core}" / name, unit, fixed=metric is HIGHEST)
