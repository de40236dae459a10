"""How long ranks wait for a CPU, or are off it, and what that costs.

Ranks bound to fewer CPUs than they are: each has to wait in the run queue while another of them runs. A set of ranks
needs a CPU each. By Hall's condition no assignment gives them one if the CPUs that all of them together may use are
fewer than they are, however many others the node has (P. Hall, 1935).

What a rank that waits for CPUs costs beyond its delay: while its threads wait, its transfers do not progress. No rank
arrives late at a transfer that one end cannot drive; all members take longer alike. It counts as far as it is longer
than in unaffected steps, and as far as the rank waited for CPUs beyond its peers.

A main thread that is off the CPU without queueing for one slept, or something else blocked it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hindmost_judge.blocks import Blocks, CpuBinding
from hindmost_judge.stats.robust import (
    ENOUGH_STEPS,
    MAD_TO_SIGMA,
    average,
    mean,
    median,
    or_zero,
    others_level,
    peers_median,
)
from hindmost_judge.types import Array, Floats, Ints


def oversubscribed(allowed: Mapping[int, frozenset[int]]) -> list[tuple[tuple[int, ...], frozenset[int]]]:
    """The sets of a node's ranks that lack CPUs, in order of rank, each with the fewer CPUs on which they may run.

    ``allowed`` is rank to the CPUs that it may use. Each set of CPUs is tried that some rank is bound to. Of sets of
    CPUs within each other only the largest one is listed.
    """
    found = []
    for cpus in {cpus for cpus in allowed.values() if cpus}:
        ranks = tuple(sorted(rank for rank, bound_to in allowed.items() if bound_to and bound_to <= cpus))
        if len(ranks) > len(cpus):
            found.append((ranks, cpus))
    return sorted((ranks, cpus) for ranks, cpus in found if not any(cpus < others for _, others in found))


def cpus(listed: str) -> frozenset[int]:
    """The CPUs of the kernel's list, such as ``0-2,8``; none where it is no such list."""
    try:
        spans = [span.split("-") for span in listed.split(",")]
        return frozenset(cpu for span in spans for cpu in range(int(span[0]), int(span[-1]) + 1))
    except ValueError:
        return frozenset()


def share_by_peers(queued: Floats, used: Floats, cpus: int) -> Floats:
    """[N] the share, 0 to 1, of what each rank ``queued`` [N] that CPU time of its peers can account for.

    A rank queues behind what the others ``used`` [N] of the ``cpus`` that they share, and no longer; both are s per s.
    The rest it queued behind other processes. All of it where either is unmeasured (NaN).
    """
    behind = (np.sum(used) - used) / max(cpus, 1)
    shares = np.divide(behind, queued, out=np.ones_like(behind), where=queued > 0)
    return np.asarray(np.clip(np.nan_to_num(shares, nan=1.0), 0.0, 1.0))


def delay_in_collectives(queued: Floats, between: Floats, waited: Floats, transfer: Floats) -> float:
    """ns a step by which collectives are longer because every one of these ranks queues for a CPU inside of them.

    All [N] are ns a step of the ranks that lack CPUs: ``queued`` in the run queue, ``between`` collectives of that,
    ``waited`` for later ranks (queueing there delays no rank), ``transfer`` what collectives took beyond it. A
    collective goes on when its last rank runs, so the least queued rank sets the delay.
    """
    inside = or_zero(queued - between - waited)
    return float(np.clip(np.min(inside, initial=np.inf), 0.0, np.max(or_zero(transfer), initial=0.0)))


def on_gpus(blocks: Blocks) -> bool:
    """Whether what ranks compute is timed on GPUs, whose work goes on while hosts queue."""
    return "gpu_forward" in blocks.parts or (blocks.joined is not None and blocks.joined.gpu_time)


def queued_by_main(blocks: Blocks) -> Floats | None:
    """[R, S] ns that main threads queued for a CPU in their self time, at most; ``None`` where unmeasured.

    The mean stands for steps that were not sampled. On GPUs it counts as far as a rank came late.
    """
    queue = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue"))
    if queue is None or np.isnan(queue).all():
        return None
    usual = or_zero(mean(queue))[:, None]
    most = np.maximum(blocks.delay, 0.0) if on_gpus(blocks) else blocks.self_time
    return np.asarray(np.clip(np.where(np.isnan(queue), usual, queue), 0.0, np.nan_to_num(most, nan=np.inf)))


