"""Ranks that are slow by different amounts, so that none is left to show how much healthy ones differ."""

import numpy as np
import pytest
from hindmost_judge.detect import straggler
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import peers_median


def test_ranks_that_each_differ_by_little_from_the_next_have_no_gap() -> None:
    """No rank is behind all others by what healthy GPUs may differ by, however far the first is from the last."""
    late = np.repeat(np.array([0.0, 9.0, 18.0, 27.0])[:, None], 40, axis=1)
    assert straggler.behind_small_cohort(late - peers_median(late), 3, 10.0, DEFAULT) == 0.0


@pytest.mark.parametrize(("levels", "far"), [([0, 26, 36, 52], 4.8), ([0, 10, 30, 31], 6.0), ([0, 0, 0, 20, 50], 9.0)])
def test_a_gap_counts_once_wherever_the_middle_is(levels: list[int], far: float) -> None:
    """Of a rank on either side of the median each is compared with the other, which counts what is between twice."""
    late = np.repeat(np.array(levels, float)[:, None], 40, axis=1)
    assert straggler.behind_small_cohort(late - peers_median(late), len(levels) - 1, 10.0, DEFAULT) == pytest.approx(
        far
    )


def test_a_lead_that_comes_and_goes_is_no_gap() -> None:
    """Who is far behind in half of the steps, and level in the others, is not surely the last."""
    late = np.zeros((4, 80))
    late[:3] = np.array([0.0, 55.0, 60.0])[:, None]
    late[3] = np.where(np.arange(80) // 20 % 2, 120.0, 60.0)
    assert straggler.behind_small_cohort(late - peers_median(late), 3, 10.0, DEFAULT) == 0.0
