"""Intervals that are no phases of a step (file reads, checkpoints, pauses) put into the steps they fell in."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.dictionary_encoding import codes
from hindmost_judge.model import Table, rows

if TYPE_CHECKING:
    from hindmost_judge.types import Floats, Ints

#: Names that causes ask for; what else there is stays out.
WANTED = ("issue", "file_read", "file_write", "file_sync", "checkpoint", "gc", "h2d", "input")


def by_step(table: Table, ranks: Ints, ends: Floats) -> dict[str, Floats]:
    """Name to [R, S] ns; ``ends`` [R, S] is when each rank's steps ended on the clock of the intervals.

    An interval belongs to the step in which it began; what began after the last step is left out.
    """
    if rows(table) == 0 or ends.shape[1] < 2:
        return {}
    name, names = codes(table["name"])
    found: dict[str, Floats] = {}
    for one, text in enumerate(names):
        if text not in WANTED:
            continue
        block = np.zeros(ends.shape)
        held = np.flatnonzero((name == one) & (table["duration_ns"] >= 0))
        for row, rank in enumerate(ranks.tolist()):
            mine = held[table["rank"][held] == rank]
            if len(mine) == 0:
                continue
            step = np.searchsorted(ends[row], table["start_ns"][mine])
            begin = ends[row, 0] - np.median(np.diff(ends[row]))
            inside = (step < ends.shape[1]) & (table["start_ns"][mine] >= begin)
            np.add.at(block[row], step[inside], table["duration_ns"][mine[inside]].astype(np.float64))
        found[text] = block
    return found
