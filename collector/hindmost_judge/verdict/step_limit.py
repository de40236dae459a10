"""The limit of a job's steps: the resource that would have to be faster for the typical step to be shorter.

Input and hosts have their own verdicts. Exposed transfers show in the time of collectives. For busy GPUs, the use of
their memory shows what limits the kernels: NVIDIA's GPU performance monitor reports it (Hopper and later). NVML
alone has the share of time in which memory was touched at all, which is more than the share of the peak bandwidth.
That can show that memory is not the limit, and never that it is. The memory bandwidth of CPUs is not sampled.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes import queueing
from hindmost_judge.causes.telemetry import POWER_CAP
from hindmost_judge.stats.robust import average, median
from hindmost_judge.verdict.schema import Bound
from hindmost_judge.verdict.wording import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings
    from hindmost_judge.verdict.schema import Verdict

#: Where stalls take this share of the time samples tell of them, and not of the typical step.
_MOSTLY_STALLS = 0.5
#: What a GPU computes with, as the monitor tells them apart.
_MATH = {"tensor_activity": "tensor cores", "fp64_activity": "FP64", "fp32_activity": "FP32", "fp16_activity": "FP16"}


def find(blocks: Blocks | None, named: Sequence[Verdict], settings: Settings) -> Bound | None:
    """By what the typical step is bound, ``unknown`` where what was measured shows none; ``None`` if nothing was."""
    if blocks is None or len(blocks.steps) < settings.min_steps or not blocks.step_ns > 0:
        return None
    kinds = {one.kind: one for one in named}
    for kind, by in (("input_bound", "input"), ("host_bound", "host")):
        if kind in kinds:
            return Bound(by, kinds[kind].evidence[0])
    if any(one.kind == "intermittent" and (one.cost_ratio or 0.0) >= _MOSTLY_STALLS for one in named):
        return None
    if "oversubscribed" in kinds:
        return Bound("cpu", kinds["oversubscribed"].evidence[0])
    queued = queueing.of_collectives(blocks) / average(blocks.period)
    found = _of_queue(blocks, settings) or _of_transfers(blocks, settings, queued)
    return found or _of_gpus(blocks, settings)


def _of_queue(blocks: Blocks, settings: Settings) -> Bound | None:
    """Ranks that all wait in the run queue: for each other, or for other processes of their nodes."""
    rates = blocks.gauge("runqueue")
    if rates is None or queueing.on_gpus(blocks) or not np.min(rates) >= settings.bound_transfer:
        return None
    return Bound("cpu", f"every rank waits for a CPU for at least {percent(float(np.min(rates)))} of the time")


def _of_transfers(blocks: Blocks, settings: Settings, queued: float) -> Bound | None:
    """Transfers that computing waits for; with overlap, those that outlast what could hide them.

    Without the share of the step for which ranks ``queued`` for a CPU in them.
    """
    share = float(median(median(blocks.transfer, axis=1))) / blocks.step_ns - queued
    least = settings.bound_transfer_beside if blocks.overlapped else settings.bound_transfer
    if not share >= least:  # NaN too
        return None
    beside = ", longer than the backward that hides them" if blocks.overlapped else ""
    return Bound("communication", f"transfers are {percent(share)} of the typical step{beside}")


def _of_gpus(blocks: Blocks, settings: Settings) -> Bound | None:
    busy, memory = _typical(blocks, "sm_activity"), _typical(blocks, "dram_activity")
    if np.isnan(busy) or np.isnan(memory):
        return _of_power(blocks, settings)
    levels = {text: _typical(blocks, name) for name, text in _MATH.items()}
    math = {text: level for text, level in levels.items() if not np.isnan(level)}
    most = max(math, key=lambda name: math[name], default=None)
    used = f"SMs active {percent(busy)} of the time, memory at {percent(memory)} of peak bandwidth"
    used += f", {most} at {percent(math[most])}" if most is not None and math[most] > 0 else ""
    computing = math[most] if most is not None else 0.0
    if memory >= settings.bound_dram and memory >= computing:
        return Bound("gpu_memory", used)
    if busy < settings.bound_sm:
        return Bound("unknown", f"{used}: GPUs wait for something else")
    if computing < settings.bound_math:
        return Bound("unknown", f"{used}: neither memory nor arithmetic is near its limit")
    return Bound("gpu_compute", used)


def _of_power(blocks: Blocks, settings: Settings) -> Bound | None:
    """Without the monitor: GPUs at their power limit compute, unless their memory is touched too often to tell."""
    touched, reasons = _typical(blocks, "memory_touched"), _typical(blocks, "clock_reasons")
    if np.isnan(touched) or np.isnan(reasons):
        return None
    used = f"accessed {percent(touched)} of the time"
    if touched >= settings.bound_dram or not int(reasons) & POWER_CAP:
        return Bound("unknown", f"GPU memory is {used}; its bandwidth was not sampled (GPUs since Hopper report it)")
    return Bound("gpu_compute", f"GPUs are at their power limit; memory bandwidth is not the limit (memory is {used})")


def _typical(blocks: Blocks, name: str) -> float:
    """The typical rank's level over the steps; NaN where it was not sampled."""
    levels = blocks.gauge(name)
    return float("nan") if levels is None else float(median(levels))
