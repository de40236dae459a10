"""How much longer a rank's GPU is busy in a step, as hosts show it that wait for room in their GPUs' queues.

Ranks that wait for another inside their last collectives hide how soon they were ready. Their hosts do not: with its
queue full a host launches at its GPU's pace, a thousand kernels ahead, and comes to a stop there while its GPU waits.
Between two launches all hosts wait for the same kernels of the same program, so that where one takes longer its GPU
computes longer, and where the others stop they wait. A rank that launches more kernels than they waits for others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.robust import median

if TYPE_CHECKING:
    from hindmost_collector.align import Array, Floats, Grid, Ints
    from hindmost_collector.timeline.blocks import Blocks

#: A queue is full that holds this share of what it holds in a tenth of the steps, and this share of a step at least:
#: whose host waits for its GPU once a step holds forward and the begin of backward at most, about half of one.
_FULL, _LEAST = 0.9, 0.6
#: Steps in which a host waited for room between the same two launches, to know how long it waits there.
_ENOUGH = 5
#: Hosts that wait for GPUs of one pace differ by this share of a step at least.
_DIFFER = 0.01
#: A queue's fill is the highest of all but this share of the steps, in per cent.
_HIGH = 90
#: Ranks that one is compared with: enough to know what is typical, whatever the size of the job.
_SAMPLE = 64


def longer(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step by which a rank's GPU is busy longer than its typical peer's in these steps (indices); 0 where unknown.

    At least: what is longer and what stops between the same two launches cancel. Less what the peers differ by.
    """
    grid = blocks.joined
    if grid is None or not blocks.overlapped or np.isnan(grid.enqueue).all() or np.isnan(grid.start).all():
        return 0.0
    where = _steps(blocks, grid, columns)
    if where is None:
        return 0.0
    others = np.delete(np.arange(len(blocks.ranks)), row)
    rows = np.append(row, others[:: max(len(others) // _SAMPLE, 1)])
    gaps = _gaps(grid, rows, where, blocks.step_ns)
    if np.isnan(gaps).all():
        return 0.0
    peers = np.arange(1, len(gaps))
    differ = [_busy(gaps, one, np.delete(peers, one - 1)) for one in peers.tolist()] if len(peers) > 1 else [0.0]
    differs = max(float(np.median(differ)), _DIFFER * blocks.step_ns)
    found = max(_busy(gaps, 0, peers) - differs, 0.0)
    return found if _apart(grid, rows, where) <= found + differs else 0.0


def _steps(blocks: Blocks, grid: Grid, columns: Array) -> Ints | None:
    """[N, P + 1] the columns of each step that has as many collectives as most, and the first of the step after it."""
    if not len(columns):
        return None
    counts = np.diff(np.append(blocks.starts, grid.columns))
    usual = int(np.bincount(counts[columns]).argmax())
    steps = columns[(counts[columns] == usual) & (columns + 1 < len(counts))]
    steps = steps[blocks.steps[steps + 1] == blocks.steps[steps] + 1]
    return blocks.starts[steps][:, None] + np.arange(usual + 1) if usual > 1 and len(steps) >= _ENOUGH else None


def _gaps(grid: Grid, rows: Ints, where: Ints, step_ns: float) -> Floats:
    """[R, P] ns that hosts take from one launch to the next while their queue is full; NaN where it seldom is."""
    enqueue, waited = grid.enqueue[rows], _waited(grid, rows, where)
    known = ~np.isnan(waited[:, :, 0]).all(axis=1)
    most = np.full(len(rows), np.inf)
    most[known] = np.nanpercentile(waited[known, :, 0], _HIGH, axis=1)
    most = np.where(most >= _LEAST * step_ns, most, np.inf)[:, None, None]
    full = (waited[:, :, :-1] > _FULL * most) & (waited[:, :, 1:] > _FULL * most)
    gaps = np.where(full, np.diff(enqueue[:, where], axis=2), np.nan)
    return np.where(full.sum(axis=1) >= _ENOUGH, median(gaps, axis=1), np.nan)


def _waited(grid: Grid, rows: Ints, where: Ints) -> Floats:
    """[R, N, P] ns from launch to start, beyond the least that it took a rank."""
    waited = grid.start[rows] - grid.enqueue[rows]
    return np.asarray((waited - np.fmin.reduce(waited, axis=1)[:, None])[:, where])


def _apart(grid: Grid, rows: Ints, where: Ints) -> float:
    """Ns by which the first row's launches lie further ahead of their starts than its peers', or less far, at most.

    Hosts that wait for the same kernels are apart by no more than their GPUs; whose program has kernels of its own
    waits for others.
    """
    ahead = median(_waited(grid, rows, where), axis=1)
    return float(np.nan_to_num(np.abs(ahead[0] - median(ahead[1:], axis=0))).max())


def _busy(gaps: Floats, row: int, peers: Ints) -> float:
    """Ns by which a row is longer where it is, or its peers are where they stop, whichever is less."""
    more = np.nan_to_num(gaps[row] - median(gaps[peers], axis=0))
    return float(min(np.maximum(more, 0.0).sum(), np.maximum(-more, 0.0).sum()))
