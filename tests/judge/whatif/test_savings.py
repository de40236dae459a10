"""What a verdict costs: what its repair saves, over which steps, and what the job without it is."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, empty
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline import build_blocks
from hindmost_judge.verdict.slow_ranks import of_slowdowns
from hindmost_judge.whatif import savings
from hindmost_judge.whatif.savings import without_slowdowns

from tests.runs import blocks_of
from tests.scenarios.loads import Load, make


def with_places(places: list[int]) -> Blocks:
    """Four ranks, with delays by chance in steps of so many places each."""
    blocks = build_blocks.build(make(Load(ranks=4, steps=len(places) + 1)), DEFAULT)
    assert blocks is not None
    steps = np.repeat(np.arange(len(places)), places)
    return replace(blocks, intervals=np.random.default_rng(0).random((4, len(steps))), interval_step=steps)


def slowdown(row: int, first: int, stop: int, inner: tuple[tuple[int, int], ...] = ()) -> Slowdown:
    return Slowdown(row, first, stop, delay=1.0, z=9.0, consistency=1.0, spread_ratio=9.0, latest=1.0, inner=inner)


def test_a_place_that_no_step_of_a_slowdown_has_costs_nothing() -> None:
    """Only steps of another slowdown on top of it have a third place."""
    blocks = with_places([2] * 10 + [3] * 3 + [2] * 10)
    assert np.isfinite(without_slowdowns(blocks, [slowdown(0, 0, 23, ((10, 13),))])).all()


def test_what_a_slowdown_takes_does_not_depend_on_others() -> None:
    """Peers that are slow in other steps, or at the same time, are as healthy with it as without."""
    blocks = with_places([3] * 40)
    blocks.intervals[0] += np.tile([5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0], 10)
    one, other = slowdown(0, 0, 40), slowdown(1, 20, 40)
    alone, both = without_slowdowns(blocks, [one]), without_slowdowns(blocks, [one, other])
    assert (alone[0] < blocks.intervals[0]).any()
    np.testing.assert_array_equal(alone[0], both[0])


@pytest.mark.parametrize(
    ("cause", "layout"), [("input", "dp"), ("input", "fsdp"), ("gc", "dp"), ("gc", "fsdp"), ("compute", "fsdp")]
)
def test_of_two_ranks_the_one_repaired_is_still_later_by_chance(cause: str, layout: str) -> None:
    """The other is on time by its own measure, not ahead by the slow one's delay: costs have no high bias."""
    costs, savings = [], []
    for seed in range(5):
        simulated = simulate(Scenario(2, 120, seed, layout, faults=(Fault(cause, (seed % 2,), 0.12),)))
        (verdict,) = judge(simulated.run).verdicts
        costs.append((verdict.cost_ms_per_step or 0.0) * 120)
        savings.append((simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6)
    assert sum(costs) == pytest.approx(sum(savings), rel=0.025)


@pytest.mark.parametrize("stages", [3, 4, 6])
def test_what_a_rank_of_a_pipeline_costs_is_a_part_of_what_is_lost(stages: int) -> None:
    """Though its only peers seem to be ahead of it, the time with all ranks alike is that of its healthy peers."""
    simulated = simulate(Scenario(12, 60, 9862669, "pp_dp", pipeline=stages, faults=(Fault("compute", (5,), 0.25),)))
    report = judge(simulated.run)
    (verdict,) = report.verdicts
    cost, waste = verdict.cost_ms_per_step or 0.0, report.what_if.waste
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / 60
    assert cost == pytest.approx(saved, rel=0.1)
    assert waste is not None
    assert cost <= waste.lost_ms <= 1.2 * cost
    for rows in (waste.by_rank, waste.by_cause):
        assert rows[0].name in ("5", "compute")
        assert rows[0].ms_per_step == pytest.approx(cost)


QUIET = Noise(0, 0, 0, 0.8, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize(
    ("cause", "size"), [("compute", 0.1), ("compute", 0.25), ("gpu_throttle", 0.15), ("input", 0.15)]
)
def test_phases_alone_tell_what_a_repair_saves(ranks: int, cause: str, size: float) -> None:
    """A slow GPU is late by forward and optimizer only, for backward waits for others: it is as slow there."""
    simulated = simulate(Scenario(ranks, 80, seed=3, faults=(Fault(cause, (ranks // 3,), size),)))
    (verdict,) = judge(replace(simulated.run, collectives=empty(COLLECTIVES))).verdicts
    assert (verdict.ranks, verdict.cause) == ((ranks // 3,), cause)
    truth = simulated.truth
    assert verdict.cost_ms_per_step == pytest.approx((truth.total_ns - truth.repaired_ns) / 80 / 1e6, rel=0.15)


def test_a_longer_forward_alone_says_nothing_of_backward() -> None:
    """Extra work in forward leaves the optimizer as it is: its cost is what forward shows."""
    run = simulate(Scenario(8, 80, warmup=0, noise=QUIET)).run
    longer = (run.steps["rank"] == 2) * 5_000_000
    steps = {**run.steps, "gpu_forward_ns": run.steps["gpu_forward_ns"] + longer}
    (verdict,) = judge(replace(run, steps=steps, collectives=empty(COLLECTIVES))).verdicts
    assert verdict.ranks == (2,)
    assert verdict.cost_ms_per_step == pytest.approx(5.0, rel=0.05)


_LONGER = "steps became"


@pytest.mark.parametrize(("of_all", "reported"), [(0.0, False), (4.0, True)])
def test_steps_that_grew_by_more_than_the_delay_say_so(of_all: float, reported: bool) -> None:
    """A rank that also slows the others costs its delay, and the rest of the change is not kept back."""
    faults = [{"rank": rank, "compute": of_all, "from": 75} for rank in range(4)]
    load = Load(steps=150, compute=10.0, faults=[*faults, {"rank": 1, "compute": 2.0, "from": 75}])
    (verdict,) = judge(make(load)).verdicts
    assert verdict.ranks == (1,)
    assert verdict.cost_ms_per_step == pytest.approx(2.0, abs=0.3)
    longer = [line for line in verdict.evidence if line.startswith(_LONGER)]
    assert [float(line.split()[2]) for line in longer] == ([pytest.approx(6.0, abs=0.3)] if reported else [])


def test_steps_of_which_only_the_mean_is_known_show_no_change() -> None:
    """That no step grew does not say that a rank that was slow for a while cost nothing."""
    blocks = blocks_of(simulate(Scenario(4, faults=(Fault("compute", (0,), 0.1, 20, 50),))).run)
    blocks = replace(blocks, period=np.full(len(blocks.steps), 48_813_815.52214547))
    assert savings.observed_change(blocks, slice(20, 50)) is None
    (verdict,), notes = of_slowdowns(straggler.find(blocks, DEFAULT), blocks, DEFAULT)
    assert (verdict.ranks, notes) == ((0,), [])


def test_steps_of_loaders_that_take_turns_show_a_change_of_their_mean() -> None:
    """Each second step waits for a batch by the same: of steps by 60 ms off their mean, 8 ms are seen all the same."""
    blocks = blocks_of(simulate(Scenario(4, steps=100)).run)
    period = np.tile([60e6, 180e6], len(blocks.steps))[: len(blocks.steps)]
    period[50:] += 8e6
    change = savings.observed_change(replace(blocks, period=period), slice(50, None))
    assert change is not None
    assert change.longer == pytest.approx(8e6, rel=0.2)


ONSET, STEPS = 20, 80


@pytest.mark.parametrize("collectives", [True, False], ids=["collectives", "phases"])
def test_stalls_and_noise_of_many_do_not_hide_what_one_costs(collectives: bool) -> None:
    """A slow GPU shows a part of its delay; other ranks' transient delays are no more than what shows."""
    noise = Noise(stall_probability=2e-3)
    job = Scenario(512, STEPS, 1, noise=noise, faults=(Fault("compute", (100,), 0.2, ONSET),))
    found = simulate(job, metrics=False)
    run = found.run if collectives else replace(found.run, collectives=empty(COLLECTIVES))
    (verdict,) = (one for one in judge(run).verdicts if one.ranks)
    truth = (found.truth.total_ns - found.truth.repaired_ns) / (STEPS - ONSET) / 1e6
    assert verdict.ranks == (100,)
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.04)
