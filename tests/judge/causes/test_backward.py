"""A rank whose backward alone is slow, where gradients are reduced during it and the others queue over most of that."""

from types import SimpleNamespace

import numpy as np
import pytest
from hindmost_judge.causes import backward
from hindmost_judge.judge import judge

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run, with_cost


@pytest.mark.parametrize("share", [0.05, 0.1, 0.3])
@pytest.mark.parametrize(("first", "rank"), [(0, 0), (1, 3)])
def test_a_slow_backward_costs_what_repairing_it_saves(share: float, first: int, rank: int) -> None:
    """A little more before each bucket: from some bucket on the others queue, and the delay grows no more."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[rank, :, first:] += share * run(slow)[1] / STEPS / (BUCKETS - first)
    job, cost = with_cost(slow, timed=True)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (rank,), "compute")
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=0.15)
    assert any("of the delay is inside backward" in line for line in verdict.evidence)


def test_transfers_that_take_longer_than_backward_hide_it() -> None:
    """Where gradients wait for the wire, a slightly longer backward has no measurable cost."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[2, :, 1:] += 0.5e6
    job, cost = with_cost(slow, transfer=2e6)
    assert sum(verdict.cost_ms_per_step or 0.0 for verdict in judge(job).verdicts) <= cost + 0.1


def test_without_times_on_the_gpu_whether_it_computes_is_unknown() -> None:
    """It may wait for its host to launch."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[2] += 0.2e6
    (verdict,) = judge(run(slow)[0]).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx(0.2 * BUCKETS, rel=0.15)


def test_without_starts_the_cost_is_reported_as_the_least() -> None:
    """How long collectives took says who was late for each, not how much earlier the others would have been."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[2] += 0.3e6
    (verdict,) = judge(run(slow, starts=False, beside=0.3)[0]).verdicts
    assert verdict.ranks == (2,)
    assert any("lower bound" in line for line in verdict.evidence)


def test_where_others_queue_from_the_start_what_it_took_before_tells() -> None:
    """A third longer in all of backward from step 60 on: how much earlier the others are shows nowhere."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[1, 60:] += 0.9e6
    slow[1, 60:, 4] += 1e6
    job, cost = with_cost(slow, timed=True)
    (verdict,) = judge(job).verdicts
    assert (verdict.ranks, verdict.cause, verdict.since_step) == ((1,), "compute", 60)
    assert verdict.cost_ms_per_step == pytest.approx(cost * STEPS / (STEPS - 60), rel=0.05)


def test_before_a_short_interval_a_start_sooner_than_the_rank_s_own_is_queued() -> None:
    """A queue leaves 0.05 ms where the rank computes for 0.12 ms, or for 1 ms: no rank was ready only then."""
    start, took = np.zeros((3, 20, 3)), np.full((3, 20, 3), 0.2e6)
    start[0] = [0.0, 0.32e6, 1.52e6]
    start[1] = [-0.6e6, 0.25e6, 0.55e6]  # ends with the others, and queues
    start[2] = [-0.6e6, 0.31e6, 1.0e6]  # was ready only then
    took[1:, :, 0], took[1, :, 1], took[2, :, 1] = 0.8e6, 0.27e6, 0.21e6
    grid = SimpleNamespace(start=start.reshape(3, -1), duration=took.reshape(3, -1))
    _, free = backward.ready_ranks(grid, np.arange(3), np.arange(60).reshape(20, 3))
    assert free.all(axis=1).tolist() == [[True] * 3, [True, False, False], [True] * 3]
    assert not free[1, :, 1:].any()


@pytest.mark.parametrize(
    ("rank", "buckets", "longer_ms", "waiting", "cause", "off"),
    [
        (1, slice(1), 3.0, {}, "unknown", 0.1),  # the others queue from the first bucket on
        (1, slice(1), 0.7, {"beside": 0.35}, "unknown", 0.1),  # until they are no sooner than it
        (3, slice(9), 0.1, {"beside": 0.2}, "compute", 0.2),  # the others lose by waiting what they gain by computing
        (3, slice(9), 0.1, {"beside": 0.35}, "compute", 0.2),
        (2, slice(1, 9), 0.1, {"beside": 0.3, "gathers": 0.1e6}, "compute", 0.2),  # parameters, between reductions
        (2, slice(1, 9), 0.2, {"beside": 0.3, "gathers": 0.1e6}, "compute", 0.2),
    ],
)
def test_ranks_that_compute_slower_while_they_wait_hide_no_cost(
    rank: int, buckets: slice, longer_ms: float, waiting: dict[str, float], cause: str, off: float
) -> None:
    """Of what the last rank takes longer only a small part may show as delay; a lost lead costs nothing."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[rank, :, buckets] += longer_ms * 1e6
    job, cost = with_cost(slow, timed=True, **waiting)
    (verdict,) = judge(job).verdicts
    assert (verdict.ranks, verdict.cause) == ((rank,), cause)
    assert verdict.cost_ms_per_step == pytest.approx(cost, rel=off)
