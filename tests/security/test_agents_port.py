"""Who may send to a collector, and as whom."""

import asyncio
import contextlib
import datetime
import hashlib
import json
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost.credentials import Client, job_token
from hindmost_agent.delivery.stream import CallError, connect
from hindmost_cli import pki
from hindmost_collector.collector import Collector
from hindmost_collector.ingest import connections
from hindmost_collector.ingest.relay import Relay
from hindmost_collector.options import resolve
from hindmost_proto.address import parse

from tests.collecting import collecting
from tests.security.conftest import SECRET, client_of, greeted, hello_of, tls_of
from tests.waiting import PATIENCE_S

#: A silent client that is let in is closed after a minute, whatever the timeout of its handshake.
AT_ONCE_S = 30.0
NOT_ACCEPTED = "this agent's certificate is missing, expired or of another authority"


@pytest.mark.parametrize(
    ("token", "job", "refusal"),
    [
        (SECRET, "j", "welcome"),
        (SECRET, "", "welcome"),
        (job_token(SECRET, "j"), "j", "welcome"),
        (job_token(SECRET, "j"), "k", "the token is not one of job 'k'"),
        (job_token(SECRET, "j"), "", "the token is not one of job ''"),
        (job_token(SECRET, "j", writes=False), "j", "no valid token"),
        (job_token("another-secret-altogether", "j"), "j", "no valid token"),
        ("", "j", "no valid token"),
        (".", "", "no valid token"),
        ("j.", "j", "no valid token"),
        (SECRET[:-1], "j", "no valid token"),
        (SECRET + "\n2", "j", "HINDMOST_TOKEN has other characters than printable ASCII"),
        ("\udcff", "j", "HINDMOST_TOKEN has other characters than printable ASCII"),
    ],
)  # fmt: skip
async def test_a_token_lets_in_its_job_alone(secret: Path, token: str, job: str, refusal: str) -> None:
    """The secret lets in every agent, a job's token that job's; anything else gets one sentence."""
    async with collecting(token_file=str(secret)) as collector:
        said = await greeted(collector.addresses["grpc"], Client(token=token), hello_of(job))
        assert collector.ingest.connected() == 0 or refusal == "welcome"
        assert refusal in said


@pytest.mark.parametrize(
    ("name", "node", "refusal"),
    [
        ("n0", "n0", "welcome"),
        ("n0", "n1", "the certificate is not one of node 'n1'"),
        ("n1", "n0", "the certificate is not one of node 'n0'"),
        ("expired", "expired", NOT_ACCEPTED),
        ("other/n0", "n0", NOT_ACCEPTED),
        (None, "n0", NOT_ACCEPTED),
    ],
)
async def test_a_certificate_is_of_its_node(authority: Path, name: str | None, node: str, refusal: str) -> None:
    """An agent is let in with a certificate that our authority signed, is valid, and names the agent's node."""
    client = client_of(authority, name) if name else Client(ca=f"{authority}/ca.pem")
    if name and name.startswith("other"):
        client = Client(f"{authority}/{name}.pem", f"{authority}/{name}.key", f"{authority}/ca.pem")

    async with collecting(**tls_of(authority)) as collector:
        assert refusal in (await greeted(collector.addresses["grpc"], client, hello_of(node=node)))


@pytest.mark.parametrize(
    ("client", "refusal"),
    [
        ({"ca": "ca.pem"}, "welcome"),
        ({"ca": "other/ca.pem"}, "certificate not accepted"),
        ({"fingerprint": "collector"}, "welcome"),
        ({"fingerprint": "n0"}, "not the one with the fingerprint"),
        ({}, "if it speaks TLS, give --tls-ca"),
    ],
)
async def test_agents_know_their_collector(authority: Path, secret: Path, client: dict[str, str], refusal: str) -> None:
    """It sends its token to the collector whose authority or fingerprint it was given, and to no other."""
    named = dict(client)
    if "ca" in named:
        named["ca"] = f"{authority}/{named['ca']}"
    if "fingerprint" in named:
        der = ssl.PEM_cert_to_DER_cert((authority / f"{named['fingerprint']}.pem").read_text())
        named["fingerprint"] = hashlib.sha256(der).hexdigest()
    tls = {name: value for name, value in tls_of(authority).items() if name != "tls_ca"}

    async with collecting(token_file=str(secret), **tls) as collector:
        assert refusal in (await greeted(collector.addresses["grpc"], Client(token=SECRET, **named)))


async def test_certificates_are_renewed_without_a_restart(authority: Path, tmp_path: Path) -> None:
    """A collector shows its new certificate on the next connection; a file that is half written changes nothing."""
    pki.initialise(tmp_path / "new")
    pki.issue(tmp_path / "new", ["collector", "127.0.0.1"], datetime.timedelta(days=1))
    pki.issue(tmp_path / "new", ["n0"], datetime.timedelta(days=1))
    served = tmp_path / "served"
    served.mkdir(mode=0o700)

    def install(source: Path, *names: str) -> None:
        for name in names:
            fresh = served / f".{name}"
            fresh.write_bytes((source / name).read_bytes())
            fresh.chmod(0o600)
            fresh.replace(served / name)

    files = ("collector.pem", "collector.key", "ca.pem")
    install(authority, *files)

    said = []
    async with collecting(**tls_of(served)) as collector:
        where = collector.addresses["grpc"]
        said.append(await greeted(where, client_of(authority, "n0")))
        (served / "collector.pem").write_text("-----BEGIN")
        said.append(await greeted(where, client_of(authority, "n0")))
        install(tmp_path / "new", *files)
        said += [await greeted(where, client_of(tmp_path / "new", "n0"))]
        said += [await greeted(where, client_of(authority, "n0"))]
    first, half, new, old = said
    assert (first, half, new) == ("welcome", "welcome", "welcome")
    assert "certificate not accepted" in old


