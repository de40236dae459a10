"""How hard the kernel works to find memory: faults, swap, reclaim, migrations."""

import math

from hindmost_agent.kernel_files import File, Lines
from hindmost_agent.sampler import NAN, Host, Sampler, counter, register

#: Key in /proc/vmstat to metric.
VMSTAT = {
    b"pgfault": counter("hindmost_node_page_faults_total", "Page faults, minor and major."),
    b"pgmajfault": counter("hindmost_node_major_page_faults_total", "Page faults that had to read from disk."),
    b"pswpin": counter("hindmost_node_swap_in_pages_total", "Pages read back from swap."),
    b"pswpout": counter("hindmost_node_swap_out_pages_total", "Pages written to swap."),
    b"oom_kill": counter("hindmost_node_oom_kills_total", "Processes that the kernel killed because memory ran out."),
    b"numa_miss": counter(
        "hindmost_node_numa_miss_pages_total", "Pages allocated from another node than the requested one."
    ),
    b"pgmigrate_success": counter("hindmost_node_migrated_pages_total", "Pages moved between NUMA nodes or compacted."),
}
STALLS = counter("hindmost_node_allocation_stalls_total", "Allocations that had to reclaim first, in all zones.")
#: Which zones there are depends on the machine and the kernel; before 4.10 all were counted as one.
ZONES = (
    b"allocstall_dma", b"allocstall_dma32", b"allocstall_normal", b"allocstall_high", b"allocstall_movable",
    b"allocstall_device", b"allocstall",
)  # fmt: skip


@register
class Vmstat(Sampler):
    """Page faults, swapping, reclaim and migration of the node. The file is long: read less often than `memory`."""

    name = "vmstat"
    period = 5.0
    source = "/proc/vmstat"
    metrics = (*VMSTAT.values(), STALLS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._lines = Lines(File(host.proc / "vmstat"), (*VMSTAT, *ZONES))

    def sample(self) -> list[float]:
        values = self._lines.read()
        counted, zones = values[: len(VMSTAT)], [value for value in values[len(VMSTAT) :] if not math.isnan(value)]
        return [*counted, sum(zones) if zones else NAN]
