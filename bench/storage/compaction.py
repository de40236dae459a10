"""What compaction costs while a job runs: ``python -m bench.storage.compaction --nodes 1 --seconds 7200``.

With ``--finished-jobs N`` instead: what rounds of upkeep cost a store of so many jobs that ended long ago.

Simulated nodes' samples are flushed every ten seconds, and the store's upkeep runs after every third flush, as the
collector runs it. A process of its own, so that its peak memory is this work's.
"""

import argparse
import json
import math
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from unittest import mock

from hindmost_collector.store import schema
from hindmost_collector.store.arrow_tables import metrics_tables
from hindmost_collector.store.parquet import compaction, segments
from hindmost_collector.store.parquet.compaction import merged
from hindmost_collector.store.parquet.store import ParquetStore

from bench.storage import data

FLUSHES_A_ROUND = 3


def measured(nodes: int, seconds: int, folder: Path) -> dict[str, Any]:
    """Rows written, rows merged, CPU seconds of flushing and of compacting, MiB that compacting added to the peak."""
    definitions, kinds = data.definitions()
    again = 0

    def counted(*args: Any) -> Any:
        nonlocal again
        for piece in merged(*args):
            again += len(piece)
            yield piece

    store = ParquetStore(folder, single=True)
    work = compaction.Upkeep(store, compaction.Retention())
    rows, flushing, compacting, before = 0, 0.0, 0.0, 0.0
    with mock.patch.object(compaction, "merged", counted):
        for number, tick in enumerate(data.metrics(nodes, seconds, 1_760_000_400 * data.SECOND, kinds), 1):
            began = time.process_time()
            rows += store.write({("job", "metrics"): metrics_tables(tick, definitions)}, {})[0]
            flushing += time.process_time() - began
            if not again:
                before = _peak_mib()
            if number % FLUSHES_A_ROUND == 0:
                began = time.process_time()
                while work.compact():
                    pass
                compacting += time.process_time() - began
    store.close()
    return {
        "nodes": nodes,
        "seconds": seconds,
        "rows": rows,
        "times_each_was_merged": round(again / rows, 2),
        "segments": len(list((folder / "segments/metrics").glob("*.parquet"))),
        "flushing_cpu_s": round(flushing, 2),
        "compacting_cpu_s": round(compacting, 2),
        "of_a_core": round(compacting / seconds, 4),
        "peak_mib": round(_peak_mib()),
        "peak_mib_before": round(before),
    }


def at_rest(jobs: int, folder: Path) -> dict[str, Any]:
    """CPU seconds of three rounds of upkeep, compaction and retention, when nothing happens."""
    store = ParquetStore(folder, single=False)
    for job in range(jobs):
        for table in schema.FILED:
            directory = folder / f"job{job}" / "segments" / table
            directory.mkdir(parents=True)
            (directory / segments.file_name(f"202601{1 + job % 28:02}", job, job)).write_bytes(b"rows")
    work = compaction.Upkeep(store, compaction.Retention(days=10_000.0, bytes=1 << 40))
    rounds = []
    for _ in range(3):
        began = time.thread_time()
        while work.compact() or work.expire():
            pass
        rounds.append(round(time.thread_time() - began, 3))
    store.close()
    return {"jobs": jobs, "tables": len(schema.FILED) * jobs, "round_cpu_s": rounds}


def _peak_mib() -> float:
    """Of this program: ru_maxrss would count the one that started it too."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return math.nan


def main() -> None:
    """Parse, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--seconds", type=int, default=7200)
    parser.add_argument("--finished-jobs", type=int, default=0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        jobs, folder = args.finished_jobs, Path(name)
        found = at_rest(jobs, folder) if jobs else measured(args.nodes, args.seconds, folder)
        sys.stdout.write(json.dumps(found) + "\n")


if __name__ == "__main__":
    main()
