"""A newcomer's first use: mpirun behind ``hindmost run --``, and the rank that the others wait for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.cluster.jobs import MPIRUN, TRAIN_MPI, observe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.mpi, pytest.mark.timed, pytest.mark.timeout(300)]

#: A job of two seconds.
TRAIN = (TRAIN_MPI, "--steps", "250")


def test_a_slow_rank_is_named_with_its_cause_and_cost(out: Path) -> None:
    """Rank 2 computes 4 ms longer each step: the verdict names it, compute, and about 4 ms."""
    run = observe(out, *MPIRUN, *TRAIN, "--slow-rank", "2", "--slow-ms", "4")
    verdict = run.report["verdicts"][0]
    assert run.returncode == 0
    assert "step     0  loss" in run.stdout
    assert (verdict["kind"], verdict["ranks"], verdict["cause"]) == ("straggler", [2], "compute")
    assert 1.0 < verdict["cost_ms_per_step"] < 8.0  # four ranks on two CPUs also wait for these
    assert "rank 2" in run.stderr


def test_an_even_job_is_balanced(out: Path) -> None:
    """Without a slow rank nobody is named, unless for a CPU that others took from it: the machine may be busy."""
    run = observe(out, *MPIRUN, *TRAIN)
    assert run.returncode == 0
    verdicts = run.report["verdicts"]
    assert verdicts
    assert [one for one in verdicts if one["ranks"] and one["cause"] != "cpu_contention"] == []


def test_a_slow_file_is_told_from_slow_arithmetic(out: Path) -> None:
    """Rank 1 waits 6 ms for its file each step: it is named, and its cause is not compute."""
    run = observe(out, *MPIRUN, *TRAIN, "--slow-rank", "1", "--slow-ms", "6", "--slow-what", "input")
    verdict = run.report["verdicts"][0]
    assert (verdict["kind"], verdict["ranks"]) in [("straggler", [1]), ("input_bound", [1])]
    assert verdict["cause"] in {"input", "io"}


#: Rank 1 sleeps 5 ms longer before it starts what all then wait for; for three seconds, in which its process is looked
#: at twice at least: that none of its threads ran meanwhile tells who slept from who wanted a CPU.
AWAITED = """
import time, numpy
from mpi4py import MPI
data, total = numpy.ones(100), numpy.empty(100)
for step in range(420):
    time.sleep(0.002 + (0.005 if MPI.COMM_WORLD.rank == 1 else 0.0))
    {meet}
"""


@pytest.mark.parametrize(
    "meet",
    [
        "MPI.COMM_WORLD.Iallreduce(data, total).Wait()",
        "request = MPI.COMM_WORLD.Iallreduce(data, total)\n    while not request.Test(): time.sleep(0.0002)",
        "MPI.COMM_WORLD.allreduce(1.0)",
        "MPI.COMM_WORLD.Allreduce(data, total)\n    MPI.COMM_WORLD.Allreduce(data, total)",
    ],
    ids=["awaited", "polled", "gathered", "twice"],
)
def test_a_slow_rank_is_named_where_no_collective_waits_for_all(out: Path, tmp_path: Path, meet: str) -> None:
    """Started and awaited, polled for, made of messages and a broadcast, or one of two: who is late for it is named."""
    (tmp_path / "awaited.py").write_text(AWAITED.format(meet=meet))
    run = observe(out, *MPIRUN, str(tmp_path / "awaited.py"))
    assert run.returncode == 0
    named = {tuple(verdict["ranks"]): verdict for verdict in run.report["verdicts"] if verdict["kind"] == "straggler"}
    verdict = named[1,]  # beside other jobs another rank may lose its CPU for some steps
    assert 2.0 < verdict["cost_ms_per_step"] < 7.0  # where CPUs are shared, others' lateness hides a part of the 5 ms
