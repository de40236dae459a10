"""A run that an older hindmost recorded, before steps had a column for Horovod's negotiation: queried, migrated."""

import time

import hindmost_collector
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hindmost_collector.store import schema
from hindmost_collector.store.parquet.compaction import Retention, Upkeep
from hindmost_collector.store.parquet.run_directory import read_run
from hindmost_collector.store.parquet.store import ParquetStore

from tests.recordings import unpacked


@pytest.fixture
def older(tmp_path):
    """The older run, as the one job of a store."""
    return unpacked("ddp-observed-clean", tmp_path)


def newer_row():
    """A step as it is recorded today."""
    target = schema.arrow_schema("steps")
    columns = {field.name: "train" if pa.types.is_dictionary(field.type) else 7 for field in target}
    return pa.Table.from_arrays([pa.array([columns[field.name]], field.type) for field in target], schema=target)


def test_what_came_later_is_reported(older):
    """Every column that a table has got since is listed as such: else queries over older runs would not know it."""
    for table in (one.name for one in (older / "segments").iterdir()):
        (first, *_) = sorted((older / "segments" / table).glob("*.parquet"))
        assert set(schema.FILED[table]) - set(pq.read_schema(first).names) == set(schema.ADDED.get(table, ())), table


def test_a_column_that_came_later_is_not_measured(older):
    """SQL and pandas see -1 in it, as for any other unmeasured value, alone and together with newer segments."""
    assert set(hindmost_collector.open(older).steps("negotiation_ns")["negotiation_ns"].to_pylist()) == {-1}
    ParquetStore(older, single=True).write({("j", "steps"): [newer_row()]}, {})
    run = hindmost_collector.open(older)
    query = "select count(*) as rows, count(negotiation_ns) as known, max(negotiation_ns) as most from steps"
    (found,) = run.sql(query).to_pylist()
    assert found == {"rows": 1201, "known": 1201, "most": 7}
    assert run.steps().column_names == ["job", *schema.FILED["steps"]]


def test_compaction_migrates_it(older):
    """Merged, all its segments are of today's schema, and no row of it has changed."""
    before = read_run(older).tables()
    store = ParquetStore(older, single=True)
    upkeep = Upkeep(store, Retention(), now=lambda: time.time() + 2 * 86400)
    while upkeep.compact():
        pass
    store.close()
    for table in (one.name for one in (older / "segments").iterdir()):
        for path in (older / "segments" / table).glob("*.parquet"):
            found = pq.read_schema(path)
            assert found.names == list(schema.FILED[table])
            assert found.metadata[schema.VERSION_KEY] == str(schema.VERSION).encode()
    after = read_run(older).tables()
    for table, columns in before.items():
        rows = [
            sorted(zip(*(kept[name].tolist() for name in columns), strict=True)) for kept in (columns, after[table])
        ]
        assert repr(rows[0]) == repr(rows[1]), table  # as text: a NaN is unlike itself
