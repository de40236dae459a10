"""The end of a slow segment where ranks share CPUs, and other ranks' noise that hides a delay for a while."""

import numpy as np
import pytest
from hindmost_judge.detect import nested_segments
from hindmost_judge.settings import DEFAULT


@pytest.mark.parametrize(
    ("slow", "shared", "until"),
    [(545, True, None), (545, False, 545), (450, True, 450), (450, False, 450), (590, False, None)],
)
def test_a_segment_ends_where_enough_steps_follow_to_tell(slow: int, shared: bool, until: int | None) -> None:
    """On shared CPUs the last few of a hundred steps are no end of what lasted all the others: a fifth of these is."""
    noise = np.random.default_rng(4).normal(0.0, 0.3, 600)
    series = noise + np.where(np.arange(600) < slow, 4.0, 0.0)
    (found,) = nested_segments.find(series, np.full(600, 1e9), 0.5, DEFAULT, shared=shared)
    assert found.first == 0
    assert (found.stop if found.end == found.stop < 600 else None) == (pytest.approx(until, abs=2) if until else None)
