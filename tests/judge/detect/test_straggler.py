"""Which ranks are persistently slow: since when, compared with whom, and what is noise."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes import backward
from hindmost_judge.detect import straggler
from hindmost_judge.detect.straggler import drifts, others_as_late
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT, Settings
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.types import Floats
from hindmost_judge.verdict.whole_job import since
from hindmost_judge.whatif import savings

from tests.runs import blocks_of
from tests.scenarios.loads import Load, make

LEVEL = 10.0


def late(before: list[float], level: float = LEVEL) -> np.ndarray:
    """40 steps of delay, these before it is at its level."""
    return np.array([*before, *(level + 0.5 * np.cos(np.arange(40 - len(before))))])


@pytest.mark.parametrize(
    ("before", "scatter", "steps"),
    [
        ([], 1.0, 0),
        ([0.0], 1.0, 0),  # one step alone is chance
        ([0.0, 0.5], 1.0, 2),
        ([0.3] * 9, 1.0, 9),
        ([6.0, 0.1, 0.4], 1.0, 3),  # the first is late as it warms up
        ([6.0, 7.0, 0.4], 1.0, 0),  # nor two of three
        ([5.0, 4.0, 4.5], 1.0, 0),  # half as late is not on time
        ([0.0] * 2, 5.0, 0),  # where a step's scatter is half of the delay two may be by chance
        ([0.0] * 8, 5.0, 8),
    ],
)
def test_steps_on_time_come_before_those_that_are_late(before: list[float], scatter: float, steps: int) -> None:
    """As many as the first ones that together are on time."""
    assert straggler.steps_on_time(late(before), LEVEL, scatter) == steps


IN_TURN = np.where(np.arange(80) // 20 % 2, 120.0, 60.0)


@pytest.mark.parametrize(
    ("levels", "far"),
    [
        pytest.param([0, 9, 18, 27], 0.0, id="each differs by little from the next"),
        pytest.param([0, 55, 60, IN_TURN], 0.0, id="a lead that comes and goes is no gap"),
        ([0, 26, 36, 52], 4.8),  # of a rank on either side of the median each is compared with the other
        ([0, 10, 30, 31], 6.0),
        ([0, 0, 0, 20, 50], 9.0),
    ],
)
def test_the_last_is_behind_by_the_gap_to_all_others(levels: list[Any], far: float) -> None:
    """It counts once wherever the middle is. Less than what healthy GPUs may differ by is none."""
    late = np.array([np.broadcast_to(level, 80) for level in levels], float)
    found = straggler.behind_small_cohort(late - peers_median(late), len(levels) - 1, 10.0, DEFAULT)
    assert found == pytest.approx(far)


MS = 1e6
SMALLEST = 0.6e6


def _excess(ranks: int) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    return np.random.default_rng(5).normal(0.0, MS, (ranks, 96))


def test_chance_picks_few_out_of_a_large_job() -> None:
    """Of 16,384 healthy ranks 28 have a block of steps that stands out by 3.5 standard errors."""
    assert len(straggler.screened_candidates(_excess(16_384), SMALLEST, np.inf)) < 12


def test_ranks_late_for_a_while_are_examined_first() -> None:
    """Late by three times the noise in 24 of 96 steps, in a job of any size."""
    for ranks in (8, 8192):
        delay = _excess(ranks)
        delay[5, 40:64] += 3 * MS
        assert straggler.screened_candidates(delay, SMALLEST, np.inf)[0] == 5


def drifted(*segments: tuple[int, int, float]) -> np.ndarray:
    """Delays of 292 steps: level 9 from step 178 on, and segments of other levels."""
    series = np.random.default_rng(1).normal(0, 0.1, 292)
    series[178:] = 9.0
    for first, stop, level in segments:
        series[first:stop] = level
    return series


@pytest.mark.parametrize(
    ("segments", "stop", "wanders"),
    [
        pytest.param(((136, 147, 4.5),), 292, False, id="behind for 11 steps, and then slow for 114"),
        pytest.param(((80, 140, 4.5),), 292, True, id="half as late for 60 steps"),
        pytest.param(((20, 60, 4.0), (100, 150, -5.0)), 292, True, id="now behind and now ahead"),
        pytest.param(((100, 120, 4.5),), 208, True, id="whether 30 steps are as the 20 before is unknown"),
    ],
)
def test_what_drifted_as_long_may_drift_once_more(
    segments: tuple[tuple[int, int, float], ...], stop: int, wanders: bool
) -> None:
    assert drifts(drifted(*segments)[:stop], 178, stop, 9.0) == wanders


SEEDS = range(16)


def scattered(seed: int) -> Load:
    """Few steps, in which one rank's own times scatter by as much as it is late: it may be so by chance."""
    return Load(ranks=8, noise=0.05, steps=13, seed=seed, faults=[{"rank": 2, "compute": 0.3, "scatter": 0.3}])