def queued_in_segments(queued: Floats, rows: Ints, blocks: Blocks) -> Floats:
    """[N, K] what these rows ``queued`` [N, S], in the intervals of the steps, in proportion to their self time."""
    if blocks.intervals.shape[1] == queued.shape[1]:
        return queued
    step = blocks.interval_step
    weight = np.ones((len(rows), len(step)))  # ns: where no self time is known, all intervals of a step alike
    if blocks.joined is not None and blocks.joined.self_time.shape[1] == len(step):
        weight += or_zero(blocks.joined.self_time[rows])
    first = np.searchsorted(step, np.arange(queued.shape[1]))
    whole = np.add.reduceat(weight, first, axis=1)
    return np.asarray(queued[:, step] * weight / whole[:, step])


def queued_in_all(blocks: Blocks, shares: Floats) -> Floats:
    """[R] ns a step that main threads queue, collectives included; of that the ``shares`` [R]. 0 where unmeasured."""
    rates, own = blocks.gauge("runqueue"), queued_by_main(blocks)
    known = np.zeros(len(blocks.ranks)) if own is None else own.mean(axis=1)
    if rates is not None:
        known = np.fmax(known, rates * average(blocks.period))
    return np.asarray(known * shares)


def queued_in_collectives(blocks: Blocks, rows: Ints | None = None, shares: Floats | None = None) -> float:
    """Ns a step by which collectives are longer since all of these ``rows`` queue in them; of that the ``shares`` [R].

    All rows, and all of it, where these are not given; 0 where it is unknown.
    """
    own = queued_by_main(blocks)
    if own is None or blocks.overlapped or on_gpus(blocks) or np.isnan(blocks.transfer).all():
        return 0.0
    rows = np.arange(len(blocks.ranks)) if rows is None else rows
    part = np.ones(len(blocks.ranks)) if shares is None else shares
    waited, transfer = (mean(block[rows]) for block in (blocks.wait, blocks.transfer))
    return delay_in_collectives(queued_in_all(blocks, part)[rows], (own.mean(axis=1) * part)[rows], waited, transfer)


#: A rank that waits for a CPU for this share of the time does not have one to itself.
QUEUED = 0.25

#: A transfer goes on when its last process runs. Transfers say nothing of a network if waiting for a CPU may be this
#: share of what they are longer by.
_QUEUED = 0.5


def explains_transfers(blocks: Blocks, rows: Ints, first: int, stop: int, longer: float) -> bool:
    """Whether transfers of these ``rows`` may be ``longer``, ns a step of steps [first, stop), by waits for a CPU.

    A transfer goes on when the last of them runs: it may wait for what one of them queues, less what it queued between
    collectives, and less what it would queue in as much time elsewhere: who polls a slow link queues for that, too.
    Other threads than the main one do transfers that overlap with computing. Those of GPUs go on while hosts queue.
    """
    if blocks.samples is None or on_gpus(blocks):
        return False
    name = "threads_runqueue" if blocks.overlapped else "runqueue"
    total = blocks.samples.rise(name, first, stop)
    if total is None:
        return False
    between = None if blocks.overlapped else blocks.parts.get("self_runqueue")
    between = np.zeros_like(blocks.period)[None] if between is None else between
    steps, period = np.arange(len(blocks.steps)), average(blocks.period[first:stop])
    outside = (steps < first) | (steps >= stop)
    queued = total * 1e9 / (stop - first) - or_zero(mean(between[:, ~outside]))
    if outside.any():
        elsewhere = average(blocks.period[outside])
        usual = np.nan_to_num(blocks.samples.apart_from(name, first, stop)) * elsewhere
        usual = np.maximum(usual - or_zero(mean(between[:, outside])), 0.0) * period / elsewhere
    else:
        usual = np.full(len(queued), or_zero(median(np.delete(queued, rows))))  # unknown clears nothing
    most = np.clip(np.nanmax((queued - usual)[rows], initial=0.0), 0.0, period)
    return bool(most >= _QUEUED * longer)


