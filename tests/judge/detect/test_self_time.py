"""A rank that is rarely last is named where the measurements of its own work say that it is slow."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import straggler
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.types import Floats

from tests.runs import blocks_of

MS = 1e6
RANKS, SLOW = 4, 3
#: What sequence lengths differ by, forward of a batch of usual length, how often hosts stall, and for how long at most.
SIGMA, FORWARD_MS, OFTEN, STALL_MS = 0.35, 6.5, 0.3, 60.0
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


@pytest.mark.parametrize("seed", SELDOM)
def test_a_rank_that_is_rarely_last_and_computes_as_long_is_not_named(seed: int) -> None:
    """As late, for whatever its host may do: no measure of its own bears it out."""
    assert _rows(_job(seed, 0.0, 9.0)) == []


@pytest.mark.parametrize("seed", range(40))
def test_no_rank_is_named_where_only_the_lengths_differ(seed: int) -> None:
    """Each rank's batches are long in turn."""
    assert _rows(_job(seed, 0.0, 0.0)) == []


@pytest.mark.parametrize(("share", "known"), [(1.0, True), (0.3, False)])
def test_a_forward_that_was_timed_in_few_steps_says_nothing_surely(share: float, known: bool) -> None:
    """If a third of the steps in which a rank is late were measured, whether they are typical is unknown."""
    blocks = _job(1, 9.0, 9.0)
    steps = len(blocks.steps)
    forward = np.where(np.arange(steps) < share * steps, blocks.parts["gpu_forward"], np.nan)
    timed = replace(blocks, parts={"gpu_forward": forward})
    assert straggler.surely_longer(timed, SLOW, slice(0, steps), 9.0 * MS, DEFAULT) == known


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


@pytest.mark.parametrize(("steps", "known"), [(DEFAULT.min_steps - 1, False), (DEFAULT.min_steps, True)])
def test_a_forward_that_is_longer_in_few_steps_is_not_surely_so(steps: int, known: bool) -> None:
    """Fewer may be chance."""
    assert _surely(np.full(steps, 9.0)) == known


@pytest.mark.parametrize(("since", "known"), [(0.0, True), (0.4, False)])
def test_a_forward_is_longer_wherever_its_rank_is_late(since: float, known: bool) -> None:
    """A rank that was late all the time, and computes longer only since a while, was late for something else."""
    assert _surely(9.0 * (np.arange(200) >= since * 200)) == known


@pytest.mark.parametrize(("longer", "known"), [(9.0, True), (6.0, False)])
def test_a_forward_longer_by_a_part_of_the_delay_does_not_explain_it(longer: float, known: bool) -> None:
    """By two thirds of what the rank is late by: the last third is no scatter."""
    assert _surely(np.full(200, longer)) == known


@pytest.mark.parametrize(("scatter", "known"), [(2.0, True), (39.0, False)])
def test_a_forward_is_not_surely_longer_where_batches_differ_by_more(scatter: float, known: bool) -> None:
    """Typically it takes 9 ms more, and in two steps of three as much as 30 less or 48 more: that is chance."""
    assert _surely(9.0 + scatter * (np.arange(60) % 3 - 1)) == known


@pytest.mark.parametrize(("host", "known"), [(15.0, False), (1.0, True)])
def test_a_forward_that_ran_as_it_was_launched_is_its_hosts_doing(host: float, known: bool) -> None:
    """Its GPU waited for a host that took about as long to launch; one that had it all at once computed that long."""
    assert _surely(np.full(60, 9.0), host) == known