def in_a_row(seed: int) -> Load:
    """Healthy ranks that differ by nature, each by 1 % from the next: the last of a row is no odd one."""
    return Load(ranks=8, steps=60, seed=seed, faults=[{"rank": rank, "compute": 0.1 * rank} for rank in range(8)])


def named(job: Callable[[int], Load], settings: Settings) -> list[int]:
    """Seeds with which a rank is named."""
    return [seed for seed in SEEDS if any(verdict.ranks for verdict in judge(make(job(seed)), settings).verdicts)]


@pytest.mark.parametrize(("threshold", "job"), [("min_z", scattered), ("min_spread_ratio", in_a_row)])
def test_each_threshold_keeps_its_kind_of_noise_from_being_named(threshold: str, job: Callable[[int], Load]) -> None:
    """With it no rank is named, without it one is: nothing else in the judge holds these jobs back."""
    assert named(job, Settings()) == []
    without: dict[str, Any] = {threshold: 0.0}
    assert len(named(job, replace(Settings(), **without))) >= 3


@pytest.mark.parametrize("without", [("min_z",), ("min_spread_ratio",), ("min_z", "min_spread_ratio")])
def test_a_threshold_of_nothing_is_no_measure_of_confidence(without: tuple[str, ...]) -> None:
    """What is not asked for cannot be far exceeded: the confidence is that by what is, and otherwise the least."""
    settings: dict[str, Any] = dict.fromkeys(without, 0.0)
    load = Load(ranks=8, steps=60, faults=[{"rank": 2, "compute": 2.0}])
    (verdict,) = judge(make(load), replace(Settings(), **settings)).verdicts
    assert verdict.ranks == (2,)
    assert verdict.confidence is not None
    assert verdict.confidence > 0.9 if len(without) == 1 else verdict.confidence < 0.7


RANKS = 4
STEPS = 120


@pytest.mark.parametrize(
    ("segments", "asked", "rule"),
    [
        pytest.param(
            [(0, 10, 26, 3), (1, 50, 66, 2), (2, 70, 86, 4), (3, 100, 116, 2.5)], (2, 70, 86, 4), True, id="all"
        ),
        pytest.param([(2, 70, 86, 4)], (2, 70, 86, 4), False, id="none other"),
        pytest.param([(2, 70, 86, 4), (3, 20, 60, 4)], (2, 70, 86, 4), False, id="one other, for its own reason"),
        pytest.param(
            [(1, 0, 120, 2), (0, 10, 26, 4), (2, 70, 86, 4), (3, 90, 106, 4)], (1, 0, 120, 2), False, id="throughout"
        ),
        *(
            pytest.param(
                [(2 + turn % 2, 20 * turn, 20 * turn + 20, 4) for turn in range(6)],
                asked,
                False,
                id=f"in turn {asked[0]}",
            )
            for asked in ((2, 40, 60, 4), (3, 60, 80, 4))
        ),
    ],
)
def test_a_segment_is_noise_where_most_other_ranks_have_some_too(
    segments: list[tuple[int, int, int, float]], asked: tuple[int, int, int, float], rule: bool
) -> None:
    """Hosts whose pace changes for a dozen steps, now here and now there."""
    late = np.random.default_rng(5).normal(0, 0.3 * MS, (RANKS, STEPS))
    for rank, first, stop, more in segments:
        late[rank, first:stop] += more * MS
    row, first, stop, level = asked
    assert others_as_late(late, row, first, stop, level * MS) == rule


