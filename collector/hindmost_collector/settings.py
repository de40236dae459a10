"""The thresholds of every decision: the one table of value, unit, range and reason that can be set.

What a method is built of, and another value of which would make it another method, stands beside that method;
``docs/reference/thresholds.md`` lists both, and is made from here and from there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from math import isnan
from typing import Any

#: Units that several thresholds have.
STEP, EXCESS = "of the step", "of the excess"


def _of(default: float, unit: str, low: float, high: float, reason: str) -> Any:
    return field(default=default, metadata={"unit": unit, "low": low, "high": high, "reason": reason})


@dataclass(frozen=True)
class Settings:
    """When to name a rank and when to abstain: a field is a name for ``--set``, for ``[judge]`` in a TOML file and, in
    capitals after ``HINDMOST_JUDGE_``, for the environment.
    """

    min_effect: float = _of(0.01, STEP, 0, 1, "nobody acts on less: GPUs of one model differ by about 1 %")
    min_cost: float = _of(0.004, STEP, 0, 1, "what a repair must save; less than the effect: noise hides a part of it")
    min_demand: float = _of(
        0.15,
        "of the peers'",
        0,
        10,
        "CPU time beyond the peers', where ranks share CPUs: caches and clocks alone make some 10 % there",
    )
    min_demand_for_a_while: float = _of(
        1.0,
        "of the peers'",
        0,
        10,
        "the same in a part of the steps only: whoever else uses a core for a while, its other thread too, leaves half"
        " of it at the least, and the same work takes up to twice as long",
    )
    min_effect_of_few: float = _of(
        0.02,
        STEP,
        0,
        1,
        "fewer than four ranks are no crowd to compare with, nor are those whom several late ones leave: 2 % are usual",
    )
    min_steps: int = _of(10, "steps", 1, 100_000, "fewer cannot tell a habit from an accident")
    large_effect: float = _of(
        0.2, STEP, 0, 10, "what is that large is no noise of a healthy job: `min_steps_when_large` steps are enough"
    )
    min_steps_when_large: int = _of(3, "steps", 1, 100_000, "one may be an accident, two may be its echo")
    profiled_effect: float = _of(
        0.1,
        STEP,
        0,
        10,
        "where a profiler recorded all steps, fewer than `min_steps`: no healthy GPU is as late in each of five",
    )
    min_steps_when_profiled: int = _of(
        5, "steps", 1, 100_000, "of such a recording, in each of which the rank is the latest by `profiled_effect`"
    )
    min_z: float = _of(
        5.0, "standard errors", 0, 1000, "the excess against its own; at five, normal noise errs once in a million"
    )
    min_spread_ratio: float = _of(
        3.0,
        "standard deviations",
        0,
        1000,
        "the excess against how much healthy ranks differ, beyond the most extreme that chance makes of so many: times"
        " 1.6 with 4 ranks, 2.2 with 1,024",
    )
    min_consistency: float = _of(
        0.85, "of the run's blocks", 0, 1, "in these a habit shows, by half of its typical excess; an accident does not"
    )
    min_latest: float = _of(
        0.5, "of the steps", 0, 1, "in these a rank is later than all of seven healthy ones; chance gives one in eight"
    )
    recovered_steps: int = _of(
        16, "steps", 1, 100_000, "as its peers, before a rank's slow stretch is over: a habit may pause for a moment"
    )
    max_stretches: int = _of(
        3, "stretches", 1, 1000, "of one rank, told one by one: what comes and goes more often is one habit, or stalls"
    )
    min_change: float = _of(
        0.15,
        "of the lower level",
        0,
        10,
        "by which a rank must become later to be told once more: a fault varies by less, while caches fill by 12 %",
    )
    min_above_around: float = _of(
        5.0,
        "standard deviations",
        0,
        1000,
        "a stretch against as many of the steps around it on end: it is picked for being high among very many",
    )
    burst_alike: float = _of(
        1 / 3, "of the burst", 0, 1, "no other eight steps of any rank may be later, or such a burst may be anybody's"
    )
    min_share_of_waste: float = _of(
        0.12, "of all waiting", 0, 1, "a smaller part is drowned in noise that has no owner"
    )
    min_explained: float = _of(0.8, EXCESS, 0, 1, "what a cause must explain: the rest is within what phases scatter")
    stall_effect: float = _of(0.1, STEP, 0, 1000, "how late one step must be to be a stall: jitter is below that")
    min_stalls: int = _of(5, "stalls", 1, 100_000, "apart in time: fewer may have met one rank by chance")
    min_stall_share: float = _of(
        0.6, "of all stalls", 0, 1, "a rank that has fewer shares whatever it is with the others"
    )
    min_uneven: float = _of(
        0.03, STEP, 0, 1, "what ranks lose by not being alike, before it is looked for whether their work is"
    )
    min_swing: float = _of(0.03, "of the work", 0, 10, "how much it must vary; kernels of equal work vary by about 1 %")
    min_uneven_explained: float = _of(
        0.5, "of the variance", 0, 1, "of who is late: less, and most of it is something else than the work"
    )
    uneven_stage: float = _of(
        1.1, "times the typical stage", 1, 100, "embedding and norms alone make stages differ by some per cent"
    )
    warmup_ratio: float = _of(
        1.5, "times the median step", 1, 1000, "leading steps beyond are warm-up: allocation, autotuning, file caches"
    )
    max_warmup: float = _of(0.25, "of the run", 0, 1, "what lasts longer is how the job is")
    input_bound: float = _of(0.2, STEP, 0, 1, "the typical rank's input: a fifth of the job's time is worth a loader")
    hidden_input_rank: float = _of(
        0.05,
        STEP,
        0,
        1,
        "input of one rank beyond its peers' that hides and is worth a note: it would show on faster GPUs",
    )
    hidden_input_all: float = _of(0.15, STEP, 0, 1, "the same of all ranks: what all have is more usual")
    hidden_input_shows: float = _of(
        0.25, "of the longer input", 0, 1, "a rank that comes late by that much of it hides nothing"
    )
    network_longer: float = _of(
        1.2, "times the usual transfer", 1, 100, "healthy groups differ by topology, and neighbours come and go"
    )
    network_z: float = _of(
        3.0, "standard errors", 0, 1000, "by which steps must have become longer, beside `min_z` of the transfers"
    )
    network_same_operations: float = _of(
        0.1,
        "of a step's operations",
        0,
        1,
        "a step more or less is cut off at the ends; beyond, the job does other work",
    )
    network_compared: float = _of(
        0.5, "of the transfers' time", 0, 1, "must be of messages seen often enough to know what they usually take"
    )
    host_bound_shortest_ms: float = _of(
        12.0,
        "ms",
        0,
        1e6,
        "a GPU's clock is up to 3 ms off its host's, which hides what was queued: shorter steps need both"
        " `host_bound_in_step` and `host_bound_busy` to show it",
    )
    host_bound_queued: float = _of(
        0.25, STEP, 0, 1, "work queued at a step's end on a GPU that its host keeps waiting; a busy one has 0.5 up"
    )
    host_bound_launching: float = _of(0.8, STEP, 0, 1, "for which the host launches: with less it waits for something")
    host_bound_in_step: float = _of(
        0.85,
        "of the GPU's forward",
        0,
        1,
        "the host's forward takes as long as its GPU's, which follows kernel by kernel",
    )
    host_bound_busy: float = _of(
        0.93, "of the time", 0, 1, "a GPU that waits for launches has a kernel resident less; one synchronised has more"
    )
    host_bound_late: float = _of(
        0.05,
        STEP,
        0,
        1,
        "the rank that the others wait for is as its peers: later, and it is its own host that is slow",
    )
    bound_transfer: float = _of(
        0.5, STEP, 0, 1, "transfers that are waited for take more of the typical step than all else together"
    )
    bound_transfer_beside: float = _of(
        0.7,
        STEP,
        0,
        1,
        "the same of transfers beside backward: that is two thirds of computing, and hides as much of them",
    )
    bound_sm: float = _of(
        0.8,
        "of the time",
        0,
        1,
        "in which the average SM has work: below, NVIDIA's DCGM guide says, a GPU is not used effectively",
    )
    bound_dram: float = _of(
        0.6,
        "of the peak bandwidth",
        0,
        1,
        "of a GPU's memory: a plain copy reaches 0.89 on an H200, and a step is never one kernel only",
    )
    bound_math: float = _of(
        0.1,
        "of a pipe's peak",
        0,
        1,
        "at which the busiest of tensor cores, FP64, FP32 and FP16 works: below, kernels are too small to compute much",
    )
    desync_agreed: int = _of(
        10, "places", 1, 100_000, "at which all members ran one operation before: numbers mean the same on all of them"
    )
    foreign_memory_mb: float = _of(
        600.0, "MB", 0, 1e9, "of other processes on a rank's GPU, beyond its peers': a mere driver context takes less"
    )
    work_differs: float = _of(0.01, "of the peers' work", 0, 1, "less is no reason for what `min_effect` lets through")
    clocks_differ: float = _of(0.005, "of the clock", 0, 1, "clocks of healthy GPUs under load differ by silicon alone")
    less_power: float = _of(
        0.97, "of the peers' power", 0, 1, "below, a GPU is held back by something else than the limit that they share"
    )
    gpu_shared_unseen: float = _of(
        0.1,
        "of forward",
        0,
        10,
        "by which it is longer before a GPU is suspected to be shared with what nobody recorded",
    )
    gpu_shared_optimizer: float = _of(
        0.5, "of forward's slow-down", 0, 10, "whoever shares a GPU slows all that runs on it, the optimizer too"
    )
    most_hidden: float = _of(
        3.0,
        "times the lateness seen",
        1,
        100,
        "forward and the first of backward are seen: a third of computing at least",
    )
    major_faults: float = _of(
        10.0, "page faults a second", 0, 1e9, "beyond the peers', for a node's memory pressure to be this rank's own"
    )
    own_file_mb: float = _of(
        1.0,
        "MB a second",
        0,
        1e9,
        "of storage, for a node's waiting for files to be a rank's own: logs and metrics are kilobytes",
    )
    idle_file_mb: float = _of(
        250.0,
        "MB moved to or from storage a second in which a GPU idles",
        0,
        1e9,
        "for that to be what its host did: from memory so much is copied in a fortieth of the time",
    )
    queue_without_work: float = _of(
        0.1, EXCESS, 0, 1, "computing of more than that is what a rank queues for CPUs with: no contention of its own"
    )
    starved: float = _of(
        0.05, STEP, 0, 1, "for which a main thread waits for a CPU beyond its peers, before its other threads' count"
    )
    idle_cpu: float = _of(0.2, "of a CPU", 0, 1, "computing on the host that uses less of one is waiting for something")
    hang_steps: float = _of(
        3.0, "slowest (p99) steps", 0, 1e6, "whoever watches is to know of a hang so soon after it began"
    )
    hang_seconds: float = _of(5.0, "s", 0, 86_400, "and not before: short steps stop for a moment now and then")
    hang_way_seconds: float = _of(
        1.0,
        "s",
        0,
        3600,
        "earlier than that, for stacks, look and judging to arrive: half of it, all on a busy host. An operation open"
        " for `max(hang_seconds, hang_steps * p99) - hang_way_seconds` hangs",
    )
    hang_checkpoint_seconds: float = _of(
        60.0,
        "s",
        0,
        86_400,
        "where the rank that did not come writes a checkpoint, the others wait as a matter of course",
    )

    def effect(self, ranks: int) -> float:
        """Share of the step from which on one of so many ranks is named: fewer than four are no crowd."""
        return self.min_effect if ranks > 3 else self.min_effect_of_few

    def patience_ns(self, step_ns: float) -> float:
        """How long an operation may be open in a job whose p99 step is ``step_ns`` (NaN: unknown)."""
        steps = self.hang_steps * (0.0 if isnan(step_ns) else step_ns)
        return max(self.hang_seconds * 1e9, steps) - self.hang_way_seconds * 1e9

    def other(self) -> dict[str, float]:
        """What was set otherwise than it is by default."""
        return {one.name: value for one in fields(self) if (value := getattr(self, one.name)) != one.default}

    def told(self) -> str | None:
        """A sentence on what was set otherwise than it is by default; ``None`` where nothing was."""
        usual = {one.name: one.default for one in fields(self)}
        other = [f"{name} {value:g} (default {usual[name]:g})" for name, value in self.other().items()]
        return f"Judged with other thresholds: {', '.join(other)}." if other else None


DEFAULT = Settings()
