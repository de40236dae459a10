"""Agents of another version: a recorded stream as it is, as a later version might send it, and as an earlier one.

A collector takes what it understands of each. `record_stream.py` makes a recording; each release adds its own.
"""

import contextlib
import gzip
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from hindmost_agent.delivery.stream import CallError, connect
from hindmost_collector.store.parquet import segments
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.address import parse

from tests.waiting import PATIENCE_S

RECORDED = sorted((Path(__file__).parents[2] / "fixtures/wire").glob("*.stream.gz"))
#: What the recording of each version holds.
HELD = {"0.1.0": {"steps": 209, "collectives": 209, "metrics": 1080, "rank_states": 4}}
#: A field of number 1000, a string, which no version has; and a varint of number 1001.
UNKNOWN = b"\xc2\x3e\x05later\xc8\x3e\x07"
#: What an agent may leave out: columns that some probes do not measure, and all that is only shown.
OPTIONAL = {
    "Hello": {"version", "monotonic_ns", "realtime_ns"},
    "AgentMessage": {"measured", "asked_ns"},
    "Rank": {"local_rank", "gpu_uuid", "framework", "command", "user"},
    "Series": {"help"},
    "StepBlock": {"work", "phases"},
    "CollectiveBlock": {"self_ns", "cpu_ns", "runqueue_ns", "enqueue_ns", "peer", "flags"},
    "RankState": {"in_flight", "events_lost_total"},
}


def messages(path: Path) -> Iterator[wire.AgentMessage]:
    """What an agent said, in order."""
    content, at = gzip.decompress(path.read_bytes()), 0
    while at < len(content):
        (length,) = struct.unpack_from("<I", content, at)
        at += 4 + length
        yield wire.AgentMessage.FromString(content[at - length : at])


def below(message: Any) -> Iterator[Any]:
    """A message and all messages in it; of maps nothing."""
    yield message
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_MESSAGE and not field.message_type.GetOptions().map_entry:
            for one in [value] if hasattr(value, "ListFields") else value:
                yield from below(one)


def as_recorded(_: wire.AgentMessage) -> None:
    """Change nothing."""


def from_later(message: wire.AgentMessage) -> None:
    """Fields that are not known here, in every message; and values of enumerations that are not known here."""
    for one in list(below(message)):
        if one.DESCRIPTOR.name == "RankState":
            one.life = 99
        one.MergeFromString(UNKNOWN)


def from_earlier(message: wire.AgentMessage) -> None:
    """Without what agents may leave out."""
    for one in list(below(message)):
        for name in OPTIONAL.get(one.DESCRIPTOR.name, ()):
            one.ClearField(name)


async def played(address: str, sent: list[bytes]) -> int:
    """Send a stream; the last sequence number that the collector has made durable."""
    where, durable = parse(address), 0
    assert where is not None
    with contextlib.suppress(CallError):  # after the goodbye it ends the stream before we do
        async with connect(where.host, where.port, PATIENCE_S) as call:
            for one in sent:
                await call.write(one)
            while (message := await call.read()) is not None:
                durable = max(durable, message.ack.durable_sequence, message.clock.durable_sequence)
    return durable


@pytest.mark.parametrize("change", [as_recorded, from_later, from_earlier])
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.name.removesuffix(".stream.gz"))
async def test_every_row_of_another_version_is_stored(
    tmp_path: Path, collecting: Callable[..., Any], path: Path, change: Callable[[wire.AgentMessage], None]
) -> None:
    """Whatever is new in it, or not yet there: nothing is refused, and the rows are those that were recorded."""
    sent = []
    for message in messages(path):
        change(message)
        sent.append(message.SerializeToString(deterministic=True))

    async with collecting(out=str(tmp_path / "run"), job_id="ledger") as collector:
        assert await played(collector.addresses["grpc"], sent) > 0
    version = path.name.removesuffix(".stream.gz")
    rows = {table: segments.read_table(tmp_path / "run/segments" / table, table)[0].num_rows for table in HELD[version]}
    assert rows == HELD[version]


def test_an_agent_takes_answers_of_a_later_collector() -> None:
    """An answer of a kind that is not known has no body here: agents pass over it; known ones keep their meaning."""
    later = wire.CollectorMessage.FromString(UNKNOWN)
    assert later.WhichOneof("body") is None
    ack = wire.CollectorMessage(ack=wire.Ack(durable_sequence=7)).SerializeToString() + UNKNOWN
    assert wire.CollectorMessage.FromString(ack).ack.durable_sequence == 7
