"""Segments of slow steps: where they begin and end, and which are high by chance."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.scenario import Noise
from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import nested_segments, straggler
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.types import Floats

from tests.runs import blocks_of

#: Steps of a series, and its scatter from step to step, in units of the least effect.
STEPS, NOISE = 240, 0.4


def segments(series: Floats, smallest: float, step_ns: float = 1e9) -> list[nested_segments.Layer]:
    """The segments of a series of steps that take a second each."""
    return nested_segments.find(series, np.full(len(series), step_ns), smallest, DEFAULT)


@pytest.mark.parametrize(
    ("usual", "more", "found"),
    [
        pytest.param(0.0, [(100, 106, 20.0)], [], id="fewer than eight steps are stalls, however long"),
        pytest.param(0.0, [(100, 108, 20.0)], [(100, 108)], id="eight steps have a usual delay"),
        pytest.param(0.0, [(100, 112, 20.0)], [(100, 112)], id="so have twelve"),
        pytest.param(0.0, [(100, 116, 1.6)], [(100, 116)], id="it counts by its height above the steps around"),
        pytest.param(0.8, [(100, 116, 0.8)], [], id="not by how late the rank is in it, as nearly throughout"),
        pytest.param(0.8, [(0, 16, 0.8)], [], id="a short one at the start was picked among many"),
        pytest.param(0.8, [(224, 240, 0.8)], [], id="and one at the end"),
        pytest.param(0.8, [(0, 120, 0.8)], [(0, 120)], id="not one that takes half of the series"),
        pytest.param(5.0, [(0, 7, -2.0)], [(0, 240)], id="seven steps are no base for all others"),
        pytest.param(0.0, [(20, 100, 3.0), (130, 220, 3.0)], [(20, 100), (130, 220)], id="two of most steps"),
    ],
)
def test_segments_stand_above_the_steps_in_no_other(
    usual: float, more: list[tuple[int, int, float]], found: list[tuple[int, int]]
) -> None:
    """Of a rank that is late by ``usual`` throughout, and by so much ``more`` in some steps."""
    made = usual + NOISE * np.random.default_rng(1).standard_normal(STEPS)
    for first, stop, longer in more:
        made[first:stop] += longer
    assert [(one.first, one.stop) for one in segments(made, 1.0)] == [pytest.approx(one, abs=1) for one in found]


@pytest.mark.parametrize("seed", [0, 1, 6, 16])
def test_a_segment_is_compared_with_as_many_steps_as_it_has(seed: int) -> None:
    """Medians of few steps scatter more than the long blocks of a long run do: drift is no segment."""
    wandering = np.zeros(2000)
    for at, change in enumerate(np.random.default_rng(seed).standard_normal(1999)):
        wandering[at + 1] = 0.8 * wandering[at] + change
    assert segments(wandering * 0.6 / wandering.std(), 1.0) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_slowdown_keeps_its_onset_though_later_steps_drift(seed: int) -> None:
    """The onset stays when a piece inside of the slow time, which begins or ends there too, is none of its own."""
    random = np.random.default_rng(seed)
    made = 0.4 * random.standard_normal(1800)
    made[800:] += 5.0
    at = 800
    while at < len(made):
        size = int(random.integers(15, 150))
        made[at : at + size] += 0.8 * random.standard_normal()
        at += size
    layers = segments(made, 0.4)
    assert min(abs(layer.first - 800) for layer in layers) <= 3


@pytest.mark.parametrize("seed", range(6))
def test_a_rank_whose_pace_wanders_is_not_set_against_calmer_ranks(seed: int) -> None:
    """It is as fast as they are on the whole: what sets turns apart is that the rest is as calm as theirs."""
    made = np.zeros(400)
    for at, change in enumerate(np.random.default_rng(seed).standard_normal(399)):
        made[at + 1] = 0.95 * made[at] + 0.3 * change
    calm = 0.2
    found = nested_segments.find(made, np.full(400, 1e9), 0.7, DEFAULT, noise=lambda steps: calm / steps**0.5)
    assert found == []


def _late_now_and_then(often: float) -> Blocks:
    """A job of 16 ranks of which each is late by an eighth of a step with this chance; one is in eleven on end."""
    blocks = blocks_of(simulate(Scenario(16, 201, seed=1)).run)
    random = np.random.default_rng(1)
    late = np.where(random.random(blocks.delay.shape) < often, 0.125, 0.01 * random.random(blocks.delay.shape))
    late[12, 108:119] = 0.125
    return replace(blocks, delay=late * blocks.step_ns)


@pytest.mark.parametrize(("often", "reported"), [(0.0, 1), (0.005, 1), (0.12, 0)])
def test_a_segment_is_compared_with_chance_over_all_ranks_and_steps(often: float, reported: int) -> None:
    """Eleven late steps in a row are persistent where hardly any other is as late; elsewhere maybe chance."""
    found = straggler.find(_late_now_and_then(often), DEFAULT)
    assert len([one for one in found if one.row == 12]) == reported


def test_no_rank_is_named_for_longer_uncounted_batches_by_chance() -> None:
    """Eleven steps of 13 % more work than the others' are what sixteen ranks come to in two hundred steps."""
    job = Scenario(16, 200, 8030067, stretches=3, step_ms=100.27222307053765, checkpoint_every=50)
    run = simulate(replace(job, varying_lengths=0.08660268659947865)).run
    uncounted = replace(run, steps=run.steps | {"work": np.zeros_like(run.steps["work"])})
    assert not [verdict for verdict in judge(uncounted).verdicts if verdict.ranks]


