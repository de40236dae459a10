"""Very many short point-to-point calls: what their ring says of them."""

import os
import subprocess
from pathlib import Path

import pytest
from hindmost import ring

from tests.native.mpi_job import HERE, Mpi

pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(200)]

MESSAGES = 20_000


@pytest.fixture(scope="module", params=[(), ("thread",)], ids=["main", "thread"])
def reader(installed: Mpi, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> ring.Reader:
    """The ring of mpi_messages.c, which makes three calls a message, in its main thread or in one that ends."""
    folder: Path = tmp_path_factory.mktemp("messages")
    program = str(folder / "messages")
    subprocess.run(
        [str(installed.compiler), "-O1", "-pthread", str(HERE / "mpi_messages.c"), "-o", program], check=True
    )
    placed = {"RANK": "0", "WORLD_SIZE": "1", "HINDMOST_JOB_ID": "job-1", "HINDMOST_RING_DIR": str(folder / "rings")}
    environ = {**os.environ, **placed, "LD_PRELOAD": str(installed.shim)}
    subprocess.run([program, str(MESSAGES), *request.param], env=environ, check=True, timeout=100)
    (path,) = (folder / "rings").glob("*.ring")
    return ring.Reader(path)


def test_every_call_is_accounted_for(reader: ring.Reader) -> None:
    """Each has a record, or is counted in one that it shares: none is lost."""
    events = [event for event in reader.poll() if event.kind == ring.P2P]
    calls = sum(event.seq if event.comm_id == 0 and event.seq else 1 for event in events)
    assert (calls, reader.lost) == (3 * MESSAGES, 0)
    assert len(events) < MESSAGES


def test_bytes_are_accounted_for(reader: ring.Reader) -> None:
    """What was sent and received is in the sums of shared records."""
    reader.position = 0
    assert sum(event.value for event in reader.poll() if event.kind == ring.P2P) == 2 * MESSAGES
