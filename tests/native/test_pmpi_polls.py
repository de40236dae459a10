"""Collectives that a program polls for (MPI_Test and its like): what the shim says a rank waited."""

from __future__ import annotations

import os
import statistics
import subprocess

import pytest
from hindmost import ring

from tests.native.test_pmpi import HERE, Mpi, Ran, installed, launch, of

__all__ = ["installed"]

pytestmark = [pytest.mark.mpi, pytest.mark.timed, pytest.mark.timeout(500)]

#: Of mpi_polls.c. A rank that naps for 4 ms holds up what the others reduce: three times, in the worst case.
LATE_NS = 40_000_000
#: Of it too, and how many collectives are started in each.
ROUNDS, STARTS = 9, 10


@pytest.fixture(scope="module")
def ran(installed: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """mpi_polls.c, observed."""
    folder = tmp_path_factory.mktemp("polls")
    flags = ["-DHM_PERSISTENT"] if installed.persistent else []
    command = [str(installed.compiler), "-O1", *flags, str(HERE / "mpi_polls.c"), "-o", str(folder / "polls")]
    subprocess.run(command, check=True)
    environ = {**os.environ, "HINDMOST_JOB_ID": "job-1", "HINDMOST_RING_DIR": str(folder / "rings")}
    done = launch(installed, environ, str(folder / "polls"))
    assert (done.code, sorted(done.output.splitlines())) == (0, [f"{rank} 4 8" for rank in range(4)]), done.errors
    return done


def waits(events: list[ring.Event]) -> list[ring.Event]:
    """The waits for collectives, in the order in which they ended."""
    return [event for event in of(events, ring.P2P, "wait") if event.comm_id]


def typical(events: list[ring.Event], place: int) -> float:
    """Median ns of the waits at one place of a round."""
    return statistics.median(e.duration_ns for e in waits(events)[place : ROUNDS * STARTS : STARTS])


def own_after(events: list[ring.Event], place: int) -> float:
    """Median ns of own time from the start of what is waited for at one place of a round to the next collective."""
    ended = [events.index(polled) for polled in waits(events)[place : ROUNDS * STARTS : STARTS]]
    return statistics.median(next(e for e in events[at:] if e.kind == ring.SELF).duration_ns for at in ended)


def test_each_polled_collective_has_one_wait(installed: Mpi, ran: Ran) -> None:
    """By Test, Testall, Testsome, Testany and of a persistent request: as many waits as starts, and of the same."""
    for events in ran.events:
        begun = [e.seq for e in of(events, ring.COLLECTIVE, "all_reduce") if e.flags & ring.NONBLOCKING]
        assert len(begun) == ROUNDS * STARTS + 2 * installed.persistent
        assert sorted(e.seq for e in waits(events)) == begun


@pytest.mark.parametrize("place", [0, 1, 2, 4], ids=["busily", "napping", "napping long", "for two"])
def test_a_poll_waits_from_its_first_test_to_the_one_that_succeeds(ran: Ran, place: int) -> None:
    """Rank 1 is late by 40 ms: the others wait so long, none of which is their own time, and rank 1 does not."""
    for rank in (0, 2, 3):
        assert typical(ran.events[rank], place) > 0.6 * LATE_NS
        assert own_after(ran.events[rank], place) < 0.4 * LATE_NS
    assert typical(ran.events[1], place) < 0.5 * LATE_NS


def test_what_is_polled_for_together_is_waited_for_once(ran: Ran) -> None:
    """Of two that one test completes the first has the wait."""
    assert [typical(events, 5) for events in ran.events] == [0, 0, 0, 0]


def test_who_computes_long_between_two_tests_does_not_wait(ran: Ran) -> None:
    """Stretches of 5 ms of computing between two tests are the rank's own time."""
    for rank in (0, 2, 3):
        assert typical(ran.events[rank], 3) < 0.5 * LATE_NS
        assert own_after(ran.events[rank], 3) > 0.6 * LATE_NS
