"""TCP as the whole node sees it: a bad link shows as retransmissions and timeouts in MPI, gloo and NCCL sockets."""

from hindmost_agent.kernel_files import File
from hindmost_agent.sampler import NAN, Host, Metric, Sampler, counter, gauge, register


def _tcp(what: str, text: str) -> Metric:
    return counter(f"hindmost_node_tcp_{what}_total", text)


ESTABLISHED = gauge("hindmost_node_tcp_established", "Connections that are established.")
#: Protocol and column of /proc/net/snmp and /proc/net/netstat to metric.
COLUMNS = {
    (b"Tcp", b"InSegs"): _tcp("received_segments", "Segments received."),
    (b"Tcp", b"OutSegs"): _tcp("sent_segments", "Segments sent, without retransmissions."),
    (b"Tcp", b"RetransSegs"): _tcp("retransmitted_segments", "Segments sent again."),
    (b"Tcp", b"InErrs"): _tcp("receive_errors", "Segments received in error."),
    (b"Tcp", b"OutRsts"): _tcp("sent_resets", "Connections reset by this node."),
    (b"Tcp", b"CurrEstab"): ESTABLISHED,
    (b"TcpExt", b"TCPTimeouts"): _tcp("timeouts", "Retransmission timers that ran out."),
    (b"TcpExt", b"TCPLostRetransmit"): _tcp("lost_retransmits", "Retransmissions that were lost too."),
    (b"TcpExt", b"ListenDrops"): _tcp("listen_drops", "Connections refused because a queue was full."),
    (b"TcpExt", b"TCPBacklogDrop"): _tcp("backlog_drops", "Segments dropped because a socket's backlog was full."),
    (b"TcpExt", b"TCPZeroWindowDrop"): _tcp("zero_window_drops", "Segments dropped because the window was full."),
}


@register
class Tcp(Sampler):
    """Segments, retransmissions, timeouts and drops of TCP."""

    name = "tcp"
    period = 15.0
    source = "/proc/net/snmp, /proc/net/netstat"
    metrics = tuple(COLUMNS.values())

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._files = [File(host.proc / "net" / name, one_record=True) for name in ("snmp", "netstat")]

    def sample(self) -> list[float]:
        table: dict[tuple[bytes, bytes], float] = {}
        for file in self._files:
            lines = [line.split() for line in file.read().splitlines()]
            # Each protocol has a line of names and then one of numbers.
            for names, numbers in zip(lines[::2], lines[1::2], strict=False):
                if names and numbers and names[0] == numbers[0]:
                    protocol = names[0].rstrip(b":")
                    table.update(((protocol, name), float(n)) for name, n in zip(names[1:], numbers[1:], strict=False))
        return [table.get(key, NAN) for key in COLUMNS]
