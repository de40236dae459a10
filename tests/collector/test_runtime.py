"""A collector that starts with a job imports no pandas while the ranks start."""

import subprocess
import sys

WRITES = """
import sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hindmost_collector.runtime import put_off_pandas
put_off_pandas()
column = pa.array(np.arange(3))
pq.write_table(pa.table({"column": column, "text": pa.array(["a", "b", "a"]).dictionary_encode()}), sys.argv[1])
print("pandas" in sys.modules)
print(pq.read_table(sys.argv[1]).to_pandas().column.sum())
"""


def test_writing_a_segment_needs_no_pandas(tmp_path):
    """pyarrow writes arrays without it, and still makes a DataFrame where one is wanted."""
    line = [sys.executable, "-c", WRITES, str(tmp_path / "segment.parquet")]
    said = subprocess.run(line, capture_output=True, text=True, check=True, env={"PYTHONPATH": ":".join(sys.path)})
    assert said.stdout.split() == ["False", "3"]
