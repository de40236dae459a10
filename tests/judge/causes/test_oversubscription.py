"""Which ranks lack a CPU of their own follows from where each may run, and from nothing else."""

import numpy as np
import pytest
from hindmost_judge.causes.cpu_wait import (
    Oversubscription,
    cpus,
    delay_in_collectives,
    oversubscriptions,
    share_by_peers,
)
from hindmost_judge.causes.loading import shares


def on(*allowed: str) -> dict[int, frozenset[int]]:
    """Ranks 0, 1, …, each bound to the CPUs of a list."""
    return {rank: cpus(listed) for rank, listed in enumerate(allowed)}


@pytest.mark.parametrize(
    ("allowed", "found"),
    [
        (("0", "0"), [Oversubscription((0, 1), cpus("0"))]),
        (("0-7", "0-7"), []),
        (("0", "1", "2-3", "2-3"), []),
        (("0", "0", "1", "1"), [Oversubscription((0, 1), cpus("0")), Oversubscription((2, 3), cpus("1"))]),
        (("0-1", "0-1", "0", "4-7"), [Oversubscription((0, 1, 2), cpus("0-1"))]),
        (("0", "0-1", "0-1", "0"), [Oversubscription((0, 1, 2, 3), cpus("0-1"))]),
        (("", "0", "0"), [Oversubscription((1, 2), cpus("0"))]),
    ],
)
def test_ranks_with_fewer_cpus_are_oversubscribed(allowed: tuple[str, ...], found: list[Oversubscription]) -> None:
    """Hall's condition; the largest set holds the smaller ones, and a rank of unknown CPUs is in none."""
    assert oversubscriptions(on(*allowed)) == found


def test_a_kernel_s_list_of_cpus_is_read_as_it_is_written() -> None:
    """Ranges and single CPUs; what is no list names none."""
    assert cpus("0-2,8,10-11") == {0, 1, 2, 8, 10, 11}
    assert cpus("") == cpus("all") == frozenset()


def test_ranks_queue_behind_each_other_for_no_longer_than_the_others_ran() -> None:
    """Of 0.7 s a second in the queue, a peer that ran for 0.3 s made no more than that."""
    queued, used = np.array([0.7, 0.2]), np.array([0.3, 0.3])
    assert share_by_peers(queued, used, 1) == pytest.approx([0.3 / 0.7, 1.0])
    assert share_by_peers(queued, np.full(2, np.nan), 1).tolist() == [1.0, 1.0]


def test_a_collective_is_held_up_by_the_rank_that_queues_least_in_it() -> None:
    """Queueing while later ranks are waited for costs nothing, and nothing costs more than the collective took."""
    queued, between, waited, transfer = (np.array(ns, float) for ns in ([20, 30], [5, 5], [0, 18], [12, 12]))
    assert delay_in_collectives(queued, between, waited, transfer) == 7
    assert delay_in_collectives(queued, between, np.zeros(2), transfer) == 12


def test_a_wait_is_made_of_what_those_waited_for_do() -> None:
    """Workers that are blocked for most of it; those that sleep for most of it leave most of it unexplained."""
    waited, storage, cpu = np.array([0.8, 0.8, 0.0]), np.array([1.6, 0.2, 0.0]), np.array([0.4, np.nan, 0.0])
    found = shares(waited, {"io": storage, "cpu": cpu})
    assert found["io"].tolist() == [0.8, 0.25, 0.0]
    assert found["cpu"].tolist() == [0.2, 0.0, 0.0]
