"""Batches that wait to be taken apart."""

from types import SimpleNamespace

import pytest
from hindmost_collector.ingest import decode
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.decode import Inbox
from hindmost_collector.ingest.session import Outbox
from hindmost_proto import telemetry_pb2 as wire


@pytest.fixture
def taken():
    """What has been taken, as ``(agent, sequence, arrived)``."""
    return []


@pytest.fixture
def waiting(taken):
    """An inbox whose taker fails at sequence 13."""

    def take(agent, outbox, batch, now_ns):
        if batch.sequence == 13:
            raise RuntimeError("no such thing")
        taken.append((agent.identity, batch.sequence, now_ns))

    return Inbox(take)


def stream(name):
    """An agent, and the outbox of its stream."""
    return SimpleNamespace(identity=name, node="n"), Outbox(JobClock())


def test_batches_are_taken_in_the_order_in_which_they_came(waiting, taken):
    """Every caller has all of them, each with its arrival time."""
    one, two = stream("a"), stream("b")
    for sequence in (1, 2, 3):
        waiting.add(*one, wire.Batch(sequence=sequence), 10 + sequence)
        waiting.add(*two, wire.Batch(sequence=sequence), 20 + sequence)
    assert taken == []
    waiting.empty()
    waiting.empty()
    assert taken == [("a", 1, 11), ("b", 1, 21), ("a", 2, 12), ("b", 2, 22), ("a", 3, 13), ("b", 3, 23)]


def test_what_waits_is_bounded(waiting, taken):
    """Many batches are taken at once, and few whose messages are large."""
    one = stream("a")
    for sequence in range(100, 100 + decode.MANY):
        waiting.add(*one, wire.Batch(sequence=sequence), 0)
    assert len(taken) == decode.MANY
    large = wire.AgentMessage(batch=wire.Batch(metrics=[wire.MetricBlock(values=[1.5] * (decode.BYTES // 8))]))
    waiting.add(*one, waiting.parsed(large.SerializeToString()).batch, 0)
    assert len(taken) == decode.MANY + 1


def test_a_batch_that_cannot_be_taken_ends_its_own_stream(waiting, taken, caplog):
    """The others' are taken, and nothing more of that stream: it comes again."""
    one, two = stream("a"), stream("b")
    for sequence in (12, 13, 14):
        waiting.add(*one, wire.Batch(sequence=sequence), 0)
        waiting.add(*two, wire.Batch(sequence=sequence + 100), 0)
    waiting.empty()
    assert [(who, sequence) for who, sequence, _ in taken] == [("a", 12), ("b", 112), ("b", 113), ("b", 114)]
    assert (one[1].closed, two[1].closed) == (True, False)
    assert "agent a" in caplog.text
