"""The same operation seen by two sources: one knows its time on the GPU, the other when the host enqueued it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import UNMEASURED, rows

from hindmost_collector.formats.columns import select
from hindmost_collector.joining import same_count

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_judge.model import Table

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
    """Rows of both with the same rank and communicator, and a number that counts alike; collectives only."""
    ours, theirs = (np.flatnonzero((part["peer"] < 0) & (part["seq"] >= 0)) for part in (chosen, other))
    pairs = [np.empty((2, 0), np.int64)]
    for comm in np.intersect1d(chosen["comm"][ours], other["comm"][theirs]):
        first, second = ours[chosen["comm"][ours] == comm], theirs[other["comm"][theirs] == comm]
        more = _more(chosen, first, other, second)
        if more is not None:
            keys = _key(chosen, first, more), _key(other, second, 0)
            _, one, two = np.intersect1d(*keys, return_indices=True)
            pairs.append(np.stack([first[one], second[two]]))
    mine, same = np.concatenate(pairs, axis=1)
    return mine, same


def _more(chosen: Table, mine: np.ndarray[Any, Any], other: Table, theirs: np.ndarray[Any, Any]) -> int | None:
    """What to add to the numbers of these rows of ``chosen`` for them to be those of these rows of ``other``."""
    ranks = np.intersect1d(chosen["rank"][mine], other["rank"][theirs])
    if not len(ranks):
        return None
    size = max(len(np.unique(chosen["rank"][mine])), len(np.unique(other["rank"][theirs])))
    held = [(chosen, mine), (other, theirs)]
    one, two = (_in_order(part, index[part["rank"][index] == ranks[0]]) for part, index in held)
    return same_count.difference(one, two, size)


def _in_order(part: Table, index: np.ndarray[Any, Any]) -> Table:
    return select(part, index[np.argsort(part["seq"][index], kind="stable")])


def _key(part: Table, index: np.ndarray[Any, Any], more: int) -> np.ndarray[Any, Any]:
    key: np.ndarray[Any, Any] = part["rank"][index].astype(np.int64) << 24 | (part["seq"][index] + more) % (1 << 24)
    return key


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
