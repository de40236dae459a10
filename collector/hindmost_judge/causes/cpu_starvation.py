"""What a rank that waits for CPUs costs beyond its delay: while its threads wait, its transfers do not progress.

No rank arrives late at a transfer that one end cannot drive; all members take longer alike. It counts as far as it is
longer than in unaffected steps, and as far as the rank waited for CPUs beyond its peers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.stats.robust import MAD_TO_SIGMA, average, mean, median

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Floats

#: Steps outside a fault that give the usual time of a transfer.
_ENOUGH = 20
#: Transfers this many standard deviations above the median were held up.
_HELD_UP = 3.0


def of_transfers(blocks: Blocks, rows: list[int], columns: Array, shown: float) -> float:
    """Ns a step over these steps (indices) by which transfers were longer because ranks lacked a CPU.

    ``shown`` ns a step of that wait are already counted as delay. Overlapped transfers are not separated.
    """
    if blocks.overlapped or np.isnan(blocks.transfer[rows]).all():
        return 0.0
    transfer = np.nan_to_num(blocks.transfer[rows]).max(axis=0)
    longer = float(transfer[columns].mean()) - _usual(transfer, columns)
    waited = max(max(of_process(blocks, row, columns), default=0.0) for row in rows)
    return max(min(longer, waited - shown), 0.0)


def share(blocks: Blocks, row: int) -> float:
    """0 to 1: how much of the time that a rank was late, in all steps, it may have waited for a CPU unmeasured."""
    late = average(blocks.excess[row])
    return float(np.clip(unseen(blocks, row, np.arange(len(blocks.steps))) / late, 0.0, 1.0)) if late > 0 else 0.0


#: The probe saw the queueing of the main thread if it saw this part of what the kernel counted.
_SEEN = 0.5


def unseen(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step for which a rank may wait for a CPU unmeasured, beyond its peers: all its threads, or all but its
    main thread where the probe saw that one queue. 0 where unmeasured."""
    found = of_process(blocks, row, columns)
    queue, rates = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue")), blocks.gauge("runqueue")
    if not found or queue is None or rates is None:
        return max(found, default=0.0)
    seen = float(np.nan_to_num(mean(queue)[row])) >= _SEEN * float(rates[row]) * average(blocks.period)
    return max(found[-1] - found[0], 0.0) if seen else max(found)


def of_process(blocks: Blocks, row: int, columns: Array) -> list[float]:
    """Ns a step for which a rank's main thread waited for a CPU, and all its threads together, beyond its peers.

    A rank that runs less has less occasion to queue, except for queueing inside collectives. Each is left out where
    unmeasured.
    """
    rates, period = blocks.gauges(columns), average(blocks.period[columns])
    ran = has_run(rates, row)
    found = [period * rates[name] for name in ("runqueue", "threads_runqueue") if name in rates]
    beyond = [float(ns[row]) - max(ran * _others(ns, row), _like_peers(blocks, row, columns, ns)) for ns in found]
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
        between = np.nan_to_num(mean(blocks.parts["self_runqueue"][:, columns]))
    part = np.clip(_others((queued - between) / np.maximum(inside, 1.0), row), 0.0, 1.0)
    return float(np.nan_to_num(part * inside[row] + _others(between, row)))


def has_run(rates: dict[str, Floats], row: int) -> float:
    """0 to 1: a rank's CPU time as a share of the typical other one's; 1 where unmeasured."""
    cpu = rates.get("cpu")
    if cpu is None or not _others(cpu, row) > 0 or np.isnan(cpu[row]):
        return 1.0
    return float(np.clip(cpu[row] / _others(cpu, row), 0.0, 1.0))


def _others(levels: Floats, row: int) -> float:
    """The typical other rank's level."""
    return float(median(np.delete(levels, row)))


def _usual(transfer: Floats, columns: Array) -> float:
    """Ns a step of transfers where nothing holds them up: in the steps outside, else in most of these."""
    outside = np.delete(transfer, columns)
    known = outside if len(outside) >= _ENOUGH else transfer[columns]
    level = float(median(known))
    spread = MAD_TO_SIGMA * float(median(np.abs(known - level)))
    return float(known[known <= level + _HELD_UP * spread].mean())
