"""Certificates of several authorities, made once, and a collector that asks for them or for tokens."""

import datetime
from pathlib import Path

import pytest
from hindmost import credentials
from hindmost.credentials import Client
from hindmost_agent.delivery.stream import CallError, connect
from hindmost_cli import pki
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.address import parse

from tests.waiting import PATIENCE_S

SECRET = "0123456789abcdef-the-secret"  # noqa: S105 - of these tests


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority's folder with certificates of a collector, a relay and two nodes; one is expired. ``other/`` has an
    authority that no one here knows, with a certificate of node n0."""
    folder = tmp_path_factory.mktemp("pki") / "ours"
    pki.initialise(folder)
    year = datetime.timedelta(days=365)
    for names in (["collector", "localhost", "127.0.0.1"], ["relay", "127.0.0.1"], ["n0"], ["n1"]):
        pki.issue(folder, names, year)
    pki.issue(folder, ["expired"], datetime.timedelta(seconds=-1))
    pki.initialise(folder / "other")
    pki.issue(folder / "other", ["n0", "127.0.0.1"], year)
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    path = tmp_path / "secret"
    credentials.write_private(path, SECRET + "\n")
    return path


def tls_of(folder: Path, name: str = "collector") -> dict[str, str]:
    """The settings of a port that asks for certificates."""
    return {"tls_cert": f"{folder}/{name}.pem", "tls_key": f"{folder}/{name}.key", "tls_ca": f"{folder}/ca.pem"}


def client_of(folder: Path, name: str, **more: str) -> Client:
    """An agent that shows this certificate."""
    return Client(f"{folder}/{name}.pem", f"{folder}/{name}.key", f"{folder}/ca.pem", **more)


def hello_of(job: str = "j", node: str = "n0", agent_id: str = "a") -> wire.Hello:
    """The first message of an agent."""
    return wire.Hello(protocol=1, agent_id=agent_id, node=node, boot_id="b", job_id=job)


async def greeted(address: str, client: Client, hello: wire.Hello | None = None) -> str:
    """``welcome`` where an agent is let in; else why not."""
    where = parse(address)
    assert where is not None
    said = ""
    try:
        async with connect(where.host, where.port, PATIENCE_S, client) as call:
            await call.write(wire.AgentMessage(hello=hello or hello_of()).SerializeToString())
            first = await call.read()
            said = str(first.WhichOneof("body")) if first is not None else "the end"
    except (CallError, OSError) as error:
        return said or str(error)
    return said
