"""What agents state once and again, such as who is a member of which communicator."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.model import TABLES, empty, rows

from hindmost_collector.ingest.chunk import concatenated

if TYPE_CHECKING:
    from hindmost_judge.model import Table

#: Rows that are remembered; beyond, those that were stated longest ago go. A job that is started again and again makes
#: new communicators each time: of 16,384 ranks, each in ten, this holds three times as many.
MOST = 1 << 19


class Known:
    """The last row of each key of a small table, in the order of the keys."""

    def __init__(self, table: str, keys: tuple[str, ...], most: int = MOST) -> None:
        self._table, self._keys, self._most = table, keys, most
        self._columns: Table = empty(TABLES[table])
        self._stated = np.empty(0, np.int64)  # the turn in which each row was stated last
        self._turn = 0

    def add(self, rows_: Table | None) -> None:
        """Take rows in; each replaces the one of its key."""
        if rows_ is None:
            return
        joined = concatenated(self._table, [self._columns, rows_])
        count = rows(joined)
        order = np.lexsort((np.arange(count), *(joined[key] for key in reversed(self._keys))))
        last = np.ones(count, dtype=bool)
        last[:-1] = np.logical_or.reduce([np.diff(joined[key][order]) != 0 for key in self._keys])
        self._turn += 1
        stated = np.append(self._stated, np.full(rows(rows_), self._turn))
        kept = order[last]
        if len(kept) > self._most:
            kept = kept[np.sort(np.argsort(stated[kept], kind="stable")[-self._most :])]
        self._columns, self._stated = {name: column[kept] for name, column in joined.items()}, stated[kept]

    def table(self) -> Table:
        """All of them."""
        return self._columns
