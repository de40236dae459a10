"""When steps began and ended where some of their marks are not there yet."""

import numpy as np
from hindmost_judge.timeline.steps import missing_alike, without_gaps
from hypothesis import given
from hypothesis import strategies as st


@given(st.lists(st.booleans(), min_size=6, max_size=6), st.integers(0, 3))
def test_unknown_times_lie_between_known_ones(known: list[bool], jump: int) -> None:
    """Between known steps times are spread evenly over the steps' numbers; beyond them a step is as long as usual."""
    steps = np.array([4, 5, 6, 7 + jump, 8 + jump, 9 + jump])
    times = np.array([[0.0, 10.0, 25.0, 30.0, 50.0, 55.0]]) + np.array([[0.0], [1000.0]])
    mask = np.array(known)
    found = without_gaps(np.where(mask, times, np.nan), steps, 7.0)
    if not mask.any():
        assert np.isnan(found).all()
        return
    at = steps[mask]
    beyond = (np.minimum(steps - at[0], 0) + np.maximum(steps - at[-1], 0)) * 7.0
    for row, one in zip(found, times, strict=True):
        np.testing.assert_allclose(row, np.interp(steps, at, one[mask]) + beyond)


@given(st.lists(st.lists(st.booleans(), min_size=11, max_size=11), min_size=1, max_size=20))
def test_ranks_that_lack_the_same_steps_are_together(gaps: list[list[bool]]) -> None:
    """Every rank that lacks a step is in one set, with those that lack the same ones and no others."""
    lacking = np.array(gaps)
    together = missing_alike(lacking)
    assert sorted(np.concatenate(together).tolist() if together else []) == np.flatnonzero(lacking.any(axis=1)).tolist()
    kinds = [lacking[rows] for rows in together]
    assert all((kind == kind[0]).all() for kind in kinds)
    assert len({kind[0].tobytes() for kind in kinds}) == len(kinds)
