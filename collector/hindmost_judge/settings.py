"""The thresholds that can be set: one table of default, unit, range and reason.

Constants that define a method stand in that method's module; ``docs/reference/thresholds.md`` lists the table.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any

#: Units that several thresholds have.
STEP, EXCESS = "of the step", "of the delay"


def _of(default: float, unit: str, low: float, high: float, reason: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "reason": reason})


@dataclass(frozen=True)
class Settings:
    """When to name a rank and when to abstain.

    A field's name is the name for ``--set``, for ``[judge]`` in a TOML file and, in capitals after ``HINDMOST_JUDGE_``,
    for the environment.
    """

    min_effect: float = _of(
        0.01,
        STEP,
        0,
        1,
        "least delay to name a rank; GPUs of one model differ by about 1 %, so less is not worth acting on",
    )
    min_cost: float = _of(
        0.004, STEP, 0, 1, "least saving from fixing it; below `min_effect`, since noise hides part of the cost"
    )
    min_demand: float = _of(
        0.15,
        "of the peers'",
        0,
        10,
        "extra CPU time against the cohort where ranks share CPUs; caches and clock rates alone make about 10 %",
    )
    min_demand_for_a_while: float = _of(
        1.0,
        "of the peers'",
        0,
        10,
        "the same for a transient slowdown: sharing a core can double a step's CPU time",
    )
    min_effect_of_few: float = _of(
        0.02,
        STEP,
        0,
        1,
        "least delay where fewer than four healthy ranks are left to compare with; they commonly differ by 2 %",
    )
    min_steps: int = _of(10, "steps", 1, 100_000, "least steps to call a slowdown persistent; fewer may be chance")
    large_effect: float = _of(
        0.2, STEP, 0, 10, "a delay this large is not noise of a healthy job: `min_steps_when_large` steps are enough"
    )
    min_steps_when_large: int = _of(3, "steps", 1, 100_000, "one step may be an accident, and a second its echo")
    min_z: float = _of(
        5.0,
        "standard errors",
        0,
        1000,
        "mean delay against its own standard error; at 5, normal noise errs once in a million",
    )
    min_spread_ratio: float = _of(
        3.0,
        "standard deviations",
        0,
        1000,
        "delay against the spread of healthy ranks, beyond the extreme that chance makes among that many:"
        " times 1.6 with 4 ranks, 2.2 with 1,024",
    )
    min_consistency: float = _of(
        0.85,
        "of the run's blocks",
        0,
        1,
        "a persistent slowdown shows half of its typical delay in this share of the blocks; an accident does not",
    )
    min_latest: float = _of(
        0.5,
        "of the steps",
        0,
        1,
        "a rank must be later than all of seven healthy ones in this share; chance gives one in eight",
    )
    recovered_steps: int = _of(
        16,
        "steps",
        1,
        100_000,
        "steps at the cohort's pace before a slow segment ends; a persistent slowdown may pause briefly",
    )
    max_segments: int = _of(
        3,
        "segments",
        1,
        1000,
        "slow segments of one rank reported one by one; with more, it is one persistent slowdown, or stalls",
    )
    min_change: float = _of(
        0.15,
        "of the lower level",
        0,
        10,
        "a rank that becomes later by this much is reported again; a fault varies by less, and filling"
        " caches make 12 %",
    )
    min_above_around: float = _of(
        5.0,
        "standard deviations",
        0,
        1000,
        "a segment against as many steps on each side; a high bar, since it is the highest of very many",
    )
    burst_alike: float = _of(
        1 / 3,
        "of the burst",
        0,
        1,
        "no other eight steps of any rank may be later by this share, or the burst may be chance",
    )
    min_share_of_waste: float = _of(
        0.12, "of all waiting", 0, 1, "a smaller share of all waiting cannot be distinguished from noise of all ranks"
    )
    min_explained: float = _of(
        0.8, EXCESS, 0, 1, "share of the delay that a cause must explain; the rest is within the scatter of the phases"
    )
    stall_effect: float = _of(0.1, STEP, 0, 1000, "delay of a single step that makes it a stall; jitter is below that")
    min_stalls: int = _of(5, "stalls", 1, 100_000, "stalls apart in time; fewer may hit one rank by chance")
    min_stall_share: float = _of(
        0.6,
        "of all stalls",
        0,
        1,
        "share of all stalls that one rank must have; with less, other ranks have the same problem",
    )
    min_uneven: float = _of(
        0.03,
        STEP,
        0,
        1,
        "variation of the work, and time that ranks lose to each other, that is uneven; equal kernels vary by 1 %",
    )
    min_uneven_explained: float = _of(
        0.5,
        "of the variance",
        0,
        1,
        "share of the delays that the work must explain; with less, most of the delay has another cause",
    )
    uneven_stage: float = _of(
        1.1,
        "times the typical stage",
        1,
        100,
        "a pipeline stage this slow is uneven; embedding and norms alone make stages differ by a few per cent",
    )
    warmup_ratio: float = _of(
        1.5,
        "times the median step",
        1,
        1000,
        "longer steps at the start are warm-up: allocation, autotuning, file caches",
    )
    max_warmup: float = _of(
        0.25, "of the run", 0, 1, "longest warm-up; slow steps that last longer are how the job runs"
    )
    input_bound: float = _of(
        0.2,
        STEP,
        0,
        1,
        "input wait of the typical rank that makes the job input-bound; a fifth of the time justifies a faster loader",
    )
    hidden_input_rank: float = _of(
        0.05,
        STEP,
        0,
        1,
        "extra input time of one rank that overlaps with computing and gets a note: faster GPUs would expose it",
    )
    hidden_input_all: float = _of(0.15, STEP, 0, 1, "the same for all ranks; input that all ranks have is more common")
    hidden_input_shows: float = _of(
        0.25, "of the longer input", 0, 1, "a rank that is late by this share of its longer input does not hide it"
    )
    network_longer: float = _of(
        1.2,
        "times the usual transfer",
        1,
        100,
        "slower transfers that count; healthy groups differ by topology, and by traffic of other jobs",
    )
    network_z: float = _of(
        3.0, "standard errors", 0, 1000, "by how much steps must be longer, besides `min_z` for the transfers"
    )
    network_same_operations: float = _of(
        0.1,
        "of a step's operations",
        0,
        1,
        "difference in operations per step; a step is cut off at the ends, and a larger one is other work",
    )
    network_compared: float = _of(
        0.5,
        "of the transfers' time",
        0,
        1,
        "share of the transfer time in message sizes seen often enough to know their usual time",
    )
    host_bound_shortest_ms: float = _of(
        12.0,
        "ms",
        0,
        1e6,
        "a GPU clock is up to 3 ms off its host's, which hides what was queued; shorter steps need both"
        " `host_bound_in_step` and `host_bound_busy`",
    )
    host_bound_queued: float = _of(
        0.25, STEP, 0, 1, "most work queued at a step's end on a launch-bound GPU; a busy GPU has 0.5 or more"
    )
    host_bound_launching: float = _of(
        0.8, STEP, 0, 1, "share of the step in which the host launches; with less, it waits for something"
    )
    host_bound_in_step: float = _of(
        0.85,
        "of the GPU's forward",
        0,
        1,
        "the host's forward takes at least this share of its GPU's, which follows kernel by kernel",
    )
    host_bound_busy: float = _of(
        0.93,
        "of the time",
        0,
        1,
        "a launch-bound GPU has a kernel resident for less of the time; a GPU that its host waits for has more",
    )
    host_bound_late: float = _of(
        0.05,
        STEP,
        0,
        1,
        "most delay of the last rank in a launch-bound job; with more, that rank's own host is slow",
    )
    bound_transfer: float = _of(
        0.5, STEP, 0, 1, "exposed transfers take this share of the typical step: the job is limited by communication"
    )
    bound_transfer_beside: float = _of(
        0.7,
        STEP,
        0,
        1,
        "the same for transfers that overlap with backward, which is two thirds of computing and hides as much",
    )
    bound_sm: float = _of(
        0.8,
        "of the time",
        0,
        1,
        "share of time in which the average SM has work; below it, NVIDIA's DCGM guide calls GPU use ineffective",
    )
    bound_dram: float = _of(
        0.6,
        "of the peak bandwidth",
        0,
        1,
        "of the GPU's memory; a plain copy reaches 0.89 on an H200, and a step is never one kernel only",
    )
    bound_math: float = _of(
        0.1,
        "of a pipe's peak",
        0,
        1,
        "the busiest of tensor cores, FP64, FP32 and FP16; below it, kernels are too small to compute much",
    )
    desync_agreed: int = _of(
        10,
        "places",
        1,
        100_000,
        "places at which all members ran one operation before; then sequence numbers mean the same on all of them",
    )
    foreign_memory_mb: float = _of(
        600.0,
        "MB",
        0,
        1e9,
        "memory of other processes on a rank's GPU, above its peers; a driver context alone takes less",
    )
    clocks_differ: float = _of(
        0.005, "of the clock", 0, 1, "clock rates of healthy GPUs under load differ by this much through silicon alone"
    )
    less_power: float = _of(
        0.97,
        "of the peers' power",
        0,
        1,
        "with less power than this, a limit other than the shared power cap holds the GPU back",
    )
    gpu_shared_unseen: float = _of(
        0.1,
        "of forward",
        0,
        10,
        "forward must be longer by this share to suspect a GPU process that was not recorded",
    )
    gpu_shared_optimizer: float = _of(
        0.5,
        "of forward's slow-down",
        0,
        10,
        "a shared GPU slows the optimizer too, by at least this share of forward's slowdown",
    )
    most_hidden: float = _of(
        3.0,
        "times the visible delay",
        1,
        100,
        "the most that overlap may hide: forward and the start of backward, a third of computing, stay visible",
    )
    major_faults: float = _of(
        10.0,
        "page faults a second",
        0,
        1e9,
        "rate above the peers at which a node's memory pressure is this rank's own",
    )
    own_file_mb: float = _of(
        1.0,
        "MB a second",
        0,
        1e9,
        "storage traffic at which a node's I/O wait is this rank's own; logs and metrics are kilobytes",
    )
    idle_file_mb: float = _of(
        250.0,
        "MB moved to or from storage a second in which a GPU idles",
        0,
        1e9,
        "rate at which file I/O explains the idle GPU; a copy from memory takes a fortieth of that time",
    )
    queue_without_work: float = _of(
        0.1,
        EXCESS,
        0,
        1,
        "a rank that computes longer by more than this queues for CPUs with its own work: no contention",
    )
    starved: float = _of(
        0.05, STEP, 0, 1, "run-queue delay of the main thread above its peers, before that of its other threads counts"
    )
    idle_cpu: float = _of(0.2, "of a CPU", 0, 1, "a host phase that uses less CPU time than this waits for something")
    hang_steps: float = _of(
        3.0, "slowest (p99) steps", 0, 1e6, "an operation open this long hangs: users should know of a hang this soon"
    )
    hang_seconds: float = _of(
        5.0, "s", 0, 86_400, "never earlier than this; short steps pause for a moment now and then"
    )
    hang_way_seconds: float = _of(
        1.0,
        "s",
        0,
        3600,
        "head start for stacks and evaluation; half of it is used, all of it on a busy host. An operation"
        " open for `max(hang_seconds, hang_steps * p99) - hang_way_seconds` hangs",
    )
    hang_checkpoint_seconds: float = _of(
        60.0,
        "s",
        0,
        86_400,
        "used instead where the missing rank writes a checkpoint: the others then wait as planned",
    )

    def effect(self, ranks: int) -> float:
        """Least delay, as a share of the step, to name one of so many ranks: fewer than four need more."""
        return self.min_effect if ranks > 3 else self.min_effect_of_few

    def patience_ns(self, step_ns: float) -> float:
        """How long an operation may be open in a job whose p99 step is ``step_ns`` (NaN: unknown)."""
        steps = self.hang_steps * (0.0 if isnan(step_ns) else step_ns)
        return max(self.hang_seconds * 1e9, steps) - self.hang_way_seconds * 1e9

    def other(self) -> dict[str, float]:
        """Settings that differ from their default."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def told(self) -> str | None:
        """A sentence on the settings that differ from their default; ``None`` where none does."""
        usual = {one.name: one.default for one in fields(self)}
        other = [f"{name} {value:g} (default {usual[name]:g})" for name, value in self.other().items()]
        return f"judged with other thresholds: {', '.join(other)}" if other else None


DEFAULT = Settings()
#: Former names that are still understood, each with today's.
RENAMED = {"max_stretches": "max_segments"}
