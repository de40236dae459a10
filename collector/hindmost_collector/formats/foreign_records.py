"""Foreign records: GPU times that belong to another operation, since they begin before its host launched it.

NCCL gives a profiler the times of a kernel by the number of the work on its channel. Where grouped sends and
receives share channels with other collectives, as in an all-to-all, those get the times of a much earlier kernel:
they seem to take longer than a step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Columns = Mapping[str, np.ndarray[Any, Any]]

#: GPUs' clocks drift against their hosts': by how much they are ahead is taken anew for so many operations.
_TOGETHER = 256
#: An operation that began by so much before it was enqueued has another's times.
_BEFORE_NS = 1_000_000
#: If this share of the operations of a kind has another's times, none is believed: the rest may be foreign, too.
_ENOUGH, _MOST = 20, 0.5


def found(files: Sequence[Columns]) -> set[str]:
    """The functions of each process's operations, in the order of enqueueing, with foreign times in most calls.

    In most of a communicator's calls, in any of the files. If there are any, no operation's times are believed: a
    rank that waits in an operation without them seems to work until the next one with.
    """
    return {op for columns in files for _, op in _kinds(columns)}


def told(names: set[str]) -> list[str]:
    """What the reader of the report has to know of it."""
    if not names:
        return []
    why = "the profiler got the times of earlier operations"
    return [f"How long {' and '.join(sorted(names))} took is not known, nor who waited in it: {why}."]


def _kinds(columns: Columns) -> list[tuple[int, str]]:
    logged, enqueued = columns["logged"], columns["enqueue"]
    if not len(logged) or (logged < enqueued).any():
        return []
    later = _logged_later(columns)
    before = columns["stop"] - columns["start"] > logged - later - enqueued + _BEFORE_NS
    kinds, which = np.unique(_named(columns), return_inverse=True)
    counts, untrue = np.bincount(which), np.bincount(which, weights=before)
    wrong = (counts >= _ENOUGH) & (untrue > _MOST * counts)
    proof = later[~wrong[which]]
    if len(proof) < _ENOUGH or np.median(proof) > _BEFORE_NS:
        return []  # what is logged is not when operations ended
    return [tuple(kind) for kind in kinds[wrong].tolist()]


def _named(columns: Columns) -> np.ndarray[Any, Any]:
    named = np.empty(len(columns["comm"]), [("comm", np.uint64), ("op", columns["op"].dtype)])
    named["comm"], named["op"] = columns["comm"], columns["op"]
    return named


def _logged_later(columns: Columns) -> np.ndarray[Any, Any]:
    """Ns from each operation's end to when the host logged it, at least: nothing is logged before it has ended."""
    ahead = columns["stop"] - columns["logged"]
    first = np.arange(0, len(ahead), _TOGETHER)
    return np.asarray(np.maximum.reduceat(ahead, first)[np.arange(len(ahead)) // _TOGETHER] - ahead)
