"""InfiniBand and RoCE adapters: traffic, errors, congestion and the state of each link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.files import text
from hindmost_agent.metric import Metric, counter, gauge, series
from hindmost_agent.number_files import NumberFile, NumberFiles
from hindmost_agent.sampler import NAN, Absent, Host, register

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BY = ("device", "port")


def _of(what: str, text_: str) -> Metric:
    return counter(f"hindmost_node_infiniband_{what}_total", text_, *_BY)


#: File below a port to metric and the size of its unit (data counters count 4-byte words).
COUNTERS: dict[str, tuple[Metric, float]] = {
    "counters/port_xmit_data": (_of("transmit_bytes", "Bytes sent."), 4.0),
    "counters/port_rcv_data": (_of("receive_bytes", "Bytes received."), 4.0),
    "counters/port_xmit_packets": (_of("transmit_packets", "Packets sent."), 1.0),
    "counters/port_rcv_packets": (_of("receive_packets", "Packets received."), 1.0),
    "counters/port_xmit_wait": (_of("transmit_wait_ticks", "Ticks in which data waited for credits."), 1.0),
    "counters/port_xmit_discards": (_of("transmit_discards", "Packets not sent: port down or congested."), 1.0),
    "counters/port_rcv_errors": (_of("receive_errors", "Packets received with an error."), 1.0),
    "counters/symbol_error": (_of("symbol_errors", "Symbol errors on the wire."), 1.0),
    "counters/link_downed": (_of("link_downed", "Times the link went down."), 1.0),
    "counters/link_error_recovery": (_of("link_recoveries", "Times the link recovered from an error."), 1.0),
    "counters/local_link_integrity_errors": (_of("integrity_errors", "Local link integrity errors."), 1.0),
    "hw_counters/np_ecn_marked_roce_packets": (_of("ecn_marked_packets", "RoCE packets received with ECN."), 1.0),
    "hw_counters/np_cnp_sent": (_of("cnp_sent", "Congestion notifications sent."), 1.0),
    "hw_counters/rp_cnp_handled": (_of("cnp_handled", "Congestion notifications obeyed."), 1.0),
    "hw_counters/out_of_sequence": (_of("out_of_sequence", "Packets received out of sequence."), 1.0),
    "hw_counters/packet_seq_err": (_of("sequence_errors", "Sequence errors answered with a NAK."), 1.0),
    "hw_counters/local_ack_timeout_err": (_of("ack_timeouts", "Acknowledgements that did not come in time."), 1.0),
    "hw_counters/out_of_buffer": (_of("out_of_buffer", "Packets dropped for want of a receive buffer."), 1.0),
    "hw_counters/rnr_nak_retry_err": (_of("rnr_retry_errors", "Sends given up because the peer was not ready."), 1.0),
    "hw_counters/roce_adp_retrans": (_of("adaptive_retransmissions", "Adaptive retransmissions of RoCE."), 1.0),
}
ACTIVE = gauge("hindmost_node_infiniband_link_active", "1 while the link's logical state is active.", *_BY)
RATE = gauge("hindmost_node_infiniband_link_bytes_per_second", "Rate at which the link was trained.", *_BY)
INFO = gauge("hindmost_node_infiniband_info", "1; what the port is.", *_BY, "link_layer", "firmware", "board")


@register
class Infiniband(NumberFiles):
    """Every port of every RDMA adapter; a counter that an adapter does not have is absent."""

    name = "infiniband"
    period = 5.0
    source = "/sys/class/infiniband"
    metrics = (*(metric for metric, _ in COUNTERS.values()), ACTIVE, RATE, INFO)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._ports: list[tuple[str, str, Path]] = []

    def scan(self) -> Iterator[NumberFile]:
        self._ports = [
            (port.parts[-3], port.name, port)
            for port in sorted((self.host.sys / "class/infiniband").glob("*/ports/*"))
            if port.name.isdigit()
        ]
        if not self._ports:
            raise Absent("no RDMA adapter")
        for name, (metric, unit) in COUNTERS.items():
            for device, port, path in self._ports:
                if (path / name).exists():
                    yield NumberFile(series(metric, device, port), path / name, unit)

    def sample(self) -> list[float]:
        values = super().sample()
        extra = {}
        for device, port, path in self._ports:
            state = text(path / "state")
            extra[series(ACTIVE, device, port)] = float(state.startswith("4")) if state else NAN
            extra[series(RATE, device, port)] = _rate(text(path / "rate"))
            adapter = path.parent.parent
            what = (text(path / "link_layer"), text(adapter / "fw_ver"), text(adapter / "board_id"))
            extra[series(INFO, device, port, *what)] = 1.0
        counted = self.series[: len(values)]
        if self.series != (expected := (*counted, *extra)):
            self.series = expected
        return [*values, *extra.values()]


def _rate(line: str) -> float:
    """Bytes a second from ``400 Gb/sec (4X NDR)``."""
    try:
        return float(line.split(maxsplit=1)[0]) * 1e9 / 8
    except (ValueError, IndexError):
        return NAN
