"""When the collector's clock is asked for, and with which message."""

from typing import NamedTuple

import pytest
from hindmost_agent.delivery.stream import FIRST_ROUND_TRIPS, RoundTrips
from hindmost_agent.sampler import Own
from hindmost_proto import telemetry_pb2 as wire

#: The collector's clock less the node's, and each way.
AHEAD, WAY = 5_000_000, 300


class Talk(NamedTuple):
    """Round trips, what they say in messages of their own, and the node's clock."""

    trips: RoundTrips
    said: list[wire.AgentMessage]
    now: list[int]

    def answer(self, asked_ns: int) -> None:
        """The collector's reply, at once, to what left then."""
        arrived = asked_ns + AHEAD + WAY
        self.now[0] = asked_ns + 2 * WAY
        self.trips.answered(wire.ClockReply(sent_ns=asked_ns, received_ns=arrived, replied_ns=arrived))

    def handful(self) -> None:
        """Answer the quick ones at the start of a stream."""
        for _ in range(FIRST_ROUND_TRIPS):
            self.answer(self.said[-1].clock.sent_ns)


@pytest.fixture
def talk() -> Talk:
    said: list[wire.AgentMessage] = []
    now = [1000]
    own = Own()
    trips = RoundTrips(own, lambda message: said.append(wire.AgentMessage.FromString(message)), lambda: now[0])
    return Talk(trips, said, now)


def beside(talk: Talk) -> wire.AgentMessage:
    """A batch that leaves now, as it arrives."""
    batch = wire.AgentMessage(batch=wire.Batch(sequence=7)).SerializeToString()
    return wire.AgentMessage.FromString(batch + talk.trips.beside())


def test_the_first_ones_wait_for_no_batch(talk: Talk) -> None:
    """A handful at once, each said whole in a message of its own."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    assert len([one for one in talk.said if not one.clock.returned_ns]) == FIRST_ROUND_TRIPS
    assert len([one for one in talk.said if one.clock.returned_ns]) == FIRST_ROUND_TRIPS
    assert talk.trips.beside() == b""


def test_a_clock_that_was_set_is_seen_at_once() -> None:
    """However slow the round trip: the next sample has the new offset, of a step of an hour in either direction."""
    now, own, wall = [0], Own(), [0]
    trips = RoundTrips(own, lambda _: None, lambda: now[0], lambda: now[0] + wall[0])
    trips.begin(with_batches=True)
    for wall[0], way_ns in ((0, WAY), (3600 * 10**9, 100 * WAY), (0, 1000 * WAY)):
        asked_ns, now[0] = now[0], now[0] + 2 * way_ns
        trips.answered(wire.ClockReply(sent_ns=asked_ns, received_ns=asked_ns + way_ns, replied_ns=asked_ns + way_ns))
        assert own.clock_offset_s == pytest.approx(-wall[0] / 1e9, abs=1e-3)


def test_later_ones_go_with_batches(talk: Talk) -> None:
    """The question with the next batch, the whole round trip with the one after the answer; the batch is the same."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    talk.said.clear()
    talk.trips.due()
    talk.now[0] = 9000
    asking = beside(talk)
    assert (asking.batch.sequence, asking.asked_ns, asking.HasField("measured")) == (7, 9000, False)
    talk.answer(asking.asked_ns)
    telling = beside(talk)
    assert (telling.batch.sequence, telling.asked_ns) == (7, 0)
    assert (telling.measured.sent_ns, telling.measured.returned_ns) == (9000, 9000 + 2 * WAY)
    assert telling.measured.received_ns == telling.measured.replied_ns == 9000 + AHEAD + WAY
    assert talk.trips.beside() == b""
    assert talk.said == []


def test_without_batches_the_time_is_asked_for_all_the_same(talk: Talk) -> None:
    """A stream on which no batch goes would fall silent, and be taken for dead."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    talk.said.clear()
    talk.trips.due()
    assert talk.said == []
    talk.trips.due()
    assert [one.WhichOneof("body") for one in talk.said] == ["clock"]
    talk.answer(talk.said[0].clock.sent_ns)
    talk.trips.due()
    assert [bool(one.clock.returned_ns) for one in talk.said] == [False, True]


def test_a_collector_that_does_not_say_so_gets_nothing_with_batches(talk: Talk) -> None:
    """An older one would read neither the question nor the round trip."""
    talk.trips.begin(with_batches=False)
    talk.handful()
    talk.said.clear()
    talk.trips.due()
    talk.answer(talk.said[0].clock.sent_ns)
    assert [bool(one.clock.returned_ns) for one in talk.said] == [False, True]
    assert talk.trips.beside() == b""


def test_a_new_stream_forgets_what_was_asked_on_the_last(talk: Talk) -> None:
    """What is left to say was for another stream, maybe of another collector."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    talk.trips.due()
    talk.trips.begin(with_batches=False)
    assert talk.trips.beside() == b""
