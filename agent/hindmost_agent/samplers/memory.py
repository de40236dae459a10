"""Memory of the node, and how hard the kernel works to find some."""

from __future__ import annotations

from hindmost_agent.files import File
from hindmost_agent.metric import Metric, counter, gauge, series
from hindmost_agent.sampler import NAN, Host, Sampler, register


def _bytes(what: str, text: str) -> Metric:
    return gauge(f"hindmost_node_memory_{what}_bytes", text)


#: Key in /proc/meminfo (kB) to metric.
MEMINFO = {
    b"MemTotal": _bytes("total", "Memory the kernel manages."),
    b"MemFree": _bytes("free", "Memory nobody uses, not even as cache."),
    b"MemAvailable": _bytes("available", "Memory that could be had without swapping (kernel's estimate)."),
    b"Buffers": _bytes("buffers", "Cache of block devices' metadata."),
    b"Cached": _bytes("cached", "Page cache, shared memory included."),
    b"Dirty": _bytes("dirty", "Page cache that waits to be written."),
    b"Writeback": _bytes("writeback", "Page cache that is being written."),
    b"AnonPages": _bytes("anonymous", "Memory of processes that no file backs."),
    b"Shmem": _bytes("shared", "Shared memory and tmpfs."),
    b"Slab": _bytes("slab", "Memory of the kernel's own objects."),
    b"AnonHugePages": _bytes("anonymous_hugepages", "Anonymous memory in transparent huge pages."),
    b"Hugetlb": _bytes("hugetlb", "Memory set aside for hugetlb pages of any size."),
    b"SwapTotal": _bytes("swap_total", "Swap space."),
    b"SwapFree": _bytes("swap_free", "Swap space not in use."),
}

#: Key in /proc/vmstat to metric.
VMSTAT = {
    b"pgfault": counter("hindmost_node_page_faults_total", "Page faults, minor and major."),
    b"pgmajfault": counter("hindmost_node_major_page_faults_total", "Page faults that had to read from disk."),
    b"pswpin": counter("hindmost_node_swap_in_pages_total", "Pages read back from swap."),
    b"pswpout": counter("hindmost_node_swap_out_pages_total", "Pages written to swap."),
    b"allocstall_normal": counter("hindmost_node_allocation_stalls_total", "Allocations that had to reclaim first."),
    b"oom_kill": counter("hindmost_node_oom_kills_total", "Processes that the kernel killed for want of memory."),
    b"numa_miss": counter("hindmost_node_numa_miss_pages_total", "Pages given from another node than was asked for."),
    b"pgmigrate_success": counter("hindmost_node_migrated_pages_total", "Pages moved between NUMA nodes or compacted."),
}


def _table(data: bytes) -> dict[bytes, bytes]:
    """First word to second word of each line, without the colon."""
    return {words[0].rstrip(b":"): words[1] for line in data.splitlines() if len(words := line.split()) >= 2}


@register
class Memory(Sampler):
    """Memory, page faults and swap of the node."""

    name = "memory"
    source = "/proc/meminfo, /proc/vmstat"
    metrics = (*MEMINFO.values(), *VMSTAT.values())

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._meminfo = File(host.proc / "meminfo")
        self._vmstat = File(host.proc / "vmstat")
        self.series = tuple(series(metric) for metric in self.metrics)

    def sample(self) -> list[float]:
        meminfo, vmstat = _table(self._meminfo.read()), _table(self._vmstat.read())
        values = [float(meminfo.get(key, NAN)) * 1024 for key in MEMINFO]
        values += [float(vmstat.get(key, NAN)) for key in VMSTAT]
        return values
