"""A step's timing on every rank at once, in each way of making a job parallel: computing, waiting, launching.

Everything random is drawn once: with and without its faults a run has the same noise. A pipeline's step runs forward
and backward of micro-batches through the stages, one forward one backward. A job stops when one rank does not come to
an operation, or comes with another.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from hindmost_collector.simulate.scenario import ON_GPU, ON_HOST, STOPS, Fault, Scenario

Array: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Groups:
    """Communicators that look alike: ``member`` [R] is each rank's group, 0 to G-1; groups are of one size."""

    name: str
    member: Array
    order: Array
    size: int

    @classmethod
    def of(cls, name: str, member: Array) -> Groups:
        """From each rank's group number."""
        return cls(name, member, np.argsort(member, kind="stable"), len(member) // (int(member.max()) + 1))

    def latest(self, times: Array) -> Array:
        """The latest time within each rank's group [R]; of all ranks' one group it is a single number."""
        if self.size == len(times):
            return np.asarray(np.maximum.reduce(times))
        most: Array = times[self.order].reshape(-1, self.size).max(axis=1)[self.member]
        return most


@dataclass(frozen=True)
class Compute:
    """A computing interval: ``share`` of the step's, in one of the phases forward, backward, optimizer."""

    phase: str
    share: float


@dataclass(frozen=True)
class Collective:
    """An operation of a rank's group; a ``blocking`` one delays the next computing interval."""

    op: str
    groups: str
    share: float
    blocking: bool


@dataclass(frozen=True)
class Join:
    """Computing waits for all operations that were started."""


Item = Compute | Collective | Join

FORWARD, BACKWARD, OPTIMIZER = 0.3, 0.62, 0.08

#: Gradients among the replicas of a stage, the norm among all, the optimizer.
AFTER_PIPELINE: tuple[Item, ...] = (
    Collective("all_reduce", "data", 0.9, True),
    Collective("all_reduce", "world", 0.1, True),
    Compute("optimizer", OPTIMIZER),
)


def groups(scenario: Scenario) -> dict[str, Groups]:
    """Every kind of communicator of a layout, by name."""
    ranks = np.arange(scenario.ranks)
    world = {"world": Groups.of("world", np.zeros(scenario.ranks, dtype=np.int64))}
    if scenario.layout == "tp_dp":
        tensor, data = ranks // scenario.tensor, ranks % scenario.tensor
        return world | {"tensor": Groups.of("tensor", tensor), "data": Groups.of("data", data)}
    if scenario.layout == "pp_dp":
        replicas = scenario.ranks // scenario.pipeline
        return world | {"data": Groups.of("data", ranks // replicas)}
    return world


def program(scenario: Scenario) -> list[Item]:
    """The order of work in a step; of ``pp_dp`` only what follows the pipeline."""
    if scenario.layout == "pp_dp":
        return list(AFTER_PIPELINE)
    return {"dp": _data, "fsdp": _sharded, "tp_dp": _tensor}[scenario.layout](scenario)


def _data(scenario: Scenario) -> list[Item]:
    """Buckets of gradients are reduced while backward goes on."""
    count = scenario.stretches
    items: list[Item] = [Compute("forward", FORWARD)]
    for _ in range(count):
        items += [Compute("backward", BACKWARD / count), Collective("all_reduce", "world", 1 / count, False)]
    return [*items, Join(), Compute("optimizer", OPTIMIZER)]


def _sharded(scenario: Scenario) -> list[Item]:
    """Parameters are gathered before each unit's computing, gradients scattered after it."""
    count = max(1, scenario.stretches // 2)
    items: list[Item] = []
    for _ in range(count):
        items += [Collective("all_gather", "world", 1 / (3 * count), True), Compute("forward", FORWARD / count)]
    for _ in range(count):
        items += [Collective("all_gather", "world", 1 / (3 * count), True), Compute("backward", BACKWARD / count)]
        items.append(Collective("reduce_scatter", "world", 1 / (3 * count), False))
    return [*items, Join(), Compute("optimizer", OPTIMIZER)]


def _tensor(scenario: Scenario) -> list[Item]:
    """Every layer's sums are exchanged within the tensor group; gradients among replicas while backward goes on."""
    count = max(1, scenario.stretches // 2)
    items: list[Item] = []
    for _ in range(count):
        items += [Compute("forward", FORWARD / count), Collective("all_reduce", "tensor", 1 / (4 * count), True)]
    for _ in range(count):
        items += [Compute("backward", BACKWARD / count), Collective("all_reduce", "tensor", 1 / (4 * count), True)]
        items.append(Collective("all_reduce", "data", 1 / (2 * count), False))
    return [*items, Join(), Compute("optimizer", OPTIMIZER)]


@dataclass(frozen=True)
class Draws:
    """Factors around 1 of S steps, R ranks and K intervals.

    ``computing`` [S, R, K], ``host`` [S, R], ``transfer`` [S, K]; ``stall`` [S, R] in shares of the step,
    ``lengths`` [S, R] the work of each rank's batch around 1, ``chance`` [S] uniform numbers that decide on
    intermittent faults.
    """

    computing: Array
    host: Array
    transfer: Array
    stall: Array
    lengths: Array
    chance: Array
    clock_ns: Array
    gpu_clock_ns: Array
    drift: Array
    gpu_drift: Array


def draw(scenario: Scenario) -> Draws:
    random = np.random.default_rng([scenario.seed, 0x48494E44])
    noise, steps, ranks, intervals = scenario.noise, scenario.steps, scenario.ranks, len(computing(scenario))
    between = 1 + noise.between_ranks * np.clip(random.standard_normal(ranks), -2.5, 2.5)
    wander = _wandering(random, steps, ranks, noise.wandering, noise.wandering_memory)
    jitter = np.exp(noise.each_stretch * random.standard_normal((steps, ranks, intervals), dtype=np.float32))
    lengths = np.exp(scenario.varying_lengths * np.clip(random.standard_normal((steps, ranks)), -2.5, 2.5))
    stalls = random.random((steps, ranks)) < noise.stall_probability
    nodes = np.arange(ranks) // scenario.gpus_per_node
    offsets = random.standard_normal(nodes[-1] + 1) * noise.clock_offset_ms * 1e6
    return Draws(
        computing=jitter * (between * wander * lengths)[:, :, None],
        host=np.exp(noise.host * random.standard_normal((steps, ranks))),
        transfer=np.exp(noise.transfer * random.standard_normal((steps, intervals))),
        stall=stalls * random.exponential(noise.stall_size, (steps, ranks)),
        lengths=lengths,
        chance=random.random(steps),
        clock_ns=offsets[nodes],
        gpu_clock_ns=random.uniform(0.5e6, 3e6, ranks) * random.choice([-1, 1], ranks),
        drift=1 + (random.standard_normal(nodes[-1] + 1) * noise.clock_drift_ppm * 1e-6)[nodes],
        gpu_drift=1 + random.standard_normal(ranks) * noise.clock_drift_ppm * 1e-6,
    )


def _wandering(random: np.random.Generator, steps: int, ranks: int, size: float, memory: float) -> Array:
    """[S, R] factors that forget slowly: an autoregressive walk of standard deviation ``size``."""
    out = np.empty((steps, ranks))
    state = random.standard_normal(ranks)
    for step in range(steps):
        out[step] = state
        state = memory * state + np.sqrt(1 - memory**2) * random.standard_normal(ranks)
    return 1 + size * out


#: Sending a micro-batch's activations to the next stage takes this share of the step.
SEND_SHARE = 0.001


class Transfer(NamedTuple):
    """A transfer that each step has in every replica: the ranks of ``stage`` send to, or receive from, ``peer``'s."""

    op: str
    stage: int
    peer: int


def schedule(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    """Order of forwards and backwards at a stage: fill, then one forward one backward, then drain."""
    ahead = min(stages - 1 - stage, microbatches)
    order = [("forward", m) for m in range(ahead)]
    for m in range(microbatches - ahead):
        order += [("forward", ahead + m), ("backward", m)]
    return order + [("backward", m) for m in range(microbatches - ahead, microbatches)]


@cache
def turns(stages: int, microbatches: int) -> list[tuple[int, str, int, int | None]]:
    """Each forward and backward of a step when its input is there: stage, which, micro-batch, stage of the input."""
    waiting = [schedule(stage, stages, microbatches) for stage in range(stages)]
    done, found = set[tuple[str, int, int]](), []
    while any(waiting):
        for stage in range(stages):
            while waiting[stage]:
                kind, m = waiting[stage][0]
                source = stage - 1 if kind == "forward" else stage + 1
                inside = 0 <= source < stages
                if inside and (kind, source, m) not in done:
                    break
                waiting[stage].pop(0)
                done.add((kind, stage, m))
                found.append((stage, kind, m, source if inside else None))
    return found


def transfers(scenario: Scenario) -> list[Transfer]:
    """A step's transfers between stages, in the order of :func:`turns`."""
    if scenario.layout != "pp_dp":
        return []
    taken = [(stage, of) for stage, _, _, of in turns(scenario.pipeline, scenario.microbatches) if of is not None]
    return [one for stage, of in taken for one in (Transfer("recv", stage, of), Transfer("send", of, stage))]


def through_pipeline(scenario: Scenario, ready: Array, work: Array, start: Array, end: Array) -> Array:
    """[R] when each rank's last backward ends. ``work`` [R, K] begins with the micro-batches'.

    Writes into ``start`` and ``end`` [P, D] when each of the step's transfers begins and ends.
    """
    stages, micro = scenario.pipeline, scenario.microbatches
    free = list(ready.reshape(stages, -1))
    took = work[:, : 2 * micro].reshape(stages, len(free[0]), 2, micro).transpose(0, 2, 3, 1)
    done: dict[tuple[str, int, int], Array] = {}
    place = 0
    for stage, kind, m, source in turns(stages, micro):
        if source is not None:
            start[place], start[place + 1] = free[stage], done[kind, source, m]
            there = end[place + 1] = done[kind, source, m] + SEND_SHARE * scenario.step_ms * 1e6
            free[stage] = end[place] = np.maximum(there, free[stage])
            place += 2
        free[stage] = done[kind, stage, m] = free[stage] + took[stage, 0 if kind == "forward" else 1, m]
    return np.concatenate(free)


#: How much longer the first steps take: allocation, autotuning, file caches.
WARMUP = (8.0, 2.5, 1.3)
#: A checkpoint lasts so many steps.
CHECKPOINT_STEPS = 3.0
H2D_SHARE = 0.005
ISSUE_SHARE = 0.5
#: Ranks see another's last byte at slightly different times: ns, of an exponential distribution.
LEAVING_NS = 3_000.0


@dataclass
class Timing:
    """A job as it went: when everything happened, ns from the run's begin on a clock that all share.

    Arrays are [S, R]; ``start`` and ``end`` [S, C, R] are of the ``collectives`` that each step has,
    ``transfer_start`` and ``transfer_end`` [S, P, D] of its ``transfers`` in D replicas.
    """

    scenario: Scenario
    draws: Draws
    groups: dict[str, Groups]
    begin: Array
    finish: Array
    host: dict[str, Array]
    gpu: dict[str, Array]
    collectives: list[Collective]
    start: Array
    end: Array
    transfers: list[Transfer]
    transfer_start: Array
    transfer_end: Array

    def acting(self, cause: str) -> Array:
        """[S, R] size of the scenario's faults of that cause, in each step on each rank."""
        return acting(self.scenario, self.draws, self.scenario.faults, (cause,))

    @property
    def stopped_ns(self) -> int:
        """When all ranks are inside an operation that does not end: the planned end of the step."""
        return int(self.finish[self.scenario.whole_steps].max())


def computing(scenario: Scenario) -> Array:
    """[K] the share of each computing interval in a step's computing, micro-batches first."""
    micro = scenario.microbatches if scenario.layout == "pp_dp" else 0
    own = [item.share for item in program(scenario) if isinstance(item, Compute)]
    return np.array([FORWARD / max(micro, 1)] * micro + [BACKWARD / max(micro, 1)] * micro + own)


def activity(scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Array:
    """[F, S] whether each fault acts in each step; an intermittent one's steps do not depend on the others."""
    step = np.arange(scenario.steps)
    out = np.zeros((len(faults), scenario.steps), dtype=bool)
    for row, fault in enumerate(faults):
        within = (step >= fault.onset) & (step < (scenario.steps if fault.end is None else fault.end))
        chance = (draws.chance + 0.618 * min(fault.ranks)) % 1
        out[row] = within & (chance < fault.duty)
    return out


def acting(
    scenario: Scenario, draws: Draws, faults: Sequence[Fault], causes: Collection[str], met: Groups | None = None
) -> Array:
    """[S, R] size of the faults of these causes, in each step on each rank, or on all that ``met`` one of theirs."""
    out = np.zeros((scenario.steps, scenario.ranks))
    for active, fault in zip(activity(scenario, draws, faults), faults, strict=True):
        if fault.cause in causes:
            ranks = list(fault.ranks)
            hit = ranks if met is None else np.flatnonzero(np.isin(met.member, met.member[ranks]))
            out[np.ix_(active, hit)] += fault.size
    return out


def run(scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Timing:
    """How the job goes with these faults, which may be fewer than the scenario's: what a repair leaves."""
    items, known, sends = program(scenario), groups(scenario), transfers(scenario)
    calls = [item for item in items if isinstance(item, Collective)]
    shape, step_ns = (scenario.steps, scenario.ranks), scenario.step_ms * 1e6
    begin, finish, issued, copied = (np.zeros(shape) for _ in range(4))
    ends = np.random.default_rng([scenario.seed, 0x4C454156]).exponential(
        LEAVING_NS, (scenario.steps, len(calls), scenario.ranks)
    )
    between = np.zeros((2, scenario.steps, len(sends), scenario.ranks // scenario.pipeline))
    host, gpu = _on_host(scenario, draws, faults), defaultdict[str, Array](lambda: np.zeros(shape))
    gpu["h2d"] = host.pop("h2d")
    timing = Timing(scenario, draws, known, begin, finish, host, gpu, calls, np.zeros_like(ends), ends, sends, *between)
    launching, shares = np.asarray(sum(host.values())), computing(scenario)
    issuing, stalled = ISSUE_SHARE * step_ns * draws.host, draws.stall * step_ns
    slower = acting(scenario, draws, faults, ON_GPU) * step_ns
    drawn = draws.transfer[:, np.minimum(np.arange(len(calls)), draws.transfer.shape[1] - 1)]
    took = scenario.transfer_share * np.array([item.share for item in calls]) * drawn * scenario.step_ms * 1e6
    slow_groups = "data" if "data" in known else "world"
    several = sum(item.groups == slow_groups for item in calls)
    slow = acting(scenario, draws, faults, ("network",), known[slow_groups]) * step_ns / several
    reached = np.zeros((scenario.steps, len(items) + 1, scenario.ranks))
    for step in range(scenario.steps):
        if step:  # the host may run ahead of the GPU by so many steps
            awaited = step - 1 - scenario.run_ahead
            begin[step] = np.maximum(issued[step - 1], finish[awaited] if awaited >= 0 else 0.0)
        launch = begin[step] + launching[step]
        issued[step] = launch + issuing[step]
        copied[step] = np.maximum(finish[step - 1], launch) + gpu["h2d"][step] + stalled[step]
        work = draws.computing[step] * shares * step_ns
        work *= WARMUP[step] if step < min(scenario.warmup, len(WARMUP)) else 1.0
        work += slower[step][:, None] * shares
        now = copied[step]
        if sends:
            now = through_pipeline(scenario, now, work, *between[:, step])
            work = work[:, 2 * scenario.microbatches :]
        lasts = [ns + slow[step] * (item.groups == slow_groups) for item, ns in zip(calls, took[step], strict=True)]
        finish[step] = _through_program(timing, items, step, now, work, lasts, reached[step])
    _on_gpu(timing, items, copied, reached)
    return timing


def _on_host(scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> dict[str, Array]:
    """[S, R] ns that each thing takes from a step's begin to its first launch, and the copy to the GPU."""
    step_ns = scenario.step_ms * 1e6
    spent = defaultdict[str, Array](lambda: np.zeros(draws.host.shape))
    spent |= {"input": scenario.input_share * step_ns * draws.host, "h2d": H2D_SHARE * step_ns * draws.host}
    for cause in dict.fromkeys(fault.cause for fault in faults if fault.cause in ("h2d", *ON_HOST)):
        name = "runqueue" if cause == "cpu_contention" else cause
        spent[name] += acting(scenario, draws, faults, (cause,)) * step_ns
    if every := scenario.checkpoint_every:
        spent["checkpoint"][every - 1 :: every, 0] += CHECKPOINT_STEPS * step_ns * draws.host[every - 1 :: every, 0]
    return spent


def _through_program(
    timing: Timing, items: Sequence[Item], step: int, now: Array, work: Array, lasts: Sequence[Array], reached: Array
) -> Array:
    """[R] when the step's last computing ends. Operations of one communicator run one after the other.

    The step's ``timing.end`` holds on entry how much later each rank leaves each operation, and on return when it left.
    ``lasts`` has the transfer of each. ``reached`` [I + 1, R] becomes when each item was passed.
    """
    wires, intervals = dict.fromkeys(timing.groups, now), iter(work.T)
    calls = zip(timing.start[step], timing.end[step], lasts, strict=True)
    reached[0] = now
    for passed, item in zip(reached[1:], items, strict=True):
        if isinstance(item, Compute):
            now = now + next(intervals)
        elif isinstance(item, Collective):
            start, end, took = next(calls)
            np.maximum(now, wires[item.groups], out=start)
            end += timing.groups[item.groups].latest(start) + took
            wires[item.groups] = end
            now = end if item.blocking else now
        else:
            now = reduce(np.maximum, wires.values(), now)
        passed[:] = now
    return now


def _on_gpu(timing: Timing, items: Sequence[Item], copied: Array, reached: Array) -> None:
    """Note what GPUs spent in each phase, from when items were passed: ``reached`` [S, I + 1, R]."""
    if timing.transfers:
        timing.gpu["forward"] = FORWARD * (reached[:, 0] - copied)
        timing.gpu["backward"] = BACKWARD * (reached[:, 0] - copied)
    for place, item in enumerate(items):
        if not isinstance(item, Collective):
            phase = item.phase if isinstance(item, Compute) else "backward"
            timing.gpu[phase] += reached[:, place + 1] - reached[:, place]


#: How long all ranks were seen to wait at the last observation of a stopped job.
SEEN_SECONDS = 60
#: What a rank enters instead of each operation where its code takes another branch.
INSTEAD = {"all_reduce": "all_gather", "all_gather": "all_reduce", "reduce_scatter": "all_reduce"}


@dataclass(frozen=True)
class Standing:
    """``ranks`` are inside ``op`` where the step has its collective number ``place``."""

    place: int
    op: str
    ranks: Array


def standing(scenario: Scenario) -> list[Standing]:
    """The operations that each rank is inside forever, in the order of the program; empty where the job does not stop.

    A rank goes on until it must wait: for a group with a missing member, or at the end of computing for overlapped
    operations. A pipeline stops behind its last backward, where gradients are exchanged. Ranks part in the step's
    first collective among the most ranks: there the most can tell who is wrong.
    """
    if scenario.halts_at is None:
        return []
    at_once = [fault for fault in scenario.faults if fault.onset == scenario.halts_at]
    hung, parted = (
        np.isin(np.arange(scenario.ranks), [rank for fault in at_once if fault.cause == cause for rank in fault.ranks])
        for cause in STOPS
    )
    known, items, found = groups(scenario), program(scenario), list[Standing]()
    sizes = [known[item.groups].size for item in items if isinstance(item, Collective)]
    pending = {name: np.zeros(scenario.ranks, bool) for name in known}
    places, stuck = itertools.count(), hung
    for item in items:
        if isinstance(item, Collective):
            place = next(places)
            wrong = parted & ~stuck & (place == sizes.index(max(sizes)))
            kept_up = known[item.groups].latest((stuck | wrong | pending[item.groups]).astype(float)) > 0
            mask = kept_up & ~stuck
            entered = ((item.op, mask & ~wrong), (INSTEAD[item.op], wrong))
            found += [Standing(place, op, np.flatnonzero(who)) for op, who in entered if who.any()]
            pending[item.groups] |= mask
            stuck = stuck | wrong | (mask if item.blocking else False)
        elif not isinstance(item, Compute):
            stuck = np.logical_or.reduce([stuck, *pending.values()])
    return found
