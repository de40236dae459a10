"""Whether each network adapter has a link, at what rate, and how often it lost it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_agent.files import NumberFile, NumberFiles
from hindmost_agent.metric import counter, gauge, series
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from collections.abc import Iterator

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
