"""Collectives that a program polls for (MPI_Test and its like): what the shim says a rank waited."""

import os
import statistics
import subprocess
import sys
from typing import NamedTuple

import pytest
from hindmost import ring

from tests.native.mpi_job import HERE, Mpi, Ran, launch, of

pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(500)]

#: Of mpi_polls.c. A rank that naps for 4 ms holds up what the others reduce: three times, in the worst case.
LATE_NS = 40_000_000
#: Of it too: rounds, and how many collectives are started in each, of which the program times the first.
ROUNDS, STARTS, TIMED = 9, 10, 5
#: Places of a round at which ranks do nothing but poll, and the one at which they compute between two tests.
POLLING, NAPPING, COMPUTING = (0, 1, 2, 4), (1, 2), 3
#: After a nap of 4 ms a rank that waits for a CPU for less than this does not seem to have had work to do meanwhile.
CALM_NS = 3_000_000
#: Ranks that wait for rank 1; and how often the program is run at most to have one of them calm at each place.
WAITING, RUNS = (0, 2, 3), 4


class Polled(NamedTuple):
    """One polling as the program saw it, ns: how long, and for how much of it the rank waited for a CPU."""

    ns: int
    queued_ns: int


class Job(NamedTuple):
    """A job that has ended: events by rank, and what the program says, by rank and place of a round."""

    events: list[list[ring.Event]]
    polled: list[list[list[Polled]]]

    def calm(self, rank: int, place: int) -> list[int]:
        """Rounds in which a rank had to wait for rank 1, and for no CPU after its naps."""
        most = CALM_NS if place in NAPPING else sys.maxsize
        rounds = enumerate(self.polled[rank][place])
        return [at for at, one in rounds if one.queued_ns < most and one.ns > 0.5 * LATE_NS]


@pytest.fixture(scope="module")
def ran(installed: Mpi, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """mpi_polls.c, observed."""
    folder = tmp_path_factory.mktemp("polls")
    flags = ["-DHM_PERSISTENT"] if installed.persistent else []
    command = [str(installed.compiler), "-O1", *flags, str(HERE / "mpi_polls.c"), "-o", str(folder / "polls")]
    subprocess.run(command, check=True)
    for run in range(RUNS):
        environ = {**os.environ, "HINDMOST_JOB_ID": "job-1", "HINDMOST_RING_DIR": str(folder / f"rings-{run}")}
        job = told(launch(installed, environ, str(folder / "polls")))
        if all(any(job.calm(rank, place) for rank in WAITING) for place in POLLING):
            break
    return job


def told(done: Ran) -> Job:
    """The job, by its rings and by what it printed."""
    lines = sorted(line.split() for line in done.output.splitlines())
    assert (done.code, [line[:3] for line in lines]) == (0, [[str(rank), "4", "8"] for rank in range(4)]), done.errors
    polled = []
    for line in lines:
        numbers = [int(word) for word in line[3:]]
        pairs = [Polled(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]
        polled.append([pairs[place::TIMED] for place in range(TIMED)])
    return Job(done.events, polled)


def waits(events: list[ring.Event]) -> list[ring.Event]:
    """The waits for collectives, in the order in which they ended."""
    return [event for event in of(events, ring.P2P, "wait") if event.comm_id]


def waited(events: list[ring.Event], place: int) -> list[int]:
    """Ns of the waits at one place of each round."""
    return [e.duration_ns for e in waits(events)[place : ROUNDS * STARTS : STARTS]]


def own_after(events: list[ring.Event], place: int) -> list[int]:
    """Ns of self time from the start of what is waited for at one place of each round to the next collective."""
    ended = [events.index(polled) for polled in waits(events)[place : ROUNDS * STARTS : STARTS]]
    return [next(e for e in events[at:] if e.kind == ring.SELF).duration_ns for at in ended]


def test_each_polled_collective_has_one_wait(installed: Mpi, ran: Job) -> None:
    """By Test, Testall, Testsome, Testany and of a persistent request: as many waits as starts, and of the same."""
    for events in ran.events:
        begun = [e.seq for e in of(events, ring.COLLECTIVE, "all_reduce") if e.flags & ring.NONBLOCKING]
        assert len(begun) == ROUNDS * STARTS + 2 * installed.persistent
        assert sorted(e.seq for e in waits(events)) == begun


@pytest.mark.parametrize("place", POLLING, ids=["busily", "napping", "napping long", "for two"])
def test_a_poll_waits_from_its_first_test_to_the_one_that_succeeds(ran: Job, place: int) -> None:
    """Rank 1 is late, and others wait for as long as the program itself says: none of that is their self time."""
    waits, owns = [], []
    for rank in WAITING:
        wait, own = waited(ran.events[rank], place), own_after(ran.events[rank], place)
        for at in ran.calm(rank, place):
            waits.append(wait[at] / ran.polled[rank][place][at].ns)
            owns.append(own[at] / ran.polled[rank][place][at].ns)
    if not waits:
        pytest.skip("needs a quieter machine: in no round had a rank a CPU when it woke up")
    assert statistics.median(waits) > 0.8
    assert statistics.median(owns) < 0.2


#: The shim counts ticks between two reads of the clock that the program reads, and each of its ends may be 1 us off.
CLOCKS_NS = 2000


@pytest.mark.parametrize("place", range(TIMED))
def test_no_rank_waits_longer_than_it_polls(ran: Job, place: int) -> None:
    """In no round, on no rank: not rank 1 either, that the others wait for."""
    for events, polled in zip(ran.events, ran.polled, strict=True):
        for wait, one in zip(waited(events, place), polled[place], strict=True):
            assert wait <= one.ns + CLOCKS_NS


def test_what_is_polled_for_together_is_waited_for_once(ran: Job) -> None:
    """Of two that one test completes the first has the wait."""
    for events in ran.events:
        assert statistics.median(waited(events, 5)) == 0


def test_who_computes_long_between_two_tests_does_not_wait(ran: Job) -> None:
    """5 ms of computing between two tests is the rank's self time, however often it loses the CPU."""
    for rank in WAITING:
        polled = [one.ns for one in ran.polled[rank][COMPUTING]]
        wait, own = waited(ran.events[rank], COMPUTING), own_after(ran.events[rank], COMPUTING)
        assert statistics.median(ns / all_ns for ns, all_ns in zip(wait, polled, strict=True)) < 0.2
        assert statistics.median(ns / all_ns for ns, all_ns in zip(own, polled, strict=True)) > 0.6
