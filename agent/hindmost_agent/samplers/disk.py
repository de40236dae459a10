"""What each disk did: bytes, operations, time, and how much is in flight."""

import re
from functools import lru_cache

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import Host, RowSampler, counter, gauge, register

#: Partitions repeat their disk; loop, ram and floppy devices hold no training data.
PARTITION = re.compile(rb"((sd|vd|xvd|hd)[a-z]+\d+|(nvme\d+n\d+|mmcblk\d+)p\d+|loop\d+|ram\d+|fd\d+|sr\d+|zram\d+)$")
SECTOR = 512

READS = counter("hindmost_node_disk_reads_total", "Reads completed.", "device")
READ_BYTES = counter("hindmost_node_disk_read_bytes_total", "Bytes read.", "device")
READ_SECONDS = counter("hindmost_node_disk_read_seconds_total", "Time of all reads, added up.", "device")
WRITES = counter("hindmost_node_disk_writes_total", "Writes completed.", "device")
WRITTEN = counter("hindmost_node_disk_written_bytes_total", "Bytes written.", "device")
WRITE_SECONDS = counter("hindmost_node_disk_write_seconds_total", "Time of all writes, added up.", "device")
IN_FLIGHT = gauge("hindmost_node_disk_in_flight", "Requests that the device works on now.", "device")
BUSY = counter("hindmost_node_disk_busy_seconds_total", "Time with at least one request in flight.", "device")


@register
class Disk(RowSampler):
    """Reads and writes of whole disks; partitions, loop and RAM devices are left out."""

    name = "disk"
    period = 2.0
    source = "/proc/diskstats"
    metrics = (READS, READ_BYTES, READ_SECONDS, WRITES, WRITTEN, WRITE_SECONDS, IN_FLIGHT, BUSY)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._file = File(host.proc / "diskstats")

    def rows(self) -> dict[tuple[str, ...], list[float]]:
        lines = map(bytes.split, self._file.read().splitlines())
        disks = [fields for fields in lines if len(fields) >= 14 and _whole_disk(fields[2])]
        return {(fields[2].decode("utf-8", "replace"),): _values(fields) for fields in disks}


@lru_cache(maxsize=1024)
def _whole_disk(name: bytes) -> bool:
    return not PARTITION.match(name)


def _values(fields: list[bytes]) -> list[float]:
    """The metrics of one line of /proc/diskstats, in their declared order (times there are ms, sizes sectors)."""
    numbers = [int(field) for field in fields[3:14]]
    reads, _, read_sectors, read_ms, writes, _, written_sectors, write_ms, in_flight, busy_ms, _ = numbers
    return [
        reads,
        read_sectors * SECTOR,
        read_ms / 1e3,
        writes,
        written_sectors * SECTOR,
        write_ms / 1e3,
        in_flight,
        busy_ms / 1e3,
    ]
