"""Where hosts launch for all of each step the slowest is late by what it is slower by, not by the others' lead."""

from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.causes import launch_bound
from hindmost_judge.judge import judge

from tests.recordings import OURS

STEPS, OPERATIONS = 40, 6
MS = 1e6
#: A host's time from each mark of a step to the next: its input, seven intervals of launching, and what is between.
USUAL = np.array([1.0, 3, 3, 3, 3, 3, 3, 3, 0.1])


@dataclass
class Case:
    """The GPUs of ``slow`` ranks wait for their hosts, which take ``own`` ms; the others wait ``at`` a mark."""

    own: Any
    ranks: int = 3
    slow: tuple[int, ...] = (2,)
    at: int = 8
    delay: float = 17.0
    waited: float = 0.2
    operation: str = "all_reduce"

    def blocks(self) -> Any:
        """As much of blocks as is looked at, and the run."""
        step = float(np.sum(self.own))
        usual = USUAL.copy()
        usual[self.at] += step - usual.sum()
        gaps = np.array([self.own if rank in self.slow else usual for rank in range(self.ranks)])
        marks = np.concatenate([np.zeros((self.ranks, 1)), np.cumsum(gaps, axis=1)], axis=1)
        at = (marks[:, None] + np.arange(STEPS)[:, None] * step) * MS
        enqueue = at[:, :, 2:-2].reshape(self.ranks, -1)
        waited = np.full(enqueue.shape, 30.0)
        waited[list(self.slow)] = self.waited
        waited[:, 0] = 0.1
        start = enqueue + waited * MS
        joined = SimpleNamespace(gpu_time=True, enqueue=enqueue, start=start, columns=enqueue.shape[1])
        blocks = SimpleNamespace(
            ranks=np.arange(self.ranks),
            steps=np.arange(STEPS),
            starts=np.arange(STEPS) * OPERATIONS,
            cohort=np.zeros(self.ranks, np.int64),
            step_ns=step * MS,
            took=np.ascontiguousarray(at[:, :, -2] - at[:, :, 0]),
            ended=at[:, :, -2],
            parts={"input": at[:, :, 1] - at[:, :, 0]},
            joined=joined,
            overlapped=False,
            delay=np.repeat([[self.delay * MS * (rank in self.slow)] for rank in range(self.ranks)], STEPS, axis=1),
        )
        does = [self.operation if rank in self.slow else "all_reduce" for rank in range(self.ranks)]
        table = {
            "rank": np.repeat(np.arange(self.ranks), enqueue.shape[1]),
            "enqueue_ns": enqueue.ravel(),
            "op": np.repeat(does, enqueue.shape[1]),
        }
        return blocks, SimpleNamespace(collectives=table)

    def slower(self) -> float | None:
        """By how many ms the first slow rank's host is reported to be slower."""
        blocks, run = self.blocks()
        found = launch_bound.LaunchingHosts(run.collectives, blocks, launch_bound.waits_for_host(blocks)).slower(
            self.slow[0], np.arange(STEPS)
        )
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


@pytest.mark.parametrize("first", [0, 40])
def test_a_host_is_set_against_hosts_from_all_over_the_job(first: int) -> None:
    """Whatever ranks the slow ones of a node are: of 64, twelve."""
    own = USUAL.copy()
    own[0] += 4
    assert Case(own, 64, tuple(range(first, first + 12))).slower() == pytest.approx(4.0)


def test_ranks_of_which_nothing_else_is_known_are_no_others() -> None:
    """Collectives of a rank that is in no block are not taken for another's."""
    blocks, run = Case(USUAL * 1.17).blocks()
    table = {name: np.concatenate([column, column[-40:]]) for name, column in run.collectives.items()}
    table["rank"][-40:] = 7
    assert (
        launch_bound.LaunchingHosts(table, blocks, launch_bound.waits_for_host(blocks)).slower(2, np.arange(STEPS))
        == 0.0
    )


@pytest.mark.parametrize(("steps", "sure"), [(6, False), (STEPS, True)])
def test_some_steps_that_take_a_host_longer_are_not_enough(steps: int, sure: bool) -> None:
    """Its input takes twice the others', or anything: six such steps may be chance, forty are none."""
    blocks, run = Case(USUAL).blocks()
    blocks.parts["input"][2] = np.tile([0.4, 1.4, 2.2, 2.4, 3.2, 3.8], 7)[:STEPS] * MS
    found = launch_bound.LaunchingHosts(run.collectives, blocks, launch_bound.waits_for_host(blocks)).slower(
        2, np.arange(steps)
    )
    assert found is not None
    assert (found > 0) == sure


@pytest.mark.parametrize("torn", ["every second", "backwards"])
def test_marks_that_make_no_sense_cost_no_report(torn: str) -> None:
    """Half of a rank's steps are marked, or its clock runs backwards."""
    run = load(OURS / "fsdp-host-bound.tar.xz")
    steps = {name: column.copy() for name, column in run.steps.items()}
    first = steps["rank"] == 0
    if torn == "backwards":
        steps["start_ns"][first] = steps["start_ns"][first][::-1]
    else:
        kept = ~first | (steps["step"] % 2 == 0)
        steps = {name: column[kept] for name, column in steps.items()}
    assert judge(replace(run, steps=steps)).verdicts


