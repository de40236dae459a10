"""A collector that starts with a job imports no pandas while the ranks start, and nor does a report."""

import subprocess
import sys

import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory


def printed(program: str, *words: str) -> str:
    """What a process of this program prints, whose environment has nothing else."""
    line = [sys.executable, "-c", program, *words]
    environ = {"PYTHONPATH": ":".join(sys.path)}
    return subprocess.run(line, capture_output=True, text=True, check=True, env=environ).stdout


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
    assert printed(WRITES, str(tmp_path / "segment.parquet")).split() == ["False", "3"]


ALLOCATES = """
import sys
from types import SimpleNamespace
import hindmost_cli

def run_collector(*_):
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq
    pq.write_table(pa.table({"column": np.arange(100_000)}), sys.argv[1])
    pq.read_table(sys.argv[1])
    pools = {name: getattr(pa, f"{name}_memory_pool")() for name in pa.supported_memory_backends()}
    print(*(name for name, pool in pools.items() if pool.max_memory()))
    return 0

sys.modules["hindmost_collector.main"] = SimpleNamespace(run_collector=run_collector)
hindmost_cli.main(["collector"])
"""


def test_a_collector_has_one_allocator(tmp_path):
    """What Arrow allocates goes through the C library, while it reads Parquet too: what is free there goes back."""
    assert printed(ALLOCATES, str(tmp_path / "segment.parquet")) == "system\n"


STARTS_A_PROGRAM = """
import os, sys
from pathlib import Path
from types import SimpleNamespace
import hindmost_cli

def run_collector(*_):
    threads = [Path(f"/proc/self/task/{one}/comm").read_text() for one in os.listdir("/proc/self/task")]
    print(sum("jemalloc" not in name for name in threads), *sorted(os.environ.keys() - before))
    return 0

before = {*os.environ}
sys.modules["hindmost_collector.main"] = SimpleNamespace(run_collector=run_collector)
hindmost_cli.main(["collector"])
"""


def test_a_collector_sets_nothing_for_the_programs_that_it_starts():
    """Nor for the job, whose environment it records; numpy has one thread all the same, and gRPC its older poller."""
    assert printed(STARTS_A_PROGRAM) == "1\n"


@pytest.mark.parametrize("ranks", [4, 300])
def test_a_report_needs_no_pandas(ranks, tmp_path):
    """Of one that a collector recorded, however large: clocks that are together, and ranks that are all there, need no
    table of it. Nor does it need what a collector serves its metrics with."""
    run_directory([simulate(Scenario(ranks, 60)).run], tmp_path)
    asks = "print('pandas' in sys.modules, 'prometheus_client' in sys.modules)"
    program = f"import sys, hindmost_cli\nhindmost_cli.main(sys.argv[1:])\n{asks}"
    assert printed(program, "report", str(tmp_path)).splitlines()[-1] == "False False"


LOADS_NUMPY = """
import os, sys
from types import SimpleNamespace
import hindmost_cli

def run(_):
    import numpy
    print(len(os.listdir("/proc/self/task")))
    return 0

sys.modules["hindmost_cli.report"] = SimpleNamespace(configure=lambda _: None, run=run)
hindmost_cli.main(["report"])
"""


def test_numpy_starts_no_thread_for_a_report():
    """However many cores there are: OpenBLAS would start one for each, spinning, and products of a judge are small."""
    assert printed(LOADS_NUMPY) == "1\n"


def test_a_job_does_not_wait_for_what_its_report_needs():
    """What ``hindmost run`` loads before its job starts knows the collector's settings, without its libraries."""
    asks = "print('numpy' in sys.modules, 'prometheus_client' in sys.modules)"
    assert printed(f"import sys, hindmost_cli\nhindmost_cli.command('run')\n{asks}") == "False False\n"
