"""Steps that a profiler disturbed, found among the steps that another source marked in the same run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.model import PROFILED

if TYPE_CHECKING:
    from hindmost_judge.model import Table

#: A profiler is switched on some steps before the first that it records, to warm up: torch's schedules do so 1 to 5
#: steps before. It writes when the last ends, and the next step's GPUs wait for that.
_BEFORE, _AFTER = 5, 1


def marked(steps: Table, recorded: Table) -> Table:
    """The steps, those called ``PROFILED`` in which each rank's profiler recorded (its own steps), began or wrote."""
    kind = steps["kind"].astype(object)
    for rank in np.unique(recorded["rank"]).tolist():
        theirs, mine = recorded["rank"] == rank, np.flatnonzero(steps["rank"] == rank)
        begin = recorded["start_ns"][theirs].min()
        end = (recorded["start_ns"] + recorded["duration_ns"])[theirs].max()
        mine = mine[np.argsort(steps["start_ns"][mine], kind="stable")]
        start = steps["start_ns"][mine]
        inside = np.flatnonzero((start < end) & (start + steps["duration_ns"][mine] > begin))
        if len(inside):
            held = mine[max(inside[0] - _BEFORE, 0) : inside[-1] + _AFTER + 1]
            kind[held[steps["kind"][held] == "train"]] = PROFILED
    return {**steps, "kind": kind.astype(np.str_)}