@pytest.mark.parametrize(("second", "named"), [(0.012, [1]), (0.04, [1, 0])])
def test_after_one_of_four_a_second_is_set_against_few(second: float, named: list[int]) -> None:
    """Of the other three any may be ahead by 2 % of a step: the latest of them is no second slow rank for that."""
    assert _named_of_four(second) == named


def _named_of_four(second: float) -> list[int]:
    """Rows that are persistently late where row 1 is late by an eighth of a step, row 0 by ``second``, and two are
    alike."""
    built = blocks_of(simulate(Scenario(ranks=4, steps=120, seed=3)).run)
    noise = 0.0005 * np.random.default_rng(2).standard_normal(built.delay.shape)
    late = built.step_ns * (np.array([second, 0.125, 0.0, 0.0])[:, None] + noise)
    return [one.row for one in straggler.find(replace(built, delay=late), DEFAULT)]


def test_a_dip_between_equally_early_segments_ends_like_any_other() -> None:
    """Of times in whole microseconds two medians may be the same number, and below nothing."""
    made = np.repeat([-1000.0, -9000.0, -1000.0], [40, 8, 40])
    assert segments(made, 50.0) == []


@pytest.mark.parametrize(("seed", "each", "memory"), [(6059, 0.02, 0.8), (6419, 0.02, 0.97), (6527, 0.05, 0.97)])
def test_of_three_ranks_that_drift_none_is_named(seed: int, each: float, memory: float) -> None:
    """Two that drift away from the third for a while do not show that it is on time."""
    noise = Noise(between_ranks=0.001, each_stretch=each, wandering=0.04, wandering_memory=memory)
    report = judge(simulate(Scenario(ranks=3, steps=60, seed=seed, noise=noise)).run)
    assert not [verdict.ranks for verdict in report.verdicts if verdict.ranks]


@pytest.mark.parametrize("seed", [6700, 6709, 6716])
def test_of_two_stages_of_three_ranks_that_drift_none_is_named(seed: int) -> None:
    """Hosts of a job of six drift as those of three do: what a rank is compared with are its two replicas."""
    noise = Noise(between_ranks=0.001, each_stretch=0.02, wandering=0.04, wandering_memory=0.97)
    job = Scenario(ranks=6, steps=60, seed=seed, noise=noise, layout="pp_dp", pipeline=2)
    assert not [verdict.ranks for verdict in judge(simulate(job).run).verdicts if verdict.ranks]


@pytest.mark.parametrize(
    ("slow", "shared", "until"),
    [(545, True, None), (545, False, 545), (450, True, 450), (450, False, 450), (590, False, None)],
)
def test_a_segment_ends_where_enough_steps_follow_to_tell(slow: int, shared: bool, until: int | None) -> None:
    """On shared CPUs the last few of a hundred steps are no end of what lasted all the others: a fifth of these is."""
    noise = np.random.default_rng(4).normal(0.0, 0.3, 600)
    series = noise + np.where(np.arange(600) < slow, 4.0, 0.0)
    (found,) = nested_segments.find(series, np.full(600, 1e9), 0.5, DEFAULT, shared=shared)
    assert found.first == 0
    assert (found.stop if found.end == found.stop < 600 else None) == (pytest.approx(until, abs=2) if until else None)
