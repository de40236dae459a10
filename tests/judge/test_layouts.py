"""Who is named in jobs whose ranks talk in several groups, on simulated runs."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

TENSOR = Scenario(seed=5, ranks=16, layout="tp_dp", tensor=4)


PIPELINE = Scenario(seed=5, ranks=8, steps=140, layout="pp_dp", pipeline=2)


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_a_link_costs_what_idle_time_of_its_stage_does_not_hide(stage: int) -> None:
    """Stages end one after the other: a late transfer of an early one delays the job by less than its length."""
    job = Scenario(8, 60, 3, "pp_dp", pipeline=4, step_ms=300, faults=(Fault("network", (2 * stage,), 0.3),))
    simulated = simulate(job)
    report = judge(simulated.run)
    (verdict,) = report.verdicts
    truth = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / 60
    assert (verdict.kind, verdict.ranks) == ("slow_link", (2 * stage, 2 * stage + 1))
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.1)
    assert any("computing hides the rest" in one for one in verdict.evidence) == (stage > 0)
    assert report.what_if.waste is not None
    assert report.what_if.waste.lost_ms >= (verdict.cost_ms_per_step or 0.0)


def heavier(run: Run, rank: int) -> Run:
    """The same run with twice the bytes in the data-parallel group of a rank, which take as long as they took."""
    table = dict(run.collectives)
    of_rank = np.unique(table["comm"][(table["rank"] == rank) & (table["op"] == "all_reduce")])
    held = [comm for comm in of_rank if len(np.unique(table["rank"][table["comm"] == comm])) == 4]
    table["bytes"] = table["bytes"] * np.where(np.isin(table["comm"], held), 2, 1)
    return replace(run, collectives=table)


def test_a_group_that_moves_more_takes_longer_by_right() -> None:
    """The first stage of a pipeline holds the embedding, say."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.1),))).run
    assert [verdict.kind for verdict in judge(slow).verdicts] == ["slow_link"]
    assert [verdict.kind for verdict in judge(heavier(slow, 2)).verdicts] == ["balanced"]


@pytest.mark.parametrize("rank", [2, 6])
def test_a_group_unlike_its_sisters_is_held_against_its_own_past(rank: int) -> None:
    """Whichever of the two moves more: one became slow and the other did not."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.2, 60),))).run
    (verdict,) = judge(heavier(slow, rank)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.since_step) == ("slow_link", (0, 1, 2, 3), 60)
    assert "before and after" in verdict.evidence[0]


def test_messages_that_grow_make_no_slow_link() -> None:
    """A group that moves other bytes than before, and than its sisters, has no known usual time."""
    slow = simulate(replace(PIPELINE, faults=(Fault("network", (2,), 0.2, 60),))).run
    grown = heavier(slow, 2).collectives["bytes"]
    table = dict(slow.collectives)
    table["bytes"] = np.where(table["step"] >= 60, grown, table["bytes"])
    assert "slow_link" not in [verdict.kind for verdict in judge(replace(slow, collectives=table)).verdicts]


@pytest.mark.parametrize("seed", range(2))
def test_noise_of_a_groups_transfers_is_no_link(seed: int) -> None:
    """Transfers that differ by half from one to the next, in a step of which they are a third."""
    for layout in (replace(TENSOR, ranks=8), PIPELINE):
        scenario = replace(layout, seed=seed, steps=200, transfer_share=0.5, noise=Noise(transfer=0.5))
        assert [verdict.kind for verdict in judge(simulate(scenario, metrics=False).run).verdicts] == ["balanced"]


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
