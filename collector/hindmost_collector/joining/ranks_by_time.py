"""Which rank each process was, where its communicators do not tell: by when another source saw it enqueue.

In a job of several groups no communicator may have all processes, and process ids need not ascend with ranks: they
begin anew at their maximum, and every node counts its own. A Flight Recorder dump knows its rank, and notes each
operation microseconds before the profiler does; another rank's came at another time.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import has_launches, rows

from hindmost_collector.formats import processes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.model import Run, Table

#: A process is the rank whose operations it enqueued this many times sooner than any other's. In recorded jobs of 4
#: ranks the right one's median is 9 to 15 times below the next; where two ranks run in step to the microsecond, 1.
_CLEARER = 3.0
#: Operations that must be compared of each process, so that one coincidence is nothing.
_LEAST = 16
#: Operations used of a longer recording, evenly spread: enough for a median.
_MOST = 4096


def told(runs: Sequence[Run]) -> list[Run]:
    """The runs, those whose ranks were guessed from process ids with the ranks that another one's times tell."""
    known = [run for run in runs if _enqueued(run) and processes.GUESSED not in run.notes]
    return [_told(run, known) if processes.GUESSED in run.notes and _enqueued(run) else run for run in runs]


def _enqueued(run: Run) -> bool:
    return has_launches(run.collectives)


def _told(run: Run, known: Sequence[Run]) -> Run:
    for other in known:
        ranks = _matched(_times(run.collectives), _times(other.collectives))
        if ranks is not None:
            return _renumbered(run, ranks)
    return run


def _times(operations: Table) -> dict[int, np.ndarray[Any, Any]]:
    """When each rank enqueued, in order."""
    seen = operations["enqueue_ns"] >= 0
    rank, time = operations["rank"][seen], operations["enqueue_ns"][seen]
    return {int(one): np.sort(time[rank == one]) for one in np.unique(rank)}


def _matched(guessed: dict[int, np.ndarray[Any, Any]], known: dict[int, np.ndarray[Any, Any]]) -> dict[int, int] | None:
    """The rank of each process; nothing unless each has one of its own, clearly."""
    names = sorted(known)
    found: dict[int, int] = {}
    for process, times in guessed.items():
        delays = np.array([_delay(times[:: 1 + len(times) // _MOST], known[rank]) for rank in names])
        order = np.argsort(delays)
        if not np.isfinite(delays[order[0]]):
            return None
        if len(order) > 1 and delays[order[1]] < _CLEARER * delays[order[0]]:
            return None
        found[process] = names[order[0]]
    return found if len(set(found.values())) == len(found) else None


def _delay(times: np.ndarray[Any, Any], seen: np.ndarray[Any, Any]) -> float:
    """How long after what the other source saw last, typically: of the time that it tells of."""
    inside = times[(times >= seen[0]) & (times <= seen[-1] + 1_000_000)]
    if len(inside) < _LEAST:
        return float("inf")
    return float(np.median(inside - seen[np.searchsorted(seen, inside, side="right") - 1]))


def _renumbered(run: Run, ranks: dict[int, int]) -> Run:
    """The same with every process under its own rank, and without the note that it was guessed."""
    high = max(ranks) + 1
    new = np.array([ranks.get(one, one) for one in range(high)], dtype=np.int32)

    def mapped(part: Table) -> Table:
        return {**part, "rank": new[part["rank"]]} if rows(part) else part

    return replace(
        run,
        ranks=mapped(run.ranks),
        collectives=mapped(run.collectives),
        communicators=mapped(run.communicators),
        notes=tuple(note for note in run.notes if note != processes.GUESSED),
    )
