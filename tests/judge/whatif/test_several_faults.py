"""Several faults of one job, and slowdowns of all ranks with a slow one: each verdict with its own cost."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT, Settings
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.verdict.schema import Report, Verdict
from hindmost_judge.verdict.whole_job import until

from tests.runs import blocks_of


def _reported(found: tuple[Verdict, ...]) -> list[tuple[tuple[int, ...], str | None, int | None, int | None]]:
    return [(verdict.ranks, verdict.cause, verdict.since_step, verdict.until_step) for verdict in found]


def test_an_end_is_reported_once_three_steps_show_it() -> None:
    """Of a running job one or two steps that are unlike the rest are no end: what holds would be closed and opened."""
    blocks: Any = SimpleNamespace(steps=np.arange(2, 76))
    assert [until(blocks, stop) for stop in (74, 73, 72, 71)] == [None, None, None, 73]


def test_what_ends_a_slow_segment_can_be_set() -> None:
    """Twenty steps as its peers are the end of it, or a pause where a rank must be so for 30."""
    faults = (Fault("input", (2,), 0.05, 20, 120), Fault("input", (2,), 0.05, 140))
    run = simulate(Scenario(16, 240, seed=1, faults=faults)).run
    assert _reported(judge(run).verdicts) == [((2,), "input", 20, 120), ((2,), "input", 140, None)]
    assert _reported(judge(run, Settings(recovered_steps=30)).verdicts) == [((2,), "input", 20, None)]


def test_what_a_queue_hides_of_an_input_is_why_it_is_later_where_there_is_no_queue() -> None:
    """It takes as long in all steps, of which the first follow no work that is still queued."""
    faults = (Fault("input", (3,), 0.05), Fault("input", (3,), 0.15, 0, 30))
    run = simulate(Scenario(16, 120, faults=faults)).run
    of_rank = (run.steps["rank"] == 3) & (run.steps["step"] >= 33)
    hidden = np.where(of_rank, np.median(run.steps["input_ns"][(run.steps["rank"] == 3) & ~of_rank]), 0)
    late = np.maximum(run.steps["input_ns"], hidden.astype(np.int64))
    found = judge(replace(run, steps={**run.steps, "input_ns": late})).verdicts
    assert set(_reported(found)) == {((3,), "input", 0, 30), ((3,), "input", 0, None)}


def test_one_long_step_does_not_hide_why_a_rank_became_slower() -> None:
    """What it computes longer anyway is that of its usual steps, not of one in which it compiled."""
    faults = (Fault("compute", (3,), 0.1), Fault("compute", (3,), 0.15, 60))
    run = simulate(Scenario(16, 120, faults=faults)).run
    compiled = (run.steps["rank"] == 3) & (run.steps["step"] == 8)
    forward = np.where(compiled, 100 * run.steps["gpu_forward_ns"], run.steps["gpu_forward_ns"])
    found = judge(replace(run, steps={**run.steps, "gpu_forward_ns": forward})).verdicts
    assert sorted(_reported(found)) == [((3,), "compute", 0, None), ((3,), "compute", 60, None)]


def test_who_is_suspected_for_other_steps_tells_how_much_healthy_ranks_differ() -> None:
    """Two of four are late, one of them from the middle on, and a third was for a few steps after the start."""
    late = np.random.default_rng(3).normal(0.0, 0.2e6, (4, 120))
    late[2] += 10e6
    late[1, :7] += 4e6
    late[3, 60:] += 6e6
    clean = blocks_of(simulate(Scenario(4, 123, seed=1)).run)
    delay = late - peers_median(late)
    found = straggler.find(replace(clean, steps=clean.steps[:120], delay=delay), DEFAULT)
    assert sorted((slowdown.row, slowdown.first, slowdown.stop) for slowdown in found) == [(2, 0, 120), (3, 60, 120)]


ALL = tuple(range(16))
STEPS, ONSET = 100, 50


def of(*faults: Fault, layout: str = "dp", seed: int = 45, steps: int = STEPS) -> Report:
    return judge(simulate(Scenario(16, steps, seed, layout=layout, faults=faults)).run)


def reported(report: Report) -> set[tuple[str, tuple[int, ...]]]:
    return {(verdict.kind, verdict.ranks) for verdict in report.verdicts}


@pytest.mark.parametrize(
    ("layout", "cause"), [("dp", "cpu_contention"), ("fsdp", "cpu_contention"), ("fsdp", "compute")]
)
def test_a_network_that_becomes_slow_is_reported_with_a_slow_rank(layout: str, cause: str) -> None:
    """With its onset, and both together cost what the two faults do."""
    scenario = Scenario(
        16, STEPS, 45, layout=layout, faults=(Fault(cause, (2,), 0.1), Fault("network", (0,), 0.2, ONSET))
    )
    simulated = simulate(scenario)
    report = judge(simulated.run)
    assert reported(report) == {("straggler", (2,)), ("slow_link", ())}
    (link,) = [verdict for verdict in report.verdicts if verdict.kind == "slow_link"]
    assert link.since_step == ONSET
    assert "no rank is later than before" in link.evidence[1]
    costs = sum((verdict.cost_ms_per_step or 0) * (STEPS - (verdict.since_step or 0)) for verdict in report.verdicts)
    truth = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert costs == pytest.approx(truth, rel=0.1)


@pytest.mark.parametrize("since", [0, 20])
def test_computing_slower_on_all_ranks_is_reported_with_a_slow_one(since: int) -> None:
    """In a note, of steps without what the slow rank costs."""
    report = of(Fault("compute", (2,), 0.1, since), Fault("compute", ALL, 0.2, 60), seed=51, steps=140)
    assert reported(report) == {("straggler", (2,))}
    assert report.job.slowed is not None
    assert report.job.slowed.since_step == 60
    assert report.job.slowed.step_ms - report.job.slowed.was_ms == pytest.approx(20, abs=1)
    (note,) = [one for one in report.notes if "on every rank, COST not counted" in one]
    assert note.startswith("since step 60 steps take ")


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("cause", ["compute", "gc"])
@pytest.mark.parametrize(("since", "until"), [(0, None), (50, None), (30, 70)])
def test_a_slow_rank_alone_is_nothing_that_all_share(layout: str, cause: str, since: int, until: int | None) -> None:
    """Its verdict states whatever steps became longer by: no network is blamed in addition, and there is no note."""
    report = of(Fault(cause, (3,), 0.2, since, until), layout=layout, steps=110)
    assert reported(report) == {("straggler", (3,))}
    assert report.job.slowed is None


def test_what_becomes_slow_with_a_rank_is_not_separated_from_it() -> None:
    """What begins in the same steps may be that rank's doing."""
    report = of(Fault("compute", (2,), 0.1, ONSET), Fault("compute", ALL, 0.2, ONSET), seed=51)
    assert report.job.slowed is None
