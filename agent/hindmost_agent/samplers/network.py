"""What each network interface carried, lost and refused, and the state of its link."""

from collections.abc import Iterator

from hindmost_agent.kernel_files import File, NumberFile, NumberFiles
from hindmost_agent.sampler import Host, RowSampler, counter, gauge, register, series

RX_BYTES = counter("hindmost_node_network_receive_bytes_total", "Bytes received.", "device")
RX_PACKETS = counter("hindmost_node_network_receive_packets_total", "Packets received.", "device")
RX_ERRORS = counter("hindmost_node_network_receive_errors_total", "Packets received with an error.", "device")
RX_DROPS = counter("hindmost_node_network_receive_drops_total", "Packets received and dropped.", "device")
TX_BYTES = counter("hindmost_node_network_transmit_bytes_total", "Bytes sent.", "device")
TX_PACKETS = counter("hindmost_node_network_transmit_packets_total", "Packets sent.", "device")
TX_ERRORS = counter("hindmost_node_network_transmit_errors_total", "Packets that could not be sent.", "device")
TX_DROPS = counter("hindmost_node_network_transmit_drops_total", "Packets dropped instead of sent.", "device")

#: Column of /proc/net/dev after the name, for each metric in its declared order.
COLUMNS = (0, 1, 2, 3, 8, 9, 10, 11)


@register
class Network(RowSampler):
    """Traffic of every interface; container-side virtual pairs are left out."""

    name = "network"
    period = 2.0
    source = "/proc/net/dev"
    metrics = (RX_BYTES, RX_PACKETS, RX_ERRORS, RX_DROPS, TX_BYTES, TX_PACKETS, TX_ERRORS, TX_DROPS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._file = File(host.proc / "net/dev")

    def rows(self) -> dict[tuple[str, ...], list[float]]:
        found: dict[tuple[str, ...], list[float]] = {}
        for line in self._file.read().splitlines()[2:]:
            name, _, rest = line.partition(b":")
            columns = rest.split()
            name = name.strip()
            # veth and cali/lxc pairs come and go by the hundred on container hosts: each would be a new definition.
            if len(columns) >= 16 and not name.startswith((b"veth", b"cali", b"lxc")):
                found[name.decode("utf-8", "replace"),] = [float(columns[column]) for column in COLUMNS]
        return found


#: File below the interface to metric and what one of its units is (a rate is in Mbit/s).
FILES = (
    ("carrier", gauge("hindmost_node_network_carrier", "1 while the interface has a link.", "device"), 1.0),
    (
        "speed",
        gauge("hindmost_node_network_link_bytes_per_second", "Rate at which the link was negotiated.", "device"),
        1e6 / 8,
    ),
    ("mtu", gauge("hindmost_node_network_mtu_bytes", "Largest packet of the interface.", "device"), 1.0),
    (
        "carrier_down_count",
        counter("hindmost_node_network_carrier_losses_total", "Times the link was lost.", "device"),
        1.0,
    ),
)


@register
class NetworkLink(NumberFiles):
    """Link state of every hardware interface, virtual hardware included; interfaces that are down have none."""

    name = "network_link"
    period = 15.0
    source = "/sys/class/net/*/{carrier,speed,mtu,carrier_down_count}"
    metrics = tuple(metric for _, metric, _ in FILES)

    def scan(self) -> Iterator[NumberFile]:
        adapters = [path for path in sorted((self.host.sys / "class/net").glob("*")) if (path / "device").exists()]
        for name, metric, unit in FILES:
            for adapter in adapters:
                yield NumberFile(series(metric, adapter.name), adapter / name, unit, unsigned=True)
