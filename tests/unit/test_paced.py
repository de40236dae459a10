"""Hosts that wait for room in their GPUs' queues show how long those compute, though their collectives queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.costs import paced

RANKS, STEPS, PLACES = 4, 60, 10
MS = 1e6
#: Of a step of 30 ms a rank may compute for 2 ms longer, for which the others wait at one place.
STEP, LONGER = 30 * MS, 2 * MS


def _blocks(slow: int | None, *, lag: float = 1.3 * STEP, recorded: bool = True) -> Any:
    """A job whose hosts launch so long before GPUs run it, the first steps apart; ``slow`` is never waited for."""
    gaps = np.full((RANKS, STEPS, PLACES), (STEP - LONGER) / PLACES)
    gaps[:, :, 7] += LONGER
    if slow is not None:
        gaps[slow] = STEP / PLACES
    gaps *= np.random.default_rng(3).normal(1.0, 0.005, gaps.shape)
    enqueue = np.cumsum(gaps.reshape(RANKS, -1), axis=1)
    waited = np.where(np.arange(STEPS * PLACES) < 5 * PLACES, 0.0, lag)
    joined = SimpleNamespace(
        enqueue=enqueue if recorded else np.full_like(enqueue, np.nan),
        start=enqueue + waited,
        columns=STEPS * PLACES,
    )
    return SimpleNamespace(
        joined=joined,
        overlapped=True,
        starts=np.arange(STEPS) * PLACES,
        steps=np.arange(STEPS),
        ranks=np.arange(RANKS),
        step_ns=STEP,
    )


@pytest.mark.parametrize("slow", [0, 2])
def test_a_gpu_that_computes_longer_than_those_that_wait_for_it_is_seen(slow: int) -> None:
    """Between all launches its host waits longer, and the others' where their GPUs stop; less what peers differ by."""
    found = paced.longer(_blocks(slow), slow, np.arange(STEPS))
    assert 0.6 * LONGER < found < LONGER


def test_a_rank_with_kernels_of_its_own_waits_for_others_than_its_peers() -> None:
    """Its host stands elsewhere in the program: what it and the others take between two launches is not one work."""
    blocks = _blocks(2)
    blocks.joined.start[2, 5 * PLACES :] -= 2 * LONGER
    assert paced.longer(blocks, 2, np.arange(STEPS)) == 0.0


@pytest.mark.parametrize(("steps", "seen"), [(4, False), (6, True)])
def test_few_steps_tell_nothing_of_a_gpu(steps: int, seen: bool) -> None:
    """A host waits for room between the same two launches in some steps before anybody knows how long."""
    assert (paced.longer(_blocks(2), 2, np.arange(20, 20 + steps)) > 0) == seen


def test_gpus_of_one_pace_are_not_told_apart() -> None:
    """Noise of launches adds up to nothing."""
    assert paced.longer(_blocks(None), 1, np.arange(STEPS)) == 0.0


def test_a_host_that_has_room_tells_nothing_of_its_gpu() -> None:
    """It launches as it pleases: where queues are not full, or launches were not recorded, nothing is known."""
    assert paced.longer(_blocks(2, lag=0.2 * STEP), 2, np.arange(STEPS)) == 0.0
    assert paced.longer(_blocks(2, recorded=False), 2, np.arange(STEPS)) == 0.0


@pytest.mark.parametrize("unknown", [0, 2])
@pytest.mark.filterwarnings("error")
def test_a_rank_whose_launches_were_not_recorded_is_left_out_in_silence(unknown: int) -> None:
    """Nothing is told of it, nothing is printed, and what its peers tell counts all the same."""
    blocks = _blocks(1)
    blocks.joined.enqueue[unknown] = np.nan
    assert paced.longer(blocks, unknown, np.arange(STEPS)) == 0.0
    assert 0.6 * LONGER < paced.longer(blocks, 1, np.arange(STEPS)) < LONGER


@pytest.mark.filterwarnings("error")
def test_without_launches_of_any_rank_compared_nothing_is_known() -> None:
    """Hosts of which no step of these was recorded tell nothing."""
    blocks = _blocks(1)
    blocks.joined.enqueue[:, 20 * PLACES :] = np.nan
    assert paced.longer(blocks, 1, np.arange(20, STEPS)) == 0.0


def test_of_no_steps_nothing_is_known() -> None:
    """A habit may have no typical steps."""
    assert paced.longer(_blocks(1), 1, np.arange(0)) == 0.0
