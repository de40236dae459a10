"""When an agent gets an acknowledgement, with any other message or alone, and how often it is asked for a batch."""

import asyncio

import pytest
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.session import NS, Outbox, batch_ns
from hindmost_collector.ingest.streams import Ingest
from hindmost_proto import telemetry_pb2 as wire

ACK_NS = 10_000


class Clock:
    """A clock that stands where it is put."""

    def __init__(self):
        self.ns = ACK_NS

    def now(self):
        return self.ns


def messages(talk):
    """What is sent meanwhile, in words: ``1`` is an ack of a batch, ``.`` the end of a turn of the loop, ``almost`` and
    ``later`` the time until an ack goes alone, ``time`` and ``answer`` replies without a batch and with."""
    sent, clock = [], Clock()

    async def write(message):
        kind = message.WhichOneof("body")
        number = message.ack.durable_sequence or message.clock.durable_sequence
        sent.append(f"{kind} {number}" if number else kind)

    async def scenario():
        outbox = Outbox(clock, ACK_NS)
        outbox.welcome(0, 0)
        pump = asyncio.create_task(outbox.pump(write))
        for word in f". {talk}".split():
            if word == ".":
                for _ in range(10):
                    await asyncio.sleep(0)
            elif word in ("almost", "later"):
                clock.ns += ACK_NS - (word == "almost")
            elif word in ("time", "answer"):
                outbox.clock_reply(1, 2, with_ack=word == "answer")
            else:
                outbox.ack(int(word))
        outbox.close()
        await pump

    asyncio.run(scenario())
    return sent


@pytest.mark.parametrize(
    ("talk", "sent"),
    [
        ("1 . almost 2 . 3 time .", ["ack 1", "clock", "ack 3"]),
        ("1 . 2 answer . answer . almost 3", ["ack 1", "clock 2", "clock", "ack 3"]),
        ("1 . 2 . later 3 . 4", ["ack 1", "ack 3", "ack 4"]),  # the last one because the stream ends
        (" . ".join(map(str, range(1, 200))), ["ack 1", "ack 65", "ack 129", "ack 193", "ack 199"]),
    ],
    ids=["goes with the next message", "is a part of the answer to a batch", "waits not for ever", "of a backlog"],
)
def test_when_an_ack_is_sent(talk, sent):
    """With the time, which is sent every ten seconds, the latest in the place of those before; in the answer to a batch
    that asked for the time; alone where nothing else is said. Of a backlog as it comes: an agent has only some hundreds
    of batches on the way."""
    assert messages(talk) == ["welcome", *sent]


async def test_a_stream_ends_after_its_agent_has_read_the_last_ack():
    """The agent ends its side first: a server that does is a reset to it, which may overtake the acknowledgement."""
    definitions = Definitions()
    ingest = Ingest(JobClock(), definitions, Decoder(definitions), dict)
    acked, read = asyncio.Event(), asyncio.Event()

    async def said():
        yield wire.AgentMessage(hello=wire.Hello(protocol=1, agent_id="a", node="n"))
        yield wire.AgentMessage(goodbye=wire.Goodbye(reason="done"))
        await read.wait()

    class Context:
        async def write(self, message):
            if message.WhichOneof("body") == "ack":
                acked.set()

    stream = asyncio.create_task(ingest.stream(said(), Context()))
    await acked.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    open_until_then = not stream.done()
    read.set()
    await stream
    assert open_until_then


@pytest.mark.parametrize(("agents", "seconds"), [(0, 0), (1, 0), (512, 0), (513, 3), (768, 3), (769, 4), (100_000, 4)])
def test_many_agents_are_asked_for_fewer(agents, seconds):
    """Some 256 batches a second, as far as a verdict can wait; few agents do as they like."""
    assert batch_ns(agents, 0) == seconds * NS


def test_agents_that_come_and_go_do_not_change_the_pace_each_time():
    """What was asked stands until there are a fifth fewer than it was asked for."""
    asked = batch_ns(513, 0)
    assert batch_ns(512, asked) == asked
    assert batch_ns(411, asked) == asked
    assert batch_ns(409, asked) == 0
    assert batch_ns(0, batch_ns(5000, 0)) == 0


def greeted(ingest, name):
    """The outbox of an agent that has just come."""
    hello = wire.Hello(protocol=1, agent_id=name, node="n")
    return asyncio.run(ingest.greet(hello))[1]


def throttles(outbox):
    """What is said about it on a stream, in order."""
    return [one.throttle for one in outbox.drain() if one.HasField("throttle")]


def test_every_agent_learns_the_pace_once():
    """Those that are there when it changes, and those that come later."""
    definitions = Definitions()
    ingest = Ingest(JobClock(), definitions, Decoder(definitions), dict)
    early = greeted(ingest, "a")
    assert throttles(early) == []
    for _ in range(2):
        ingest.throttle(shed_metrics=False, batch_ns=3 * NS)
    late = greeted(ingest, "b")
    assert throttles(early) == throttles(late) == [wire.Throttle(batch_ns=3 * NS)]
    ingest.throttle(shed_metrics=True, batch_ns=0)
    assert throttles(early) == throttles(late) == [wire.Throttle(metrics=True)]
