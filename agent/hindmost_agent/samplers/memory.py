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

TOTAL, AVAILABLE = (tuple(MEMINFO).index(key) for key in (b"MemTotal", b"MemAvailable"))
USED = _bytes("used", "Memory that could not be had without swapping: total without available.")

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


class Lines:
    """Chosen lines of a file of a name and a number each. Where they stand is found once, and again when it changes."""

    def __init__(self, file: File, keys: tuple[bytes, ...]) -> None:
        self._file = file
        self._keys = keys
        self._places: list[int | None] = []

    def read(self) -> list[float]:
        """A value for each key, missing where the file has none."""
        lines = self._file.read().splitlines()
        if not self._hold(lines):
            first = {line.split(None, 1)[0].rstrip(b":"): place for place, line in enumerate(lines) if line.strip()}
            self._places = [first.get(key) for key in self._keys]
        return [NAN if place is None else float(lines[place].split(None, 2)[1]) for place in self._places]

    def _hold(self, lines: list[bytes]) -> bool:
        """Whether every key still stands where it was found."""
        return len(self._places) == len(self._keys) and all(
            place is None
            or (place < len(lines) and lines[place].startswith(key) and lines[place][len(key) : len(key) + 1] in b": ")
            for key, place in zip(self._keys, self._places, strict=True)
        )


@register
class Memory(Sampler):
    """Memory, page faults and swap of the node."""

    name = "memory"
    source = "/proc/meminfo, /proc/vmstat"
    metrics = (USED, *MEMINFO.values(), *VMSTAT.values())

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._meminfo = Lines(File(host.proc / "meminfo"), tuple(MEMINFO))
        self._vmstat = Lines(File(host.proc / "vmstat"), tuple(VMSTAT))
        self.series = tuple(series(metric) for metric in self.metrics)

    def sample(self) -> list[float]:
        memory = [kib * 1024 for kib in self._meminfo.read()]
        return [memory[TOTAL] - memory[AVAILABLE], *memory, *self._vmstat.read()]
