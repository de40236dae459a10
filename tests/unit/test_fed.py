"""Where hosts launch for all of each step the slowest is late by what it is slower by, not by the others' lead."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.explain import fed

RANKS, STEPS, OPERATIONS = 3, 40, 6
MS = 1e6
#: What a host takes from each mark of a step to the next: its input, seven stretches of launching, and what is between.
USUAL = np.array([1.0, 3, 3, 3, 3, 3, 3, 3, 0.1])


@dataclass
class Case:
    """Rank 2's GPU waits for its host, which takes ``own`` ms; the others' do not, and wait ``at`` one of the marks."""

    own: Any
    at: int = 8
    excess: float = 17.0
    waited: float = 0.2
    operation: str = "all_reduce"

    def blocks(self) -> Any:
        """As much of blocks as is looked at, and the run."""
        step = float(np.sum(self.own))
        usual = USUAL.copy()
        usual[self.at] += step - usual.sum()
        gaps = np.array([usual, usual, self.own])
        marks = np.concatenate([np.zeros((RANKS, 1)), np.cumsum(gaps, axis=1)], axis=1)
        at = (marks[:, None] + np.arange(STEPS)[:, None] * step) * MS
        enqueue = at[:, :, 2:-2].reshape(RANKS, -1)
        waited = np.full(enqueue.shape, 30.0)
        waited[2] = self.waited
        waited[:, 0] = 0.1
        start = enqueue + waited * MS
        joined = SimpleNamespace(gpu_time=True, enqueue=enqueue, start=start, columns=enqueue.shape[1])
        blocks = SimpleNamespace(
            ranks=np.arange(RANKS),
            steps=np.arange(STEPS),
            starts=np.arange(STEPS) * OPERATIONS,
            role=np.zeros(RANKS, np.int64),
            step_ns=step * MS,
            took=np.ascontiguousarray(at[:, :, -2] - at[:, :, 0]),
            ended=at[:, :, -2],
            parts={"input": at[:, :, 1] - at[:, :, 0]},
            joined=joined,
            excess=np.repeat([[0.0], [0.0], [self.excess * MS]], STEPS, axis=1),
        )
        operations = np.repeat(["all_reduce", "all_reduce", self.operation], enqueue.shape[1])
        table = {
            "rank": np.repeat(np.arange(RANKS), enqueue.shape[1]),
            "enqueue_ns": enqueue.ravel(),
            "op": operations,
        }
        return blocks, SimpleNamespace(collectives=table)

    def slower(self) -> float | None:
        """By how many ms rank 2's host is told to be slower."""
        blocks, run = self.blocks()
        found = fed._Hosts(run.collectives, blocks).slower(2, np.arange(STEPS))
        return found / MS if found is not None else None


def test_a_host_that_launches_as_the_others_do_is_not_slow() -> None:
    """It takes a sixth longer throughout, as hosts do; the others wait for it between steps."""
    assert Case(USUAL * 1.17).slower() == 0.0


@pytest.mark.parametrize("place", [0, 3])
def test_a_host_is_slower_by_what_takes_it_longer(place: int) -> None:
    """Its input, or something between two of its launches, takes 4 ms more."""
    own = USUAL.copy()
    own[place] += 4
    assert Case(own).slower() == pytest.approx(4.0)


def test_hosts_of_other_operations_are_no_measure() -> None:
    """A stage of a pipeline launches something else."""
    assert Case(USUAL * 1.17, operation="send").slower() is None


def test_a_gpu_waits_for_its_host_where_nothing_waits_for_the_gpu() -> None:
    """Rank 2's operations run as they are enqueued; the others' a step later."""
    waits = fed.waits_for_host(Case(USUAL).blocks()[0])
    assert waits is not None
    assert waits.mean(axis=1).tolist() == [0.0, 0.0, 1.0]


def test_a_clock_that_is_far_off_hides_no_wait() -> None:
    """Operations that wait for 20 ms, the shortest of them too, do wait."""
    waits = fed.waits_for_host(Case(USUAL, waited=20.0).blocks()[0])
    assert waits is not None
    assert not waits.any()
