"""Stalls of a GPU anywhere in backward, where gradients are reduced during it and the others queue from there on."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run


def _anywhere(stalls: Any, step: int) -> None:
    stalls[2, step, np.random.default_rng(step).integers(0, BUCKETS)] += 9e6


def _all_along(stalls: Any, step: int) -> None:
    stalls[2, step] += 9e6 / BUCKETS


@pytest.mark.parametrize(("stall", "starts"), [(_anywhere, True), (_all_along, True), (_anywhere, False)])
def test_a_stall_in_backward_is_seen_wherever_it_is(stall: Callable[[Any, int], None], starts: bool) -> None:
    """Nine ms in every seventh step, now before this bucket and now before that, or a little before each."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    calm = run(stalls)[1]
    for step in range(3, STEPS, 7):
        stall(stalls, step)
    job, took = run(stalls, starts=starts)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks) == ("intermittent", (2,))
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / 1e6, rel=0.1)


def test_stalls_of_all_ranks_in_turn_name_no_rank() -> None:
    """As many and as long, each of another rank."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    for number, step in enumerate(range(3, STEPS, 5)):
        stalls[number % RANKS, step, number % BUCKETS] += 9e6
    assert [verdict.ranks for verdict in judge(run(stalls)[0]).verdicts if verdict.ranks] == []


def test_a_slow_rank_is_not_later_for_having_stalled_nowhere() -> None:
    """One that computes longer before each bucket in all steps is its own usual."""
    stalls = np.zeros((RANKS, STEPS, BUCKETS))
    stalls[1, :, 0] += 2e6
    calm, (job, took) = run(np.zeros_like(stalls))[1], run(stalls)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / 1e6, rel=0.1)


def test_small_stalls_of_others_do_not_hide_large_ones() -> None:
    """Seven of 19 ms are one rank's; two ranks that stalled once for 5 ms had no equal."""
    stalls = np.zeros((RANKS, 47, BUCKETS))
    stalls[2, 2::7, 3] += 19e6
    stalls[1, 5, 4] += 5e6
    stalls[3, 11, 6] += 5e6
    (verdict,) = judge(run(stalls, starts=False)[0]).verdicts
    assert (verdict.kind, verdict.ranks) == ("intermittent", (2,))