async def test_secrets_are_renewed_without_a_restart(secret: Path) -> None:
    """The first line is new agents', the second still lets in those that have the old one."""
    async with collecting(token_file=str(secret)) as collector:
        where = collector.addresses["grpc"]
        secret.write_text(f"a-newer-secret-than-before\n{SECRET}\n")
        both = [await greeted(where, Client(token=one)) for one in ("a-newer-secret-than-before", SECRET)]
        secret.write_text("a-newer-secret-than-before\n")
        first, second, third = [*both, await greeted(where, Client(token=SECRET))]
    assert (first, second) == ("welcome", "welcome")
    assert "no valid token" in third


@pytest.mark.parametrize(
    ("agent", "node", "relays", "reason"),
    [
        ("n0", "n0", "relay", "welcome"),
        ("n0", "n1", "relay", "the certificate is not one of node 'n1'"),
        ("n0", "n0", "", "out of reach"),
    ],
)
async def test_a_relay_asks_what_the_collector_asks(
    authority: Path, agent: str, node: str, relays: str, reason: str
) -> None:
    """Through a relay an agent is its certificate's node as well; and who is no relay may not be one."""
    async with collecting(**tls_of(authority), **({"relays": relays} if relays else {})) as collector:
        flags = {"listen": "127.0.0.1:0", "http": "none", "relay_to": collector.addresses["grpc"]}
        relay = Relay(resolve({**flags, **tls_of(authority, "relay")}, {}))
        where = (await relay.start())["grpc"]
        assert where
        try:
            for _ in range(40):
                said = await greeted(where, client_of(authority, agent), hello_of(node=node))
                if "out of reach" not in said or not relays:
                    break
                await asyncio.sleep(0.1)
        finally:
            await relay.stop()
    assert reason in said


def test_a_rack_that_connects_at_once_is_let_in(authority: Path, tmp_path: Path) -> None:
    """A hundred handshakes at a time, while the certificate is renewed, leave a collector that serves all of them."""
    served = tmp_path / "served"
    served.mkdir()
    for name in ("collector.pem", "collector.key", "ca.pem"):
        (served / name).write_bytes((authority / name).read_bytes())
        (served / name).chmod(0o600)
    options = [f"--{name.replace('_', '-')}={value}" for name, value in tls_of(served).items()]
    command = [sys.executable, "-m", "hindmost", "collector", "--listen", "127.0.0.1:0", "--http", "none", *options]

    async def scenario(where: str) -> list[str]:
        async def renewing() -> None:
            while True:
                (served / "collector.pem").touch()
                await asyncio.sleep(0.1)

        renewed = asyncio.ensure_future(renewing())
        client = client_of(authority, "n0")
        said = await asyncio.gather(*(greeted(where, client, hello_of(agent_id=f"a{one}")) for one in range(100)))
        renewed.cancel()
        return said

    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as collector:
        assert collector.stdout
        where = json.loads(collector.stdout.readline())["grpc"]
        said = asyncio.run(scenario(where))
        ended = collector.poll()
        collector.kill()
    assert ended is None
    assert set(said) == {"welcome"}


async def test_silent_clients_keep_no_agent_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who connects and says nothing is closed."""
    monkeypatch.setattr(connections, "HANDSHAKE_MS", 500)
    async with collecting() as collector:
        silent = await silent_clients(collector, 8)
        await asyncio.wait_for(asyncio.gather(*map(ended, silent)), PATIENCE_S)
        assert await greeted(collector.addresses["grpc"], Client()) == "welcome"


async def test_clients_take_no_file_that_page_and_store_need(monkeypatch: pytest.MonkeyPatch) -> None:
    """More clients than there are open files for are closed at once, and no others are."""
    monkeypatch.setattr(connections, "most_connections", lambda: 4)
    monkeypatch.setattr(connections, "HANDSHAKE_MS", 600_000)
    async with collecting() as collector:
        silent = await silent_clients(collector, 8)
        await asyncio.wait_for(asyncio.gather(*map(ended, silent[4:])), AT_ONCE_S)
        assert not any(reader.at_eof() for reader, _ in silent[:4])


Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def silent_clients(collector: Collector, count: int) -> list[Connection]:
    """Connections to the agents' port over which nothing is sent."""
    port = int(collector.addresses["grpc"].rpartition(":")[2])
    return [await asyncio.open_connection("127.0.0.1", port) for _ in range(count)]


async def ended(client: Connection) -> None:
    """Wait until the server closes a connection."""
    with contextlib.suppress(ConnectionError):
        await client[0].read()
    client[1].close()


async def test_a_stream_that_says_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """An open call without a message ends with the reason."""
    monkeypatch.setattr(connections, "HELLO_S", 0.2)
    async with collecting() as collector:
        where = parse(collector.addresses["grpc"])
        assert where is not None
        with pytest.raises(CallError, match="must be Hello"):
            async with connect(where.host, where.port, PATIENCE_S) as call:
                await call.read()
