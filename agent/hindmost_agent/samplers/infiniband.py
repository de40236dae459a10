"""InfiniBand and RoCE adapters: traffic, errors, congestion and the state of each link."""

import errno
from collections.abc import Iterator
from pathlib import Path

from hindmost_agent.kernel_files import File, NumberFile, NumberFiles, read_once, text
from hindmost_agent.sampler import ADAPTER, NAN, Absent, Host, Metric, Series, counter, gauge, register, series

_BY = ("device", "port")


def _of(what: str, text_: str) -> Metric:
    return counter(f"hindmost_node_infiniband_{what}_total", text_, *_BY)


TRANSMITTED = _of("transmit_bytes", "Bytes sent.")
RECEIVED = _of("receive_bytes", "Bytes received.")
TRANSMITTED_PACKETS = _of("transmit_packets", "Packets sent.")
RECEIVED_PACKETS = _of("receive_packets", "Packets received.")
RESENT = _of("retransmitted_packets", "Packets sent again.")
DROPPED = _of("receive_drops", "Packets received and dropped.")
TIMEOUTS = _of("retransmit_timeouts", "Retransmission timers that ran out.")
ECN_MARKED = _of("ecn_marked_packets", "RoCE packets received with ECN.")
CNP_SENT = _of("cnp_sent", "Congestion notifications sent.")
CNP_HANDLED = _of("cnp_handled", "Congestion notifications obeyed.")
CNP_IGNORED = _of("cnp_ignored", "Congestion notifications not obeyed.")
OUT_OF_SEQUENCE = _of("out_of_sequence", "Packets received out of sequence.")
SEQUENCE_ERRORS = _of("sequence_errors", "Sequence errors answered with a NAK.")
OUT_OF_BUFFER = _of("out_of_buffer", "Packets dropped because no receive buffer was free.")
#: File below a port to metric. Of two files of one metric the first that is a counter is read: EFA (``tx_bytes``),
#: Broadcom (``to_retransmits``), Intel (``cnpSent``) and Omni-Path (``RcResend``) count under names of their own, and
#: have ``counters`` that say nothing, or none at all. ``counters_ext`` is of old kernels, whose ``counters`` have 32
#: bits.
COUNTERS: dict[str, Metric] = {
    "counters_ext/port_xmit_data_64": TRANSMITTED,
    "counters_ext/port_rcv_data_64": RECEIVED,
    "counters_ext/port_xmit_packets_64": TRANSMITTED_PACKETS,
    "counters_ext/port_rcv_packets_64": RECEIVED_PACKETS,
    "counters/port_xmit_data": TRANSMITTED,
    "counters/port_rcv_data": RECEIVED,
    "counters/port_xmit_packets": TRANSMITTED_PACKETS,
    "counters/port_rcv_packets": RECEIVED_PACKETS,
    "hw_counters/tx_bytes": TRANSMITTED,
    "hw_counters/rx_bytes": RECEIVED,
    "hw_counters/tx_pkts": TRANSMITTED_PACKETS,
    "hw_counters/rx_pkts": RECEIVED_PACKETS,
    "hw_counters/rx_drops": DROPPED,
    "hw_counters/rx_roce_discards": DROPPED,
    "hw_counters/retrans_pkts": RESENT,
    "hw_counters/RcResend": RESENT,
    "hw_counters/retrans_timeout_events": TIMEOUTS,
    "hw_counters/RcTimeOut": TIMEOUTS,
    "hw_counters/to_retransmits": TIMEOUTS,
    "hw_counters/unresponsive_remote_events": _of("unresponsive_peers", "Times a peer did not answer (EFA)."),
    "hw_counters/impaired_remote_conn_events": _of(
        "impaired_connections", "Times a connection's rate was limited because it was impaired (EFA)."
    ),
    "counters/port_xmit_wait": _of(
        "transmit_wait_ticks", "Ticks in which data waited for credits; missing once the counter is full."
    ),
    "counters/port_xmit_discards": _of(
        "transmit_discards", "Packets not sent: port down or congested; often stops at 65,535."
    ),
    "counters/port_rcv_errors": _of("receive_errors", "Packets received with an error; often stops at 65,535."),
    "counters/symbol_error": _of("symbol_errors", "Symbol errors on the wire; often stops at 65,535."),
    "counters/link_downed": _of("link_downed", "Times the link went down; often stops at 255."),
    "counters/link_error_recovery": _of(
        "link_recoveries", "Times the link recovered from an error; often stops at 255."
    ),
    "counters/local_link_integrity_errors": _of("integrity_errors", "Local link integrity errors; often stops at 15."),
    "hw_counters/np_ecn_marked_roce_packets": ECN_MARKED,
    "hw_counters/RxECNMrkd": ECN_MARKED,
    "hw_counters/rx_ecn_marked_pkts": ECN_MARKED,
    "hw_counters/np_cnp_sent": CNP_SENT,
    "hw_counters/cnpSent": CNP_SENT,
    "hw_counters/tx_cnp_pkts": CNP_SENT,
    "hw_counters/rp_cnp_handled": CNP_HANDLED,
    "hw_counters/cnpHandled": CNP_HANDLED,
    "hw_counters/rp_cnp_ignored": CNP_IGNORED,
    "hw_counters/cnpIgnored": CNP_IGNORED,
    "hw_counters/rx_icrc_encapsulated": _of("icrc_errors", "RoCE packets received with a wrong checksum."),
    "counters/port_rcv_remote_physical_errors": _of(
        "remote_physical_errors", "Packets received that were marked bad on their way; often stops at 65,535."
    ),
    "counters/excessive_buffer_overrun_errors": _of(
        "buffer_overruns", "Overruns of the receive buffer; often stops at 15."
    ),
    "hw_counters/out_of_sequence": OUT_OF_SEQUENCE,
    "hw_counters/oos_drop_count": OUT_OF_SEQUENCE,
    "hw_counters/packet_seq_err": SEQUENCE_ERRORS,
    "hw_counters/seq_err_naks_rcvd": SEQUENCE_ERRORS,
    "hw_counters/RcSeqNak": SEQUENCE_ERRORS,
    "hw_counters/local_ack_timeout_err": _of("ack_timeouts", "Acknowledgements that did not come in time."),
    "hw_counters/out_of_buffer": OUT_OF_BUFFER,
    "hw_counters/rx_out_of_buffer": OUT_OF_BUFFER,
    "hw_counters/rnr_nak_retry_err": _of("rnr_retry_errors", "Sends given up because the peer was not ready."),
    "hw_counters/roce_adp_retrans": _of("adaptive_retransmissions", "Adaptive retransmissions of RoCE."),
}
#: Counters that InfiniBand defines with 32 bits (an adapter may give the first four with 64). A full one stands still:
#: a port that carries 10 GB/s would look idle.
NARROW = {
    f"counters/{name}"
    for name in ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait")
}
FULL = (1 << 32) - 1
UP = gauge("hindmost_node_infiniband_link_up", "1 while the link's physical state is up.", *_BY)
ACTIVE = gauge("hindmost_node_infiniband_link_active", "1 while the link's logical state is active.", *_BY)
RATE = gauge("hindmost_node_infiniband_link_bytes_per_second", "Rate at which the link was trained.", *_BY)
INFO = gauge("hindmost_node_infiniband_info", "1; what the port is.", *_BY, "link_layer", "firmware", "board")


