"""What the Lustre client did on each file system: bytes, calls and how long they took."""

from pathlib import Path

from hindmost_agent.kernel_files import read_once
from hindmost_agent.sampler import Absent, Host, Metric, Series, TableSampler, counter, register, series


def _of(what: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_node_lustre_{what}_total", text, "filesystem", *labels)


READ = _of("read_bytes", "Bytes that programs read.")
WRITTEN = _of("written_bytes", "Bytes that programs wrote.")
CALLS = _of("operations", "Calls of this operation.", "operation")
SECONDS = _of("operation_seconds", "Time that calls of this operation took, added up.", "operation")
BYTES = {b"read_bytes": (READ, "read"), b"write_bytes": (WRITTEN, "write")}
#: A file that is mapped into memory is not read: its pages are faults.
OPERATIONS = {
    b"open",
    b"close",
    b"read",
    b"write",
    b"page_fault",
    b"fsync",
    b"getattr",
    b"mkdir",
    b"unlink",
    b"truncate",
}


@register
class Lustre(TableSampler):
    """The client side of each Lustre file system, all its mounts together; 2.12 and later show it to root only.

    Lustre 2.14 and later report how long operations took.
    """

    name = "lustre"
    period = 10.0
    source = "/proc/fs/lustre/llite/*/stats, /sys/kernel/debug/lustre/llite/*/stats"
    metrics = (READ, WRITTEN, CALLS, SECONDS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._roots = (host.proc / "fs/lustre/llite", host.sys / "kernel/debug/lustre/llite")
        self._mounted = host.sys / "fs/lustre/llite"

    def table(self) -> dict[Series, float]:
        # Mounts come and go with jobs: there are few, and one listing every ten seconds finds them.
        pages = {path.parent.name: _page(path) for root in self._roots for path in _stats(root)}
        failed = [page for page in pages.values() if isinstance(page, OSError)]
        if len(failed) == len(pages):
            raise self._absent(failed)
        found: dict[Series, float] = {}
        for instance, page in pages.items():
            if isinstance(page, OSError):
                continue
            # "scratch-ffff9a01c7f4e800": the file system's name, then the mount's address
            for one, value in _parsed(page, instance.rpartition("-")[0] or instance).items():
                found[one] = found.get(one, 0.0) + value
        return found

    def _absent(self, failed: list[OSError]) -> Absent:
        """Why there is nothing to read."""
        absent = Absent("no Lustre mount")
        absent.__cause__ = failed[0] if failed else None
        if not failed and next(self._mounted.glob("*-*"), None):
            absent = Absent("Lustre is mounted, but what it counts is in debugfs: run the agent as root, with debugfs")
            absent.__cause__ = PermissionError()
        return absent


def _parsed(page: bytes, name: str) -> dict[Series, float]:
    """What one mount says: ``NAME COUNT samples [UNIT] MIN MAX SUM …``, a sum of bytes, or of us in newer releases."""
    found: dict[Series, float] = {}
    for line in page.splitlines():
        fields = line.split()
        if len(fields) < 4 or fields[2] != b"samples":  # the times of the snapshot, of its start, and between them
            continue
        key, count = fields[0], int(fields[1])
        if key in BYTES and len(fields) >= 7:
            metric, operation = BYTES[key]
            found[series(metric, name)] = int(fields[6])
            found[series(CALLS, name, operation)] = count  # before 2.14 only here
        elif key in OPERATIONS:
            operation = key.decode()
            found[series(CALLS, name, operation)] = count
            if fields[3] in (b"[usec]", b"[usecs]") and len(fields) >= 7:
                found[series(SECONDS, name, operation)] = int(fields[6]) / 1e6
    return found


def _page(path: Path) -> bytes | OSError:
    """What a mount says, or why it does not: it may be unmounted in this instant, and the others are read."""
    try:
        return read_once(path)
    except OSError as error:
        return error


def _stats(root: Path) -> list[Path]:
    try:
        return sorted(root.glob("*/stats"))
    except OSError:  # debugfs, and this agent is not root
        return []
