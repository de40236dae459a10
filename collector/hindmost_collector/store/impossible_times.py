"""Stored rows whose times no job can have: set aside before they make a mean of 146 years, and counted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.encoding import chosen

if TYPE_CHECKING:
    from hindmost_judge.model import Table

#: No step, call or interval takes as long as this, a year.
_LONGEST_NS = 365 * 86400 * 10**9
#: Unix time at which nothing begins: the year 2100 and later.
_LATEST_NS = 4_102_444_800 * 10**9


def set_aside(tables: dict[str, Table]) -> tuple[dict[str, Table], list[str]]:
    """The tables without such rows, and a note that counts them."""
    found, gone = dict(tables), dict[str, int]()
    for name in ("steps", "collectives", "intervals"):
        one = tables[name]
        possible = np.asarray((one["duration_ns"] < _LONGEST_NS) & (np.abs(one["start_ns"]) < _LATEST_NS))
        found[name] = chosen(one, possible)
        if count := len(possible) - int(np.count_nonzero(possible)):
            gone[name] = count
    if not gone:
        return tables, []
    told = ", ".join(f"{count} of {name}" for name, count in gone.items())
    return found, [f"rows with times that no job has, a year long or after 2100, are left out: {told}"]
