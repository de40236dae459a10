"""A job too large for memory is read from the database in the same periods as from a run directory."""

import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store import partial_read, schema
from hindmost_collector.store.clickhouse.store import ClickHouseStore
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.run_directory import read_run

pytestmark = pytest.mark.clickhouse


@pytest.fixture
def both(url, tmp_path):
    """A run of 4 ranks and 400 steps in a run directory, and in a database."""
    write(simulate(Scenario(4, 400, faults=(Fault("compute", (2,), 0.10),))).run, tmp_path / "run", "run")
    tables = {one.name: segments.read_table(one, one.name)[0] for one in (tmp_path / "run/segments").iterdir()}
    store = ClickHouseStore(url)
    store.write({("run", table): [rows] for table, rows in tables.items() if rows.num_rows}, {})
    yield tmp_path / "run", store
    store.close()


def rows(run, table):
    """What a run holds of a table, in an order of its own."""
    columns = run.tables()[table]
    return sorted(zip(*(columns[name].tolist() for name in schema.STORED[table]), strict=True))


@pytest.mark.parametrize("share", [4, 1])
def test_the_same_rows_are_read_as_from_files(both, monkeypatch, share):
    """A quarter of the calls, and what goes with them, says the report; of a small job all, and nothing is said."""
    folder, store = both
    calls = len(read_run(folder).collectives["rank"])
    monkeypatch.setitem(partial_read.MOST, "collectives", calls // share)
    of_files, of_database = read_run(folder), store.read("run")
    assert (of_database.job.steps, of_database.job.skipped_ns) == (of_files.job.steps, of_files.job.skipped_ns)
    assert [one for one in of_database.notes if "to stay in memory" in one] == [
        one for one in of_files.notes if "to stay in memory" in one
    ]
    for table in ("steps", "collectives", "intervals", "metrics"):
        assert rows(of_database, table) == rows(of_files, table), table
    assert (len(rows(of_database, "collectives")) < calls / 3) is (share == 4)
