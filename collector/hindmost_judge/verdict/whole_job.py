"""Verdicts without a name: all is well, or all ranks are held back alike by input, slow launches or uneven work.

And what limits the typical step of a job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hindmost_judge import efficiency, overview
from hindmost_judge.blocks import Blocks
from hindmost_judge.causes import cpu_wait, loading
from hindmost_judge.causes.loading import Loading, input_share
from hindmost_judge.causes.telemetry import POWER_CAP
from hindmost_judge.overview import Overview
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, mean, median
from hindmost_judge.types import Ints
from hindmost_judge.usage import CpuUse, used_by_others
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import UNSURE, StepLimit, Verdict
from hindmost_judge.verdict.wording import ms, names, percent
from hindmost_judge.whatif.waste import Planned

#: Exposed transfers take this share of the typical step: the job is limited by communication (of the step).
_BOUND_TRANSFER = 0.5
#: Per cent of the steps whose transfers are fastest: in these all ranks had a CPU, where any step is so.
_FASTEST = 10
#: The same for transfers that overlap with backward, which is two thirds of computing and hides as much (of the
#: step).
_BOUND_TRANSFER_BESIDE = 0.7
#: Writing takes this share of the time.
_BOUND_SAVING = 0.1
#: Share of time in which the average SM has work; below it, NVIDIA's DCGM guide calls GPU use ineffective (of the
#: time).
_BOUND_SM = 0.8
#: Of the GPU's memory; a plain copy reaches 0.89 on an H200, and a step is never one kernel only (of the peak
#: bandwidth).
_BOUND_DRAM = 0.6
#: The busiest of tensor cores, FP64, FP32 and FP16; below it, kernels are too small to compute much (of a pipe's
#: peak).
_BOUND_MATH = 0.1


def balanced(
    blocks: Blocks, wasted: float, settings: Settings, needs: Blocks | None = None, *, queued: bool = False
) -> Verdict:
    """No rank holds the job back; ``needs`` are the same steps by the ranks' needs, where they share CPUs.

    ``queued``: the rank that is waited for most was seen to wait for a CPU for as long as it was late.
    """
    evidence, advice = wording.balanced(blocks, wasted, settings.effect(len(blocks.ranks)), needs, queued=queued)
    confidence = UNSURE if advice else float(np.clip(1.0 - 1.0 / np.sqrt(len(blocks.steps) + 1), 0.55, 0.99))
    return Verdict("balanced", confidence=confidence, evidence=tuple(evidence), advice=advice)


def of_uneven(blocks: Blocks, cost: float, explained: float, swing: float, *, counted: bool) -> list[Verdict]:
    """The verdict on work whose size differs from rank to rank, in turn, by ``swing``: that costs so many ns a step.

    ``explained`` is its share of the delays. ``counted``: by samples or tokens; else by how long the GPU computed.
    """
    unlike = f"GPU forward times of a step differ by {percent(swing)} (standard deviation)"
    if blocks.work is not None and counted:
        times = float(median(np.fmax.reduce(blocks.work) / np.fmin.reduce(blocks.work)))
        unlike = f"the largest batch of a step has {times:.1f} times the items of the smallest"
    evidence = [
        f"{unlike}: that explains {percent(explained)} of the delays",
        f"ranks are late in turn; with work of equal size a step is {ms(cost)} shorter",
    ]
    if not counted:
        evidence.append("the work was not counted: `hindmost.step(work=tokens)` counts it")
    return [
        costing(
            *(blocks, 0, len(blocks.steps), cost),
            kind="uneven_workload",
            cause="workload",
            confidence=0.95 if counted else 0.7,
            explained=explained,
            evidence=tuple(evidence),
            advice=("give ranks batches of equal size: sort or pack by length, or balance tokens, not samples",),
        )
    ]


def of_stages(
    blocks: Blocks,
    stages: Sequence[int],
    of: Ints,
    levels: tuple[float, float],
    span: slice,
    saved: tuple[float, float],
) -> list[Verdict]:
    """The verdict on ``stages`` of a pipeline that are slow on every replica; ``of`` [R] is the stage of each rank.

    In the steps of ``span``, ns a step: these work as long as the first of the ``levels``, the typical stage as the
    second; at the typical stage's pace, and with the same work spread evenly, so much is ``saved``.
    """
    rows = np.flatnonzero(np.isin(of, stages))
    replicated = len(rows) // len(stages) > 1
    which = "stages " if len(stages) > 1 else "stage "
    which += " and ".join(str(stage) for stage in stages)
    began, end = since(blocks, span.start), until(blocks, span.stop)
    took = f"{ms(levels[0])}, the typical stage {ms(levels[1])}"
    evidence = [
        f"work per step: {which} of {int(of.max()) + 1} ({names(blocks.ranks[rows].tolist())}) {took}",
        "it is so on every replica" if replicated else "there is no replica to compare with",
        f"at the pace of the typical stage a step is {ms(saved[0])} shorter",
        f"with work spread evenly over the stages it is {ms(saved[1])} shorter",
    ]
    if began or end is not None:
        evidence.append("it was as fast as the others before: what its ranks share may have become slow")
    return [
        costing(
            *(blocks, span.start, span.stop, saved[0]),
            kind="uneven_workload",
            cause="workload",
            confidence=0.9 if replicated and not began and end is None else 0.7,
            explained=1.0,
            evidence=tuple(evidence),
            advice=(f"move layers away from {which}, or check what its ranks share",),
            shown_ms=0.0,
        )
    ]


def of_hosts(
    blocks: Blocks, launching: float, idles: float, row: int | None, *, queue_known: bool = True
) -> list[Verdict]:
    """The verdict on a job whose GPUs wait for launches: hosts launch, and a GPU idles, for these shares of the step.

    ``row`` is the rank that waits least in most steps; ``None`` where there is none.
    """
    idle = idles if idles > 0 else None
    queue = "the GPU of the last rank has no work queued at the end of a step"
    if not queue_known:
        queue = "forward takes the CPU of the last rank as long as its GPU"
    evidence = [f"CPUs launch kernels for {percent(launching)} of the step", queue]
    cost = idle * average(blocks.period) if idle is not None else None
    if cost is not None:
        which = "not always the same" if row is None else f"of rank {int(blocks.ranks[row])}"
        one = f"the GPU that the others wait for ({which}) is idle"
        evidence.insert(0, f"{one} {ms(cost)} per step: its next kernel is not launched yet")
    return [
        Verdict(
            kind="host_bound",
            since_step=since(blocks, 0),
            cost_ms_per_step=cost / 1e6 if cost is not None else None,
            cost_ratio=idle,
            confidence=0.8,
            evidence=tuple(evidence),
            advice=("launch fewer, larger kernels: CUDA graphs, torch.compile, fused optimizers, larger batches",),
        )
    ]


def costing(blocks: Blocks, first: int, stop: int, cost: float, **known: Any) -> Verdict:
    """The verdict on steps [first, stop), by index, that costs so many ns in each of them."""
    return Verdict(
        since_step=since(blocks, first),
        until_step=until(blocks, stop),
        cost_ms_per_step=cost / 1e6,
        cost_ratio=cost / average(blocks.period[first:stop]),
        **known,
    )


#: A job's first steps may differ from the rest in their collectives, and are not found by their pattern.
_START = 2


def since(blocks: Blocks, index: int) -> int:
    """Step number; from the first judged step means from the start, since warm-up cannot tell."""
    from_the_start = index == 0 and blocks.steps[0] <= blocks.warmup + _START
    return 0 if from_the_start else int(blocks.steps[index])


#: So many steps after what held show that it has ended; fewer may be unlike the rest by chance.
_AFTER = 3


def until(blocks: Blocks, stop: int) -> int | None:
    """Number of the first step after those before ``stop``; ``None`` where they go on to about the last."""
    return None if stop + _AFTER > len(blocks.steps) else int(blocks.steps[stop])


def of_job(
    blocks: Blocks, settings: Settings, named: Sequence[Verdict] = (), seen: Overview | None = None
) -> list[Verdict]:
    """What holds all ranks back alike; the input of those ``named`` for theirs is not counted again."""
    inputs = blocks.parts.get("input")
    if inputs is None:
        return []
    made = loading.of(blocks)
    queued = np.zeros(len(inputs)) if made is None else made.shares["cpu_contention"]
    inputs = inputs * (1.0 - queued[:, None])  # no loader shortens what the scheduler makes of it
    alike = blocks.lanes is None  # of lanes the own work of each host is known, a named one's too
    blamed = [rank for verdict in named if verdict.cause == "input" and alike for rank in verdict.ranks]
    left = ~np.isin(blocks.ranks, blamed)
    inputs = inputs[left]
    if np.isnan(inputs).all():
        return []
    typical = input_share(inputs, blocks)
    if not typical >= settings.input_bound:  # NaN where it is unknown
        return []
    replayed = None if seen is None else efficiency.cost(seen, "input", blamed)
    cost = typical * average(blocks.period) if replayed is None else replayed
    if cost < settings.input_bound * average(blocks.period):  # the last rank, which all wait for, hardly waits for it
        return []
    waits, for_cpu = float(median(mean(blocks.parts["input"][left]))), float(median(queued[left]))
    without = f"; {percent(for_cpu)} of that is waiting for a CPU, which COST leaves out" if for_cpu >= 0.01 else ""
    who = _typical_rank(blocks)
    return [
        costing(
            *(blocks, 0, len(blocks.steps), cost),
            kind="input_bound",
            cause="input",
            confidence=0.9,
            explained=1.0,
            evidence=(
                f"{who} waits {ms(waits)} of {ms(average(blocks.period))} per step for input on average{without}",
                *_of_cost(cost, waits * (1.0 - for_cpu)),
                *_of_storage(made, blocks, np.flatnonzero(left)),
            ),
        )
    ]


def _typical_rank(blocks: Blocks) -> str:
    return "the typical rank" if len(blocks.ranks) > 1 else names(blocks.ranks.tolist())


#: What input costs is another figure than what the typical rank waits from this difference of the two on.
_UNLIKE = 0.1


def _of_cost(cost: float, waits: float) -> list[str]:
    """Why input costs less or more than the typical rank waits for it, ns."""
    if abs(cost - waits) <= _UNLIKE * waits:
        return []
    less = "what it delays the last rank: work, or a wait for others, hides the rest"
    return [f"COST is {less if cost < waits else 'by the last rank of each step, which waits longer'}"]


def _of_storage(made: Loading | None, blocks: Blocks, rows: Ints) -> list[str]:
    """That storage is what most of these ranks' input waits for, by the one that waits most."""
    if made is None:
        return []
    by_storage = [row for row in rows.tolist() if made.cause(row)[0] == "io"]
    most = max(by_storage, key=lambda row: float(made.storage[row]), default=None)
    return made.evidence(blocks, most) if most is not None and 2 * len(by_storage) > len(rows) else []


