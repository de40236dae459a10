"""Whether ranks that a verdict names seem to delay the others no more, by the counters kept of each rank.

This triggers a full evaluation, which alone closes a verdict. On full cores the next one may be minutes away.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from hindmost_judge.verdict.schema import QUIET

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    Array = np.ndarray[Any, Any]

#: A delay is measured over so many seconds of steps, and so many collective calls, of the named ranks.
LEAST_S, LEAST_CALLS = 5.0, 20
#: It is seen while it takes this share of what the verdict says, and seems over below that.
SEEN = 0.5
#: States of the counters that are remembered: one a batch of the agents.
_STATES = 32


class _Counters(NamedTuple):
    """Sums by rank [R] since the job began: seconds of steps, collective calls, seconds that others waited for it."""

    seconds: Array
    calls: Array
    caused: Array


class Recovery:
    """Whether ranks that a job's verdicts name seem to delay the others no more, by the counters kept of each rank.

    This triggers a full evaluation, which alone closes a verdict. On full cores the next one may be minutes away.
    """

    def __init__(self) -> None:
        self.over = False  # as last asked
        self._states: deque[_Counters] = deque(maxlen=_STATES)
        self._seen: set[tuple[str, tuple[int, ...]]] = set()  # verdicts of which the counters showed the delay

    def seems_over(self, counters: Mapping[str, Array], verdicts: Iterable[Mapping[str, Any]]) -> bool:
        """Whether the delay of a verdict that holds was seen in the job's counters and is not any more; to be asked
        often."""
        names = ("step_seconds_total", "collectives_total", "caused_wait_seconds_total")
        if counters.keys() >= set(names):
            self.over = self._seems_over(_Counters(*(counters[name].copy() for name in names)), verdicts)
        return self.over

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
        for state in reversed(self._states):
            grown = zip(state, now, strict=True)
            spent = _Counters(*(new - np.append(old, np.full(len(new) - len(old), np.nan)) for old, new in grown))
            if ranks and np.all((spent.seconds[ranks] >= LEAST_S) & (spent.calls[ranks] >= LEAST_CALLS)):
                return _delay(spent, ranks) / float(verdict["cost_ratio"])
        return None


def _holds(verdict: Mapping[str, Any]) -> bool:
    """A rank that stalls now and then is well in between."""
    return bool(verdict["ranks"] and verdict.get("cost_ratio")) and verdict["kind"] not in {*QUIET, "intermittent"}


def _delay(spent: _Counters, ranks: Collection[int]) -> float:
    """The share of the time that others waited for these ranks, beyond what they wait for a typical rank."""
    others = np.delete(spent.caused, [*ranks])
    usual = float(np.nanmedian(others)) if np.isfinite(others).any() else 0.0
    return float(np.sum(spent.caused[[*ranks]] - usual) / np.mean(spent.seconds[[*ranks]]))
