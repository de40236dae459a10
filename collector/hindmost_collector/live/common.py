"""The time that all ranks of a window have reported.

Each agent sends what its ranks did every few seconds, at its own moments. A window therefore lacks the newest seconds
of some ranks, and the oldest of those whose oldest rows were dropped first. A rank with missing rows does not seem
late, and the ranks that wait for it seem to wait for a slow network. Such steps are not judged.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.model import rows

from hindmost_collector.ingest.pace import MOST_S, NS

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from hindmost_judge.model import Run, Table

#: Ranks that tell so much later than others, or earlier, are not waited for: they have joined, ended or are cut off.
HELD_NS = 2 * MOST_S * NS
#: At least this many steps are left: a slowdown needs ten, and the first ones may be left out as warm-up. Windows of
#: very many ranks are short.
_STEPS = 16


def told_by_all(run: Run, step_ns: float, gone: AbstractSet[int], begun: AbstractSet[str]) -> Run:
    """A window without what began before or after the time that all ranks reported, except those that are ``gone``.

    A step takes ``step_ns``. Tables without dropped rows are complete since the ranks have ``begun``. Each table is cut
    by its own clock: a GPU's clock is not the host's.
    """
    steps, collectives = (
        _cut(table, _span(table, _STEPS * step_ns, gone, begun=name in begun)) if rows(table) else table
        for name, table in (("steps", run.steps), ("collectives", run.collectives))
    )
    return replace(run, steps=steps, collectives=collectives)


def _span(table: Table, least_ns: float, gone: AbstractSet[int], *, begun: bool) -> tuple[int, int]:
    """When the last of the ranks began to tell, and the first ended; as far as that leaves enough."""
    rank, start = table["rank"], table["start_ns"]
    first = np.full(int(rank.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, rank, start)
    np.maximum.at(last, rank, start + np.maximum(table["duration_ns"], 0))
    oldest, newest = int(first.min()), int(last.max())
    last[[one for one in gone if one < len(last)]] = newest
    since = oldest if begun else int(first[first <= oldest + HELD_NS].max())
    until = int(last[last >= newest - HELD_NS].min())
    spans = ((since, until), (oldest, until))
    return next((one for one in spans if one[1] - one[0] >= least_ns), (oldest, newest + 1))


def _cut(table: Table, span: tuple[int, int]) -> Table:
    inside = (table["start_ns"] >= span[0]) & (table["start_ns"] < span[1])
    return table if inside.all() else {name: column[inside] for name, column in table.items()}
