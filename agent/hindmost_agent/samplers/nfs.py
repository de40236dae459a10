"""What the NFS client did on each mount: bytes, operations, retransmissions and how long they took."""

from hindmost_agent.kernel_files import File, mount_text
from hindmost_agent.sampler import Absent, Host, Metric, Series, TableSampler, counter, register, series

_BY = ("export", "mountpoint")


def _of(what: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_node_nfs_{what}_total", text, *_BY, *labels)


#: Columns of the ``bytes:`` line, added up, to metric: what is read with O_DIRECT has a column of its own.
BYTES = {
    (0, 2): _of("read_bytes", "Bytes that programs read, cached or not."),
    (1, 3): _of("written_bytes", "Bytes that programs wrote."),
    (4,): _of("server_read_bytes", "Bytes read from the server."),
    (5,): _of("server_written_bytes", "Bytes written to the server."),
}
#: Column of a per-operation line to metric and the size of its unit (times there are ms).
OPERATION = {
    0: (_of("operations", "Requests of this operation.", "operation"), 1.0),
    2: (_of("timeouts", "Requests of this operation that timed out after all retries.", "operation"), 1.0),
    1: (_of("transmissions", "Requests sent, retransmissions included.", "operation"), 1.0),
    6: (_of("round_trip_seconds", "Time between request and answer, summed.", "operation"), 1e-3),
    7: (_of("execution_seconds", "Time from a program's request to its completion, summed.", "operation"), 1e-3),
}
OPERATIONS = {b"READ", b"WRITE", b"OPEN", b"GETATTR", b"LOOKUP", b"COMMIT", b"CREATE"}


@register
class Nfs(TableSampler):
    """NFS mounts; only operations that have happened are shown.

    Mounts that share a superblock, e.g. bind mounts, all show the sum of their traffic.
    """

    name = "nfs"
    period = 10.0
    source = "/proc/self/mountstats"
    metrics = (*BYTES.values(), *(metric for metric, _ in OPERATION.values()))

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._file = File(host.proc / "self/mountstats")

    def table(self) -> dict[Series, float]:
        found: dict[Series, float] = {}
        for block in self._file.read().split(b"device ")[1:]:
            head = block.split(None, 6)
            # "server:/path mounted on /mnt with fstype nfs4 statvers=1.1"
            if len(head) == 7 and head[6].startswith(b"nfs"):
                self._mount(block, (mount_text(head[0]), mount_text(head[3])), found)
        if not found:
            raise Absent("no NFS mount")
        return found

    @staticmethod
    def _mount(block: bytes, labels: tuple[str, str], found: dict[Series, float]) -> None:
        for line in block.splitlines():
            key, colon, rest = line.strip().partition(b":")
            numbers = rest.split()
            if colon and key == b"bytes":
                for columns, metric in BYTES.items():
                    found[series(metric, *labels)] = sum(int(numbers[column]) for column in columns)
            elif colon and key in OPERATIONS and len(numbers) >= 8 and int(numbers[0]):
                name = key.decode().lower()
                for column, (metric, unit) in OPERATION.items():
                    found[series(metric, *labels, name)] = int(numbers[column]) * unit
