"""How long a rank's GPU idles while its peers' work: what its host makes it late by, wherever in the step.

Events around a phase on the GPU count the gaps between its kernels, too: a host that reads a file in forward makes it
longer just as longer kernels do. Kernels that wait for others count as work: it is the late rank's GPU that idles.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import off_cpu
from hindmost_judge.causes.sampled import scattered
from hindmost_judge.stats.robust import average, median
from hindmost_judge.timeline import cohorts

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array


def of(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step, over the steps ``columns`` (indices), beyond the typical peer; 0 where it was not measured."""
    if blocks.starved is not None:  # when operations were launched tells it better than a driver's share of the time
        idled = average(cohorts.beyond_peers(blocks.starved[:, columns], blocks.role)[row])
        return max(float(np.nan_to_num(idled)) - taken_off(blocks, row, columns), 0.0)
    if scattered(columns):
        return 0.0
    busy = blocks.gauges(columns).get("utilization")
    if busy is None or np.isnan(busy[row]):
        return 0.0
    usual = float(median(np.delete(busy, row)))
    return max(float(np.nan_to_num(usual - busy[row])), 0.0) * average(blocks.period[columns])


def taken_off(blocks: Blocks, row: int, columns: Array) -> float:
    """Ns a step that a stage's GPU waits for its host and that is no part of how late it is."""
    if blocks.starved is None:
        return 0.0
    own = cohorts.beyond_peers(blocks.own[:, columns], blocks.role)[row]
    return max(float(np.nan_to_num(average(own - blocks.excess[row, columns]))), 0.0)


def charged(shares: dict[str, float], idle: float, excess: float) -> dict[str, float]:
    """Shares with a GPU's idle time as its host's: as ``idle``, as far as no known work of the host explains it.

    A driver counts a GPU as busy to a few per cent: if it idled for nearly all that is left, nothing is computing.
    Where computing exceeds the visible delay, the share that is left goes on beyond it.
    """
    left = excess - sum(max(ns, 0.0) for name, ns in shares.items() if name not in ("compute", "idle"))
    more = max(idle, shares.get("idle", 0.0)) - (excess - left)
    if min(more, left) <= 0:
        return shares
    more = left if more >= off_cpu.MOST * left else more
    computing = max(shares.get("compute", 0.0), 0.0)
    told = left - more if computing <= left else computing - more * computing / left
    return shares | {"idle": more, "compute": min(computing, told)}