#: Where stalls take this share of the time samples tell of them, and not of the typical step.
_MOSTLY_STALLS = 0.5
#: What a GPU computes with, as the monitor tells them apart.
_MATH = {"tensor_activity": "tensor cores", "fp64_activity": "FP64", "fp32_activity": "FP32", "fp16_activity": "FP16"}


def step_limit(
    blocks: Blocks | None,
    named: Sequence[Verdict],
    settings: Settings,
    use: Callable[[], Mapping[str, CpuUse]] = dict,
    seen: Overview | None = None,
    planned: Sequence[Planned] = (),
) -> StepLimit | None:
    """By what the typical step is bound: the resource that would have to be faster for it to be shorter.

    ``use`` says of nodes who uses their CPUs; asked only where ranks wait for one. ``planned``: what ranks do for all.

    ``unknown`` where what was measured shows none; ``None`` if nothing was measured.

    For busy GPUs, the use of their memory shows what limits the kernels: NVIDIA's GPU performance monitor reports it
    (Hopper and later). NVML alone has the share of time in which memory was touched at all, which can show that memory
    is not the limit, and never that it is. The memory bandwidth of CPUs is not sampled.
    """
    if blocks is None or len(blocks.steps) < settings.min_steps or not blocks.step_ns > 0:
        return None
    kinds = {verdict.kind: verdict for verdict in named}
    for kind, by in (("input_bound", "input"), ("host_bound", "host")):
        if kind in kinds:
            return StepLimit(by, kinds[kind].evidence[0])
    if any(verdict.kind == "intermittent" and (verdict.cost_ratio or 0.0) >= _MOSTLY_STALLS for verdict in named):
        return None
    if "oversubscribed" in kinds:
        return StepLimit("cpu", kinds["oversubscribed"].evidence[0])
    queued = cpu_wait.queued_in_collectives(blocks) / average(blocks.period)
    queue = _of_queue(blocks, use)
    by_others = queue is not None and wording.OTHERS_USE in queue.evidence  # first what can be changed in the job
    found = _of_saving(named, seen, _BOUND_SAVING if by_others else _MOST) or queue
    found, copies = found or _of_transfers(blocks, queued), _part(blocks, "device_copy")
    if not found and copies >= _BOUND_TRANSFER:  # what they copy from is not pinned, or there is much of it
        return StepLimit("copies", f"hosts wait in copies to their GPU for {percent(copies)} of the typical step")
    found = found or _of_saving(named, seen, _BOUND_SAVING) or _of_planned(planned, blocks)
    return found or _of_gpus(blocks) or _of_computing(blocks)


