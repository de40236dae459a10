"""A GPU's clock is laid on its host's by the operation that the host heard of soonest."""

import numpy as np
import pytest
from hindmost_collector.formats.profiler_csv import gpu_ahead


@pytest.mark.parametrize("offset", [-20_000_000, 0, 700_000, 3_600_000_000_000])
def test_how_far_a_gpu_is_ahead_shows_where_an_end_was_logged_at_once(offset: int) -> None:
    """Whatever is logged later only seems to have ended earlier."""
    ended = np.arange(1, 9) * 1_000_000
    told = {"enqueue": ended - 900_000, "stop": ended + offset, "logged": ended + np.array([50, 0, 9, 80, 7, 4, 3, 2])}
    assert gpu_ahead(told) == offset


def test_no_log_or_another_clock_shows_nothing() -> None:
    """What was logged before it was enqueued was not logged by that clock."""
    ended = np.arange(1, 9) * 1_000_000
    assert gpu_ahead({"enqueue": ended, "stop": ended + 5, "logged": np.zeros(8, np.int64)}) == 0
    assert gpu_ahead({name: np.empty(0, np.int64) for name in ("enqueue", "stop", "logged")}) == 0