@pytest.mark.parametrize("ranks", [1025, 2049, 16384])
def test_of_a_large_job_a_few_slow_ranks_are_not_the_rule(ranks: int) -> None:
    """What a sample of its ranks does as a rule counts, whatever the size of the job."""
    late = np.random.default_rng(5).normal(0, 0.1 * MS, (ranks, 40))
    late[7, 10:26] += 4 * MS
    assert not others_as_late(late, 7, 10, 26, 4 * MS)
    late[np.random.default_rng(6).random(ranks) < 0.5, 20:36] += 4 * MS
    assert others_as_late(late, 7, 10, 26, 4 * MS)


MANY = 4_000


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_of_ranks_that_are_all_alike_each_is_last_in_one_step_of_eight(ranks: int) -> None:
    """In a large job, too, in which another rank is later by chance in nearly every step."""
    delay = np.random.default_rng(ranks).standard_normal((ranks, MANY))
    assert straggler.share_last(delay[0], delay[1:]) == pytest.approx(1 / 8, rel=0.15)


@pytest.mark.parametrize(("first", "reported"), [(3, 0), (5, 0), (6, 6)])
def test_a_fault_in_the_first_judged_step_was_there_from_the_start(first: int, reported: int) -> None:
    """Warm-up of three steps hides it, and up to two whose collectives are unlike the rest's."""
    blocks: Any = SimpleNamespace(steps=np.arange(first, 60), warmup=3)
    assert since(blocks, 0) == reported


@pytest.mark.parametrize(("outside", "known"), [(24, True), (12, False)])
def test_what_a_rank_takes_when_it_is_not_late_is_known_of_twenty_steps(outside: int, known: bool) -> None:
    """Before a slowdown, after it, or both; with fewer, its backward may be longer than visible."""
    blocks: Any = SimpleNamespace(steps=np.arange(100), delay=np.zeros((4, 100)))
    slowdown = Slowdown(
        row=2,
        first=outside // 2,
        stop=100 - outside // 2,
        delay=9.0,
        z=9.0,
        consistency=1.0,
        spread_ratio=9.0,
        latest=1.0,
    )
    blocks.delay[2, slowdown.first : slowdown.stop] = 9.0
    assert (backward.healthy_steps(blocks, slowdown) is not None) == known


@pytest.mark.parametrize(("stalls", "longer"), [(5, 40.0), (4, None)])
def test_what_stalls_cost_is_seen_in_the_steps_of_five(stalls: int, longer: float | None) -> None:
    """Two of them may be something else; with fewer it is unknown which."""
    period = np.full(100, 10.0)
    stalled = np.arange(stalls) * 9 + 5
    period[stalled] += 40.0
    period[stalled[:2]] += 500.0
    blocks: Any = SimpleNamespace(steps=np.arange(100), period=period)
    found = savings.longer_when(blocks, stalled)
    assert (found and found[0]) == longer


SLOW = 3
#: What sequence lengths differ by, forward of a batch of usual length, how often hosts stall, and for how long at most.
SIGMA = 0.35
FORWARD_MS = 6.5
OFTEN = 0.3
STALL_MS = 60.0
#: Draws in which the late rank is the last one in fewer than half of the steps.
SELDOM = (0, 3, 16, 26)


@cache
def _healthy() -> Blocks:
    return blocks_of(simulate(Scenario(ranks=RANKS, steps=120, seed=7)).run)


def _job(seed: int, longer_ms: float, late_ms: float) -> Blocks:
    """Steps of 100 ms with batches of uneven length and hosts that stall, in turn; rank 3 may be late by so much, and
    its forward be longer by so much, in every step."""
    blocks = _healthy()
    draws = np.random.default_rng(seed)
    forward = FORWARD_MS * draws.lognormal(0.0, SIGMA, blocks.delay.shape)
    late = forward + (draws.random(blocks.delay.shape) < OFTEN) * draws.uniform(0, STALL_MS, blocks.delay.shape)
    forward[SLOW] += longer_ms
    late[SLOW] += late_ms
    return replace(
        blocks, delay=_beyond(late) * MS, parts=blocks.parts | {"gpu_forward": forward * MS}, joined=None, work=None
    )


def _beyond(late: Floats) -> Floats:
    return np.asarray(late - peers_median(late))


def _rows(blocks: Blocks) -> list[int]:
    return [slowdown.row for slowdown in straggler.find(blocks, DEFAULT)]


