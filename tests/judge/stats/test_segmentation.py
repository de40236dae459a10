"""Changes of a level are found where they are, and noise is none."""

import numpy as np
import pytest
from hindmost_judge.stats import segmentation


def _noise(seed: int, steps: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(steps)


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_one_segment(seed: int) -> None:
    """No change is found where there is none."""
    series = _noise(seed)
    assert segmentation.segments(series, segmentation.noise(series)) == [0, 300]


@pytest.mark.parametrize("onset", [60, 101, 207])
def test_a_change_is_found_within_three_steps(onset: int) -> None:
    """By twice the noise, wherever it is."""
    series = _noise(1)
    series[onset:] += 3.0
    first, found, last = segmentation.segments(series, segmentation.noise(series))
    assert (first, last) == (0, 300)
    assert abs(found - onset) <= 3


def test_a_change_of_the_level_is_no_noise() -> None:
    """One change in 300 steps hardly moves what is taken for noise."""
    series = _noise(2)
    calm = segmentation.noise(series)
    series[150:] += 10.0
    assert segmentation.noise(series) < 1.5 * calm


def test_stalls_do_not_move_a_level() -> None:
    """A step a thousand times as long as the noise counts for four standard deviations."""
    series = _noise(3)
    series[77] = 1000.0
    assert abs(segmentation.clipped(series).mean()) < 0.3


def test_what_was_filled_in_does_not_make_the_rest_of_a_series_look_calm() -> None:
    """Of most steps nothing is known; those that are known vary as they do."""
    series = np.where(np.arange(300) < 100, 10.0 + _noise(4), 0.0)
    assert segmentation.clipped(series)[:100].std() == pytest.approx(series[:100].std(), rel=0.05)
