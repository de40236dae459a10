"""A rank that is late in each micro-batch's round of gathers and reductions is late by all of it."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.timeline import matching
from hindmost_judge.timeline.overlap import delay_by_round

from tests.runs import call, made

MS = 1_000_000
RANKS, STEPS = 3, 20
ROUND = (("all_gather", 1), ("all_gather", 2), ("reduce_scatter", 2), ("reduce_scatter", 1))


def late(delays: tuple[float, ...], kinds: tuple[tuple[str, int], ...] = ROUND) -> Any:
    """[R] ms that ranks are late, in the typical step of one round for each of ``delays``: of rank 1, before it.
    Between two collectives all compute 2 ms."""
    rows, ready = [], np.zeros(RANKS)
    for step in range(STEPS):
        seq = step * len(delays) * len(kinds)
        for more in delays:
            for place, (op, size) in enumerate(kinds):
                ready = ready + 2.0
                ready[1] += more if place == 0 else 0.0
                met = np.full(RANKS, ready.max() + 0.1)
                rows.append(call(op, seq, ready, met, size=size * 1024))
                seq, ready = seq + 1, met
    run = made(RANKS, collectives=rows)
    grid = matching.grid(run)
    assert grid is not None
    starts = np.arange(STEPS) * len(delays) * len(kinds)
    return np.median(delay_by_round(grid, matching.self_time(grid), starts), axis=1) / MS


@pytest.mark.parametrize("delays", [(50.0, 50.0), (50.0, 40.0, 30.0)])
def test_what_a_rank_is_late_by_in_each_round_counts(delays: tuple[float, ...]) -> None:
    """But for what a layer hides in each after the first."""
    assert late(delays)[1] == pytest.approx(sum(delays), abs=2.1 * (len(delays) - 1))


def test_a_delay_that_a_layer_hides_is_one_that_shows_again() -> None:
    """Slow code is late by a little in every round, and the largest of it is what is seen."""
    assert late((1.5, 1.5))[1] == pytest.approx(1.5, abs=0.1)


def test_a_single_round_counts_as_it_is() -> None:
    """Nothing is added to the delay of a step that has one."""
    assert late((50.0,))[1] == pytest.approx(50.0, abs=0.1)


def test_buckets_of_one_size_are_no_rounds() -> None:
    """One delay shows in all the reductions of a backward."""
    assert late((50.0, 50.0), (("all_reduce", 1),) * 4)[1] == pytest.approx(50.0, abs=0.1)
