"""A missing line of an operation keeps its place among the others."""

import numpy as np
from hindmost_collector.recordings.rank_mapping import in_one_order

REDUCE, GATHER = 0 << 40, 1 << 40


def test_all_after_a_line_that_both_members_lack_keep_their_places() -> None:
    """Of ten operations the fifth is in no file, and the eighth is in one's alone."""
    one = np.array([REDUCE | n for n in (0, 1, 2, 3, 5, 6, 7, 8, 9)])
    other = np.array([REDUCE | n for n in (0, 1, 2, 3, 5, 6, 8, 9)])
    places = in_one_order([other, one])
    assert places[0].tolist() == [0, 1, 2, 3, 5, 6, 8, 9]
    assert places[1].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9]


def test_what_the_longest_member_lacks_comes_where_it_was_among_another_function() -> None:
    """A reduce and a gather in turn: a lost gather leaves its place between two reduces."""
    whole = np.array([key for n in range(6) for key in (REDUCE | n, GATHER | n)])
    lost = np.delete(whole, 5)  # the third gather
    assert in_one_order([lost])[0].tolist() == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]
    longer = np.append(lost, [REDUCE | 6, GATHER | 6])
    assert in_one_order([whole, longer])[0].tolist() == list(range(12))


def test_operations_that_ran_before_the_file_begins_count() -> None:
    """Numbers that begin at four have four before them."""
    assert in_one_order([REDUCE | np.arange(4, 8)])[0].tolist() == [4, 5, 6, 7]