def without_others(found: Sequence[Verdict], bound: StepLimit | None) -> list[Verdict]:
    """The verdicts; more steps show no slow rank where other processes that limit the job delay any of them."""
    others = bound is not None and wording.OTHERS_USE in bound.evidence
    return [
        replace(one, advice=wording.WITHOUT_OTHERS) if others and wording.MORE_STEPS[0] in "".join(one.advice) else one
        for one in found
    ]


def _of_queue(blocks: Blocks, use: Callable[[], Mapping[str, CpuUse]]) -> StepLimit | None:
    """Ranks that all wait in the run queue: for each other, or for other processes of their nodes."""
    rates, used = blocks.gauge("runqueue"), blocks.gauge("cpu")
    if rates is None or cpu_wait.on_gpus(blocks) or np.isnan(rates).all():
        return None
    waits = rates
    if not np.min(waits) >= _BOUND_TRANSFER and used is not None and np.min(rates) >= cpu_wait.QUEUED:
        waits = rates / (rates + used)  # ranks that wait for each other want none meanwhile
    if not np.min(waits) >= _BOUND_TRANSFER:
        return None
    of_node = use()
    node = used_by_others(of_node)
    whose = f". {wording.who_uses_cpus(node, *of_node[node])}" if node is not None else ""
    typical = float("nan") if used is None else float(median(used))
    uses = "" if used is None else f", and uses {typical:.{1 if typical >= 0.05 else 2}f} CPUs"
    waits_for = f"{_typical_rank(blocks)} waits for a CPU {percent(float(median(rates)))} of the time{uses}"
    transfers = median(blocks.transfer, axis=0)
    fastest = float("nan") if np.isnan(transfers).all() else float(np.nanpercentile(transfers, _FASTEST))
    network = ""
    if not blocks.overlapped and fastest >= _BOUND_TRANSFER * blocks.step_ns:
        share = percent(fastest / blocks.step_ns)
        network = f"; or a slow network: transfers are {share} of a step even where they are fastest"
    return StepLimit("cpu", f"{waits_for}{network}{whose}")


