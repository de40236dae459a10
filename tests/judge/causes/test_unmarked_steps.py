"""Of hosts that marked no steps their launches tell who is slow; who only launches is neither named nor cleared."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.causes import launch_bound
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.inconclusive import hosts_unmarked

STEPS, OPERATIONS = 60, 6
MS = 1e6
#: What a host takes to the first operation of a step, its input among it, and on to each of the others.
USUAL = np.array([8.0, 1, 1, 1, 1, 1])


@dataclass
class Case:
    """Rank 2's GPU waits for its host, which takes ``own`` ms; the others are ahead, and wait ``at`` an operation in
    all but their first steps."""

    own: Any
    at: int = 0
    delay: float = 9.0
    operation: str = "all_reduce"
    usual: Any = field(default_factory=USUAL.copy)

    def blocks(self) -> Any:
        """As much of blocks as is looked at, and the table of operations."""
        step = float(np.sum(self.own))
        waiting = self.usual.copy()
        waiting[self.at] += step - self.usual.sum()
        took = np.stack(
            [np.repeat([self.usual, waiting], [5, STEPS - 5], axis=0)] * 2 + [np.tile(self.own, (STEPS, 1))]
        )
        enqueue = np.cumsum(took.reshape(3, -1), axis=1) * MS
        waited = np.full(enqueue.shape, 30.0)
        waited[2], waited[:, 0] = 0.2, 0.1
        blocks = SimpleNamespace(
            ranks=np.arange(3),
            steps=np.arange(STEPS),
            starts=np.arange(STEPS) * OPERATIONS,
            cohort=np.zeros(3, np.int64),
            step_ns=step * MS,
            took=None,
            ended=None,
            parts={},
            joined=SimpleNamespace(
                gpu_time=True, enqueue=enqueue, start=enqueue + waited * MS, columns=enqueue.shape[1]
            ),
            overlapped=False,
            delay=np.repeat([[0.0], [0.0], [self.delay * MS]], STEPS, axis=1),
        )
        does = ["all_reduce", "all_reduce", self.operation]
        table = {
            "rank": np.repeat(np.arange(3), enqueue.shape[1]),
            "enqueue_ns": enqueue.ravel(),
            "op": np.repeat(does, enqueue.shape[1]),
        }
        return blocks, table

    def slower(self) -> float | None:
        """By how many ms rank 2's host is reported to be slower."""
        blocks, table = self.blocks()
        found = launch_bound.slower_in_fastest(launch_bound.Hosts(table, blocks), 2, np.ones(STEPS, bool))
        return found / MS if found is not None else None


def test_a_host_that_launches_as_the_others_can_is_not_slow() -> None:
    """It takes a sixth longer throughout, as hosts do; the others wait for it before they launch a step."""
    assert Case(USUAL * 1.17).slower() == 0.0


@pytest.mark.parametrize("waiting", [0, 3])
@pytest.mark.parametrize("place", [0, 3])
def test_a_host_is_slower_by_what_takes_it_longer_than_it_need(place: int, waiting: int) -> None:
    """Its input, or something between two of its launches, takes 5 ms more; so it does the others, who wait for it."""
    own = USUAL.copy()
    own[place] += 5
    assert Case(own, waiting).slower() == pytest.approx(5.0)


def test_launching_that_is_slower_throughout_names_no_rank() -> None:
    """Two thirds more at each operation, as hosts of one job differ by for tens of steps."""
    own = USUAL.copy()
    own[1:] *= 1.67
    assert Case(own).slower() == 0.0


def test_what_is_before_the_first_operation_is_one_launch_among_many_where_it_takes_little() -> None:
    """Gathered parameters: the way from one step to the next is a launch like others, and differs as these do."""
    usual = USUAL.copy()
    usual[0] = 1.0
    own = usual.copy()
    own[0] = 1.67
    assert Case(own, usual=usual).slower() == 0.0


def test_hosts_of_other_operations_are_no_measure() -> None:
    """A stage of a pipeline launches something else."""
    assert Case(USUAL * 1.17, operation="send").slower() is None


@pytest.mark.parametrize(("unsure", "reported"), [(0.0, False), (0.05, False), (9.0, True)])
def test_an_unexplained_lead_clears_no_rank(unsure: float, reported: bool) -> None:
    """9 ms of a step of 13 may be a slow host or the others' lead: the report says that this is unknown."""
    blocks = Case(USUAL).blocks()[0]
    blocks.unsure = np.array([0.0, 0.0, unsure * MS])
    verdict = hosts_unmarked(blocks, DEFAULT)
    assert (verdict is not None) == reported
    if verdict is not None:
        assert verdict.kind == "insufficient_data"
        assert verdict.evidence[0].startswith("rank 2 arrives 9.0 ms late per step; its GPU waits for its CPU")
