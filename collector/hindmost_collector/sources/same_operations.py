"""The same operation seen by two sources: one knows its time on the GPU, the other when the host enqueued it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hindmost_collector.model import UNMEASURED, rows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_collector.model import Table

#: How many of the operations that two sources have in common must be of one kind for their counts to be the same count.
AGREEMENT = 0.99


def with_what_others_saw(chosen: Table, others: Iterable[Table]) -> Table:
    """The chosen operations with enqueue times, and sizes in bytes, from sources that count the same operations."""
    for other in others:
        if other is chosen or not rows(other):
            continue
        mine, theirs = _matched(chosen, other)
        if len(mine) and np.mean(chosen["op"][mine] == other["op"][theirs]) >= AGREEMENT:
            chosen = _enqueued(chosen, other, mine, theirs)
            chosen = _sized(chosen, other, mine, theirs)
    return chosen


def _matched(chosen: Table, other: Table) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Rows of both with the same rank, communicator and sequence number; collectives only."""
    ours, theirs = (np.flatnonzero((part["peer"] < 0) & (part["seq"] >= 0)) for part in (chosen, other))
    names = np.unique(np.concatenate([chosen["comm"][ours], other["comm"][theirs]]))

    def keys(part: Table, index: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        group = np.searchsorted(names, part["comm"][index]) << 20 | part["rank"][index]
        key: np.ndarray[Any, Any] = group.astype(np.int64) << 24 | part["seq"][index] % (1 << 24)
        return key

    _, first, second = np.intersect1d(keys(chosen, ours), keys(other, theirs), return_indices=True)
    return ours[first], theirs[second]


def _enqueued(chosen: Table, other: Table, mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> Table:
    seen = other.get("enqueue_ns")
    if seen is None:
        return chosen
    known = chosen.get("enqueue_ns", np.full(rows(chosen), UNMEASURED)).copy()
    known[mine] = np.where(known[mine] >= 0, known[mine], seen[theirs])
    return {**chosen, "enqueue_ns": known}


def _sized(chosen: Table, other: Table, mine: np.ndarray[Any, Any], theirs: np.ndarray[Any, Any]) -> Table:
    """Bytes from element counts, where all common operations of a kind have one size of element.

    The column ``elements`` stays as long as some operations' element size is unknown.
    """
    if "elements" not in chosen:
        return chosen
    elements, size = chosen["elements"], chosen["bytes"].copy()
    sized = np.zeros(len(size), dtype=bool)
    for op in np.unique(chosen["op"][mine]):
        common = (chosen["op"][mine] == op) & (other["bytes"][theirs] > 0) & (elements[mine] > 0)
        ratio = np.unique(other["bytes"][theirs][common] / elements[mine][common])
        if len(ratio) == 1:
            every = chosen["op"] == op
            size[every], sized[every] = elements[every] * ratio[0], True
    kept = {name: values for name, values in chosen.items() if name != "elements" or not sized.all()}
    return {**kept, "bytes": size}
