"""Statistics of blocks in which values are missing."""

import warnings

import numpy as np
import pytest
from hindmost_judge.stats.robust import alike, lower_median, median, or_zero, percentile, quantile
from hypothesis import given, settings
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


@settings(max_examples=20)  # for each of twelve
@pytest.mark.parametrize("axis", [None, 0, 1, -1])
@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.float32])
@given(
    shape=st.sampled_from(
        [(300, 1), (1, 300), (601, 2), (2, 258), (260, 300), (300, 8), (300, 9), (15, 300), (16, 300), (17, 300)]
    ),
    seed=st.integers(0, 1000),
    unknown=st.sampled_from([0.0, 0.0, 0.01, 0.5]),
)
def test_the_median_is_numpys(axis: int | None, dtype: type, shape: tuple[int, int], seed: int, unknown: float) -> None:
    """For any number of values in a line and of lines, even or odd: every algorithm gives the same bits."""
    random = np.random.default_rng(seed)
    block = (random.integers(0, 50, shape) if seed % 2 else random.normal(0, 1e9, shape)).astype(dtype)
    if dtype is not np.int64:
        block[random.random(shape) < unknown] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        expected = np.nanmedian(block, axis=axis)
    np.testing.assert_array_equal(median(block, axis=axis), expected)


@pytest.mark.parametrize("shape", [(2_000, 100), (20_000, 10), (300_000, 2)])
def test_median_of_a_large_job_is_numpys(shape: tuple[int, int]) -> None:
    """Columns that are turned some at a time are all there, in their order."""
    block = np.random.default_rng(1).normal(0, 1e9, shape)
    np.testing.assert_array_equal(median(block, axis=0), np.median(block, axis=0))


def test_lower_median_is_one_of_the_values() -> None:
    """Of an even number that are known it is the lower of the middle two, never a mean; NaN where none is."""
    nan = np.nan
    block = np.array([[9.0, 1.0, nan, nan], [1.0, nan, 3.0, nan], [2.0, nan, 8.0, nan], [7.0, nan, nan, nan]])
    np.testing.assert_array_equal(lower_median(block, axis=0), [2.0, 1.0, 3.0, nan])
    np.testing.assert_array_equal(lower_median(block.T, axis=1), [2.0, 1.0, 3.0, nan])


@pytest.mark.parametrize(
    ("values", "known"),
    [([2.0, 2.0, 2.0, 2.0], True), ([2.0, 1.0, 3.0, 2.0], False), ([np.nan] * 4, False), ([], False)],
)
def test_values_are_alike_where_each_is_known_and_the_same(values: list[float], known: bool) -> None:
    """The corners alone do not tell, and what is missing is like nothing."""
    assert alike(np.reshape(values, (2, -1))) == known


@pytest.mark.parametrize("values", [[1.0, -2.0], [1.0, np.nan], [np.inf, -np.inf], [1e308, 1e308]])
def test_what_is_missing_counts_as_nothing(values: list[float]) -> None:
    """As ``np.nan_to_num`` gives it, and never the block itself: the caller may write into it."""
    block = np.array(values)
    with np.errstate(over="ignore", invalid="ignore"):
        found = or_zero(block)
    np.testing.assert_array_equal(found, np.nan_to_num(block))
    assert found is not block


@pytest.mark.parametrize("share", [0.0, 0.02, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("missing", [0.0, 0.4])
def test_a_quantile_of_each_line_is_numpys(share: float, missing: float) -> None:
    """Of what is known in it; NaN where that is nothing."""
    draw = np.random.default_rng(1)
    block = draw.normal(size=(6, 57))
    block[draw.random(block.shape) < missing] = np.nan
    block[2] = np.nan
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # numpy warns of the line of nothing
        expected = np.nanquantile(block, share, axis=1)
    np.testing.assert_allclose(quantile(block, share), expected, rtol=1e-14)


@given(
    values=st.lists(st.one_of(st.floats(-1e18, 1e18), st.just(np.nan)), max_size=40).map(np.array),
    percent=st.one_of(st.integers(0, 100), st.floats(0, 100)),
)
def test_a_percentile_is_numpys(values: np.ndarray[tuple[int], np.dtype[np.float64]], percent: float) -> None:
    """Of what is there, to the last bit; NaN where nothing is."""
    known = values[~np.isnan(values)]
    expected = np.percentile(known, percent) if known.size else np.nan
    np.testing.assert_array_equal(percentile(values, percent), expected)
