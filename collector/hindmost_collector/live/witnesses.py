"""Which ranks of a very large job keep their collectives in its window: of all ranks these would be of too few steps.

What is usual shows in a sample from all over the job. Whom the others wait for shows in how long each rank is inside
its collectives. This is summed of all ranks as rows arrive. A rank that is inside for less than ranks are by chance
becomes a witness too, and stays one. So a slow rank is judged with its own rows, wherever it is. All ranks of a
communicator have to be comparable for that: nothing is left out where communicators have parts of the job.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from hindmost_judge.encoding import chosen, factorize
from hindmost_judge.model import Table

Array = np.ndarray[Any, Any]

#: Jobs of no more ranks are judged by all of them, if the window has room for it; of larger ones so many are a sample.
ALL, SAMPLE = 1024, 512
#: Steps of the collectives of all witnesses that a window has room for, and the fewest witnesses.
_STEPS, _FEWEST = 32, 32
#: The part of them, one in so many, that there is room for besides the sample.
_LATE = 4
#: Steps after which witnesses are chosen again.
_AGAIN = 8
#: A rank is waited for that is inside its collectives for less than the median by so many standard deviations of ranks.
_APART = 5.0
#: The median deviation of a normal distribution, as a share of its standard deviation.
_MEDIAN = 0.6745
#: Communicators with at least this share of the ranks have all of them, but for those that end or join.
_NEARLY_ALL = 0.9
#: More communicators than a job has of all ranks.
_MANY = 64


class Witnesses:
    """``kept`` [R] says which ranks are witnesses, by number; None: all.

    Args:
        limit: rows of all witnesses that there is room for.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.sampled: Array | None = None
        self._inside, self._calls, self._steps = (np.zeros(0) for _ in range(3))
        self._next = 0.0  # steps of all ranks, with half of those before, after which is chosen
        self._most, self._sample = 0, np.zeros(0, np.int64)
        self._late: dict[int, None] = {}  # those that were waited for, the latest last

    def add(self, coded: Mapping[str, Table]) -> None:
        """Take a tick's rows in, and choose again after enough steps."""
        steps, collectives = coded.get("steps"), coded.get("collectives")
        if steps is not None:
            self._steps = _summed(self._steps, steps["rank"])
        if collectives is None:
            return
        self._inside = _summed(self._inside, collectives["rank"], np.maximum(collectives["duration_ns"], 0))
        self._calls = _summed(self._calls, collectives["rank"])
        ranks = np.count_nonzero(self._steps)
        if self._steps.sum() >= max(self._next, _AGAIN * ranks) and ranks:
            self._choose(collectives)
            self._inside, self._calls, self._steps = self._inside / 2, self._calls / 2, self._steps / 2
            self._next = float(self._steps.sum()) + _AGAIN * ranks

    def of(self, table: Table) -> Table:
        return table if self.sampled is None else chosen(table, self.has(table["rank"]))

    def has(self, ranks: Array) -> Array:
        """[N] which of these ranks are witnesses."""
        if self.sampled is None:
            return np.ones(len(ranks), bool)
        return np.asarray(np.append(self.sampled, False)[np.minimum(ranks, len(self.sampled))])

    def _choose(self, collectives: Table) -> None:
        ranks = np.flatnonzero(self._calls >= 1.0)  # those that ended are halved away
        most = max(int(self.limit * self._steps.sum() / (_STEPS * self._calls.sum())), _FEWEST)
        most = min(most, SAMPLE) if len(ranks) > ALL else most
        if most >= len(ranks) or not _all_meet(collectives):
            self.sampled = None
            return
        if self.sampled is None or len(self.sampled) <= ranks[-1] or not most / 2 < self._most < most * 2:
            self._most = most
            self._sample = ranks[np.linspace(0, len(ranks) - 1, most - most // _LATE).astype(np.int64)]
        inside = self._inside[ranks] / self._calls[ranks]
        typical = np.median(inside)
        least = typical - _APART * np.median(np.abs(inside - typical)) / _MEDIAN
        order = np.argsort(inside)[: self._most // _LATE]
        for rank in ranks[order[inside[order] < least][::-1]].tolist():
            self._late.pop(rank, None)
            self._late[rank] = None
        while len(self._late) > self._most // _LATE:
            del self._late[next(iter(self._late))]
        self.sampled = np.zeros(int(ranks[-1]) + 1, bool)
        self.sampled[[*self._sample.tolist(), *(rank for rank in self._late if rank < len(self.sampled))]] = True


def _summed(before: Array, rank: Array, values: Array | None = None) -> Array:
    """Sums by rank, with these rows in them."""
    found = np.bincount(rank, weights=values, minlength=len(before)).astype(np.float64)
    found[: len(before)] += before
    return found


def _all_meet(collectives: Table) -> bool:
    """Whether nearly all ranks are in each communicator, as far as these rows tell."""
    comm, comms = factorize(collectives["comm"])
    if len(comms) > _MANY:
        return False
    ranks = int(collectives["rank"].max()) + 1
    pairs = np.bincount(comm * ranks + collectives["rank"], minlength=len(comms) * ranks).reshape(len(comms), ranks)
    members = np.count_nonzero(pairs, axis=1)
    return bool((members >= _NEARLY_ALL * np.count_nonzero(pairs.any(axis=0))).all())
