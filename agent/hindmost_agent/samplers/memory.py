"""Memory of the node, by what it is used for."""

from hindmost_agent.kernel_files import File, Lines
from hindmost_agent.sampler import Host, Metric, Sampler, gauge, register


def _bytes(what: str, text: str) -> Metric:
    return gauge(f"hindmost_node_memory_{what}_bytes", text)


#: Key in /proc/meminfo (kB) to metric.
MEMINFO = {
    b"MemTotal": _bytes("total", "Memory the kernel manages."),
    b"MemFree": _bytes("free", "Memory that is free, not even used as cache."),
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


@register
class Memory(Sampler):
    """Memory and swap of the node; faults and reclaim are in `vmstat`."""

    name = "memory"
    period = 2.0  # a batch goes as often, and what is asked for closer is read at once
    tells_why = True
    source = "/proc/meminfo"
    metrics = (USED, *MEMINFO.values())

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._meminfo = Lines(File(host.proc / "meminfo", one_record=True), tuple(MEMINFO))

    def sample(self) -> list[float]:
        memory = [kib * 1024 for kib in self._meminfo.read()]
        return [memory[TOTAL] - memory[AVAILABLE], *memory]
