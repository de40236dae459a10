"""The steps of a job replayed: how long they take with given work in the lanes of its hosts and GPUs.

Max-plus recurrence over steps (Baccelli et al., Synchronization and Linearity, 1992): a lane goes on as soon as what it
needs is there, a collective ends for all when the last rank has come.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Lanes


def ends(lanes: Lanes, host: Floats | None = None) -> Floats:
    """[S] ns after the start at which each step's last collective ends.

    ``host`` [P, R, S] is the hosts' work in place of that in the lanes. All lanes start at 0 ns.
    """
    host = lanes.host if host is None else host
    phases, ranks, steps = host.shape
    cut = lanes.wait.phase + 1 if lanes.wait is not None else phases
    lag, after = (lanes.wait.lag, lanes.wait.after) if lanes.wait is not None else (steps, np.zeros(ranks))
    launched = lanes.launched + 1
    # What lies between two points at which a lane may wait is one sum: to the wait, or to the launch.
    first, second = min(cut, launched), max(cut, launched)
    sums = [part.sum(axis=0).T.copy() for part in (host[:first], host[first:second], host[second:])]  # each [S, R]
    gate = np.full((steps + lag + 1, ranks), -np.inf)  # when the wait of a step is over
    ended, now, end = np.empty(steps), np.zeros(ranks), 0.0
    waits_first = lag > 0 and cut <= launched
    for step in range(steps):
        now = now + sums[0][step]
        if waits_first:
            now = np.maximum(now, gate[step])
            now = now + sums[1][step]
        arrived = np.maximum(now + lanes.tail, end + lanes.gpu)
        end = float(arrived.max()) + lanes.transfer[step]
        ended[step] = end
        gate[step + lag] = end + after
        if not waits_first:
            now = now + sums[1][step]
            now = np.maximum(now, gate[step])
        now = now + sums[2][step]
    return ended


def stretched(lanes: Lanes, delays: Floats) -> Floats:
    """[S] ns by which ``delays`` of hosts [R, S], each against its peers, make each step longer.

    Compared with all hosts at their cohort's pace.
    """
    return np.diff(
        ends(lanes, _work(lanes, lanes.peer_pace + delays)) - ends(lanes, _work(lanes, lanes.cohort_pace)), prepend=0.0
    )


def _work(lanes: Lanes, total: Floats) -> Floats:
    """[P, R, S] work of hosts in each phase if it is ``total`` [R, S] in the step, parted as their own is."""
    return np.asarray(lanes.host * np.maximum(total / np.maximum(lanes.host.sum(axis=0), 1.0), 0.0))
