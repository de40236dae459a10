"""A rank that is seldom the last one is named where what it measured of its own work says that it is slow."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.detectors import own_work, straggler
from hindmost_collector.robust import peers_median
from hindmost_collector.settings import DEFAULT
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.timeline.blocks import Blocks, build

if TYPE_CHECKING:
    from hindmost_collector.align import Floats

MS = 1e6
RANKS, SLOW = 4, 3
#: What sequence lengths differ by, forward of a batch of usual length, how often hosts stall, and for how long at most.
SIGMA, FORWARD_MS, OFTEN, STALL_MS = 0.35, 6.5, 0.3, 60.0
#: Draws in which the late rank is the last one in fewer than half of the steps.
SELDOM = (0, 3, 16, 26)


@cache
def _even() -> Blocks:
    blocks = build(simulate(Scenario(ranks=RANKS, steps=120, seed=7)).run, DEFAULT)
    assert blocks is not None
    return blocks


def _job(seed: int, longer_ms: float, late_ms: float) -> Blocks:
    """Steps of 100 ms with batches of uneven length and hosts that stall, in turn; rank 3 may be late by so much, and
    its forward be longer by so much, in every step."""
    blocks = _even()
    draws = np.random.default_rng(seed)
    forward = FORWARD_MS * draws.lognormal(0.0, SIGMA, blocks.excess.shape)
    late = forward + (draws.random(blocks.excess.shape) < OFTEN) * draws.uniform(0, STALL_MS, blocks.excess.shape)
    forward[SLOW] += longer_ms
    late[SLOW] += late_ms
    return replace(
        blocks, excess=_beyond(late) * MS, parts=blocks.parts | {"gpu_forward": forward * MS}, joined=None, work=None
    )


def _beyond(late: Floats) -> Floats:
    return np.asarray(late - peers_median(late))


def _rows(blocks: Blocks) -> list[int]:
    return [habit.row for habit in straggler.find(blocks, DEFAULT)]


@pytest.mark.parametrize("seed", SELDOM)
def test_a_slow_gpu_among_uneven_batches_is_named_though_others_are_last_as_often(seed: int) -> None:
    """Late by 9 ms of 100, as its forward is longer: in most steps it is another rank that stalls."""
    blocks = _job(seed, 9.0, 9.0)
    last = np.argmax(blocks.excess, axis=0) == SLOW
    assert last.mean() < DEFAULT.min_latest
    assert _rows(blocks) == [SLOW]


@pytest.mark.parametrize("seed", SELDOM)
def test_nobody_is_named_who_is_seldom_last_and_computes_as_long_as_the_others(seed: int) -> None:
    """As late, for whatever its host may do: no measure of its own bears it out."""
    assert _rows(_job(seed, 0.0, 9.0)) == []


@pytest.mark.parametrize("seed", range(40))
def test_nobody_is_named_where_only_the_lengths_differ(seed: int) -> None:
    """Each rank's batches are long in turn."""
    assert _rows(_job(seed, 0.0, 0.0)) == []


@pytest.mark.parametrize(("share", "known"), [(1.0, True), (0.3, False)])
def test_a_forward_that_was_timed_in_few_steps_says_nothing_surely(share: float, known: bool) -> None:
    """Of a third of the steps in which a rank is late nobody knows whether they are typical."""
    blocks = _job(1, 9.0, 9.0)
    steps = len(blocks.steps)
    forward = np.where(np.arange(steps) < share * steps, blocks.parts["gpu_forward"], np.nan)
    timed = replace(blocks, parts={"gpu_forward": forward})
    assert own_work.surely_longer(timed, SLOW, slice(0, steps), 9.0 * MS, DEFAULT) == known
