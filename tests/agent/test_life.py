"""What is said of a rank's life: what it is in while it runs, and what it was in when it died."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent.life import OPEN_NS, Lives
from hindmost_agent.rings import Rings
from hindmost_agent.sampler import Host
from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hindmost_agent.rings import Producer

ENTERED_NS = 1_000


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ring.Writer]:
    """A rank's ring, with the rank inside its third all_reduce."""
    made = ring.Writer.create(tmp_path, Identity("job", 1, 4, 1, "n", "torch", "t.py"), "py")
    made.enter(0, ring.COLLECTIVE, made.name("all_reduce"), ENTERED_NS, 3, made.communicator(77, 1, 4, "world"))
    yield made
    made.close()


@pytest.fixture
def producer(tmp_path: Path, writer: ring.Writer) -> Producer:
    rings = Rings(Host(), [tmp_path])
    rings.discover(0)
    (found,) = rings
    return found


def said(producer: Producer, now_ns: int) -> tuple[wire.RankState.Life, list[tuple[str, int]]]:
    state = Lives().look(producer, 5, now_ns)
    assert state is not None
    return state.life, [(one.name, one.seq) for one in state.in_flight]


def test_only_what_is_open_for_long_is_in_flight_of_a_running_rank(producer: Producer) -> None:
    """An operation that was merely met at the moment of looking is no news."""
    assert said(producer, ENTERED_NS + OPEN_NS) == (wire.RankState.RUNNING, [])
    assert said(producer, ENTERED_NS + OPEN_NS + 1) == (wire.RankState.RUNNING, [("all_reduce", 3)])


def test_a_rank_that_vanished_is_still_where_it_was(producer: Producer) -> None:
    """Its ring outlives it, and says in what it died, however shortly before it had entered that."""
    producer.gone_ns = ENTERED_NS + 2
    assert said(producer, ENTERED_NS + 2) == (wire.RankState.VANISHED, [("all_reduce", 3)])


def test_a_rank_that_finished_is_in_nothing(producer: Producer, writer: ring.Writer) -> None:
    """A ring that was closed in order leaves nothing open, whatever its table still holds."""
    writer.close()
    producer.gone_ns = ENTERED_NS + 2
    assert said(producer, ENTERED_NS + OPEN_NS * 2) == (wire.RankState.FINISHED, [])
