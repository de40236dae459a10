"""Coarser levels of samples in the real engine: every sample of a whole flush once, whatever failed meanwhile."""

import time

import hindmost_collector
import pyarrow as pa
import pytest
from hindmost_collector.store import schema
from hindmost_collector.store.clickhouse.client import Unreachable
from hindmost_collector.store.clickhouse.store import LEVELS_LATE_S, ClickHouseStore
from hindmost_collector.store.parquet.store import ParquetStore

pytestmark = pytest.mark.clickhouse
SECOND = 1_000_000_000
START_NS = 1_760_000_400 * SECOND  # a full hour
NAME = "hindmost_node_cpu_seconds_total"
FLUSH_S = 23  # shorter than any interval, and none is a multiple of it


def samples(seconds, node="n0"):
    """A counter of a node at these seconds, in this order."""
    target = schema.arrow_schema("metrics")
    columns = {
        "node": [node] * len(seconds),
        "name": [NAME] * len(seconds),
        "labels": ['{"mode":"it\\\'s"}'] * len(seconds),
        "time_ns": [START_NS + at * SECOND for at in seconds],
        "value": [float(at) if at != 3 else float("inf") for at in seconds],
    }
    return pa.Table.from_arrays([pa.array(columns[field.name], field.type) for field in target], schema=target)


@pytest.fixture
def store(url):
    """A store of nothing yet."""
    made = ClickHouseStore(url)
    made.write_meta("j", {"job_id": "j"})
    yield made
    made.close()


def counted(store, level="metrics_5m"):
    """How many samples a level says there are."""
    return int(store.server.command(f"SELECT sum(count) FROM {store.target.place.database}.{level}"))


def merged(store):
    """Have the engine merge what it has."""
    for level in schema.LEVELS:
        store.server.command(f"OPTIMIZE TABLE {store.target.place.database}.{level}_rows FINAL")


def away(store, monkeypatch):
    """Let every insert of a level fail."""
    real = store.server.insert

    def failing(table, data, token):
        if table.removesuffix("_rows") in schema.LEVELS:
            raise Unreachable("gone")
        real(table, data, token)

    monkeypatch.setattr(store.server, "insert", failing)


def test_levels_are_those_of_files(store, url, tmp_path):
    """The same flushes give the same levels and series in the engine, before and after it merged, and in files."""
    files = ParquetStore(tmp_path, single=False)
    for first in range(0, 345, FLUSH_S):
        flush = [samples(range(first, first + FLUSH_S), node) for node in ("n0", "n1")]
        for one in (store, files):
            one.write({("j", "metrics"): flush, ("k", "metrics"): [samples([first], "n2")]}, {})
    files.close()
    kept = hindmost_collector.open(tmp_path)
    for _ in range(2):
        held = hindmost_collector.open(url)
        for level in schema.LEVELS:
            columns = ", ".join(("job", *schema.LEVEL))
            query = f"select {columns} from {level} order by job, node, time_ns"
            assert held.sql(query).to_pylist() == kept.sql(query).to_pylist()
        for points in (1000, 30, 3, 1):
            asked = {"name": NAME, "node": "n1", "points": points}
            assert held.series(**asked).to_pylist() == kept.series(**asked).to_pylist()
        merged(store)
    rows = store.server.command(f"SELECT count() FROM {store.target.place.database}.metrics_1h_rows")
    assert int(rows) == 3  # one a series, not one a flush
    assert set(hindmost_collector.open(url + "?job=k").series(NAME)["job"].to_pylist()) == {"k"}
    assert len(hindmost_collector.open(url).series("it\\'s none")) == 0
    assert hindmost_collector.open(url).table("metrics_1h").column_names == ["job", *schema.LEVEL]


def test_late_samples_are_counted_where_they_belong(store, url):
    """Samples out of order, within a flush and after later ones, count in their intervals; the last is so by time."""
    store.write({("j", "metrics"): [samples([40, 50, 10, 20])]}, {})
    store.write({("j", "metrics"): [samples([12, 45])]}, {})
    found = hindmost_collector.open(url).sql("select time_ns, count, last from metrics_30s order by time_ns")
    assert [tuple(row.values()) for row in found.to_pylist()] == [
        (START_NS, 3, 20.0),
        (START_NS + 30 * SECOND, 3, 50.0),
    ]


def test_flush_that_is_not_whole_is_in_no_level(store, monkeypatch):
    """Samples of a flush whose commit failed, or whose answer was lost, count once: when they are written again."""
    real = store.server.insert
    for deaf in (False, True):

        def breaking(table, data, token, deaf=deaf):
            if table != "flushes" or deaf:
                real(table, data, token)
            if table == "flushes":
                raise Unreachable("gone")

        with monkeypatch.context() as patch:
            patch.setattr(store.server, "insert", breaking)
            with pytest.raises(OSError, match="gone"):
                store.write({("j", "metrics"): [samples(range(10, 20))]}, {})
        store.write({("j", "metrics"): [samples(range(10, 20))]}, {})
    assert [counted(store, level) for level in schema.LEVELS] == [20, 20, 20]


def test_levels_follow_when_the_server_is_back(store, monkeypatch):
    """A flush is whole although its levels could not be inserted; the next write brings them first."""
    with monkeypatch.context() as patch:
        away(store, patch)
        assert store.write({("j", "metrics"): [samples(range(10, 20))]}, {"x@n0": 1})[0] == 10
        with pytest.raises(OSError, match="gone"):
            store.write({("j", "metrics"): [samples(range(20, 25))]}, {"x@n0": 2})
    assert (store.sequences, counted(store)) == ({"x@n0": 1}, 0)
    store.write({("j", "metrics"): [samples(range(20, 25))]}, {"x@n0": 2})
    assert [counted(store, level) for level in schema.LEVELS] == [15, 15, 15]


def test_killed_before_its_levels(store, url, monkeypatch):
    """What was killed between a flush and its levels adds them at the next start, once; long after, it lets them be."""
    with monkeypatch.context() as patch:
        away(store, patch)
        store.write({("j", "metrics"): [samples(range(3, 20))]}, {})
    store.server.close()
    late = ClickHouseStore(url, now_ns=lambda: time.time_ns() + (LEVELS_LATE_S + 60) * SECOND)
    assert counted(late) == 0
    late.server.close()
    for _ in range(2):
        again = ClickHouseStore(url)
        again.write({}, {})
        assert [counted(again, level) for level in schema.LEVELS] == [16, 16, 16]  # one was infinite
        assert hindmost_collector.open(url).series(NAME, points=1)["last"].to_pylist() == [19.0]
        again.close()