def behind_each_other(bound: Sequence[CpuBinding], blocks: Blocks) -> Floats:
    """[R] the share of its queueing that each rank owes to those it is bound to CPUs with, or to their quota."""
    shares = np.ones(len(blocks.ranks))
    queued, used = blocks.gauge("runqueue"), blocks.gauge("cpu")
    if queued is None or used is None:
        return shares
    for one in bound:
        rows = np.flatnonzero(np.isin(blocks.ranks, one.members))
        if one.listed:
            shares[rows] = share_by_peers(queued[rows], used[rows], one.cpus)
        else:
            shares[rows] = np.clip(one.throttled / np.maximum(or_zero(queued[rows]), 1e-9), 0.0, 1.0)
    return shares


#: Transfers this many standard deviations above the median were held up.
_HELD_UP = 3.0


def held_up_transfers(blocks: Blocks, rows: list[int], columns: Array, shown: float) -> float:
    """Ns a step over these steps (indices) by which transfers were longer because ranks lacked a CPU.

    ``shown`` ns a step of that wait are already counted as delay. Overlapped transfers are not separated.
    """
    if blocks.overlapped or np.isnan(blocks.transfer[rows]).all():
        return 0.0
    transfer = or_zero(blocks.transfer[rows]).max(axis=0)
    longer = float(transfer[columns].mean()) - usual_transfer(transfer, columns)
    waited = max(max(_process_wait(blocks, row, columns), default=0.0) for row in rows)
    return max(min(longer, waited - shown), 0.0)


def unmeasured_share(blocks: Blocks, row: int) -> float:
    """0 to 1: how much of the time that a rank was late, in all steps, it may have waited for a CPU unmeasured."""
    late = average(blocks.delay[row])
    if not late > 0:
        return 0.0
    return float(np.clip(unmeasured_wait(blocks, row, np.arange(len(blocks.steps))) / late, 0.0, 1.0))


#: The probe saw the queueing of the main thread if it saw this part of what the kernel counted.
_SEEN = 0.5


