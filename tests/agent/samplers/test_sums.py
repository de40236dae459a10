"""Counters of threads and workers that come and go: each second is counted once, what is missing stays so."""

import math

import pytest
from hindmost_agent.samplers.process import MOST_REMEMBERED, Sums
from hypothesis import given
from hypothesis import strategies as st

Found = dict[tuple[int, int], tuple[str, float, float]]


def test_another_process_of_the_same_number_is_counted_anew() -> None:
    """The start tells it from the one that ended."""
    sums = Sums()
    sums.add({(1, 7): ("all", 100.0, 0.0)})
    sums.add({(1, 9): ("all", 2.0, 0.0)})
    assert sums.groups["all"][0] == 102.0


def test_a_counter_that_is_unreadable_once_comes_back() -> None:
    """Neither lost for ever nor counted twice; the sum is what was known of it meanwhile."""
    sums, read = Sums(), []
    for value in (10.0, math.nan, 15.0):
        sums.add({(1, 7): ("all", 1.0, value), (2, 7): ("all", 1.0, 4.0)})
        read.append(sums.groups["all"][1])
    assert read == [14.0, 14.0, 19.0]


def test_a_sum_is_missing_while_one_of_its_parts_never_was_read() -> None:
    """Another user's process below the rank: what it reads is not known, so neither is the sum, until it has ended."""
    sums = Sums()
    own: Found = {(1, 7): ("all", 1.0, 4.0)}
    sums.add({**own, (2, 7): ("all", 1.0, math.nan)})
    assert sums.groups["all"] == (2.0, pytest.approx(math.nan, nan_ok=True))
    sums.add(own)
    assert sums.groups["all"] == (2.0, 4.0)


def test_what_never_was_read_is_missing_for_good() -> None:
    """A kernel without scheduler statistics: the waiting of a thread that has ended is not 0."""
    sums = Sums()
    sums.add({(1, 7): ("loader", 1.0, math.nan)})
    sums.add({})
    assert sums.groups["loader"] == (1.0, pytest.approx(math.nan, nan_ok=True))


@given(st.lists(st.dictionaries(st.integers(1, 5), st.floats(0, 10)), max_size=20))
def test_however_they_are_listed_each_counts_once(steps: list[dict[int, float]]) -> None:
    """Processes that use some time between looks, and are listed or not: the sum is of their last values."""
    sums, used = Sums(), dict.fromkeys(range(1, 6), 0.0)
    seen: dict[int, float] = {}
    for step in steps:
        for pid, more in step.items():
            used[pid] += more
            seen[pid] = used[pid]
        sums.add({(pid, 7): ("all", used[pid], 0.0) for pid in step})
    assert sums.groups.get("all", (0.0, 0.0))[0] == pytest.approx(sum(seen.values()))


def test_what_ended_is_not_remembered_without_bound() -> None:
    """A rank that starts a process a second for a year: the sum is right, the memory is small."""
    sums = Sums()
    for pid in range(3 * MOST_REMEMBERED):
        sums.add({(pid, 7): ("all", 1.0, 0.0)})
    assert sums.groups["all"][0] == 3 * MOST_REMEMBERED
    sums.add({(0, 7): ("all", 1.0, 0.0), (3 * MOST_REMEMBERED - 1, 7): ("all", 1.0, 0.0)})
    assert sums.groups["all"][0] == 3 * MOST_REMEMBERED + 1  # of the two the first was forgotten: it counts anew