@register
class Infiniband(NumberFiles):
    """Every port of every RDMA adapter; a counter that an adapter does not have is missing."""

    name = "infiniband"
    asks_driver = ADAPTER  # while its firmware does not answer, a read of its counters takes a minute, or for ever
    period = 5.0
    source = "/sys/class/infiniband"
    metrics = (*dict.fromkeys(COUNTERS.values()), ACTIVE, UP, RATE, INFO)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._ports: list[Port] = []

    def scan(self) -> Iterator[NumberFile]:
        folders = sorted((self.host.sys / "class/infiniband").glob("*/ports/*"))
        self._ports = [Port(folder) for folder in folders if folder.name.isdigit()]
        if not self._ports:
            raise Absent("no RDMA adapter")
        for port in self._ports:
            known = set()
            for name, metric in COUNTERS.items():
                if metric not in known and _counts(port.folder / name):
                    known.add(metric)
                    full = FULL if name in NARROW else None
                    unit = 4.0 if "_data" in name else 1.0  # these count words of 4 bytes
                    yield NumberFile(series(metric, *port.labels), port.folder / name, unit, full=full)

    def sample(self) -> list[float]:
        values = super().sample()
        for port in self._ports:
            values += port.read()
        return values

    def further(self) -> Iterator[Series]:
        for port in self._ports:
            yield from port.series


class Port:
    """State and rate of one port, and what it is, which is asked once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.labels = (folder.parts[-3], folder.name)
        adapter = folder.parent.parent
        what = (text(folder / "link_layer"), text(adapter / "fw_ver"), text(adapter / "board_id"))
        state = (series(metric, *self.labels) for metric in (ACTIVE, UP, RATE))
        self.series = (*state, series(INFO, *self.labels, *what))
        self._files = [_maybe(folder / name) for name in ("state", "phys_state", "rate")]

    def read(self) -> tuple[float, float, float, float]:
        """In the order of ``series``."""
        state, physical, rate = (_line(file) for file in self._files)
        # "4: ACTIVE", "5: LinkUp"
        active = float(state.startswith(b"4")) if state else NAN
        return active, float(physical.startswith(b"5")) if physical else NAN, _rate(rate), 1.0


def _counts(path: Path) -> bool:
    """Whether this is a counter of the adapter. A driver that has none may have the file, which then says so."""
    try:
        return not read_once(path, 64).startswith(b"N/A")
    except FileNotFoundError:
        return False
    except OSError as error:
        return error.errno not in {errno.EINVAL, errno.EOPNOTSUPP}


def _maybe(path: Path) -> File | None:
    try:
        return File(path)
    except OSError:
        return None


def _line(file: File | None) -> bytes:
    try:
        return b"" if file is None else file.read()
    except OSError:
        return b""


def _rate(line: bytes) -> float:
    """Bytes a second from ``400 Gb/sec (4X NDR)``."""
    try:
        return float(line.split(maxsplit=1)[0]) * 1e9 / 8
    except (ValueError, IndexError):
        return NAN
