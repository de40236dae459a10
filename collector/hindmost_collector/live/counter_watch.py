"""Whether the counters kept of each rank contradict the verdicts: a rank seems well again, or has become slow.

This triggers a full evaluation, which alone opens and closes verdicts. On full cores the next one may be minutes away.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from hindmost_judge.verdict.schema import QUIET

Array = np.ndarray[Any, Any]

#: A delay is measured over so many seconds of steps, and so many collective calls, of the named ranks.
LEAST_S, LEAST_CALLS = 5.0, 20
#: It is seen while it takes this share of what the verdict says, and seems over below that.
SEEN = 0.5
#: A rank that no verdict names seems slow from this share of the time on; after a report, from twice what it was then.
BEGINS = 0.1
#: States of the counters that are remembered: one a batch of the agents.
_STATES = 32


class _Counters(NamedTuple):
    """Sums by rank [R] since the job began: seconds of steps, collective calls, seconds that others waited for it."""

    seconds: Array
    calls: Array
    caused: Array


class CounterWatch:
    """The watch over the ranks of one job."""

    def __init__(self) -> None:
        self.change = False  # as last asked
        self._answered: dict[int, float] = {}  # ranks that the newest report does not name, and how slow they seemed
        self._reports = 0
        self._states: deque[_Counters] = deque(maxlen=_STATES)
        self._seen: set[tuple[str, tuple[int, ...]]] = set()  # verdicts of which the counters showed the delay

    def sees_a_change(
        self, counters: Mapping[str, Array], verdicts: Collection[Mapping[str, Any]], reports: int = 0
    ) -> bool:
        """Whether the delay of a verdict that holds was seen in the job's counters and is not any more, or that of
        another rank is, since there were so many ``reports``; to be asked often."""
        names = ("step_seconds_total", "collectives_total", "caused_wait_seconds_total")
        if counters.keys() >= set(names):
            now = _Counters(*(counters[name].copy() for name in names))
            begins = self._begins(now, {rank for one in verdicts for rank in one.get("ranks") or ()}, reports)
            self.change = self._seems_over(now, verdicts) or begins
        return self.change

    def _begins(self, now: _Counters, named: Collection[int], reports: int) -> bool:
        every = [*range(len(now.calls))]
        spent = self._spent(now, every)
        if spent is None:
            return False
        delays = (spent.caused - np.nanmedian(spent.caused)) / spent.seconds
        slow = {rank: delays[rank] for rank in np.flatnonzero(delays >= BEGINS).tolist() if rank not in named}
        if reports != self._reports:
            self._answered, self._reports = slow, reports
        return any(delay >= 2 * self._answered.get(rank, 0.0) for rank, delay in slow.items())

    def _seems_over(self, now: _Counters, verdicts: Iterable[Mapping[str, Any]]) -> bool:
        found = {(one["kind"], tuple(one["ranks"])): self._share(now, one) for one in verdicts if _holds(one)}
        shares = {key: share for key, share in found.items() if share is not None}
        self._seen = (self._seen & found.keys()) | {key for key, share in shares.items() if share >= SEEN}
        if not self._states or not np.array_equal(self._states[-1].calls, now.calls, equal_nan=True):
            self._states.append(now)
        return any(share < SEEN and key in self._seen for key, share in shares.items())

    def _share(self, now: _Counters, verdict: Mapping[str, Any]) -> float | None:
        """How much of the verdict's cost its ranks take in the newest steps; None where these are too few."""
        ranks = [rank for rank in verdict["ranks"] if rank < len(now.calls)]
        spent = self._spent(now, ranks) if ranks else None
        return None if spent is None else _delay(spent, ranks) / float(verdict["cost_ratio"])

    def _spent(self, now: _Counters, ranks: Sequence[int]) -> _Counters | None:
        """What the counters grew by in the newest steps; None where these are too few of these ranks."""
        for state in reversed(self._states):
            grown = zip(state, now, strict=True)
            spent = _Counters(*(new - np.append(old, np.full(len(new) - len(old), np.nan)) for old, new in grown))
            if np.all((spent.seconds[ranks] >= LEAST_S) & (spent.calls[ranks] >= LEAST_CALLS)):
                return spent
        return None


def _holds(verdict: Mapping[str, Any]) -> bool:
    """A rank that stalls now and then is well in between."""
    return bool(verdict["ranks"] and verdict.get("cost_ratio")) and verdict["kind"] not in {*QUIET, "intermittent"}


def _delay(spent: _Counters, ranks: Collection[int]) -> float:
    """The share of the time that others waited for these ranks, beyond what they wait for a typical rank."""
    others = np.delete(spent.caused, [*ranks])
    usual = float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0
    return float(np.sum(spent.caused[[*ranks]] - usual) / np.mean(spent.seconds[[*ranks]]))
