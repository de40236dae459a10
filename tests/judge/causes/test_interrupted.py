"""A rank interrupted between a step's collectives, in each step at another place, while the others queue there."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.causes import why_late
from hindmost_judge.judge import judge

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run

MS = 1e6
#: The rank that is asked about; a step's collectives and what each rank computes before each, in ms.
ROW, PLACES, USUAL = 2, 6, 5.0
#: Where it is that a step differs: before another of the later collectives each time.
WHERE = 1 + np.arange(STEPS) % (PLACES - 1)


def _before(longer: float, usual: float = USUAL) -> Any:
    """[R, S, P] ms before each collective: this rank takes so much longer before one of each step's."""
    gaps = np.full((RANKS, STEPS, PLACES), usual)
    gaps[ROW, np.arange(STEPS), WHERE] += longer
    return gaps


def _longer(gaps: Any, late: float = 8.0, delay: float = 8.0) -> float:
    """Ms a step of interruption, where the rank begins each step ``late`` and its slowdown has ``delay``."""
    gaps = np.where(np.arange(PLACES) == 0, gaps[:, :, :1] + late * (np.arange(RANKS) == ROW)[:, None, None], gaps)
    columns = STEPS * PLACES
    gaps = gaps.reshape(RANKS, columns) * MS
    ends = np.cumsum(gaps.max(axis=0) + MS)  # all leave a collective together, a ms after the last one came
    start = np.append(0.0, ends[:-1]) + gaps
    grid = SimpleNamespace(
        ranks=np.arange(RANKS), columns=columns, gathers=np.zeros(columns, bool), start=start, duration=ends - start
    )
    blocks: Any = SimpleNamespace(
        overlapped=True, joined=grid, starts=np.arange(STEPS) * PLACES, step_ns=ends[-1] / STEPS
    )
    slowdown: Any = SimpleNamespace(row=ROW, delay=delay * MS, steps=lambda: np.arange(STEPS))
    return why_late.longer_interrupted(blocks, slowdown) / MS


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


@pytest.mark.parametrize(("longer", "usual"), [(3.0, USUAL), (0.12, 0.05)])
def test_what_computing_scatters_by_is_no_standing_still(longer: float, usual: float) -> None:
    """An interval that takes half as long again now and then, or a tenth of a ms more in steps of 14, is computing."""
    assert _longer(_before(longer, usual)) == 0.0


def test_a_step_with_more_to_compute_is_no_standing_still() -> None:
    """Every third batch of the rank is longer: before all of the step's collectives it computes two and a half times
    as long."""
    gaps = _before(0.0)
    gaps[ROW, ::3] *= 2.5
    assert _longer(gaps) == 0.0


@pytest.mark.parametrize(("delay", "more"), [(8.0, 6.0), (11.0, 3.0), (14.0, 0.0)])
def test_a_reported_delay_is_not_counted_again(delay: float, more: float) -> None:
    """It begins a step 8 ms late and is interrupted for 6 ms more: however the slowdown counts them, all is 14 ms."""
    assert _longer(_before(6.0), delay=delay) == pytest.approx(more)


def test_standing_still_costs_no_more_than_others_wait_for_it() -> None:
    """It stops for 7 ms where its peers have 4 ms more to compute than usual: they wait for 3 ms."""
    gaps = _before(3.0)
    gaps[:, np.arange(STEPS), WHERE] += 4.0
    assert _longer(gaps) == pytest.approx(3.0)
