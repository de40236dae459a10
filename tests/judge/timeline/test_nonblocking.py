"""Collectives that one call starts and another waits for, on made tables."""

from dataclasses import replace

import numpy as np
from hindmost_collector.report import text
from hindmost_judge.judge import judge
from hindmost_judge.model import NONBLOCKING, Run

from tests.scenarios.loads import Load, make

SLOW = Load(ranks=4, compute=8.0, faults=[{"rank": 2, "compute": 4.0}])


def split(run: Run, computed_ns: int = 0, polls: int | None = None, each: int = 1) -> Run:
    """The run with ``each`` collectives for every one, started 1 us apart so long before the waits for them.

    The rank ``polls`` polls for them unrecorded: that leaves no wait. What it computes meanwhile it had computed
    before.
    """
    calls = run.collectives
    unmeasured = np.full(len(calls["rank"]), -1)
    parts = []
    for number in range(each):
        own = {name: np.zeros_like(calls[name]) if number else calls[name] for name in ("self_ns", "cpu_ns")}
        named = {"seq": calls["seq"] * each + number}
        begun = {"start_ns": calls["start_ns"] - computed_ns + 1_000 * number, "duration_ns": unmeasured * 0 + 500}
        parts.append(calls | own | named | begun | {"flags": calls["flags"] | NONBLOCKING})
        took = calls["duration_ns"] if number == 0 else unmeasured * 0 + 200
        start = calls["start_ns"] + 1_000 * each + (calls["duration_ns"] if number else 0)
        waits = calls | named | {"op": np.full(len(took), "wait"), "start_ns": start, "duration_ns": took}
        waits |= dict.fromkeys(("self_ns", "cpu_ns", "runqueue_ns"), unmeasured)
        parts.append({name: column[calls["rank"] != polls] for name, column in waits.items()})
    return replace(run, collectives={name: np.concatenate([part[name] for part in parts]) for name in calls})


def named(run: Run) -> tuple[str, tuple[int, ...], str | None, float]:
    """The one verdict: its kind, ranks and cause, and its cost in ms a step."""
    (verdict,) = judge(run).verdicts
    return verdict.kind, verdict.ranks, verdict.cause, round(verdict.cost_ms_per_step or 0.0, 1)


def test_a_late_start_is_named_as_a_late_call_is() -> None:
    """Started and awaited, collectives name whom they name where they block, with its cause and cost."""
    run = make(SLOW)
    assert named(run)[:3] == ("straggler", (2,), "compute")
    assert named(split(run)) == named(run)


def test_what_is_computed_after_the_start_is_self_time() -> None:
    """Waits that come long after the starts are for the same rank, at the same cost."""
    run = make(SLOW)
    assert named(split(run, computed_ns=3_000_000)) == named(run)


def test_collectives_awaited_together_are_one() -> None:
    """Two that are started and then awaited one after the other are met once a step."""
    run = make(SLOW)
    assert named(split(run, each=2)) == named(run)
    assert judge(split(run, each=2)).job.steps == judge(run).job.steps


def test_an_even_job_stays_balanced() -> None:
    """No rank is named where none starts late."""
    assert named(split(make(Load())))[:2] == ("balanced", ())


def test_polled_collectives_are_reported() -> None:
    """Where one rank polls it cannot be judged, and the report does not say that there was no collective."""
    report = judge(split(make(SLOW), polls=2))
    assert [verdict.kind for verdict in report.verdicts] == ["insufficient_data"]
    reported = " ".join(text.render(report.to_dict(), width=400).split())
    assert "600 nonblocking collective calls" in reported
    assert "no collective" not in reported
    assert "hindmost.step()" in reported


def test_polled_collectives_of_a_program_in_c_get_no_python() -> None:
    """What completes them is a call of MPI."""
    run = split(make(SLOW), polls=2)
    ranks = {**run.ranks, "framework": np.full(len(run.ranks["rank"]), "")}
    (verdict,) = judge(replace(run, ranks=ranks, job=replace(run.job, command="mpirun -np 4 ./solver"))).verdicts
    assert verdict.advice == ("complete them by MPI_Wait or MPI_Waitall, not MPI_Test",)
