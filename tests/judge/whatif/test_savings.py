"""What the delays of a job are without a rank's slowdown."""

from dataclasses import replace

import numpy as np
from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline import build_blocks
from hindmost_judge.whatif.savings import without_slowdowns

from tests.scenarios.loads import Load, make


def blocks_of(places: list[int]) -> Blocks:
    """Four ranks, with delays by chance in steps of so many places each."""
    blocks = build_blocks.build(make(Load(ranks=4, steps=len(places) + 1)), DEFAULT)
    assert blocks is not None
    steps = np.repeat(np.arange(len(places)), places)
    return replace(blocks, intervals=np.random.default_rng(0).random((4, len(steps))), interval_step=steps)


def slowdown(row: int, first: int, stop: int, inner: tuple[tuple[int, int], ...] = ()) -> Slowdown:
    """One of these steps."""
    return Slowdown(row, first, stop, delay=1.0, z=9.0, consistency=1.0, spread_ratio=9.0, latest=1.0, inner=inner)


def test_a_place_that_no_step_of_a_slowdown_has_costs_nothing() -> None:
    """Only steps of another slowdown on top of it have a third place."""
    blocks = blocks_of([2] * 10 + [3] * 3 + [2] * 10)
    assert np.isfinite(without_slowdowns(blocks, [slowdown(0, 0, 23, ((10, 13),))])).all()


def test_what_a_slowdown_takes_does_not_depend_on_others() -> None:
    """Peers that are slow in other steps, or at the same time, are as healthy with it as without."""
    blocks = blocks_of([3] * 40)
    blocks.intervals[0] += np.tile([5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0, 5.0, 0.0, 5.0, 0.0], 10)
    one, other = slowdown(0, 0, 40), slowdown(1, 20, 40)
    alone, both = without_slowdowns(blocks, [one]), without_slowdowns(blocks, [one, other])
    assert (alone[0] < blocks.intervals[0]).any()
    np.testing.assert_array_equal(alone[0], both[0])
