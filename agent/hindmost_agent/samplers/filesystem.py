"""How full local file systems are: a checkpoint that finds no room stops a job."""

import os

from hindmost_agent.kernel_files import File, mount_text
from hindmost_agent.sampler import NAN, Absent, Host, RowSampler, gauge, register

#: Only file systems that answer from this node: asking a network file system for its size may block for ever.
LOCAL = {b"ext2", b"ext3", b"ext4", b"xfs", b"btrfs", b"zfs", b"f2fs", b"tmpfs", b"overlay", b"vfat"}
MOST = 64

_BY = ("device", "mountpoint", "fstype")
SIZE = gauge("hindmost_node_filesystem_size_bytes", "Size of the file system.", *_BY)
AVAILABLE = gauge("hindmost_node_filesystem_available_bytes", "Space left for users other than root.", *_BY)
FILES = gauge("hindmost_node_filesystem_files_free", "Inodes left.", *_BY)
READONLY = gauge("hindmost_node_filesystem_readonly", "1 if mounted read-only.", *_BY)


@register
class Filesystem(RowSampler):
    """Space and inodes of local file systems, each listed once. Network file systems are not read."""

    name = "filesystem"
    period = 30.0
    source = "/proc/self/mounts, statvfs"
    metrics = (SIZE, AVAILABLE, FILES, READONLY)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._mounts = File(host.proc / "self/mounts")

    def rows(self) -> dict[tuple[str, ...], list[float]]:
        named = [tuple(map(mount_text, mount)) for mount in self._local()]
        found = {labels: self._sizes(labels[1]) for labels in named}
        if not found:
            raise Absent("no local file system")
        return found

    def _local(self) -> list[list[bytes]]:
        """Device, mount point and type of each local file system, the first mount of each."""
        mounts: dict[bytes, list[bytes]] = {}
        for line in self._mounts.read().splitlines():
            fields = line.split()
            if len(fields) >= 4 and fields[2] in LOCAL and not fields[1].startswith((b"/proc", b"/sys", b"/run/user")):
                key = fields[0] if fields[0].startswith(b"/") else fields[1]
                mounts.setdefault(key, fields[:3])
        return list(mounts.values())[:MOST]

    def _sizes(self, path: str) -> list[float]:
        try:
            status = self.host.statvfs(path)
        except OSError:
            return [NAN] * len(self.metrics)
        block = status.f_frsize
        return [
            status.f_blocks * block,
            status.f_bavail * block,
            status.f_favail,
            float(bool(status.f_flag & os.ST_RDONLY)),
        ]
