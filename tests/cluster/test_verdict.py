"""A newcomer's first use: mpirun behind ``hindmost run --``, and a report of what its ranks did.

Which verdict small faults get is shown by recordings of them (tests/scenarios), how often by bench/verdict_repeat.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.jobs import MPIRUN, TRAIN_MPI, observe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.needs("mpirun"), pytest.mark.uses("cc"), pytest.mark.timeout(300)]


def test_a_first_run_reports_every_rank_and_step(out: Path) -> None:
    """The job prints and ends as ever; all ranks, steps and columns are in the report, and a verdict is printed."""
    run = observe(out, *MPIRUN, TRAIN_MPI, "--steps", "120", "--slow-rank", "2", "--slow-ms", "4")
    assert run.returncode == 0, run.stderr
    assert "step     0  loss" in run.stdout
    report = run.report
    assert (report["job"]["steps"], report["job"]["world_size"], report["job"]["exit_code"]) == (120, 4, 0)
    ranks = report["ranks"]
    assert [row["rank"] for row in ranks] == [0, 1, 2, 3]
    columns = ("step_ms", "self_ms", "wait_ms", "transfer_ms", "caused_wait_ms", "share_last", "cpu_ratio", "rss_bytes")
    assert [name for row in ranks for name in columns if row[name] is None] == []
    assert ranks[2]["self_ms"] > 4.0  # it computes for so long, whatever else this machine does
    assert report["verdicts"]
    assert "rank" in run.stderr


def test_a_large_fault_is_named(out: Path) -> None:
    """A rank that computes several times as long as the others is named with its cause, whatever else runs here."""
    run = observe(out, *MPIRUN, TRAIN_MPI, "--steps", "120", "--slow-rank", "2", "--slow-ms", "40")
    worst = run.report["verdicts"][0]
    assert (worst["kind"], worst["ranks"]) == ("straggler", [2]), run.stderr
    assert worst["cost_ms_per_step"] > 15
    assert "SLOW   rank 2" in run.stderr
