"""A rank that stands still between a step's collectives, each step at another place, beside others that queue there."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.judge import judge

from tests.unit.buckets import BUCKETS, RANKS, STEPS, run


def test_what_a_rank_stands_still_for_anywhere_in_backward_is_in_its_cost() -> None:
    """It begins each step late, and stops for some ms more before one of the later buckets, now this and now that."""
    random = np.random.default_rng(4)
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    calm = run(slow)[1]
    slow[2, :, 0] += 8e6
    slow[2, np.arange(STEPS), random.integers(1, BUCKETS, STEPS)] += 6e6
    job, took = run(slow)
    (verdict,) = judge(job).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / 1e6, rel=0.1)


def test_buckets_that_take_their_time_are_no_standing_still() -> None:
    """One of them has ten times as much before it on all ranks: who is late at the first is so by that only."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[:, :, BUCKETS // 2] += 6e6
    calm = run(slow)[1]
    slow[1, :, 0] += 8e6
    job, took = run(slow)
    (verdict,) = judge(job).verdicts
    assert verdict.ranks == (1,)
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / 1e6, rel=0.1)
