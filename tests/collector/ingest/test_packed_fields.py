"""Packed columns as bytes: the same numbers as protobuf makes of them."""

import numpy as np
import pytest
from hindmost_collector.ingest.definitions import Schema, Series, learned
from hindmost_collector.ingest.packed_fields import cut, eights, packed, signed, varint_count, varints
from hindmost_collector.ingest.row_builder import Malformed
from hindmost_proto import telemetry_pb2 as wire
from hypothesis import given
from hypothesis import strategies as st

UINT32, SINT32, INT64 = st.integers(0, 2**32 - 1), st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
ROWS = st.lists(st.tuples(UINT32, SINT32, INT64), min_size=1, max_size=30)


def block(rows):
    """Collectives with these flags, peers and sequence numbers."""
    flags, peer, seq = zip(*rows, strict=True)
    return wire.CollectiveBlock(op_names=["a", "b"], op=[1] * len(rows), flags=flags, peer=peer, seq=seq)


def columns(one):
    """The numbers of a block whose columns are bytes."""
    return [varints(one.flags).tolist(), signed(one.peer).tolist(), eights(one.seq).tolist()]


@given(ROWS)
def test_columns_hold_what_was_sent(rows):
    """Varints of any length, zigzagged ones and eight bytes a value."""
    one = packed(block(rows))
    assert columns(one) == [list(column) for column in zip(*rows, strict=True)]
    assert varint_count(one.flags) == varint_count(one.peer) == len(rows)


@given(ROWS, st.data())
def test_a_part_of_a_block_is_those_rows(rows, data):
    """Every column is cut at the same rows; names stay."""
    first = data.draw(st.integers(0, len(rows) - 1))
    count = data.draw(st.integers(1, len(rows) - first))
    part = cut(packed(block(rows)), first, count, len(rows))
    assert columns(part) == [list(column) for column in zip(*rows[first : first + count], strict=True)]
    assert (varints(part.op).tolist(), list(part.op_names)) == ([1] * count, ["a", "b"])


def test_a_varint_without_an_end_is_none():
    """A column that is cut off within a number has no length, and what is whole in it can be read."""
    assert [varint_count(column) for column in (b"", b"\x01", b"\x80\x01\x80", b"\x80")] == [0, 1, -1, -1]
    assert varints(b"\x80\x01\x80").tolist() == [128]
    assert varints(b"\x80").tolist() == []


def test_a_schema_keeps_each_text_once():
    """Series of one name with other labels share what they have in common with those of another node."""
    schemas = [
        learned(
            packed(
                wire.Schema(
                    series=[
                        wire.Series(name="b", help="B.", labels={"z": "1", "gpu": f"{node}{gpu}"}) for gpu in range(2)
                    ]
                    + [wire.Series(name="a", kind="COUNTER", labels={"z": "1", "gpu": f"{node}0"})]
                )
            )
        )
        for node in "xy"
    ]
    assert schemas[0].head is schemas[1].head
    assert schemas[0].words == ('{"gpu":"x0","z":"1"}', '{"gpu":"x1","z":"1"}')
    assert list(schemas[1].series) == [
        Series("b", False, "B.", '{"gpu":"y0","z":"1"}'),
        Series("b", False, "B.", '{"gpu":"y1","z":"1"}'),
        Series("a", True, "", '{"gpu":"y0","z":"1"}'),
    ]
    assert schemas[0].head.order.tolist() == [2, 0, 1]
    assert list(Schema(schemas[0].series).series) == list(schemas[0].series)
    np.testing.assert_array_equal(Schema([]).head.order, [])


def test_labels_that_are_none_are_refused():
    """Bytes in a label's place that are no label."""
    torn = packed(wire.Schema(series=[wire.Series(name="a")]))
    torn.series[0].labels.append(b"\xff")
    with pytest.raises(Malformed, match="a label that is none"):
        learned(torn)
