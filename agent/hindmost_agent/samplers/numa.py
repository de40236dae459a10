"""Memory of each NUMA node, and how often it had to come from another."""

from hindmost_agent.kernel_files import File, text
from hindmost_agent.sampler import Absent, Host, Metric, Series, TableSampler, counter, gauge, register, series


def _gauge(what: str, text: str) -> Metric:
    return gauge(f"hindmost_node_numa_memory_{what}_bytes", text, "numa_node")


def _counter(what: str, text: str) -> Metric:
    return counter(f"hindmost_node_numa_{what}_pages_total", text, "numa_node")


MEMINFO = {
    b"MemTotal": _gauge("total", "Memory of this NUMA node."),
    b"MemFree": _gauge("free", "Free memory of this NUMA node."),
    b"FilePages": _gauge("cached", "Page cache in this NUMA node."),
    b"AnonPages": _gauge("anonymous", "Memory of processes, backed by no file, in this NUMA node."),
}
NUMASTAT = {
    b"numa_hit": _counter("hit", "Pages allocated from the node that was requested."),
    b"numa_miss": _counter("missed", "Pages allocated from this node though another was requested."),
    b"numa_foreign": _counter("foreign", "Pages requested from this node and allocated from another."),
    b"local_node": _counter("local", "Pages allocated for a process that ran on this node."),
    b"other_node": _counter("remote", "Pages allocated for a process that ran on another node."),
}
CPUS = gauge("hindmost_node_numa_cpus_info", "1; the list of cores of this NUMA node.", "numa_node", "cpus")


@register
class Numa(TableSampler):
    """Memory by NUMA node; off where there is only one."""

    name = "numa"
    period = 10.0
    source = "/sys/devices/system/node/node*/{meminfo,numastat,cpulist}"
    metrics = (*MEMINFO.values(), *NUMASTAT.values(), CPUS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        folder = host.sys / "devices/system/node"
        nodes = sorted((int(path.name[4:]), path) for path in folder.glob("node[0-9]*") if path.name[4:].isdigit())
        if len(nodes) < 2:
            raise Absent("one NUMA node or none")
        self._files = [(str(number), File(path / "meminfo"), File(path / "numastat")) for number, path in nodes]
        self._cpus = [series(CPUS, str(number), text(path / "cpulist")) for number, path in nodes]

    def table(self) -> dict[Series, float]:
        found = dict.fromkeys(self._cpus, 1.0)
        for number, meminfo, numastat in self._files:
            # "Node 0 MemTotal:  131923108 kB"
            lines = (line.split() for line in meminfo.read().splitlines())
            memory = {fields[2].rstrip(b":"): int(fields[3]) * 1024 for fields in lines if len(fields) >= 4}
            pages = {key: int(count) for key, count in (line.split() for line in numastat.read().splitlines())}
            for table, metrics in ((memory, MEMINFO), (pages, NUMASTAT)):
                found.update((series(metrics[key], number), float(table[key])) for key in metrics if key in table)
        return found
