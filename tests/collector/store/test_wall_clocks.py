"""A node whose wall clock is wrong, or is set while a job runs: its rows have the collector's time, and a note."""

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.store.parquet.run_directory import run_of
from hindmost_collector.store.schema import STORED, arrow_schema, to_numpy

END = ": times here are the collector's, and differ from that node's logs"


@pytest.mark.parametrize(
    ("offsets", "note"),
    [
        ([0.2, 0.3], None),
        ([3600.0, 3600.1], "is 3,600 s behind"),
        ([-3600.0, -3600.1], "is 3,600 s ahead"),
        ([0.0, 3600.0], "was set by 3,600 s meanwhile and is 3,600 s behind"),
        ([-3600.0, np.nan, 0.0], "was set by 3,600 s meanwhile"),
    ],
)
def test_a_wrong_wall_clock_is_noted(offsets: list[float], note: str | None) -> None:
    """By an hour, in both directions, and where NTP sets it in the middle of a job."""
    tables = {name: to_numpy(name, arrow_schema(name).empty_table()) for name in STORED}
    samples = [("n1", "hindmost_agent_clock_offset_seconds", "{}", at, one) for at, one in enumerate(offsets)]
    samples += [("n0", "hindmost_agent_clock_offset_seconds", "{}", 0, 0.0), ("n0", "hindmost_node_load", "{}", 0, 9e9)]
    tables["metrics"] = from_rows("metrics", samples)
    notes = run_of(tables, {}, "j", []).notes
    assert notes == ((f"the clock of n1 {note}{END}",) if note else ())
