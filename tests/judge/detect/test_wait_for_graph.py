"""The walk along who waits for whom ends at the rank that holds the job, or in a circle."""

import pytest
from hindmost_judge.detect.wait_for_graph import Edge, Walk, Way, walk


def test_a_deadlock_is_one_whatever_else_ranks_wait_for() -> None:
    """Rank 3 is merely late; the two that wait for each other would not go on if it came."""
    edges = [Edge(0, 1, Way.SEND), Edge(1, 0, Way.SEND), Edge(2, 3, Way.SEND)]
    assert walk({0, 1, 2}, edges) == Walk(roots=(3,), cycle=(0, 1))


def test_a_receive_and_its_send_are_no_deadlock() -> None:
    """Both sides came: what is missing is the message."""
    assert walk({0, 1}, [Edge(0, 1, Way.SEND), Edge(1, 0, Way.RECEIVE)]) == Walk()


def test_a_collective_waits_for_all_that_have_not_come() -> None:
    """Ranks 0 and 1 are in an operation that rank 2, which receives from rank 3, has not entered."""
    edges = [Edge(0, -1), Edge(1, -1), Edge(-1, 2), Edge(2, 3, Way.SEND)]
    assert walk({0, 1, 2}, edges) == Walk(roots=(3,))


def test_a_circle_through_a_collective_names_ranks_only() -> None:
    """Rank 0 waits in a collective for rank 1, which waits for a message of rank 0."""
    assert walk({0, 1}, [Edge(0, -1), Edge(-1, 1), Edge(1, 0, Way.SEND)]) == Walk(cycle=(0, 1))


def test_who_waits_for_an_unknown_is_no_root() -> None:
    """Rank 1 is inside something: it is not who holds the job, and whom it waits for is not known."""
    assert walk({0, 1}, [Edge(0, 1, Way.SEND)]) == Walk()


@pytest.mark.parametrize(("last", "expected"), [(2, Walk(cycle=(0, 1))), (3, Walk(roots=(3,)))])
def test_of_several_peers_some_may_have_answered(last: int, expected: Walk) -> None:
    """A wait for several requests shows a deadlock only where it leads to no rank that could still answer."""
    edges = [Edge(0, 1, Way.SEND), Edge(1, 0, Way.SEND), Edge(1, last, Way.SEND), Edge(2, 1, Way.SEND)]
    assert walk({0, 1, 2}, edges) == expected
