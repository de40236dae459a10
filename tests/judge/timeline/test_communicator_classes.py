"""Which communicators are one class: sisters of different spacing and with calls of their own, and no others."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.timeline import matching

REDUCE, GATHER = 0, 1
Calls = list[tuple[tuple[int, ...], int, int, int]]


def calls(groups: Calls, steps: int = 10) -> dict[str, np.ndarray[Any, Any]]:
    """Rows of communicators, (members, operation, bytes, calls a step) each; the same members are one communicator."""
    names = list(dict.fromkeys(members for members, *_ in groups))
    rows, seq = [], [0] * len(names)
    for step in range(steps):
        for members, op, size, count in groups:
            comm = names.index(members)
            for _ in range(count):
                rows += [(comm, op, rank, size, seq[comm], step) for rank in members]
                seq[comm] += 1
    found = np.array(rows, np.int64).T
    return dict(zip(("comm", "op", "row", "bytes", "seq", "step"), found, strict=True))


def classes(groups: Calls) -> list[list[int]]:
    """The class of each communicator's ranks: one list a class, the communicator of each rank."""
    one = calls(groups)
    ranks = int(one["row"].max()) + 1
    _, group = matching.communicator_classes(one["comm"], one["op"], one["row"], one["bytes"], ranks)
    return sorted(group.T.tolist())


TENSOR: Calls = [((0, 3), REDUCE, 1000, 8), ((1, 2), REDUCE, 1000, 8)]
DATA: Calls = [((0, 1), REDUCE, 4000, 2), ((2, 3), REDUCE, 4000, 2)]


@pytest.mark.parametrize("groups", [TENSOR + DATA, DATA + TENSOR, [TENSOR[1], DATA[0], TENSOR[0], DATA[1]]])
def test_sisters_of_unlike_spacing_are_one_class(groups: Calls) -> None:
    """However ranks are laid out, each is in one tensor group and in one data group."""
    names = list(dict.fromkeys(members for members, *_ in groups))
    expected = [[names.index(each) for each in whose] for whose in _of_ranks()]
    assert classes(groups) == sorted(expected)


def _of_ranks() -> list[list[tuple[int, ...]]]:
    """The tensor groups and the data groups of ranks 0 to 3."""
    return [[(0, 3), (1, 2), (1, 2), (0, 3)], [(0, 1), (0, 1), (2, 3), (2, 3)]]


def test_a_group_that_does_more_than_its_sister_is_of_its_class() -> None:
    """One logs what it does once a step."""
    calls: Calls = [((0, 1), REDUCE, 1000, 8), ((0, 1), GATHER, 10, 1), ((2, 3), REDUCE, 1000, 8)]
    assert classes(calls) == [[0, 0, 1, 1]]


def test_an_extra_communicator_of_some_ranks_is_no_sister() -> None:
    """It does little, and the others have every rank without it."""
    assert len(classes([*TENSOR, *DATA, ((1, 3), REDUCE, 8, 1)])) == 3


def test_groups_that_leave_ranks_out_stay_apart() -> None:
    """Two sets of a job that does not make them for all ranks may be anything."""
    assert len(classes([((0, 1), REDUCE, 8, 1), ((2, 4), REDUCE, 8, 1), ((0, 1, 2, 3, 4), REDUCE, 8, 1)])) == 3


def test_calls_belong_together_by_their_place_in_the_step_where_one_group_has_more() -> None:
    """The third all-reduce of one group's second step is that of the other's."""
    one = calls([((0, 1), REDUCE, 1000, 8), ((0, 1), GATHER, 10, 1), ((2, 3), REDUCE, 1000, 8)])
    rows = table("collectives", rank=one["row"], comm=one["comm"], seq=one["seq"], step=one["step"])
    found = matching.call_numbers(rows, one["comm"], one["op"], np.zeros_like(one["comm"]))
    reduced = one["op"] == REDUCE
    each = [found[reduced & (one["row"] == rank)].tolist() for rank in range(4)]
    assert each == [each[0]] * 4
    assert len(set(each[0])) == 80


def test_calls_of_groups_alike_keep_their_sequence_numbers() -> None:
    """A rank whose recording begins in a step has them, too."""
    one = calls(TENSOR)
    rows = table("collectives", rank=one["row"], comm=one["comm"], seq=one["seq"], step=one["step"])
    found = matching.call_numbers(rows, one["comm"], one["op"], np.zeros_like(one["comm"]))
    assert found.tolist() == one["seq"].tolist()


