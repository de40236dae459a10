"""The agent's account of itself: what it does not do has no value, what it has not done yet is 0."""

from pathlib import Path

from hindmost_agent.agent import Agent
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.delivery.stream import Shipper
from hindmost_agent.exposition import Exposition
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host
from hindmost_agent.samplers import agent as account
from hindmost_agent.settings import Address
from hindmost_proto import telemetry_pb2 as wire

DELIVERY = {
    "produced_samples_total", "delivered_samples_total", "pending_samples", "spool_bytes", "connected",
    "connects_total",
}  # fmt: skip


def scraped(host: Host, spool: Spool | None) -> dict[str, float]:
    """What /metrics of this agent says before its first batch, labels left out."""
    runner = Runner({"agent": account.AgentSampler}, host, NS)
    Agent("n", NS, host, runner, Rings(host, []), spool)
    page = Exposition("n").render(runner.run(0)).decode()
    lines = (line.removeprefix("hindmost_agent_") for line in page.splitlines() if not line.startswith("#"))
    return {line.split("{")[0]: float(line.rsplit(" ", 1)[1]) for line in lines}


def test_an_agent_without_a_collector_tells_of_no_delivery() -> None:
    """With --listen alone nothing is spooled or sent: no value, as "connected 0" would be an alert."""
    found = scraped(Host(), None)
    assert not DELIVERY & set(found)
    assert found["cpu_seconds_total"] > 0


def test_an_agent_that_has_delivered_nothing_yet_says_0(tmp_path: Path) -> None:
    """Counters start at 0, and it says that it is not connected."""
    host, spool = Host(), Spool(tmp_path / "spool", 1 << 20)
    Shipper(Address("127.0.0.1", 9), spool, host.own, wire.Hello, lambda: None, lambda _: None)
    found = scraped(host, spool)
    spool.close()
    assert {name: found[name] for name in DELIVERY - {"spool_bytes"}} == dict.fromkeys(DELIVERY - {"spool_bytes"}, 0)
    assert "spool_bytes" in found
