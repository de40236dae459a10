"""One order of all collectives that keeps the order of every rank, even if ranks are at different places at one time.

Ranks of two stages of a pipeline begin a step apart. So the time at which a communicator with ranks of both is
called says little about what each of them ran before.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints


def merged(start: Floats, about: Floats) -> Ints:
    """[K] the columns of ``start`` [R, K] (NaN: the rank did not run it) so that each rank's own come in its order.

    Where that leaves a choice the one comes first that is ``about`` [K] the earliest; so it does where ranks contradict
    each other.
    """
    after, waiting = _followers(start)
    order: list[int] = []
    done = np.zeros(len(about), bool)
    free = [(about[column], column) for column in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(free)
    by_time = iter(np.argsort(about, kind="stable").tolist())
    while len(order) < len(about):
        column = heapq.heappop(free)[1] if free else next(by_time)
        if done[column]:
            continue
        done[column] = True
        order.append(column)
        for follower in after[column]:
            waiting[follower] -= 1
            if waiting[follower] == 0:
                heapq.heappush(free, (about[follower], follower))
    return np.array(order, np.int64)


def _followers(start: Floats) -> tuple[list[list[int]], Ints]:
    """For each column those that some rank ran next, and [K] how many columns come right before each."""
    count = start.shape[1]
    order = np.argsort(start, axis=1, kind="stable")  # NaN goes last
    ran = np.sum(~np.isnan(start), axis=1)
    inside = np.arange(1, count) < ran[:, None]
    edges = np.unique((order[:, :-1] * count + order[:, 1:])[inside])
    after: list[list[int]] = [[] for _ in range(count)]
    for edge in edges.tolist():
        after[edge // count].append(edge % count)
    return after, np.bincount(edges % count, minlength=count)