@pytest.mark.parametrize("cut", [slice(6, None), slice(None, -6)])
def test_calls_of_a_recording_that_is_cut_in_a_step_keep_their_sequence_numbers(cut: slice) -> None:
    """One of the communicators lacks the calls of the first step's beginning, or of the last one's end."""
    one = calls(TENSOR)
    cut_off = np.setdiff1d(np.flatnonzero(one["comm"] == 0), np.flatnonzero(one["comm"] == 0)[cut])
    kept = {name: np.delete(values, cut_off) for name, values in one.items()}
    rows = table("collectives", rank=kept["row"], comm=kept["comm"], seq=kept["seq"], step=kept["step"])
    found = matching.call_numbers(rows, kept["comm"], kept["op"], np.zeros_like(kept["comm"]))
    assert found.tolist() == kept["seq"].tolist()


def test_calls_belong_together_by_their_place_in_the_step_where_one_group_began_with_more() -> None:
    """A call before the first step, and all others of that communicator are numbered one higher."""
    one = calls(TENSOR)
    begin = {"comm": 0, "op": REDUCE, "row": 0, "bytes": 1000, "seq": 0, "step": 0}
    seq = one["seq"] + (one["comm"] == 0)
    kept = {name: np.append(seq if name == "seq" else one[name], value) for name, value in begin.items()}
    rows = table("collectives", rank=kept["row"], comm=kept["comm"], seq=kept["seq"], step=kept["step"])
    found = matching.call_numbers(rows, kept["comm"], kept["op"], np.zeros_like(kept["comm"]))
    after = kept["step"] > 0
    each = [found[after & (kept["row"] == rank)].tolist() for rank in range(4)]
    assert each == [each[0]] * 4


def scattered(groups: int) -> Calls:
    """Groups of eight ranks each, of unlike spacing."""
    ranks = np.random.default_rng(1).permutation(groups * 8).reshape(groups, 8)
    return [(tuple(sorted(members)), REDUCE, 1000, 1) for members in ranks.tolist()]


@pytest.fixture
def compared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry for each pair of communicators that is compared."""
    pairs: list[int] = []
    likeness = matching.CommunicatorClass.likeness

    def counted(one: matching.CommunicatorClass, other: matching.CommunicatorClass) -> float:
        pairs.append(1)
        return likeness(one, other)

    monkeypatch.setattr(matching.CommunicatorClass, "likeness", counted)
    return pairs


def test_groups_that_leave_a_rank_out_are_not_compared(compared: list[int]) -> None:
    """However many they are: nothing that has every rank can come of them."""
    alone: Calls = [((512,), REDUCE, 8, 1)]
    assert len(classes([*scattered(64), *alone])) == 65
    assert not compared


def test_many_groups_of_unlike_spacing_are_one_class(compared: list[int]) -> None:
    """Each is compared once with the first."""
    assert len(classes(scattered(256))) == 1
    assert len(compared) == 256


def test_looking_for_sisters_ends(compared: list[int]) -> None:
    """Groups in a ring, each of which shares a rank with the next, have every rank, and no class of them has."""
    ring: Calls = [(tuple(sorted((7 * one + part) % 2100 for part in range(8))), REDUCE, 8, 1) for one in range(300)]
    found = [
        matching.CommunicatorClass(8, frozenset({REDUCE}), 1.0, 8, [number], set(members))
        for number, (members, *_) in enumerate(ring)
    ]
    assert matching.joined_classes(found, 2100) == found
    assert 0 < len(compared) <= matching.MOST_PAIRS


def test_every_rank_runs_its_collectives_in_its_order() -> None:
    """Columns 0 and 2 are of all, 1 of the first two ranks only, who are ahead: by the medians it came last."""
    start = np.array([[0.0, 50, 60], [0, 50, 60], [0, np.nan, 10], [0, np.nan, 10], [0, np.nan, 10]])
    assert matching.in_run_order(start, np.nanmedian(start, axis=0)).tolist() == [0, 1, 2]


def test_ranks_that_contradict_each_other_are_put_in_order_by_time() -> None:
    """Parallel collectives begin in varying order."""
    start = np.array([[0.0, 1, 2], [0, 2, 1]])
    assert matching.in_run_order(start, np.array([0.0, 1.4, 1.5])).tolist() == [0, 1, 2]
