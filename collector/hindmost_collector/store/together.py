"""Tables of one job from several collectors, where agents moved from one to another: what both hold is taken once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.model import Table

#: By what a row is known again: each collector has its own clock, so times of it do not tell.
_KNOWN_BY = {
    "steps": ("rank", "step", "kind", "duration_ns"),
    "collectives": ("rank", "comm", "seq", "op", "duration_ns"),
    "intervals": ("rank", "name", "duration_ns", "value"),
}


def joined(name: str, tables: Sequence[Table]) -> Table:
    """All rows of a table, in the order of the directories; those that an earlier one has left out."""
    found = tables[0]
    for one in tables[1:]:
        fresh = _fresh(name, found, one)
        found = {column: np.concatenate([found[column], one[column][fresh]]) for column in found}
    return found


def _fresh(name: str, known: Table, one: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    keys = _KNOWN_BY.get(name)
    first = next(iter(one.values()))
    if keys is None or not len(first):
        return np.ones(len(first), bool)
    seen, rows = (pd.MultiIndex.from_arrays([table[key] for key in keys]) for table in (known, one))
    return np.asarray(~rows.isin(seen), bool)
