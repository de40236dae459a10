"""A rank is not named for a segment of steps if all ranks have similar ones."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.detect.straggler import others_as_late

RANKS, STEPS = 4, 120
MS = 1e6


def _late() -> Any:
    return np.random.default_rng(5).normal(0, 0.3 * MS, (RANKS, STEPS))


def test_a_segment_is_noise_where_other_ranks_have_some_too() -> None:
    """Hosts whose pace changes for a dozen steps, now here and now there."""
    late = _late()
    for rank, first, more in ((0, 10, 3), (1, 50, 2), (2, 70, 4), (3, 100, 2.5)):
        late[rank, first : first + 16] += more * MS
    assert others_as_late(late, 2, 70, 86, 4 * MS)


@pytest.mark.parametrize("also", [None, 3])
def test_a_segment_is_the_rank_s_own_where_at_most_one_other_has_such(also: int | None) -> None:
    """Two ranks may be slow for a while, each for a reason of its own."""
    late = _late()
    late[2, 70:86] += 4 * MS
    if also is not None:
        late[also, 20:60] += 4 * MS
    assert not others_as_late(late, 2, 70, 86, 4 * MS)


def test_who_is_late_throughout_has_no_like() -> None:
    """Segments of others do not clear a rank that is late in nearly all steps."""
    late = _late()
    late[1] += 2 * MS
    for rank, first in ((0, 10), (2, 70), (3, 90)):
        late[rank, first : first + 16] += 4 * MS
    assert not others_as_late(late, 1, 0, STEPS, 2 * MS)


@pytest.mark.parametrize("ranks", [1025, 2049, 16384])
def test_of_a_large_job_a_few_slow_ranks_are_not_the_rule(ranks: int) -> None:
    """What a sample of its ranks does as a rule counts, whatever the size of the job."""
    late = np.random.default_rng(5).normal(0, 0.1 * MS, (ranks, 40))
    late[7, 10:26] += 4 * MS
    assert not others_as_late(late, 7, 10, 26, 4 * MS)
    late[np.random.default_rng(6).random(ranks) < 0.5, 20:36] += 4 * MS
    assert others_as_late(late, 7, 10, 26, 4 * MS)


def test_two_ranks_that_are_slow_in_turn_are_not_the_rule() -> None:
    """Each of them has several such segments, and the other two have none."""
    late = _late()
    for first in range(0, STEPS, 40):
        late[2, first : first + 20] += 4 * MS
        late[3, first + 20 : first + 40] += 4 * MS
    assert not others_as_late(late, 2, 40, 60, 4 * MS)
    assert not others_as_late(late, 3, 60, 80, 4 * MS)
