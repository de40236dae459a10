"""Tables of one job from several collectors, where agents moved from one to another: what both hold is taken once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.store import schema

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.model import Table

#: By what a row is known again: each collector has its own clock, so times of it do not tell.
KNOWN_BY = {
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


def united(name: str, selects: Sequence[str]) -> str:
    """The same in SQL: the rows of a table of one job, of which there is a query for each directory."""
    if len(selects) > 1 and name in schema.LEVELS:
        return _added_up(selects)
    keys = ", ".join(KNOWN_BY.get(name, ()))
    found = list(selects)
    for number in range(1, len(selects) if keys else 1):
        known = " union all ".join(f"select {keys} from ({one})" for one in selects[:number])  # noqa: S608 - our own
        found[number] = f"select mine.* from ({selects[number]}) as mine anti join ({known}) using ({keys})"  # noqa: S608 - the same
    return " union all by name ".join(found)


def _added_up(selects: Sequence[str]) -> str:
    """Rows of a coarser level: of an interval in which an agent moved, each directory has a part.

    The last value is that of the directory in which the series goes on for longest.
    """
    until = "max(time_ns) over (partition by node, name, labels) as until"
    parts = " union all ".join(f"select *, {until} from ({one})" for one in selects)  # noqa: S608 - our own
    columns = "sum(count)::bigint as count, min(min) as min, max(max) as max, sum(sum) as sum"
    key = "job, node, name, labels, time_ns"
    return f"select {key}, {columns}, arg_max(last, until) as last from ({parts}) group by {key}"  # noqa: S608 - the same


def _fresh(name: str, known: Table, one: Table) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    import pandas as pd  # noqa: PLC0415 - where used: SQL does without

    keys = KNOWN_BY.get(name)
    first = next(iter(one.values()))
    if keys is None or not len(first):
        return np.ones(len(first), bool)
    seen, rows = (pd.MultiIndex.from_arrays([table[key] for key in keys]) for table in (known, one))
    return np.asarray(~rows.isin(seen), bool)
