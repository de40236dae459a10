"""Calls on files that ranks recorded: how many of which size, what they moved and how long they took."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from hindmost_judge.encoding import codes
from hindmost_judge.model import rows

if TYPE_CHECKING:
    from hindmost_judge.model import Run

#: How calls on files begin, as the MPI shim names them.
PREFIX = "file_"


class FileCalls(NamedTuple):
    """Calls of one operation whose sizes have the same power of two above them, of all ranks.

    ``least`` and ``most`` are the smallest and the largest call, ``total`` all bytes; ``None`` where none move.
    ``bandwidth`` is bytes a second while a rank is in such a call.
    """

    operation: str
    least: int | None
    most: int | None
    ranks: int
    calls: int
    total: int | None
    took_ms: float
    longest_ms: float
    bandwidth: float | None


def find(run: Run) -> list[FileCalls]:
    """A row each, those that take most time first."""
    table = run.intervals
    held = (
        np.char.startswith(table["name"].astype(np.str_), PREFIX) & (table["duration_ns"] >= 0) if rows(table) else None
    )
    if held is None or not held.any():
        return []
    name, names = codes(table["name"][held].astype(np.str_))
    size = np.nan_to_num(np.maximum(table["value"][held], 0.0))
    size_class = np.where(size > 0, np.ceil(np.log2(np.maximum(size, 1.0))), -1.0)
    kinds, which = np.unique(np.stack([name.astype(np.float64), size_class]), axis=1, return_inverse=True)
    found = []
    for at, (operation, of_class) in enumerate(kinds.T.tolist()):
        mine = which.ravel() == at
        took, moved = table["duration_ns"][held][mine] / 1e6, size[mine]
        sized = of_class >= 0
        found.append(
            FileCalls(
                operation=names[int(operation)].removeprefix(PREFIX),
                least=int(moved.min()) if sized else None,
                most=int(moved.max()) if sized else None,
                ranks=len(np.unique(table["rank"][held][mine])),
                calls=int(mine.sum()),
                total=int(moved.sum()) if sized else None,
                took_ms=float(took.mean()),
                longest_ms=float(took.max()),
                bandwidth=float(moved.sum() / took.sum() * 1e3) if sized and took.sum() > 0 else None,
            )
        )
    return sorted(found, key=lambda one: -one.calls * one.took_ms)