@pytest.mark.parametrize("seed", SELDOM)
def test_a_slow_gpu_among_uneven_batches_is_named_though_others_are_last_as_often(seed: int) -> None:
    """Late by 9 ms of 100, as its forward is longer: in most steps it is another rank that stalls."""
    blocks = _job(seed, 9.0, 9.0)
    last = np.argmax(blocks.delay, axis=0) == SLOW
    assert last.mean() < DEFAULT.min_latest
    assert _rows(blocks) == [SLOW]


@pytest.mark.parametrize(("seed", "late_ms"), [*((seed, 9.0) for seed in SELDOM), *((seed, 0.0) for seed in range(40))])
def test_a_rank_that_computes_as_long_as_others_is_not_named(seed: int, late_ms: float) -> None:
    """However late, for whatever its host may do: no measure of its own bears it out. Batches are long in turn."""
    assert _rows(_job(seed, 0.0, late_ms)) == []


def _surely(longer_ms: Any, host_ms: float | None = None) -> bool:
    """Whether a rank that is late by 9 ms has its forward surely longer, by ``longer_ms`` [S]; where ``host_ms`` is
    given its GPU ran as launched, and that is how long launching took after each step began."""
    longer = np.asarray(longer_ms)
    forward = np.full((RANKS, len(longer)), FORWARD_MS)
    forward[SLOW] += longer
    blocks: Any = SimpleNamespace(parts={"gpu_forward": forward * MS}, joined=None)
    if host_ms is not None:
        began = np.tile(np.arange(len(longer)) * 100 * MS, (RANKS, 1))
        launched = began + host_ms * MS
        blocks.joined = SimpleNamespace(gpu_time=True, enqueue=launched, start=launched + 0.1 * MS)
        blocks.starts, blocks.step_ns = np.arange(len(longer)), 100 * MS
        blocks.ended, blocks.took = began + 90 * MS, np.full(began.shape, 90 * MS)
    return straggler.surely_longer(blocks, SLOW, slice(0, len(longer)), 9.0 * MS, DEFAULT)


@pytest.mark.parametrize(
    ("longer_ms", "host_ms", "known"),
    [
        pytest.param(np.full(DEFAULT.min_steps, 9.0), None, True, id="in enough steps"),
        pytest.param(np.full(DEFAULT.min_steps - 1, 9.0), None, False, id="fewer may be chance"),
        pytest.param(np.where(np.arange(60) < 18, 9.0, np.nan), None, False, id="timed in a third of the steps"),
        pytest.param(9.0 * (np.arange(200) >= 80), None, False, id="it was late before, for something else"),
        pytest.param(np.full(200, 6.0), None, False, id="the last third of the delay is no scatter"),
        pytest.param(9.0 + 2.0 * (np.arange(60) % 3 - 1), None, True, id="batches differ by little"),
        pytest.param(9.0 + 39.0 * (np.arange(60) % 3 - 1), None, False, id="batches differ by more: chance"),
        pytest.param(np.full(60, 9.0), 15.0, False, id="its host took as long to launch"),
        pytest.param(np.full(60, 9.0), 1.0, True, id="all was launched at once"),
    ],
)
def test_a_forward_is_surely_longer_where_it_explains_the_delay(longer_ms: Any, host_ms: Any, known: bool) -> None:
    assert _surely(longer_ms, host_ms) == known


def test_each_turn_of_both_is_reported_whatever_a_host_did_at_the_start() -> None:
    """The one whose turns are a little shorter is no healthy one's chance, and a start of 19 steps is no turn."""
    built = blocks_of(simulate(Scenario(ranks=2, steps=600, seed=3)).run)
    steps = len(built.steps)
    later = 0.001 * np.random.default_rng(1).standard_normal(steps)
    later[:19] += 0.1
    for turn, first in enumerate(range(182, steps, 80)):
        later[first : first + 80] += -0.227 if turn % 2 == 0 else 0.225
    late = built.step_ns * np.stack([-later, later])
    found = straggler.find(replace(built, delay=late), DEFAULT)
    turns = sorted((one.first, one.row) for one in found if one.first >= 182)
    assert turns == [(first, turn % 2) for turn, first in enumerate(range(182, steps, 80))]
