"""The stream to a collector, against a real gRPC server in this process: order, acknowledgement, clock, coming back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hindmost_agent.delivery import stream as delivery_stream
from hindmost_agent.delivery.batch import message
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.delivery.stream import FIRST_ROUND_TRIPS, LONGEST_PAUSE_S, Pace, RoundTrips, Shipper
from hindmost_agent.sampler import AgentCounts
from hindmost_agent.settings import Address
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire

from tests.collecting import MESSAGES, serving
from tests.waiting import PATIENCE_S, until

#: A port without a listener.
CLOSED_PORT = 9


class Collector:
    """Takes everything, remembers it, acknowledges as set."""

    def __init__(self) -> None:
        self.durable = 0
        self.acknowledges, self.short_columns = True, False
        self.messages: list[wire.AgentMessage] = []
        self.streams: list[Any] = []
        self.port = 0
        self._serving = AsyncExitStack()

    async def stream(self, messages: AsyncIterator[wire.AgentMessage], context: Any) -> AsyncIterator[Any]:
        self.streams.append(context)
        async for one in messages:
            self.messages.append(one)
            kind = one.WhichOneof("body")
            if kind == "hello":
                welcome = wire.Welcome(protocol=1, durable_sequence=self.durable, short_columns=self.short_columns)
                yield wire.CollectorMessage(welcome=welcome)
            elif kind == "batch" and self.acknowledges:
                self.durable = one.batch.sequence
                yield wire.CollectorMessage(ack=wire.Ack(durable_sequence=self.durable))
            elif kind == "clock" and not one.clock.returned_ns:
                now = time.time_ns()
                reply = wire.ClockReply(sent_ns=one.clock.sent_ns, received_ns=now, replied_ns=now)
                yield wire.CollectorMessage(clock=reply)
            elif kind == "goodbye":
                return

    def sequences(self) -> list[int]:
        return [one.batch.sequence for one in self.messages if one.WhichOneof("body") == "batch"]

    def kinds(self) -> list[str]:
        return [str(one.WhichOneof("body")) for one in self.messages]

    async def start(self) -> None:
        self.port = await self._serving.enter_async_context(serving(self.stream, *MESSAGES, port=self.port))

    async def stop(self) -> None:
        await self._serving.aclose()

    def successor(self, durable: int = 0) -> Collector:
        """One that will listen where this one did, and has that much on disk."""
        made = Collector()
        made.port, made.durable = self.port, durable
        return made


@asynccontextmanager
async def listening(collector: Collector) -> AsyncIterator[Collector]:
    """A collector that is there; it may have stopped before its time."""
    await collector.start()
    try:
        yield collector
    finally:
        await collector.stop()


def append(spool: Spool, count: int, samples: int = 10) -> None:
    for _ in range(count):
        block = wire.Batch(metrics=[wire.MetricBlock(schema=77, time_ns=[1], values=[1.0])])
        payload = message(spool.next_sequence, [block.SerializeToString()])
        schema = wire.AgentMessage(definitions=wire.Definitions(schemas=[wire.Schema(ref=77)]))
        spool.append(samples, payload, {77: schema.SerializeToString()})


class Link:
    """A shipper with its spool, and what the collector answered."""

    def __init__(self, spool: Spool, port: int, **options: Any) -> None:
        self.spool, self.counts = spool, AgentCounts()
        self.requests: list[object] = []
        self.shipper = Shipper(
            Address("127.0.0.1", port),
            spool,
            self.counts,
            lambda: wire.Hello(protocol=1, agent_id=spool.ledger.agent_id),
            lambda: self.requests.append("stop"),
            self.requests.append,
            jitter=lambda: 0.0,
            **options,
        )


@asynccontextmanager
async def shipping(spool: Spool, port: int, **options: Any) -> AsyncIterator[Link]:
    link = Link(spool, port, **options)
    task = asyncio.ensure_future(link.shipper.run())
    try:
        yield link
    finally:
        task.cancel()


@pytest.fixture
def spool(tmp_path: Path) -> Spool:
    return Spool(tmp_path / "spool", 4 << 20)


async def test_hello_definitions_batches_acks(spool: Spool) -> None:
    """The order on a stream, and that acknowledged samples are counted as delivered."""
    append(spool, 3)
    async with listening(Collector()) as collector, shipping(spool, collector.port):
        await until(lambda: spool.ledger.delivered == 30)
    kinds = [kind for kind in collector.kinds() if kind != "clock"]
    assert kinds == ["hello", "definitions", "batch", "batch", "batch"]
    assert collector.sequences() == [1, 2, 3]


async def test_the_clock_is_measured_in_round_trips(spool: Spool) -> None:
    """Each reply is answered with all four times; here both clocks are one, so the offset is next to nothing."""
    async with listening(Collector()) as collector, shipping(spool, collector.port) as link:
        whole = lambda: [one.clock for one in collector.messages if one.clock.returned_ns]  # noqa: E731
        await until(lambda: len(whole()) >= 8)
    assert all(sample.sent_ns < sample.returned_ns for sample in whole())
    assert link.counts.clock_offset_s is not None
    assert abs(link.counts.clock_offset_s) < 0.05


async def test_a_collector_that_comes_back_gets_what_it_has_not(spool: Spool) -> None:
    """Killed after it had received but not secured some batches: those come again, no other does."""
    append(spool, 4)
    async with listening(Collector()) as collector, shipping(spool, collector.port) as link:
        collector.acknowledges = False
        await until(lambda: collector.sequences() == [1, 2, 3, 4])
        await collector.stop()
        append(spool, 2)
        async with listening(collector.successor(durable=2)) as again:
            await until(lambda: spool.ledger.delivered == 60)
            assert again.sequences() == [3, 4, 5, 6]
            assert link.counts.connects == 2


async def test_columns_are_short_only_for_a_collector_that_is_there(spool: Spool) -> None:
    """What is spooled meanwhile may go to an older one, which reads only whole columns."""
    async with listening(Collector()) as collector:
        collector.short_columns = True
        async with shipping(spool, collector.port) as link:
            await until(lambda: link.shipper.short_columns)
            await collector.stop()
            await until(lambda: not link.shipper.short_columns)


async def test_a_goodbye_comes_after_the_last_batch(spool: Spool) -> None:
    """Leaving waits until everything is durable, and says so."""
    async with listening(Collector()) as collector, shipping(spool, collector.port) as link:
        append(spool, 5)
        assert await link.shipper.finish("done", PATIENCE_S)
        await until(lambda: "goodbye" in collector.kinds())
    assert [kind for kind in collector.kinds() if kind != "clock"][-2:] == ["batch", "goodbye"]
    assert spool.ledger.pending == 0


async def test_a_collector_that_goes_leaves_the_rest_to_the_next(spool: Spool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Restarting a collector ends no agent of a running job: it lets go of the stream, and comes back."""
    monkeypatch.setattr(delivery_stream, "GONE_ATTEMPTS", 0)

    class Going(Collector):
        async def stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for answer in super().stream(messages, context):
                yield answer
                if answer.WhichOneof("body") == "welcome":
                    yield wire.CollectorMessage(stop=wire.Stop(reason="the collector is stopping"))

    append(spool, 3)
    async with listening(Going()) as going, shipping(spool, going.port) as link:
        await until(lambda: "goodbye" in going.kinds())
        await going.stop()
        append(spool, 1)
        async with listening(going.successor(going.durable)) as again:
            await until(lambda: again.sequences() == [4])
            assert "stop" not in link.requests
            assert [kind for kind in going.kinds() if kind != "clock"][-2:] == ["batch", "goodbye"]
            assert await link.shipper.finish("done", PATIENCE_S)


