"""Which ports each set-up of deploy/ opens as it comes: on loopback, inside of the cluster, or behind a secret."""

import re
from pathlib import Path

import pytest
import yaml
from hindmost.credentials import is_loopback
from hindmost_proto.address import parse

DEPLOY = Path(__file__).parents[2] / "deploy"
SYSTEMD = DEPLOY / "systemd"


def test_compose_publishes_on_loopback_only() -> None:
    """A port without an address would be published on all of them, past the host's firewall."""
    services = yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]
    published = [port for service in services.values() for port in service["ports"]]
    assert len(published) >= len(services)
    assert [port for port in published if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", port)] == []
    assert [name for name, service in services.items() if "network_mode" in service] == []


@pytest.mark.parametrize("unit", sorted(SYSTEMD.glob("*.service")), ids=lambda path: path.name)
def test_a_unit_listens_on_loopback_unless_it_is_told_otherwise(unit: Path) -> None:
    """Without its file under /etc/default, no network reaches it."""
    addresses = re.findall(r"(HINDMOST_LISTEN|HINDMOST_HTTP)=(\S+)", unit.read_text())
    assert addresses or "Type=oneshot" in unit.read_text().splitlines(), "a oneshot ends, and opens no port"
    for name, text in addresses:
        found = parse(text)
        assert found is not None
        assert is_loopback(found.host), name


def test_what_the_examples_of_settings_open_needs_a_secret() -> None:
    """The collector's example opens the agents' port to the cluster, with a secret; all else is loopback."""
    for path in SYSTEMD.glob("*.default"):
        settings = dict(line.split("=", 1) for line in path.read_text().splitlines() if line[:1] not in "#")
        named = [name for name in ("HINDMOST_LISTEN", "HINDMOST_HTTP") if name in settings]
        open_ports = [name for name in named if not _is_loopback(settings[name])]
        assert open_ports in ([], ["HINDMOST_LISTEN"])
        assert not open_ports or settings["HINDMOST_COLLECTOR_TOKEN_FILE"]


def test_the_chart_has_nothing_that_opens_a_port_to_the_outside() -> None:
    """No NodePort, load balancer, ingress or port of a host; tests/kubernetes looks at what is rendered."""
    text = "".join(path.read_text() for path in (DEPLOY / "helm").rglob("templates/*"))
    assert "type: ClusterIP" in text
    assert not re.search(r"NodePort|LoadBalancer|Ingress\b(?!, Egress)|Gateway|hostPort|externalIPs", text)


def _is_loopback(text: str) -> bool:
    found = parse(text)
    return found is not None and is_loopback(found.host)