@pytest.mark.parametrize("held", [True, False])
def test_what_a_host_needs_that_is_held_up_shows_where_it_is_not(held: bool) -> None:
    """The others, ahead, take as long between the same marks: from the start, or since their GPUs' queues are full."""
    own = USUAL.copy()
    own[1] += 20
    blocks, run = Case(own, at=1).blocks()
    hosts = launch_bound.LaunchingHosts(run.collectives, blocks, launch_bound.waits_for_host(blocks))
    for peer in (0, 1) if held else ():
        hosts.gaps(peer)[0][1, 1] = USUAL[1] * MS
    assert hosts.slower(2, np.arange(STEPS)) == pytest.approx(20 * MS if held else 0.0)


@pytest.mark.parametrize(("usual", "least", "own"), [(30.0, 20.0, 50.0), (3.0, 1.0, 5.0)])
def test_what_hosts_once_took_less_for_is_no_measure(usual: float, least: float, own: float) -> None:
    """By half as long again, or a twelfth of a step, launching may have become slower: for the slow one as well."""
    gaps = USUAL.copy()
    gaps[1] = own
    blocks, run = Case(gaps).blocks()
    hosts = launch_bound.LaunchingHosts(run.collectives, blocks, launch_bound.waits_for_host(blocks))
    for peer in (0, 1):
        hosts.gaps(peer)[0][:, 1] = usual * MS
        hosts.gaps(peer)[0][1, 1] = least * MS
    assert hosts.slower(2, np.arange(STEPS)) == 0.0


def test_stalls_are_judged_by_themselves() -> None:
    """A host that keeps a step waiting every now and then is slow in these steps, however it does in all others."""
    steps, late = np.arange(STEPS), np.full(STEPS, 0.5 * MS)
    late[3::7] = 90.0 * MS
    blocks, run = Case(USUAL).blocks()
    blocks.parts["input"][2, 3::7] += 90.0 * MS
    hosts = launch_bound.LaunchingHosts(run.collectives, blocks, launch_bound.waits_for_host(blocks))
    slower = [(part.tolist(), hosts.slower(2, part)) for part in launch_bound.alike_steps(steps, late)]
    stalls = [(part, found) for part, found in slower if 3 in part]
    assert stalls == [(list(range(3, STEPS, 7)), pytest.approx(90.0 * MS))]
    assert [found for part, found in slower if 3 not in part] == [0.0]


@pytest.mark.parametrize("often", [0, 4])
def test_steps_in_a_row_are_judged_together(often: int) -> None:
    """No stalls, or so few that they tell nothing of a host, are no steps by themselves."""
    late = np.full(STEPS, 5.0 * MS)
    late[: 9 * often : 9] = 90.0 * MS
    assert [part.tolist() for part in launch_bound.alike_steps(np.arange(STEPS), late)] == [
        [*range(20)],
        [*range(20, STEPS)],
    ]


def test_hosts_of_other_operations_are_no_measure() -> None:
    """A stage of a pipeline launches something else."""
    assert Case(USUAL * 1.17, operation="send").slower() is None


def test_a_gpu_waits_for_its_host_where_nothing_waits_for_the_gpu() -> None:
    """Rank 2's operations run as they are enqueued; the others' a step later."""
    waits = launch_bound.waits_for_host(Case(USUAL).blocks()[0])
    assert waits is not None
    assert waits.mean(axis=1).tolist() == [0.0, 0.0, 1.0]


def test_a_gpu_waits_for_its_host_where_it_is_late_though_it_queues_in_most_of_the_step() -> None:
    """Two gathers of rank 2 run as they are enqueued, and the others wait in these; backward follows in a queue."""
    blocks, _ = Case(USUAL).blocks()
    place = np.arange(blocks.joined.columns) % OPERATIONS
    blocks.joined.start[2, place >= 2] += 30.0 * MS
    blocks.joined.duration = np.full(blocks.joined.start.shape, MS)
    blocks.joined.duration[:2, place < 2] += 5.0 * MS
    late_once = launch_bound.waits_for_host(blocks)
    blocks.overlapped, blocks.joined.gathers = True, place < 2
    late_where = launch_bound.waits_for_host(blocks)
    assert late_once is not None
    assert late_where is not None
    assert not late_once.any()
    assert late_where.mean(axis=1).tolist() == [0.0, 0.0, 1.0]


def test_a_clock_that_is_far_off_hides_no_wait() -> None:
    """Operations that wait for 20 ms, the shortest of them too, do wait."""
    waits = launch_bound.waits_for_host(Case(USUAL, waited=20.0).blocks()[0])
    assert waits is not None
    assert not waits.any()
