"""Several faults of one job: each verdict's cost is what its repair saves once those before it are repaired."""

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
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import until

from tests.runs import blocks_of


def test_a_late_input_does_not_lend_its_saving_to_a_slow_gpu() -> None:
    """A GPU that shows half of its delay is weighed against a late input by all of it, and has its true cost."""
    faults = (Fault("compute", (2,), 0.2), Fault("input", (5,), 0.1))
    made = simulate(Scenario(8, 120, faults=faults))
    slow, late = judge(made.run).verdicts
    alone = (made.truth.total_ns - made.truth.repaired_each_ns[0]) / made.truth.total_ns
    both = (made.truth.total_ns - made.truth.repaired_ns) / made.truth.total_ns
    assert (slow.ranks, slow.cause, slow.given) == ((2,), "compute", ())
    assert (late.ranks, late.cause, late.given) == ((5,), "input", (2,))
    assert slow.cost_ratio == pytest.approx(alone, abs=0.01)
    assert late.cost_ratio == pytest.approx(both - alone, abs=0.01)


def _reported(found: tuple[Verdict, ...]) -> list[tuple[tuple[int, ...], str | None, int | None, int | None]]:
    return [(verdict.ranks, verdict.cause, verdict.since_step, verdict.until_step) for verdict in found]


@pytest.mark.parametrize("seed", [5, 9])
def test_two_slow_ranks_of_four_are_named_though_a_third_is_slow_for_a_while(seed: int) -> None:
    """How much healthy ranks differ is seen in the steps in which the third is one of them."""
    faults = (Fault("compute", (0,), 0.1), Fault("compute", (1,), 0.12), Fault("input", (2,), 0.3, 60, 100))
    found = judge(simulate(Scenario(4, 160, seed, "fsdp", faults=faults)).run).verdicts
    assert {rank for one in found for rank in one.ranks} == {0, 1, 2}


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


def test_on_top_of_a_slow_gpu_a_late_input_is_reported_separately() -> None:
    """With its own cause, cost and steps, and that it comes on top of what the rank is late by anyway."""
    faults = (Fault("compute", (3,), 0.1), Fault("input", (3,), 0.15, 60, 90))
    made = simulate(Scenario(16, 120, faults=faults))
    late, slow = judge(made.run).verdicts
    assert _reported((late, slow)) == [((3,), "input", 60, 90), ((3,), "compute", 0, None)]
    alone = (made.truth.total_ns - made.truth.repaired_each_ns[1]) / 30e6
    assert late.cost_ms_per_step == pytest.approx(alone, rel=0.1)
    assert late.given == slow.given == ()
    assert any(line.startswith("in addition to its usual delay of ") for line in late.evidence)
    assert not any("on top of" in line for line in slow.evidence)


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


def test_a_small_slowdown_is_not_too_little_next_to_a_large_one() -> None:
    """What a large one wastes has an owner: against it a small one is not weighed."""
    faults = (Fault("gpu_contention", (3,), 0.4), Fault("h2d", (2,), 0.05, 20, 60))
    found = judge(simulate(Scenario(8, 160, layout="fsdp", faults=faults)).run).verdicts
    assert {one.ranks for one in found} == {(2,), (3,)}


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


@pytest.mark.parametrize("seed", [72, 74])
def test_another_faults_rank_hides_none_among_three_replicas(seed: int) -> None:
    """The peers of one that is late are ahead by half of that: no sign of how much healthy ranks differ."""
    faults = (Fault("gc", (1,), 0.25, 6, 137), Fault("memory", (3,), 0.08, 181))
    made = simulate(Scenario(6, 300, seed, layout="pp_dp", pipeline=2, step_ms=50, faults=faults))
    assert ((1,), "gc", 6, 137) in _reported(judge(made.run).verdicts)


def _of_three(*faults: Fault, pipeline: int = 2, steps: int = 150) -> Scenario:
    return Scenario(3 * pipeline, steps, seed=6, layout="pp_dp", pipeline=pipeline, step_ms=50, faults=faults)


@pytest.mark.parametrize(
    ("faults", "named"),
    [
        ((Fault("memory", (0, 1), 0.1, 20),), [((0, 1), "memory", 20)]),
        ((Fault("workload", (3, 4), 0.4, 20),), [((3, 4), "workload", 20)]),
        ((Fault("memory", (1,), 0.2), Fault("gc", (0,), 0.1, 60)), [((0,), "gc", 60), ((1,), "memory", 0)]),
    ],
)
def test_two_of_three_replicas_late_at_once_cost_what_they_are_late_by(faults: tuple[Fault, ...], named: Any) -> None:
    """Set against the mean of both others each would hide half of the other's delay, or all of a smaller one's."""
    simulated = simulate(_of_three(*faults))
    verdicts = judge(simulated.run).verdicts
    assert sorted((verdict.ranks, verdict.cause, verdict.since_step) for verdict in verdicts) == [
        (ranks, cause, pytest.approx(since, abs=2)) for ranks, cause, since in named
    ]
    saved = sum((verdict.cost_ms_per_step or 0.0) * (150 - (verdict.since_step or 0)) for verdict in verdicts)
    truth = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert saved == pytest.approx(truth, rel=0.15)


@pytest.mark.parametrize("pipeline", [2, 3])
def test_one_late_rank_in_each_of_two_stages_of_three_replicas(pipeline: int) -> None:
    """The peers of each are ahead by half of it, which is no sign of how much healthy ranks differ."""
    run = simulate(_of_three(Fault("io", (1,), 0.09), Fault("io", (4,), 0.09), pipeline=pipeline)).run
    verdicts = judge(run).verdicts
    assert {verdict.cause for verdict in verdicts} == {"io"}
    assert {rank for verdict in verdicts for rank in verdict.ranks} <= {1, 4}
