"""Agents' messages whose packed fields stay bytes: parsing one makes no object for a number in it.

On the wire a packed column is its length and its values, little endian, which is also what ``bytes`` are. So the
same messages are declared a second time, with every packed column as ``bytes``; those of many messages are joined
and become an array in one step. Our agents send no unpacked or split columns: such a column counts as missing.
Labels of a series are bytes too: most series share those of another one.
"""

from operator import attrgetter
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import Message
from hindmost_proto import telemetry_pb2 as wire

Array = np.ndarray[Any, Any]


_Field = descriptor_pb2.FieldDescriptorProto
_PACKAGE, _OURS = wire.DESCRIPTOR.package, "hindmost.packed"
#: Messages whose columns are left as they are.
_BLOCKS = frozenset({"MetricBlock", "StepBlock", "PhaseColumn", "CollectiveBlock", "IntervalBlock"})
_EIGHT_BYTES = frozenset({_Field.TYPE_SFIXED64, _Field.TYPE_FIXED64, _Field.TYPE_DOUBLE})
_VARINTS = frozenset({_Field.TYPE_UINT32, _Field.TYPE_SINT32})


def _is_column(message: str, field: Any) -> bool:
    return message in _BLOCKS and field.label == _Field.LABEL_REPEATED and field.type in _EIGHT_BYTES | _VARINTS


def _declared() -> descriptor_pb2.FileDescriptorProto:
    """telemetry.proto with its columns as bytes."""
    file = descriptor_pb2.FileDescriptorProto()
    wire.DESCRIPTOR.CopyToProto(file)
    file.name, file.package = "packed.proto", _OURS
    file.ClearField("service")
    for message in file.message_type:
        for field in (*message.field, *(inner for nested in message.nested_type for inner in nested.field)):
            if field.type_name:
                field.type_name = field.type_name.replace(f".{_PACKAGE}.", f".{_OURS}.")
            if _is_column(message.name, field):
                field.label, field.type = _Field.LABEL_OPTIONAL, _Field.TYPE_BYTES
                field.ClearField("options")
            if (message.name, field.name) == ("Series", "labels"):
                field.type = _Field.TYPE_BYTES
                field.ClearField("type_name")
    return file


_POOL = descriptor_pool.DescriptorPool()
_POOL.Add(_declared())


def _message(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(f"{_OURS}.{name}"))


AgentMessage, Batch = _message("AgentMessage"), _message("Batch")
StepBlock, CollectiveBlock, IntervalBlock = map(_message, ("StepBlock", "CollectiveBlock", "IntervalBlock"))
#: Columns of varints, by block; all others are of eight bytes a value.
VARINTS = {
    message.name: frozenset(field.name for field in message.fields if field.is_repeated and field.type in _VARINTS)
    for message in wire.DESCRIPTOR.message_types_by_name.values()
    if message.name in _BLOCKS
}


#: A label of a series: ``key`` and ``value``.
Label = _message("Series.LabelsEntry")


def packed(message: Message) -> Any:
    """A message of telemetry.proto as the same one of these."""
    return _message(message.DESCRIPTOR.name).FromString(message.SerializeToString())


def first(column: bytes) -> int:
    """The first value of a column of 64-bit integers."""
    return int.from_bytes(column[:8], "little", signed=True)


def eights(column: bytes, dtype: Any = np.int64) -> Array:
    """A column of eight bytes a value; not to be written to."""
    return np.frombuffer(column, dtype)


def varint_count(column: bytes) -> int:
    """How many values a column of varints has; -1 when its last one has no end."""
    if column.isascii():
        return len(column)  # each is one byte
    return int(np.count_nonzero(np.frombuffer(column, np.uint8) < 0x80)) if column[-1] < 0x80 else -1


def varints(column: bytes) -> Array:
    """The values of a column of varints, 32-bit as protobuf has them: higher bits are cut off."""
    data = np.frombuffer(column, np.uint8)
    if column.isascii():
        return data
    ends = np.flatnonzero(data < 0x80)
    if not len(ends):
        return np.empty(0, np.int64)
    data = data[: ends[-1] + 1]
    begins = np.concatenate(([0], ends[:-1] + 1))
    place = np.arange(len(data)) - np.repeat(begins, ends - begins + 1)
    parts = np.where(place < 5, (data & 0x7F).astype(np.int64) << 7 * np.minimum(place, 5), 0)
    return np.add.reduceat(parts, begins) & 0xFFFFFFFF


def signed(column: bytes) -> Array:
    """The values of a column of ``sint32``, which are zigzagged varints."""
    values = varints(column).astype(np.int64)
    return (values >> 1) ^ -(values & 1)


#: Columns of calls that may be short in a block of so many rows, as telemetry.proto has it.
SHORT_COLUMNS, SHORT_ROWS = ("comm", "duration_ns", "bytes", "self_ns", "cpu_ns", "runqueue_ns"), 64
_MAY_BE_SHORT = attrgetter(*SHORT_COLUMNS)


def widen(block: Any, count: int) -> None:
    """Make whole columns of a block's short ones."""
    if count < SHORT_ROWS:
        return
    for name, column in zip(SHORT_COLUMNS, _MAY_BE_SHORT(block), strict=True):
        if len(column) == 8:
            setattr(block, name, column * count)
        elif len(column) == (count + 1) // 2 * 8:
            setattr(block, name, np.frombuffer(column, np.uint32, count).astype(np.int64).tobytes())


def cut(block: Any, first_row: int, rows: int, count: int) -> Any:
    """``rows`` rows of a block of ``count`` as a block of their own; columns of another length stay as they are."""
    part = type(block)()
    part.CopyFrom(block)
    part.ClearField("ranks")
    part.ClearField("rows")
    kind = block.DESCRIPTOR.name
    for field, value in block.ListFields():
        if field.name == "phases":
            for phase in part.phases:
                phase.ns = _cut(phase.ns, first_row, rows, count)
        elif isinstance(value, bytes) and field.name not in {"ranks", "rows"}:
            piece = _cut_varints if field.name in VARINTS[kind] else _cut
            setattr(part, field.name, piece(value, first_row, rows, count))
    return part


def _cut(column: bytes, first_row: int, rows: int, count: int) -> bytes:
    return column[first_row * 8 : (first_row + rows) * 8] if len(column) == count * 8 else column


def _cut_varints(column: bytes, first_row: int, rows: int, count: int) -> bytes:
    if varint_count(column) != count:
        return column
    ends = [0, *(np.flatnonzero(np.frombuffer(column, np.uint8) < 0x80) + 1).tolist()]
    return column[ends[first_row] : ends[first_row + rows]]
