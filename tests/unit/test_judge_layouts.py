"""Who is named in jobs whose ranks talk in several groups, on simulated runs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.simulate import Fault, Scenario, simulate

TENSOR = Scenario(seed=5, ranks=16, layout="tp_dp", tensor=4)


@pytest.mark.parametrize(
    ("scenario", "cause", "ranks", "size"),
    [
        (TENSOR, "compute", (2,), 0.05),
        (TENSOR, "h2d", (5,), 0.1),
        (Scenario(seed=5, ranks=16, layout="fsdp"), "compute", (2,), 0.05),
        (Scenario(seed=5, ranks=16, layout="pp_dp", pipeline=4), "compute", (6,), 0.1),
        (Scenario(seed=5, ranks=64), "compute", (3, 10, 20), 0.1),
        (Scenario(seed=5), "gpu_throttle", (2,), 0.1),
    ],
)
def test_only_the_culprits_are_named(scenario: Scenario, cause: str, ranks: tuple[int, ...], size: float) -> None:
    """Whoever waits for a culprit in a group of theirs looks late to the others, and is not named."""
    faulty = Scenario(**{**scenario.__dict__, "faults": (Fault(cause, ranks, size),)})
    (verdict,) = judge(simulate(faulty).run).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", ranks)
    assert verdict.cause in (cause, "unknown")


def test_a_slow_group_whose_members_arrive_together_is_a_link() -> None:
    """Transfers that take long in one data group are its link's, and name no straggler."""
    faulty = Scenario(**{**TENSOR.__dict__, "faults": (Fault("network", (2,), 0.15),)})
    (verdict,) = judge(simulate(faulty).run).verdicts
    assert (verdict.kind, verdict.cause) == ("slow_link", "network")
    assert 2 in verdict.ranks


def test_a_group_that_got_less_far_makes_no_link_of_the_others() -> None:
    """Of two groups that share no rank (process sets), one stops early: its missing transfers are not short ones."""
    run = simulate(Scenario(seed=5, ranks=8, layout="tp_dp", tensor=4)).run
    calls = run.collectives
    members = {comm: set(calls["rank"][calls["comm"] == comm].tolist()) for comm in np.unique(calls["comm"])}
    first, second = ([comm for comm, who in members.items() if who == set(half)] for half in (range(4), range(4, 8)))
    early = calls["start_ns"] < np.quantile(calls["start_ns"], 0.1)
    kept = np.isin(calls["comm"], second) | (np.isin(calls["comm"], first) & early)
    report = judge(replace(run, collectives={name: column[kept] for name, column in calls.items()}))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]


def test_a_slow_input_that_run_ahead_hides_names_nobody() -> None:
    """What the GPU never waits for costs nothing."""
    hidden = Scenario(run_ahead=1, faults=(Fault("input", (3,), 0.05),))
    assert [verdict.kind for verdict in judge(simulate(hidden).run).verdicts] == ["balanced"]


@pytest.mark.parametrize(("seed", "size"), [(35, 0.21), (35, 0.23), (33, 0.17)])
def test_stalls_that_fall_a_little_short_count_with_their_like(seed: int, size: float) -> None:
    """Half of a stall shows as lateness, a tenth of a step now and a little less then: the rank has all of both."""
    job = Scenario(ranks=16, seed=seed, steps=200, step_ms=120, faults=(Fault("compute", (5,), size, duty=0.25),))
    simulated = simulate(job)
    (verdict,) = judge(simulated.run).verdicts
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / job.steps
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (5,), "compute")
    assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.1)


def test_stalls_of_computing_cost_what_backward_hides_of_them_too() -> None:
    """Beside backward, collectives show a part of how late a slow GPU is: the rest costs the job as much."""
    job = Scenario(ranks=16, seed=32, steps=200, step_ms=120, faults=(Fault("compute", (5,), 0.4, duty=0.25),))
    simulated = simulate(job)
    (verdict,) = judge(simulated.run).verdicts
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / job.steps
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (5,), "compute")
    assert verdict.cost_ms_per_step == pytest.approx(saved, rel=0.1)