async def test_leaving_without_a_collector_takes_no_longer_than_allowed(spool: Spool) -> None:
    """Without a listener finish gives up in time, and the spool still holds everything."""
    append(spool, 2)
    async with shipping(spool, CLOSED_PORT) as link:
        assert not await link.shipper.finish("done", 0.3)
    assert spool.ledger.pending == 20


async def test_stop_event_trace_throttle_and_need_requests_are_heard(spool: Spool) -> None:
    """What a collector says on the way back reaches the agent."""

    class Talkative(Collector):
        async def stream(self, messages: AsyncIterator[Any], context: Any) -> AsyncIterator[Any]:
            async for answer in super().stream(messages, context):
                yield answer
                if answer.WhichOneof("body") == "ack":
                    yield wire.CollectorMessage(need=wire.Need(refs=[77, 78]))
                    yield wire.CollectorMessage(event_trace_request=wire.EventTraceRequest(job_id="j", stacks=True))
                    yield wire.CollectorMessage(throttle=wire.Throttle(metrics=True, batch_ns=3))
                    yield wire.CollectorMessage(stop=wire.Stop(reason=retry.JOB_OVER))

    append(spool, 1)
    async with listening(Talkative()) as collector, shipping(spool, collector.port) as link:
        await until(lambda: "stop" in link.requests and collector.kinds().count("definitions") == 2)
    assert link.requests[0] == wire.EventTraceRequest(job_id="j", stacks=True)
    assert (link.shipper.held_back, link.shipper.batch_ns) == (True, 3)


async def test_a_backlog_is_sent_no_faster_than_allowed(spool: Spool) -> None:
    """1 MB at 4 MB a second, a tenth of that at once, takes a fifth of a second and more."""
    for _ in range(100):
        batch = wire.Batch(attachments=[wire.Attachment(content=bytes(10_000))])
        spool.append(1, message(spool.next_sequence, [batch.SerializeToString()]), {})
    async with listening(Collector()) as collector:
        started = time.monotonic()
        async with shipping(spool, collector.port, pace=Pace(rate=4e6, burst=1e5)):
            await until(lambda: spool.ledger.delivered == 100)
        assert time.monotonic() - started >= 0.2


