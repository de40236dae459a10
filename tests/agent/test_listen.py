"""Who asks the agent's port gets an answer, whatever it asks; what cannot be bound is said in one plain line."""

import asyncio
import socket

import pytest
from hindmost.errors import HindmostError
from hindmost_agent.exposition import listen
from hindmost_agent.settings import Address


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
