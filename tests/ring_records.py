"""Records as a ring has them, of events that tests make; and rows of calls, which the agent has by column."""

from collections.abc import Iterable
from typing import NamedTuple

from hindmost import ring
from hindmost.ring import layout
from hindmost_agent.delivery.batch import Builder
from hindmost_agent.jobs.event_rows import COLUMNS, Calls, RowBuilder
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto import varint

_MISSING = {"flags": 0, "peer": -1, "cpu_ns": -1, "runqueue_ns": -1, "enqueue_ns": -1}


class Tables:
    """Names and communicators of all events of all tests, and the places that they have."""

    def __init__(self) -> None:
        self.names: dict[int, str] = {layout.NONE16: ""}
        self.comm_ids: dict[int, int] = {layout.NONE16: 0}
        self._places: dict[str | int, int] = {"": layout.NONE16, 0: layout.NONE16}

    def block(self, events: Iterable[ring.Event]) -> bytes:
        """Whole records, one after the other."""
        return b"".join(
            layout.RECORD.pack(
                0, kind, flags, self._name(name), start, took, seq, peer & 0xFFFF, self._comm(comm), value
            )
            for kind, flags, name, start, took, seq, peer, comm, value in events
        )

    def event(self, words: tuple[int, ...]) -> ring.Event | None:
        what, start, took, where, value = words
        if not what & 0xFF:
            return None
        peer = where >> 32 & 0xFFFF
        return ring.Event(
            what & 0xFF,
            what >> 8 & 0xFF,
            self.names[what >> 16],
            start,
            took,
            where & 0xFFFFFFFF,
            -1 if peer == layout.NONE16 else peer,
            self.comm_ids[where >> 48],
            value,
        )

    def _name(self, name: str) -> int:
        place = self._places.setdefault(name, len(self.names) - 1)
        self.names[place] = name
        return place

    def _comm(self, comm: int) -> int:
        place = self._places.setdefault(comm, len(self.comm_ids) - 1)
        self.comm_ids[place] = comm
        return place


TABLES = Tables()


def feed(builder: RowBuilder, events: Iterable[ring.Event]) -> None:
    """Have rows made of events, as if they had come from a ring."""
    builder.feed(TABLES.block(events), TABLES)


class Call(NamedTuple):
    """One row of calls, as the wire says it."""

    op: str
    comm: int
    seq: int
    start_ns: int
    duration_ns: int
    bytes: int
    flags: int
    peer: int
    self_ns: int
    cpu_ns: int
    runqueue_ns: int
    enqueue_ns: int = -1


def rows_of(block: wire.CollectiveBlock) -> list[Call]:
    columns = [getattr(block, name) or [_MISSING[name]] * len(block.op) for name in COLUMNS]
    return [Call(block.op_names[op], *row) for op, *row in zip(block.op, *columns, strict=True)]


def rows(calls: Calls) -> list[Call]:
    """The same of calls that are not sent yet."""
    builder = Builder("n")
    builder.collectives(7, calls)
    found = wire.Batch.FromString(b"".join(builder.pack().parts)).collectives
    return [row for block in found for row in rows_of(block)]


def calls(records: Iterable[Call]) -> Calls:
    """By column."""
    made = Calls()
    for op, *values in records:
        named = dict(zip(COLUMNS, values, strict=True))
        columns = {name: (value % (1 << 64)).to_bytes(8, "little") for name, value in named.items()}
        columns["flags"] = bytes([named["flags"]])
        columns["peer"] = varint(2 * named["peer"] if named["peer"] >= 0 else -2 * named["peer"] - 1)
        made.append({0: op}, bytes(2), columns.values())
    return made
