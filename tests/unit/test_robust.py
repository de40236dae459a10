"""Statistics of blocks in which values are missing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hindmost_collector.robust import median
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays


@pytest.mark.parametrize("axis", [None, 0, 1])
@given(
    block=arrays.arrays(
        np.float64,
        st.tuples(st.integers(1, 7), st.integers(1, 7)),
        elements=st.sampled_from([1.0, 2.5, 7.0, -3.0, 1e18, np.inf, np.nan]),
    )
)
def test_median_is_of_what_is_known(axis: int | None, block: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> None:
    """Along any axis the median is that of the values that are there, to the last bit, and NaN where none is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = np.nanmedian(block, axis=axis)
    np.testing.assert_array_equal(median(block, axis=axis), expected)
