"""In a small cohort a segment is persistent if it differs from the drifts of hosts that are ahead or behind."""

import numpy as np
import pytest
from hindmost_judge.detect.straggler import drifts


def late(*whiles: tuple[int, int, float]) -> np.ndarray:
    """Delays of 292 steps: level 9 from step 178 on, and other levels for a while each."""
    series = np.random.default_rng(1).normal(0, 0.1, 292)
    series[178:] = 9.0
    for first, stop, level in whiles:
        series[first:stop] = level
    return series


def test_one_short_drift_before_does_not_make_a_long_segment_a_drift() -> None:
    """A host was behind for 11 steps; the rank that is slow for 114 until the end is slow."""
    assert not drifts(late((136, 147, 4.5)), 178, 292, 9.0)


@pytest.mark.parametrize("whiles", [((80, 140, 4.5),), ((20, 60, 4.0), (100, 150, -5.0))])
def test_lasting_drifts_make_it_wander(whiles: tuple[tuple[int, int, float], ...]) -> None:
    """A rank that is half as late for 60 steps, or now behind and now ahead, may be so once more."""
    assert drifts(late(*whiles), 178, 292, 9.0)


def test_a_short_segment_is_compared_with_short_ones() -> None:
    """Whether 30 steps are as the 20 before is unknown."""
    series = late((100, 120, 4.5))
    assert drifts(np.concatenate([series[:178], np.full(30, 9.0)]), 178, 208, 9.0)
