"""The agent's page: who asks gets an answer, it says what the agent has not done, and a port in use is said plainly."""

import asyncio
import socket
from pathlib import Path

import pytest
from hindmost.errors import HindmostError
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.delivery.stream import Shipper
from hindmost_agent.exposition import Exposition, listen
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host
from hindmost_agent.samplers import agent as account
from hindmost_agent.settings import Address
from hindmost_proto import telemetry_pb2 as wire


async def _ask(request: bytes, host: str = "127.0.0.1", listening: str = "127.0.0.1") -> bytes:
    async with await listen(Address(listening, 0), lambda: b"page\n") as server:
        port = server.sockets[0].getsockname()[1]
        reader, writer = await asyncio.open_connection(host, port)
        writer.write(request)
        answer = await reader.read()
        writer.close()
        return answer


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /metrics HTTP/1.1\r\n\r\n", b"200", b"page\n"),
        (b"HEAD /metrics HTTP/1.1\r\n\r\n", b"200", b""),
        (b"GET / HTTP/1.1\r\n\r\n", b"200", b"hindmost agent: see /metrics\n"),
        (b"GET /healthz HTTP/1.1\r\n\r\n", b"200", b"ok\n"),
        (b"HEAD /healthz HTTP/1.1\r\n\r\n", b"200", b""),
        (b"GET /readyz HTTP/1.1\r\n\r\n", b"404", b"hindmost agent: see /metrics\n"),
        (b"POST /healthz HTTP/1.1\r\n\r\n", b"405", b"only GET\n"),
        (b"POST /metrics HTTP/1.1\r\n\r\n", b"405", b"only GET\n"),
        (b"\r\n\r\n", b"405", b"only GET\n"),
    ],
)
def test_every_request_is_answered(request_: bytes, status: bytes, body: bytes) -> None:
    """The page, or why not; also for an empty line where a request belongs."""
    head, _, sent = asyncio.run(_ask(request_)).partition(b"\r\n\r\n")
    assert (head.split()[1], sent) == (status, body)


def test_every_interface_is_one_port() -> None:
    """Port 0 without a host is one free port, not one for each version of IP."""

    async def work() -> None:
        async with await listen(Address("", 0), lambda: b"") as server:
            assert len({one.getsockname()[1] for one in server.sockets}) == 1

    asyncio.run(work())
    answer = asyncio.run(_ask(b"GET /metrics HTTP/1.1\r\n\r\n", listening=""))
    assert answer.endswith(b"page\n"), "IPv4 reaches it"


@pytest.mark.parametrize("host", ["127.0.0.1", ""])
def test_a_port_in_use_is_said_once(host: str) -> None:
    """Option, address, reason and remedy, each once."""
    with socket.create_server((host, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(HindmostError) as caught:
            asyncio.run(_bind(Address(host, port)))
    assert str(caught.value) == f"--listen {host}:{port}: Address already in use; choose another address"


async def _bind(address: Address) -> None:
    (await listen(address, lambda: b"")).close()


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
    Shipper(Address("127.0.0.1", 9), spool, host.counts, wire.Hello, lambda: None, lambda _: None)
    found = scraped(host, spool)
    spool.close()
    assert {name: found[name] for name in DELIVERY - {"spool_bytes"}} == dict.fromkeys(DELIVERY - {"spool_bytes"}, 0)
    assert "spool_bytes" in found
