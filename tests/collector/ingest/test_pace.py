"""How often agents are asked to make a batch."""

import asyncio

import pytest
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.session import NS, batch_ns
from hindmost_collector.ingest.streams import Ingest
from hindmost_proto import telemetry_pb2 as wire


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
