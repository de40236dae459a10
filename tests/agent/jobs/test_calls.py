"""Rows of calls, made column by column, are those that one record after the other makes."""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.ring import layout
from hindmost_agent.jobs.event_rows import FLAGS, LATEST_NS, LAUNCHES_LIMIT, LONGEST_NS, MOST, IntervalRow, RowBuilder
from hindmost_agent.jobs.rings import OpenRing
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.ring_records import Call, calls, feed, rows

CALLS = (ring.P2P, ring.COLLECTIVE)


class OneByOne:
    """The same rows, made of one event after the other: slow, and plain."""

    def __init__(self) -> None:
        self.rows: list[Call] = []
        self.intervals: list[IntervalRow] = []
        self.damaged = 0
        self.broke()

    def broke(self) -> None:
        self._gap: tuple[int, int, int] | None = None
        self._left_ns = -1
        self._launched: dict[tuple[str, int, int, int], int] = {}

    def feed(self, events: Sequence[ring.Event]) -> None:
        for event in events:
            if event.kind != layout.VOID:
                self._take(event)

    def _take(self, event: ring.Event) -> None:
        kind, flags, name, start, took, seq, peer, comm, value = event
        operation = name, comm, seq, peer
        if took > LONGEST_NS or start >= LATEST_NS or value > MOST:
            self.damaged += 1
        elif kind in CALLS:
            self.rows.append(self._row(event))
        elif kind == ring.SELF:
            cpu = value if flags & ring.CPU_KNOWN else -1
            self._gap = took, cpu, seq * 1000 if flags & ring.RUNQUEUE_KNOWN else -1
        elif kind == ring.LAUNCH:
            if len(self._launched) >= LAUNCHES_LIMIT:
                self._launched.clear()
            self._launched[operation] = start
        else:
            self.intervals.append(IntervalRow(name, start, took, float(value)))

    def _row(self, event: ring.Event) -> Call:
        _, flags, name, start, took, seq, peer, comm, value = event
        on_gpu = flags & ring.GPU_TIME
        gap, self._gap = self._gap, None
        if gap is None:
            known = self._left_ns != -1 and not on_gpu
            gap = max(start - self._left_ns, 0) if known else -1, -1, -1
        if not on_gpu:
            self._left_ns = start + took
        launched = self._launched.pop((name, comm, seq, peer), -1) if on_gpu else -1
        return Call(name, comm, seq, start, took, value, flags & FLAGS, peer, *gap, launched)


def usually(usual: st.SearchStrategy[int], bits: int) -> st.SearchStrategy[int]:
    """Mostly what a probe writes; whatever fits into the field, now and then."""
    return st.one_of(usual, usual, usual, usual, st.integers(0, (1 << bits) - 1))


EVENTS = st.builds(
    ring.Event,
    kind=st.sampled_from([*CALLS, *CALLS, ring.SELF, ring.SELF, ring.LAUNCH, ring.IO, layout.VOID]),
    flags=usually(st.sampled_from([0, 0, ring.GPU_TIME, ring.NONBLOCKING, ring.CPU_KNOWN | ring.RUNQUEUE_KNOWN]), 8),
    name=st.sampled_from(["all_reduce", "send", "", "wait"]),
    start_ns=usually(st.integers(0, 10_000), 64),
    duration_ns=usually(st.integers(0, 2_000), 64),
    seq=usually(st.integers(0, 3), 32),
    peer=usually(st.sampled_from([-1, 0, 1, 63, 64, 300, ring.ANY16]), 16).map(
        lambda peer: -1 if peer == 0xFFFF else peer
    ),
    comm_id=usually(st.sampled_from([0, 7, 8]), 64),
    value=usually(st.integers(0, 1 << 20), 64),
)
#: Of one kind of job, in the order in which its probe writes them.
REGULAR = st.tuples(st.sampled_from([(5, 3), (4,), (8, 3), (5, 4, 4)]), st.lists(EVENTS, max_size=40)).map(
    lambda made: [one._replace(kind=kind) for one, kind in zip(made[1], itertools.cycle(made[0]), strict=False)]
)


@given(portions=st.lists(st.tuples(st.one_of(st.lists(EVENTS, max_size=40), REGULAR), st.booleans()), max_size=5))
def test_columns_are_the_rows_of_one_event_after_the_other(portions: list[tuple[Sequence[ring.Event], bool]]) -> None:
    """Calls on host and GPU, gaps measured and not, damage and losses, whatever the order and the portions."""
    builder, plain = RowBuilder(), OneByOne()
    for events, lost in portions:
        if lost:
            builder.broke()
            plain.broke()
        feed(builder, events)
        plain.feed(events)
    made = builder.take()
    assert rows(made.collectives) == plain.rows
    assert (made.intervals, builder.damaged) == (plain.intervals, plain.damaged)


@pytest.fixture(scope="module")
def ring_of_nothing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ring.Reader]:
    """A ring whose tables are empty."""
    writer = ring.Writer.create(tmp_path_factory.mktemp("rings"), Identity("j", 0, 1, 0, "n", "mpi", "x"), "mpi", 64)
    yield ring.Reader(writer.path)
    writer.close()


#: Whatever a record's bytes are, but for its kind: few of 256 are kinds at all.
HOSTILE = st.builds(
    lambda content, kind: content[:4] + bytes([kind]) + content[4:],
    st.binary(min_size=layout.RECORD_BYTES - 1, max_size=layout.RECORD_BYTES - 1),
    st.integers(0, 9),
)


@given(records=st.lists(HOSTILE, max_size=30))
def test_what_records_hold_becomes_rows_that_can_be_sent(ring_of_nothing: ring.Reader, records: list[bytes]) -> None:
    """Who can write to a ring must not blind the node."""
    builder = RowBuilder()
    builder.feed(b"".join(records), ring_of_nothing)
    taken = builder.take().collectives
    assert len(rows(taken)) == len(taken)


def test_operations_of_many_names_keep_them() -> None:
    """More names than a byte can number, from rings that number them differently."""
    recorded = [Call(f"operation {number * 7 % 300}", 1, number, 5, 5, 8, 0, -1, 0, -1, -1) for number in range(400)]
    both = calls(recorded[:200])
    both.extend(calls(recorded[200:]))
    assert rows(both) == recorded


@pytest.mark.parametrize("capacity", [64])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rounds=st.lists(st.integers(0, 150), max_size=6))
def test_overwritten_calls_break_the_gap_and_are_counted(tmp_path: Path, capacity: int, rounds: list[int]) -> None:
    """However a ring wraps between two reads: what is read is in order, and no gap spans what was lost."""
    writer = ring.Writer.create(tmp_path, Identity("j", 0, 1, 0, "n", "mpi", "x"), "mpi", capacity)
    item = OpenRing(writer.path, ring.Reader(writer.path))
    name, comm, number, read = writer.name("all_reduce"), writer.communicator(7, 0, 1, "world"), 0, 0
    for burst in rounds:
        for _ in range(burst):
            writer.event(ring.COLLECTIVE, name, 100 * number, 60, number, comm)
            number += 1
        item.read()
        found = rows(item.builder.take().collectives)
        kept = min(burst, capacity)
        assert [row.seq for row in found] == list(range(number - kept, number))
        first = -1 if burst > capacity or number == kept else 40
        assert [row.self_ns for row in found] == [first, *[40] * (kept - 1)][:kept]
        read += kept
    assert item.lost == number - read
    writer.close()