def unmeasured_wait(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step for which a rank may wait for a CPU unmeasured, beyond its peers: all its threads, or all but its
    main thread where the probe saw that one queue. 0 where unmeasured."""
    found = _process_wait(blocks, row, columns)
    queue, rates = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue")), blocks.gauge("runqueue")
    if not found or queue is None or rates is None:
        return max(found, default=0.0)
    seen = float(np.nan_to_num(mean(queue)[row])) >= _SEEN * float(rates[row]) * average(blocks.period)
    return max(found[-1] - found[0], 0.0) if seen else max(found)


def _process_wait(blocks: Blocks, row: int, columns: Array) -> list[float]:
    """Ns a step for which a rank's main thread waited for a CPU, and all its threads together, beyond its peers.

    A rank that runs less has less occasion to queue, except for queueing inside collectives. Each is left out where
    unmeasured.
    """
    ran, period = has_run(blocks, row, columns), average(blocks.period[columns])
    rates = [blocks.gauge(name, columns) for name in ("runqueue", "threads_runqueue")]
    found = [period * rate for rate in rates if rate is not None]
    beyond = [float(ns[row]) - max(ran * others_level(ns, row), _like_peers(blocks, row, columns, ns)) for ns in found]
    return [ns for ns in beyond if not np.isnan(ns)]


def _like_peers(blocks: Blocks, row: int, columns: Array, queued: Floats) -> float:
    """Ns a step that a rank's process queues for a CPU if it does so as its typical peer does.

    Between collectives for as long, and inside them for as large a part. ``queued`` [R] ns a step are all of it. 0
    where unknown.
    """
    if blocks.joined is None or blocks.joined.gpu_time or blocks.overlapped:
        return 0.0
    inside = mean((blocks.wait + blocks.transfer)[:, columns])
    between = np.zeros_like(inside)
    if "self_runqueue" in blocks.parts:
        between = or_zero(mean(blocks.parts["self_runqueue"][:, columns]))
    part = np.clip(others_level((queued - between) / np.maximum(inside, 1.0), row), 0.0, 1.0)
    return float(np.nan_to_num(part * inside[row] + others_level(between, row)))


def has_run(blocks: Blocks, row: int, columns: Array) -> float:
    """0 to 1: a rank's CPU time as a share of the typical other one's; 1 where unmeasured."""
    cpu = blocks.gauge("cpu", columns)
    if cpu is None or not others_level(cpu, row) > 0 or np.isnan(cpu[row]):
        return 1.0
    return float(np.clip(cpu[row] / others_level(cpu, row), 0.0, 1.0))


def usual_transfer(transfer: Floats, columns: Array) -> float:
    """Ns a step of transfers where nothing holds them up: in the steps outside, else in most of these."""
    outside = np.delete(transfer, columns)
    known = outside if len(outside) >= ENOUGH_STEPS else transfer[columns]
    level = float(median(known))
    spread = MAD_TO_SIGMA * float(median(np.abs(known - level)))
    return float(known[known <= level + _HELD_UP * spread].mean())


#: Share of its delay for which a main thread must have been off the CPU: at most a quarter is left for other causes.
MOSTLY_OFF_CPU = 0.75


def between_collectives(blocks: Blocks) -> bool:
    """Whether main threads were looked at between their collectives, not in whole steps."""
    return "self_blocked" in blocks.parts


def main_cpu_time(blocks: Blocks) -> Floats:
    """[R, S] ns of CPU that main threads used, where they were looked at."""
    return blocks.parts["self_cpu" if between_collectives(blocks) else "cpu"]


def off_cpu_in_step(blocks: Blocks, row: int, columns: Array) -> Floats:
    """[N] ns of each step that a main thread was off the CPU, without queueing, beyond its peers.

    NaN where unmeasured. If only whole steps were measured, it may have been off the CPU while it waited for the
    others: for as large a part of that wait as the peers, who do little else.
    """
    parts = blocks.parts
    if between_collectives(blocks):
        own = parts["self_blocked"][:, columns]
        return np.asarray(own[row] - median(np.delete(own, row, axis=0), axis=0))
    found = _in_steps(blocks, columns)
    if found is None:
        return np.full(len(columns), np.nan)
    off, inside, share = found
    shared = np.clip(median(np.delete(share, row)), 0.0, 1.0)  # NaN stays: then nothing is known
    return np.asarray(off[row] - shared * inside[row])


def off_cpu_in_whole_steps(blocks: Blocks) -> Floats:
    """[R, S] the same as ``off_cpu_in_step`` for every rank, where only whole steps were measured.

    Computed for all at once: one rank costs as much work as all of them."""
    found = _in_steps(blocks, np.arange(len(blocks.steps)))
    if found is None:
        return np.full((len(blocks.ranks), len(blocks.steps)), np.nan)
    off, inside, share = found
    return np.asarray(off - np.clip(peers_median(share[:, None]), 0.0, 1.0) * inside)


def _in_steps(blocks: Blocks, columns: Array) -> tuple[Floats, Floats, Floats] | None:
    """[R, N] ns off the CPU and [R, N] ns inside collectives, and [R] the one as a share of the other."""
    parts = blocks.parts
    if "runqueue" not in parts or "cpu" not in parts or blocks.took is None or "gpu_forward" in parts:
        return None
    off = (blocks.took - parts["cpu"] - parts["runqueue"])[:, columns]
    inside = (blocks.wait + blocks.transfer)[:, columns]
    return off, inside, np.asarray(median(off, axis=1) / median(inside, axis=1))


def cpu_beyond_peers(blocks: Blocks, row: int, columns: Array) -> Floats:
    """[N] ns of CPU that a process used in each step beyond its peers, but for what it spends on waiting as they do.

    NaN where unmeasured.
    """
    if "cpu" not in blocks.parts:
        return np.full(len(columns), np.nan)
    cpu, inside = blocks.parts["cpu"][:, columns], (blocks.wait + blocks.transfer)[:, columns]
    worked = (
        blocks.self_time[:, columns] - or_zero(blocks.parts.get("input", np.zeros_like(blocks.self_time)))[:, columns]
    )
    others = np.arange(len(cpu)) != row
    spent = median(median((cpu - worked)[others], axis=1) / median(inside[others], axis=1))
    used = cpu - np.clip(spent, 0.0, 1.0) * inside
    return np.asarray(used[row] - median(used[others], axis=0))
