"""Whether the counters kept of each rank contradict the verdicts: a rank seems well again, or has become slow.

This triggers a full evaluation, which alone opens and closes verdicts. On full cores the next one may be minutes away.
"""

from bisect import bisect
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from hindmost_judge.verdict.schema import QUIET

Array = np.ndarray[Any, Any]

#: A delay is measured in a window of so many seconds of steps, and so many collective calls, of the typical rank.
LEAST_S, LEAST_CALLS = 5.0, 20
#: It is seen while it takes this share of what the verdict says, and seems over below that.
SEEN = 0.5
#: A rank that no verdict names seems slow if others wait for it this share of the time in two windows, one after the
#: other: noise makes another rank the last one. After a report, once they have lost twice what they had then.
BEGINS = 0.1
#: What is watched, sums by rank since the job began: the rows of a state [3, R].
_NAMES = ("step_seconds_total", "collectives_total", "caused_wait_seconds_total")
#: States of the counters that are remembered: one a batch of the agents.
_STATES = 32


class CounterWatch:
    """The watch over the ranks of one job."""

    def __init__(self) -> None:
        self.change = False  # as last asked
        self._slow: dict[int, float] = {}  # ranks that seem slow, and what others had waited for each before
        self._answered: dict[int, float] = {}  # what others had waited since, at the newest report
        self._reports = 0
        self._states: deque[Array] = deque(maxlen=_STATES)
        self._seen: set[tuple[str, tuple[int, ...]]] = set()  # verdicts of which the counters showed the delay

    def sees_a_change(
        self, counters: Mapping[str, Array], verdicts: Collection[Mapping[str, Any]], reports: int = 0
    ) -> bool:
        """Whether the delay of a verdict that holds was seen in the job's counters and is not any more, or that of
        another rank is, since there were so many ``reports``; to be asked often."""
        if not counters.keys() >= set(_NAMES):
            return self.change
        rows = [counters[name] for name in _NAMES]
        size = max(map(len, rows))  # a rank may have calls, and no step yet
        now = np.array([np.append(row, np.full(size - len(row), np.nan)) for row in rows])
        new = not self._states or not np.array_equal(self._states[-1][1], now[1], equal_nan=True)
        if new:
            if self._states and self._states[-1].shape != now.shape:
                self._states.clear()  # ranks still join
            self._states.append(now)
        if new or reports != self._reports:
            begins = self._begins({rank for one in verdicts for rank in one.get("ranks") or ()}, reports)
            self.change = self._seems_over(verdicts) or begins
        return self.change

    def _begins(self, named: Collection[int], reports: int) -> bool:
        last, every = len(self._states) - 1, slice(None)
        middle = self._begin(last, every)
        first = self._begin(middle, every)
        slow: Sequence[int] = []
        if first >= 0:
            both = np.minimum(_delays(self._grown(first, middle)), _delays(self._grown(middle, last)))
            slow = [rank for rank in np.flatnonzero(both >= BEGINS).tolist() if rank not in named]
        caused = self._states[last][2]
        self._slow = {rank: self._slow.get(rank, self._states[first][2, rank]) for rank in slow}
        lost = {rank: caused[rank] - before for rank, before in self._slow.items()}
        answered = lost if reports != self._reports else self._answered
        self._answered = {rank: wait for rank, wait in answered.items() if rank in lost}
        self._reports = reports
        return any(wait >= 2 * self._answered.get(rank, 0.0) for rank, wait in lost.items())

    def _seems_over(self, verdicts: Iterable[Mapping[str, Any]]) -> bool:
        shares = {(one["kind"], tuple(one["ranks"])): self._share(one) for one in verdicts if _holds(one)}
        self._seen = (self._seen & shares.keys()) | {key for key, share in shares.items() if share >= SEEN}
        return any(share < SEEN and key in self._seen for key, share in shares.items())

    def _share(self, verdict: Mapping[str, Any]) -> float:
        """How much of the verdict's cost its ranks take in the newest steps; NaN where these are too few."""
        last = len(self._states) - 1
        ranks = [rank for rank in verdict["ranks"] if rank < self._states[last].shape[1]]
        begin = self._begin(last, ranks)
        return _delay(self._grown(begin, last), ranks) / float(verdict["cost_ratio"]) if begin >= 0 else np.nan

    def _begin(self, end: int, ranks: Sequence[int] | slice) -> int:
        """The newest state since which these ranks took enough steps until the state ``end``; -1 for none."""

        def short(begin: int) -> bool:
            seconds, calls, _ = self._grown(begin, end)[:, ranks]
            return _typical(seconds) < LEAST_S or _typical(calls) < LEAST_CALLS

        return bisect(range(end), False, key=short) - 1

    def _grown(self, begin: int, end: int) -> Array:
        return np.asarray(self._states[end] - self._states[begin])


def _holds(verdict: Mapping[str, Any]) -> bool:
    """A rank that stalls now and then is well in between."""
    return bool(verdict["ranks"] and verdict.get("cost_ratio")) and verdict["kind"] not in {*QUIET, "intermittent"}


def _typical(values: Array) -> float:
    """The median of the ranks that have reported; NaN for none."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else np.nan


def _waiters(spent: Array) -> int:
    """How many ranks wait for a slow one: what it causes is the sum of their waits."""
    return max(int(np.isfinite(spent[1]).sum()) - 1, 1)


def _delays(spent: Array) -> Array:
    """[R] the share of the time that each other rank waited for a rank, beyond what it waits for a typical one."""
    seconds, _, caused = spent
    return np.asarray((caused - _typical(caused)) / (_typical(seconds) * _waiters(spent)))


def _delay(spent: Array, ranks: Sequence[int]) -> float:
    """The same for these ranks together, where the typical one is none of them."""
    seconds, _, caused = spent
    usual = np.nan_to_num(_typical(np.delete(caused, ranks)))
    return float(np.nansum(caused[ranks] - usual) / (_typical(seconds[ranks]) * _waiters(spent)))