def _of_transfers(blocks: Blocks, queued: float) -> StepLimit | None:
    """Transfers that computing waits for; with overlap, those that outlast what could hide them.

    Ranks may have ``queued`` for a CPU in them, for this share of the step: what is left has to be most of it.
    """
    share = float(median(median(blocks.transfer, axis=1))) / blocks.step_ns
    least = _BOUND_TRANSFER_BESIDE if blocks.overlapped else _BOUND_TRANSFER
    if not share - queued >= least:  # NaN too
        return None
    overlapped = ", longer than the backward that hides them" if blocks.overlapped else ""
    return StepLimit("communication", f"transfers are {percent(share)} of the typical step{overlapped}")


def _of_saving(named: Sequence[Verdict], seen: Overview | None, least: float) -> StepLimit | None:
    """Ranks that write checkpoints or other files, by how much longer that makes steps; not where that is a fault."""
    if seen is None or seen.saves is None or any(verdict.cause == "checkpoint" for verdict in named):
        return None
    cost = float(overview.lengthened(seen.saves, seen.period).mean())
    if not cost >= least * seen.step:
        return None
    writes = seen.saves >= cost  # less is no part of it
    who = names(seen.ranks[writes.any(axis=1)].tolist())
    often = f"{np.count_nonzero(writes.any(axis=0))} of {len(seen.steps)} steps"
    share = cost / seen.step
    return StepLimit(
        "checkpoint", f"{who} in {often}, which takes {ms(cost)} of the mean step ({percent(share)})", share
    )


def _of_planned(planned: Sequence[Planned], blocks: Blocks) -> StepLimit | None:
    """What a rank does for all by the script, which the others wait for, where that costs as much."""
    step = average(blocks.period) / 1e6
    most = max(planned, key=lambda one: one.ms_per_step, default=None)
    if most is None or most.ms_per_step < _BOUND_SAVING * step:
        return None
    return StepLimit(most.cause or "serial", most.note, most.ms_per_step / step)


