"""Blocks of samples become long rows, whatever nodes send, and however many blocks of it."""

import itertools
import math

import numpy as np
import pyarrow as pa
import pytest
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows, origin
from hindmost_collector.store import arrow_tables
from hindmost_collector.store.arrow_tables import metrics_tables
from hypothesis import given
from hypothesis import strategies as st

#: Layouts by reference: 1 and 2 differ in their labels alone, 3 has its series out of order, 4 has none.
SERIES = {
    1: [("a", '{"gpu":"x"}'), ("a", '{"gpu":"y"}'), ("b", '{"gpu":"x"}')],
    2: [("a", '{"gpu":"u"}'), ("a", '{"gpu":"v"}'), ("b", '{"gpu":"u"}')],
    3: [("z", "{}"), ("a", "{}")],
    4: [],
}
BLOCKS = st.tuples(st.sampled_from(["n0", "n1", "n10"]), st.sampled_from(list(SERIES)), st.integers(1, 4))


def definitions():
    """What the references mean."""
    made = Definitions()
    for ref, series in SERIES.items():
        made.schemas[ref] = Schema(Series(name, False, "", labels) for name, labels in series)
    return made


def sent(blocks):
    """Blocks with a value of its own for each sample, one in five missing, and the rows that they are."""
    made, expected, at = [], set(), 0
    for node, ref, ticks in blocks:
        values = np.arange(at, at + ticks * len(SERIES[ref]), dtype=float).reshape(ticks, -1)
        values[values % 5 == 0] = np.nan
        times = np.arange(at, at + ticks)
        made.append(MetricRows(origin(node, ref), times.tobytes(), 1000, values.tobytes(), int(times[-1]) + 1000))
        for time_ns, row in zip(times.tolist(), values.tolist(), strict=True):
            pairs = zip(SERIES[ref], row, strict=True)
            expected |= {(node, *series, time_ns + 1000, one) for series, one in pairs if not math.isnan(one)}
        at += ticks * max(len(SERIES[ref]), 1)
    return made, expected


def rows(tables):
    """All rows as tuples, in order."""
    return [tuple(row.values()) for row in pa.concat_tables(tables).to_pylist()] if tables else []


@given(st.lists(BLOCKS, max_size=12), st.sampled_from([3, 10, 1 << 17]))
def test_every_sample_is_one_row(blocks, piece):
    """From nodes with as many samples as others or not, in pieces of any size; missing ones leave no rows."""
    made, expected = sent(blocks)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(arrow_tables, "PIECE_SAMPLES", piece)
        stored = rows(list(metrics_tables(made, definitions())))
    assert len(stored) == len(expected)
    assert set(stored) == expected


def test_the_samples_of_a_series_are_neighbours_by_time():
    """In whichever blocks they came, and whatever other nodes sent between."""
    made, _ = sent([("n1", 1, 2), ("n0", 1, 2), ("n1", 1, 2), ("n0", 1, 2)])
    stored = [(node, name, labels) for node, name, labels, *_ in rows(list(metrics_tables(made, definitions())))]
    changes = sum(one != other for one, other in itertools.pairwise(stored))
    assert changes == len(set(stored)) - 1
    times = [row[3] for row in rows(list(metrics_tables(made, definitions()))) if row[:3] == ("n1", *SERIES[1][0])]
    assert times == sorted(times)


def test_pieces_follow_one_another_by_node(monkeypatch):
    """A reader that wants one node finds it in few row groups."""
    monkeypatch.setattr(arrow_tables, "PIECE_SAMPLES", 6)
    made, _ = sent([(f"n{number}", 1, 2) for number in (3, 1, 2, 0)])
    nodes = [table["node"].to_pylist() for table in metrics_tables(made, definitions())]
    assert [node for one in nodes for node in dict.fromkeys(one)] == ["n0", "n1", "n2", "n3"]
