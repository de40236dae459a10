"""A newcomer's first use: mpirun behind ``hindmost run --``, and a report of what its ranks did.

Which verdict small faults get is shown by recordings of them (tests/scenarios), how often by bench/public_programs.
"""

import pytest

from tests.cluster.jobs import MPIRUN, TRAIN_MPI, Observed, observe

pytestmark = [pytest.mark.needs("mpirun"), pytest.mark.uses("cc")]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Observed:
    """A job of which one rank computes several times as long as the others."""
    out = tmp_path_factory.mktemp("verdict") / "run"
    return observe(out, *MPIRUN, TRAIN_MPI, "--steps", "30", "--slow-rank", "2", "--slow-ms", "40")


def test_a_first_run_reports_every_rank_and_step(run: Observed) -> None:
    """The job prints and ends as ever; all ranks, steps and times are in the report.

    What is sampled, such as CPU, is not asked for: on a busy machine so short a job may end before a second sample.
    """
    assert run.returncode == 0, run.stderr
    assert "step     0  loss" in run.stdout
    report = run.report
    assert (report["job"]["steps"], report["job"]["world_size"], report["job"]["exit_code"]) == (30, 4, 0)
    ranks = report["ranks"]
    assert [row["rank"] for row in ranks] == [0, 1, 2, 3]
    columns = ("step_ms", "self_ms", "wait_ms", "transfer_ms", "caused_wait_ms", "share_last")
    assert [name for row in ranks for name in columns if row[name] is None] == []
    assert max(ranks, key=lambda row: row["self_ms"])["rank"] == 2


def test_a_large_fault_is_named(run: Observed) -> None:
    """The rank is named with what it costs, in the report and in the terminal, whatever else runs here."""
    worst = run.report["verdicts"][0]
    assert (worst["kind"], worst["ranks"]) == ("straggler", [2]), run.stderr
    assert worst["cost_ms_per_step"] > 15
    assert "SLOW   rank 2" in run.stderr
