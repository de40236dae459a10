"""How long the ranks' main threads wait in the run queue: between collectives, in them, and behind each other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import oversubscription
from hindmost_judge.stats.robust import average, mean

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.findings import Bound
    from hindmost_judge.types import Floats, Ints


def on_gpus(blocks: Blocks) -> bool:
    """Whether what ranks compute is timed on GPUs, whose work goes on while hosts queue."""
    return "gpu_forward" in blocks.parts or (blocks.joined is not None and blocks.joined.gpu_time)


def of_main(blocks: Blocks) -> Floats | None:
    """[R, S] ns that main threads queued for a CPU in their self time, at most; ``None`` where unmeasured.

    The mean stands for steps that were not sampled. On GPUs it counts as far as a rank came late.
    """
    queue = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue"))
    if queue is None or np.isnan(queue).all():
        return None
    usual = np.nan_to_num(mean(queue))[:, None]
    most = np.maximum(blocks.excess, 0.0) if on_gpus(blocks) else blocks.own
    return np.asarray(np.clip(np.where(np.isnan(queue), usual, queue), 0.0, np.nan_to_num(most, nan=np.inf)))


def in_segments(queued: Floats, rows: Ints, blocks: Blocks) -> Floats:
    """[N, K] what these rows ``queued`` [N, S], in the intervals of the steps, in proportion to their self time."""
    if blocks.segments.shape[1] == queued.shape[1]:
        return queued
    step = blocks.segment_step
    weight = np.ones((len(rows), len(step)))  # ns: where no self time is known, all intervals of a step alike
    if blocks.joined is not None and blocks.joined.self_time.shape[1] == len(step):
        weight += np.nan_to_num(blocks.joined.self_time[rows])
    first = np.searchsorted(step, np.arange(queued.shape[1]))
    whole = np.add.reduceat(weight, first, axis=1)
    return np.asarray(queued[:, step] * weight / whole[:, step])


def in_all(blocks: Blocks, shares: Floats) -> Floats:
    """[R] ns a step that main threads queue, collectives included; of that the ``shares`` [R]. 0 where unmeasured."""
    rates, own = blocks.gauge("runqueue"), of_main(blocks)
    known = np.zeros(len(blocks.ranks)) if own is None else own.mean(axis=1)
    if rates is not None:
        known = np.fmax(known, rates * average(blocks.period))
    return np.asarray(known * shares)


def of_collectives(blocks: Blocks, rows: Ints | None = None, shares: Floats | None = None) -> float:
    """Ns a step by which collectives are longer since all of these ``rows`` queue in them; of that the ``shares`` [R].

    All rows, and all of it, where these are not given; 0 where it is unknown.
    """
    own = of_main(blocks)
    if own is None or blocks.overlapped or on_gpus(blocks) or np.isnan(blocks.transfer).all():
        return 0.0
    rows = np.arange(len(blocks.ranks)) if rows is None else rows
    part = np.ones(len(blocks.ranks)) if shares is None else shares
    waited, transfer = (mean(block[rows]) for block in (blocks.wait, blocks.transfer))
    return oversubscription.delay_in_collectives(
        in_all(blocks, part)[rows], (own.mean(axis=1) * part)[rows], waited, transfer
    )


def of_transfers(blocks: Blocks, rows: Ints, first: int, stop: int) -> float:
    """Ns a step of steps [first, stop) by index for which collectives may wait for a CPU, at most.

    A transfer goes on when the last of these ``rows`` runs: it is what one of them queues, less what it queued between
    collectives. Other threads than the main one do transfers that overlap with computing. 0 where it is unknown, and
    on GPUs, whose transfers go on while hosts queue.
    """
    if blocks.samples is None or on_gpus(blocks):
        return 0.0
    total = blocks.samples.rise("threads_runqueue" if blocks.overlapped else "runqueue", first, stop)
    if total is None:
        return 0.0
    queued = total * 1e9 / (stop - first)
    between = blocks.parts.get("self_runqueue")
    if between is not None and not blocks.overlapped:
        queued = queued - np.nan_to_num(mean(between[:, first:stop]))
    return float(np.clip(np.nanmax(queued[rows], initial=0.0), 0.0, average(blocks.period[first:stop])))


def behind_each_other(bound: Sequence[Bound], blocks: Blocks) -> Floats:
    """[R] the share of its queueing that each rank owes to those it is bound to CPUs with, or to their quota."""
    shares = np.ones(len(blocks.ranks))
    queued, used = blocks.gauge("runqueue"), blocks.gauge("cpu")
    if queued is None or used is None:
        return shares
    for one in bound:
        rows = np.flatnonzero(np.isin(blocks.ranks, one.members))
        if one.listed:
            shares[rows] = oversubscription.share_by_peers(queued[rows], used[rows], one.cpus)
        else:
            shares[rows] = np.clip(one.throttled / np.maximum(np.nan_to_num(queued[rows]), 1e-9), 0.0, 1.0)
    return shares
