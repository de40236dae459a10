"""Candidate screening: only ranks that may be persistently late are judged one by one."""

import numpy as np
from hindmost_judge.detect import straggler

MS, SMALLEST = 1e6, 0.6e6


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
