"""Whom ranks wait for: what the open table of their rings says while they are inside of messages that never come."""

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hindmost import ring

from tests.native.mpi_job import AS_ROOT, HERE, Mpi

pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(200)]

PATIENCE_S = 100.0
#: Operation, peer, and whether that has to receive.
Waits = set[tuple[str, int, bool]]


@pytest.fixture(scope="module")
def program(installed: Mpi, tmp_path_factory: pytest.TempPathFactory) -> str:
    """mpi_waiting.c, compiled with this MPI's own compiler."""
    target = str(tmp_path_factory.mktemp("waiting") / "waiting")
    subprocess.run([str(installed.compiler), "-O1", str(HERE / "mpi_waiting.c"), "-o", target], check=True)
    return target


def waits(installed: Mpi, program: str, how: str, rings: Path) -> list[list[ring.Event]]:
    """What each of the four ranks is inside of, once all are in a message; then they are ended."""
    job = {"HINDMOST_JOB_ID": "job-1", "HINDMOST_RING_DIR": str(rings), "PRELOAD": str(installed.shim)}
    environ = os.environ | AS_ROOT | job
    process = subprocess.Popen(installed.line(environ, program, how), env=environ, start_new_session=True)
    try:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            found = inside(rings)
            if sum(any(one.kind == ring.P2P and one.peer != -1 for one in events) for events in found) == 4:
                return found
            time.sleep(0.1)
        raise AssertionError("not all ranks wait")
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait()


def inside(rings: Path) -> list[list[ring.Event]]:
    """What is open in each rank's ring, of those that are made by now."""
    readers = []
    for path in rings.glob("*.mpi.*.ring"):
        with contextlib.suppress(ring.RingError):
            readers.append(ring.Reader(path))
    return [reader.open_records() for reader in sorted(readers, key=lambda reader: reader.header.rank)]


def told(events: list[ring.Event]) -> Waits:
    return {(one.name, one.peer, bool(one.flags & ring.SENDS)) for one in events}


def test_a_call_says_whom_it_waits_for(installed: Mpi, program: str, tmp_path: Path) -> None:
    """Every peer of several requests, either side of a send-receive, any rank, and the peer of a single request."""
    found = waits(installed, program, "inside", tmp_path)
    assert [told(events) for events in found] == [
        {("wait", 1, False), ("wait", 2, False), ("wait", 3, True)},
        {("recv", ring.ANY, False)},
        {("sendrecv", 1, False), ("sendrecv", 3, True)},
        {("wait", 0, False)},
    ]


def test_who_tests_in_vain_waits_too(installed: Mpi, program: str, tmp_path: Path) -> None:
    """A test and a probe that find nothing say whom they are for, and how often they came."""
    found = waits(installed, program, "polls", tmp_path)
    assert [told(events) for events in found] == [
        {("wait", 3, False)},
        {("probe", 2, False)},
        {("send", 0, True)},
        {("wait", 2, False)},
    ]
    assert [bool(events[0].flags & ring.POLLS) for events in found] == [True, True, False, False]
    assert all(events[0].duration_ns > 0 for events in found[:2])
