#!/usr/bin/env python3
"""Judge the recordings of ``live_faults.py --save-to TAR`` again, as if they were running, without GPUs.

    tar xf runs.tar -C DIR; for one in DIR/*.tar.xz; do tar xf $one -C DIR; done
    python bench/gpu/replay_faults.py DIR --ranks 2 --out replayed.json

Every two seconds of each recording is judged what had arrived by then: what ended more than ``--behind`` seconds ago
(agents look once a second, batches take half of one). Hangs are not replayed, since what was in flight is recorded only
as it was at the end: of these the verdicts that were said live are graded.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fault_grade
from fault_cases import CASES, Case, placed
from fault_run import Running
from hindmost_collector.judge import judge
from hindmost_collector.running.live import VerdictLog
from hindmost_collector.store.run_directory import read_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_collector.model import Run, Table

PERIOD_NS = 2_000_000_000
#: Everything that is said of a recording counts.
END = 1 << 62
TIMED = ("steps", "collectives", "intervals")


def until(table: Table, at: int, column: str) -> Table:
    """The rows that had ended by then."""
    ended = table[column] + table.get("duration_ns", 0)
    return {name: values[ended <= at] for name, values in table.items()}


def replayed(run: Run, behind_ns: int) -> Iterator[dict[str, Any]]:
    """The events of a log of verdicts, as a collector would have written them."""
    first = int(run.steps["start_ns"].min())
    last = int((run.steps["start_ns"] + run.steps["duration_ns"]).max())
    log, nothing = VerdictLog(), {name: column[:0] for name, column in run.in_flight.items()}
    for now in range(first + PERIOD_NS, last + 2 * PERIOD_NS, PERIOD_NS):
        arrived = now - behind_ns
        tables = {name: until(run.tables()[name], arrived, "start_ns") for name in TIMED}
        metrics = until(run.metrics, arrived, "time_ns")
        report = judge(replace(run, **tables, metrics=metrics, in_flight=nothing)).to_dict()
        yield from log.update(report["verdicts"], now)


class Recorded(Running):
    """A job that ran before."""

    def __init__(self, case: Case, folder: Path, behind_ns: int) -> None:
        self.case = case
        self.room, self.out = folder / case.name, folder / f"run-{case.name}"
        self.behind_ns = behind_ns

    def events(self) -> list[dict[str, Any]]:
        """Said anew; of a hang, said then."""
        if self.case.kinds == ("hang",):
            return super().events()
        return list(replayed(read_run(self.out), self.behind_ns))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--behind", type=float, default=1.5, metavar="SECONDS")
    parser.add_argument("--out", type=Path, default=Path("replayed.json"))
    args = parser.parse_args()
    found = []
    for case in (placed(case, args.ranks) for case in CASES):
        job = Recorded(case, args.folder, int(args.behind * 1e9))
        if (job.out / "meta.json").exists():
            found.append(fault_grade.grade(job, 0, END, judge(read_run(job.out)).to_dict()))
    print(fault_grade.table(found))
    what = f"replayed from recordings, judged every 2 s on what had ended {args.behind:g} s before"
    args.out.write_text(json.dumps({"ranks": args.ranks, "what": what, "faults": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