#: Writing that something else outweighs is worth a note from this share of the time on.
_NOTED_SAVING = 0.03


def saving_note(named: Sequence[Verdict], seen: Overview | None) -> list[str]:
    """What writing files takes of the steps, where something else limits the job."""
    found = _of_saving(named, seen, _NOTED_SAVING)
    return [] if found is None else [f"writing files: {found.evidence}. It costs less {wording.SAVING}"]


#: A host that launches, or computes, for this share of the step sets its pace; so does one of a job without GPUs.
_MOST = 0.5


def _of_launches(blocks: Blocks, used: str) -> StepLimit | None:
    """GPUs that idle while hosts are in forward, backward and optimizer, and do not wait there: latency of launches."""
    waits = _part(blocks, "device_wait")
    launching = sum(_part(blocks, name) for name in ("forward", "backward", "optimizer")) - waits
    if not launching >= _MOST:  # NaN too: waits were not recorded
        return None
    return StepLimit("host", f"{used}; hosts launch kernels, or compute, for {percent(launching)} of the typical step")


def _of_computing(blocks: Blocks) -> StepLimit | None:
    """A job without GPUs whose ranks are on a CPU for most of the step."""
    cpu, phases = _typical(blocks, "cpu"), any(name.startswith("gpu_") for name in blocks.parts)
    if not cpu >= _MOST or phases or cpu_wait.on_gpus(blocks):
        return None
    own = float(median(median(blocks.self_time, axis=1))) / blocks.step_ns
    if "forward" in blocks.parts:  # a rank that meets no other has its self time in these
        own = max(own, float(np.nansum([_part(blocks, name) for name in ("forward", "backward", "optimizer")])))
    if not own >= _MOST:
        return None
    return StepLimit(
        "compute", f"ranks compute for {percent(min(own, 1.0))} of the typical step, on {cpu:.1f} CPUs each"
    )


def _part(blocks: Blocks, name: str) -> float:
    """What the typical rank spends in a part of the typical step, as a share; NaN where it was not recorded."""
    block = blocks.parts.get(name)
    return float("nan") if block is None else float(median(median(block, axis=1))) / blocks.step_ns


def _of_gpus(blocks: Blocks) -> StepLimit | None:
    busy, memory = _typical(blocks, "sm_activity"), _typical(blocks, "dram_activity")
    if np.isnan(busy) or np.isnan(memory):
        return _of_power(blocks)
    levels = {text: _typical(blocks, name) for name, text in _MATH.items()}
    math = {text: level for text, level in levels.items() if not np.isnan(level)}
    most = max(math, key=lambda name: math[name], default=None)
    used = f"SMs active {percent(busy)} of the time, memory at {percent(memory)} of peak bandwidth"
    used += f", {most} at {percent(math[most])}" if most is not None and math[most] > 0 else ""
    computing = math[most] if most is not None else 0.0
    if memory >= _BOUND_DRAM and memory >= computing:
        return StepLimit("gpu_memory", used)
    if busy < _BOUND_SM:
        return _of_launches(blocks, used) or StepLimit("unknown", f"{used}: GPUs wait for something else")
    if computing < _BOUND_MATH:
        return StepLimit("unknown", f"{used}: neither memory nor arithmetic is near its limit")
    return StepLimit("gpu_compute", used)


def _of_power(blocks: Blocks) -> StepLimit | None:
    """Without the monitor: GPUs at their power limit compute, unless their memory is touched too often to tell."""
    touched, reasons = _typical(blocks, "memory_touched"), _typical(blocks, "clock_reasons")
    if np.isnan(touched) or np.isnan(reasons):
        return None
    busy = _typical(blocks, "utilization")
    if busy < _MOST and (launches := _of_launches(blocks, f"GPUs are busy {percent(busy)} of the time")):
        return launches
    used = f"accessed {percent(touched)} of the time"
    if touched >= _BOUND_DRAM or not int(reasons) & POWER_CAP:
        return StepLimit(
            "unknown", f"GPU memory is {used}; its bandwidth was not sampled (GPUs since Hopper report it)"
        )
    return StepLimit(
        "gpu_compute", f"GPUs are at their power limit; memory bandwidth is not the limit (memory is {used})"
    )


def _typical(blocks: Blocks, name: str) -> float:
    """The typical rank's level over the steps; NaN where it was not sampled."""
    levels = blocks.gauge(name)
    return float("nan") if levels is None else float(median(levels))