async def test_what_is_no_collector_is_said_once(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    """A port without a listener: one line, however many attempts."""
    attempts: list[int] = []

    async with shipping(spool, CLOSED_PORT) as link:
        link.shipper.jitter = lambda: attempts.append(1) or 0.0  # type: ignore[func-returns-value]
        await until(lambda: len(attempts) == 3)
    said = [record.message for record in caplog.records if record.name.startswith("hindmost")]
    assert len(said) == 1, said
    assert "does not answer" in said[0]


async def test_a_collector_that_answers_again_is_said(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    """After the line that it is out of reach, one that it is back; none when it was there from the start."""
    caplog.set_level("INFO", logger="hindmost_agent.delivery.stream")

    async with listening(Collector()) as collector, shipping(spool, collector.port) as link:
        await until(lambda: link.counts.connected)
        assert not [record for record in caplog.records if record.name == "hindmost_agent.delivery.stream"]
        await collector.stop()
        async with listening(collector.successor()):
            await until(lambda: link.counts.connects == 2)
            lost, back = (
                record.message for record in caplog.records if record.name == "hindmost_agent.delivery.stream"
            )
    assert "does not answer" in lost
    assert "answers again" in back


def test_attempts_are_spread_and_ever_rarer(spool: Spool) -> None:
    """Exponential, bounded, and with jitter, so that a thousand agents do not come back as one."""
    patient = Link(spool, CLOSED_PORT).shipper
    delays = [patient.delay_s(attempt) for attempt in range(12)]
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_PAUSE_S / 2
    patient.jitter = lambda: 1.0
    assert patient.delay_s(3) == 2 * delays[3]


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
    counts = AgentCounts()
    trips = RoundTrips(counts, lambda message: said.append(wire.AgentMessage.FromString(message)), lambda: now[0])
    return Talk(trips, said, now)


def leaving(talk: Talk) -> wire.AgentMessage:
    """A batch that leaves now, as it arrives."""
    batch = wire.AgentMessage(batch=wire.Batch(sequence=7)).SerializeToString()
    return wire.AgentMessage.FromString(batch + talk.trips.piggybacked())


def test_the_first_ones_wait_for_no_batch(talk: Talk) -> None:
    """A handful at once, each said whole in a message of its own."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    assert len([one for one in talk.said if not one.clock.returned_ns]) == FIRST_ROUND_TRIPS
    assert len([one for one in talk.said if one.clock.returned_ns]) == FIRST_ROUND_TRIPS
    assert talk.trips.piggybacked() == b""


def test_a_clock_that_was_set_is_seen_at_once() -> None:
    """However slow the round trip: the next sample has the new offset, of a step of an hour in either direction."""
    now, counts, wall = [0], AgentCounts(), [0]
    trips = RoundTrips(counts, lambda _: None, lambda: now[0], lambda: now[0] + wall[0])
    trips.begin(with_batches=True)
    for wall[0], way_ns in ((0, WAY), (3600 * 10**9, 100 * WAY), (0, 1000 * WAY)):
        asked_ns, now[0] = now[0], now[0] + 2 * way_ns
        trips.answered(wire.ClockReply(sent_ns=asked_ns, received_ns=asked_ns + way_ns, replied_ns=asked_ns + way_ns))
        assert counts.clock_offset_s == pytest.approx(-wall[0] / 1e9, abs=1e-3)


def test_later_ones_go_with_batches(talk: Talk) -> None:
    """The question with the next batch, the whole round trip with the one after the answer; the batch is the same."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    talk.said.clear()
    talk.trips.due()
    talk.now[0] = 9000
    asking = leaving(talk)
    assert (asking.batch.sequence, asking.asked_ns, asking.HasField("measured")) == (7, 9000, False)
    talk.answer(asking.asked_ns)
    telling = leaving(talk)
    assert (telling.batch.sequence, telling.asked_ns) == (7, 0)
    assert (telling.measured.sent_ns, telling.measured.returned_ns) == (9000, 9000 + 2 * WAY)
    assert telling.measured.received_ns == telling.measured.replied_ns == 9000 + AHEAD + WAY
    assert talk.trips.piggybacked() == b""
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
    assert talk.trips.piggybacked() == b""


def test_a_new_stream_forgets_what_was_asked_on_the_last(talk: Talk) -> None:
    """What is left to say was for another stream, maybe of another collector."""
    talk.trips.begin(with_batches=True)
    talk.handful()
    talk.trips.due()
    talk.trips.begin(with_batches=False)
    assert talk.trips.piggybacked() == b""
