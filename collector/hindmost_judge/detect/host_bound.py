"""Launch-bound jobs: the GPUs wait for their hosts to launch work, so a GPU's queue is empty when the host ends a step.

A busy GPU lags behind its host by the work that is still queued. The host sets the pace where the last rank has nothing
queued while its host was launching throughout the step. If that rank has a persistent slowdown, its own host is slow,
and the job is not launch-bound.

In steps of a few ms the clocks of GPU and host are too far apart to say what was queued. Two signs must then both show
it, each independent of the other: forward takes the host as long as the GPU, and the GPU idles in between.
"""

from __future__ import annotations

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.launch_bound import (
    HOST_BOUND_IN_STEP,
    HOST_BOUND_LAUNCHING,
    HOST_BOUND_QUEUED,
    launching_share,
    queued_share,
)
from hindmost_judge.detect import Case
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median
from hindmost_judge.types import Array, Floats
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import of_hosts
from hindmost_judge.whatif import savings

#: A GPU clock is up to 3 ms off its host's, which hides what was queued; shorter steps need both
#: ``HOST_BOUND_IN_STEP`` and ``_HOST_BOUND_BUSY`` (ms).
_HOST_BOUND_SHORTEST_MS = 12.0
#: A launch-bound GPU has a kernel resident for less of the time; a GPU that its host waits for has more (of the
#: time).
_HOST_BOUND_BUSY = 0.93
#: Most delay of the last rank in a launch-bound job; with more, that rank's own host is slow (of the step).
_HOST_BOUND_LATE = 0.05


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on a job whose GPUs wait for launches, and whose hosts do not wait for input."""
    if case.has("input_bound"):
        return []
    calm = np.ones(len(case.blocks.steps), bool)
    for one in case.found:
        if one.kind == "straggler":
            calm[slice(*savings.span_of(one, case.blocks))] = False
    stalled = sum(one.cost_ratio or 0.0 for one in case.found if one.kind == "intermittent")
    return find(case.blocks, case.settings, np.flatnonzero(calm), stalled)


def find(blocks: Blocks, settings: Settings, columns: Array, stalled: float) -> list[Verdict]:
    """The verdict where hosts hold the job back in these steps (indices): one late rank's GPU waits for what makes it
    so. GPUs have no work for the share ``stalled`` of the time, in stalls.
    """
    if len(columns) < 2 * settings.min_steps or not blocks.step_ns > 0 or np.isnan(blocks.wait[:, columns]).all():
        return []
    return (_of_messages if blocks.joined is None else _of_collectives)(blocks, columns, stalled)


def _of_collectives(blocks: Blocks, columns: Array, stalled: float) -> list[Verdict]:
    if blocks.ended is None or blocks.joined is None or not blocks.joined.gpu_time or np.isnan(blocks.ended).all():
        return []
    short = blocks.step_ns < _HOST_BOUND_SHORTEST_MS * 1e6
    queued, launching = (_of_latest(blocks, one, columns) for one in (queued_share(blocks), launching_share(blocks)))
    if not (short or queued <= HOST_BOUND_QUEUED) or not launching >= HOST_BOUND_LAUNCHING:
        return []
    row, mostly = _latest(blocks, columns)
    if blocks.lanes is None and float(median(blocks.delay[row, columns])) > _HOST_BOUND_LATE * blocks.step_ns:
        return []
    busy = blocks.gauge("utilization", None if len(columns) == len(blocks.steps) else columns)
    resident = float(busy[row]) if busy is not None else float("nan")
    idles, follows = resident < _HOST_BOUND_BUSY, _follows(blocks, columns)
    paced = blocks.lanes is not None or (idles and follows if short else idles if follows is None else follows)
    in_stalls = blocks.lanes is None and stalled > 0 and 1 - resident - stalled <= 1 - _HOST_BOUND_BUSY
    if in_stalls or not paced:
        return []
    return of_hosts(blocks, launching, 1 - resident, row if mostly else None, queue_known=not short)


def _of_messages(blocks: Blocks, columns: Array, stalled: float) -> list[Verdict]:
    """The same of a pipeline whose ranks only send to each other: what is queued is known wherever they do."""
    if blocks.took is None or blocks.starvation is None:
        return []
    starvation = blocks.starvation / blocks.period
    launching, idle = (_of_latest(blocks, one, columns) for one in (launching_share(blocks), starvation))
    if not (launching >= HOST_BOUND_LAUNCHING and idle - stalled > 1 - _HOST_BOUND_BUSY):
        return []
    row, mostly = _latest(blocks, columns)
    return of_hosts(blocks, launching, idle, row if mostly else None)


def _latest(blocks: Blocks, columns: Array) -> tuple[int, bool]:
    """The row of the rank that waits least in more of these steps than any other, and whether in most of them."""
    rows, counts = np.unique(np.argmin(blocks.wait[:, columns], axis=0), return_counts=True)
    return int(rows[np.argmax(counts)]), bool(counts.max() > len(columns) / 2)


def _of_latest(blocks: Blocks, block: Floats, columns: Array) -> float:
    """Median over these steps of the value of whichever rank waited least: the one that the others waited for."""
    return float(median(block[np.argmin(blocks.wait[:, columns], axis=0), columns]))


def _follows(blocks: Blocks, columns: Array) -> bool | None:
    """Whether GPUs follow their hosts: a loop that waits for its GPU each step has nothing queued either.

    ``None`` where forward was not measured on both.
    """
    host, gpu = blocks.parts.get("forward"), blocks.parts.get("gpu_forward")
    if host is None or gpu is None:
        return None
    both = np.where(np.isnan(gpu), np.nan, host)
    return _of_latest(blocks, both, columns) >= HOST_BOUND_IN_STEP * _of_latest(blocks, gpu, columns)
