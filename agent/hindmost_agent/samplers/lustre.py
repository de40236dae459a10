"""What the Lustre client did on each file system: bytes, calls and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.files import read_once
from hindmost_agent.metric import Metric, Series, counter, series
from hindmost_agent.sampler import Absent, Host, Sampler, register

if TYPE_CHECKING:
    from pathlib import Path


def _of(what: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_node_lustre_{what}_total", text, "filesystem", *labels)


READ = _of("read_bytes", "Bytes that programs read.")
WRITTEN = _of("written_bytes", "Bytes that programs wrote.")
CALLS = _of("operations", "Calls of this operation.", "operation")
SECONDS = _of("operation_seconds", "Time that calls of this operation took, added up.", "operation")
BYTES = {b"read_bytes": READ, b"write_bytes": WRITTEN}
OPERATIONS = {b"open", b"close", b"read", b"write", b"fsync", b"getattr", b"mkdir", b"unlink", b"truncate"}


@register
class Lustre(Sampler):
    """The client side of each mounted Lustre file system, of 2.10 to 2.15 (newer ones show it to root only)."""

    name = "lustre"
    period = 10.0
    source = "/proc/fs/lustre/llite/*/stats, /sys/kernel/debug/lustre/llite/*/stats"
    metrics = (READ, WRITTEN, CALLS, SECONDS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._roots = (host.proc / "fs/lustre/llite", host.sys / "kernel/debug/lustre/llite")

    def sample(self) -> list[float]:
        # Mounts come and go with jobs: there are few, and one listing every ten seconds finds them.
        pages = {path.parent.name: _page(path) for root in self._roots for path in _stats(root)}
        failed = [page for page in pages.values() if isinstance(page, OSError)]
        if len(failed) == len(pages):
            raise Absent("no Lustre mount") from (failed[0] if failed else None)
        found: dict[Series, float] = {}
        for instance, page in pages.items():
            if isinstance(page, OSError):
                continue
            # "scratch-ffff9a01c7f4e800": the file system's name, then the mount's address
            name = instance.rpartition("-")[0] or instance
            for line in page.splitlines():
                self._line(line.split(), name, found)
        if self.series != tuple(found):
            self.series = tuple(found)
        return list(found.values())

    @staticmethod
    def _line(fields: list[bytes], name: str, found: dict[Series, float]) -> None:
        """``NAME COUNT samples [UNIT] MIN MAX SUM …``: the sum is of bytes, or of microseconds in newer releases."""
        if len(fields) < 4 or fields[2] != b"samples":
            return
        key, count = fields[0], int(fields[1])
        if key in BYTES and len(fields) >= 7:
            found[series(BYTES[key], name)] = int(fields[6])
        elif key in OPERATIONS:
            operation = key.decode()
            found[series(CALLS, name, operation)] = count
            if fields[3] in (b"[usec]", b"[usecs]") and len(fields) >= 7:
                found[series(SECONDS, name, operation)] = int(fields[6]) / 1e6


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
