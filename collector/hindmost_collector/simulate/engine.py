"""A step's timing on every rank at once, in each way of making a job parallel: computing, waiting, launching.

Everything random is drawn once: with and without its faults a run has the same noise. A pipeline's step runs forward
and backward of micro-batches through the stages, one forward one backward. A job stops when one rank does not come to
an operation, or comes with another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from hindmost_collector.simulate.scenario import ON_GPU, ON_HOST, Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

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
        """[R] the latest time within each rank's group."""
        if self.size == len(times):
            return np.full(len(times), times.max())
        out = np.empty_like(times)
        out[self.order] = np.repeat(times[self.order].reshape(-1, self.size).max(axis=1), self.size)
        return out


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


Floats: TypeAlias = "np.ndarray[Any, Any]"


@dataclass(frozen=True)
class Draws:
    """Factors around 1 of S steps, R ranks and K intervals.

    ``computing`` [S, R, K], ``host`` [S, R], ``transfer`` [S, K]; ``stall`` [S, R] in shares of the step,
    ``lengths`` [S, R] the work of each rank's batch around 1, ``chance`` [S] uniform numbers that decide on
    intermittent faults.
    """

    computing: Floats
    host: Floats
    transfer: Floats
    stall: Floats
    lengths: Floats
    chance: Floats
    clock_ns: Floats
    gpu_clock_ns: Floats
    drift: Floats
    gpu_drift: Floats


def draw(scenario: Scenario, stretches: int) -> Draws:
    """Noise of a scenario; ``stretches`` of computing a step."""
    random = np.random.default_rng([scenario.seed, 0x48494E44])
    noise, steps, ranks = scenario.noise, scenario.steps, scenario.ranks
    between = 1 + noise.between_ranks * np.clip(random.standard_normal(ranks), -2.5, 2.5)
    wander = _wandering(random, steps, ranks, noise.wandering, noise.wandering_memory)
    jitter = np.exp(noise.each_stretch * random.standard_normal((steps, ranks, stretches), dtype=np.float32))
    lengths = np.exp(scenario.varying_lengths * np.clip(random.standard_normal((steps, ranks)), -2.5, 2.5))
    stalls = random.random((steps, ranks)) < noise.stall_probability
    nodes = np.arange(ranks) // scenario.gpus_per_node
    offsets = random.standard_normal(nodes[-1] + 1) * noise.clock_offset_ms * 1e6
    return Draws(
        computing=jitter * (between * wander * lengths)[:, :, None],
        host=np.exp(noise.host * random.standard_normal((steps, ranks))),
        transfer=np.exp(noise.transfer * random.standard_normal((steps, stretches))),
        stall=stalls * random.exponential(noise.stall_size, (steps, ranks)),
        lengths=lengths,
        chance=random.random(steps),
        clock_ns=offsets[nodes],
        gpu_clock_ns=random.uniform(0.5e6, 3e6, ranks) * random.choice([-1, 1], ranks),
        drift=1 + (random.standard_normal(nodes[-1] + 1) * noise.clock_drift_ppm * 1e-6)[nodes],
        gpu_drift=1 + random.standard_normal(ranks) * noise.clock_drift_ppm * 1e-6,
    )


def _wandering(random: np.random.Generator, steps: int, ranks: int, size: float, memory: float) -> Floats:
    """[S, R] factors that forget slowly: an autoregressive walk of standard deviation ``size``."""
    out = np.empty((steps, ranks))
    state = random.standard_normal(ranks)
    for step in range(steps):
        out[step] = state
        state = memory * state + np.sqrt(1 - memory**2) * random.standard_normal(ranks)
    return 1 + size * out


#: Sending a micro-batch's activations to the next stage takes this share of the step.
SEND_SHARE = 0.001


class PointToPoint(NamedTuple):
    """One transfer in every replica: who, with whom, when. ``ranks``, ``peers``, ``start``, ``end`` are [D]."""

    step: int
    op: str
    ranks: Array
    peers: Array
    start: Array
    end: Array


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


def through_pipeline(scenario: Scenario, ready: Array, work: Array, step: int) -> tuple[Array, list[PointToPoint]]:
    """[R] when each rank's last backward ends, and the transfers. ``work`` [R, K] begins with the micro-batches'."""
    stages, micro = scenario.pipeline, scenario.microbatches
    ranks = np.arange(scenario.ranks).reshape(stages, -1)
    free = list(ready.reshape(stages, -1))
    took = work[:, : 2 * micro].reshape(stages, ranks.shape[1], 2, micro).transpose(0, 2, 3, 1)
    done: dict[tuple[str, int, int], Array] = {}
    transfers: list[PointToPoint] = []
    for stage, kind, m, source in turns(stages, micro):
        if source is not None:
            sent = done[kind, source, m]
            there = sent + SEND_SHARE * scenario.step_ms * 1e6
            came = np.maximum(there, free[stage])
            transfers.append(PointToPoint(step, "recv", ranks[stage], ranks[source], free[stage], came))
            transfers.append(PointToPoint(step, "send", ranks[source], ranks[stage], sent, there))
            free[stage] = came
        free[stage] = done[kind, stage, m] = free[stage] + took[stage, 0 if kind == "forward" else 1, m]
    return np.concatenate(free), transfers


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
    """When everything happened, ns from the run's begin on a clock that all share. Arrays are [S, R].

    ``start`` and ``end`` of collectives are lists of [R], one a collective in the order of ``collectives``.
    """

    begin: Array
    finish: Array
    issued: Array
    host: dict[str, Array]
    gpu: dict[str, Array]
    collectives: list[tuple[int, Collective]] = field(default_factory=list)
    start: list[Array] = field(default_factory=list)
    end: list[Array] = field(default_factory=list)
    sends: list[PointToPoint] = field(default_factory=list)


@dataclass(frozen=True)
class Plan:
    """What does not change from step to step."""

    scenario: Scenario
    groups: dict[str, Groups]
    items: list[Item]
    active: Array
    #: [K] of each computing interval its share of the step's computing.
    shares: Array

    @classmethod
    def of(cls, scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Plan:
        """``faults`` may be fewer than the scenario's: what a repair leaves."""
        items = program(scenario)
        own = [item.share for item in items if isinstance(item, Compute)]
        micro = scenario.microbatches if scenario.layout == "pp_dp" else 0
        shares = np.array([FORWARD / max(micro, 1)] * micro + [BACKWARD / max(micro, 1)] * micro + own)
        return cls(scenario, groups(scenario), items, activity(scenario, draws, faults), shares)


def stretches(scenario: Scenario) -> int:
    """How many computing intervals a step has."""
    own = sum(isinstance(item, Compute) for item in program(scenario))
    return own + (2 * scenario.microbatches if scenario.layout == "pp_dp" else 0)


def activity(scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Array:
    """[F, S] whether each fault acts in each step; an intermittent one's steps do not depend on the others."""
    step = np.arange(scenario.steps)
    out = np.zeros((len(faults), scenario.steps), dtype=bool)
    for row, fault in enumerate(faults):
        within = (step >= fault.onset) & (step < (scenario.steps if fault.end is None else fault.end))
        chance = (draws.chance + 0.618 * min(fault.ranks)) % 1
        out[row] = within & (chance < fault.duty)
    return out


def acting(scenario: Scenario, draws: Draws, cause: str) -> Array:
    """[S, R] size of the scenario's faults of that cause, in each step on each rank."""
    out = np.zeros((scenario.steps, scenario.ranks))
    active = activity(scenario, draws, scenario.faults)
    for row, fault in enumerate(scenario.faults):
        if fault.cause == cause:
            out[np.ix_(active[row], list(fault.ranks))] += fault.size
    return out


def run(scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Timing:
    """The whole run, with these faults."""
    plan = Plan.of(scenario, draws, faults)
    shape = (scenario.steps, scenario.ranks)
    blank = defaultdict[str, Array](lambda: np.zeros(shape))
    timing = Timing(np.zeros(shape), np.zeros(shape), np.zeros(shape), blank, defaultdict(lambda: np.zeros(shape)))
    random = np.random.default_rng([scenario.seed, 0x4C454156])
    for step in range(scenario.steps):
        _step(plan, draws, faults, timing, step, random)
    return timing


def _step(
    plan: Plan, draws: Draws, faults: Sequence[Fault], timing: Timing, step: int, random: np.random.Generator
) -> None:
    scenario = plan.scenario
    step_ns = scenario.step_ms * 1e6
    free = timing.finish[step - 1] if step else np.zeros(scenario.ranks)
    begin = _begin(scenario, timing, step)
    launch = begin + _on_host(plan, draws, faults, timing, step, step_ns)
    timing.begin[step] = begin
    timing.issued[step] = launch + ISSUE_SHARE * step_ns * draws.host[step]
    copied = np.maximum(free, launch) + timing.gpu["h2d"][step] + draws.stall[step] * step_ns
    work = draws.computing[step] * plan.shares * step_ns
    work *= WARMUP[step] if step < min(scenario.warmup, len(WARMUP)) else 1.0
    work += _slower(plan, faults, step, step_ns)[:, None] * plan.shares
    now = copied
    if scenario.layout == "pp_dp":
        now, sends = through_pipeline(scenario, now, work, step)
        timing.sends += sends
        work = work[:, 2 * scenario.microbatches :]
        timing.gpu["forward"][step] = FORWARD * (now - copied)
        timing.gpu["backward"][step] = BACKWARD * (now - copied)
    timing.finish[step] = _through_program(plan, draws, faults, timing, step, now, work, random)


def _begin(scenario: Scenario, timing: Timing, step: int) -> Array:
    """When the host starts a step: it may run ahead of the GPU by so many steps."""
    if step == 0:
        return np.zeros(scenario.ranks)
    held = step - 1 - scenario.run_ahead
    waited = timing.finish[held] if held >= 0 else np.zeros(scenario.ranks)
    begin: Array = np.maximum(timing.issued[step - 1], waited)
    return begin


def _slower(plan: Plan, faults: Sequence[Fault], step: int, step_ns: float) -> Array:
    """[R] ns that GPU faults add to the computing of this step."""
    extra = np.zeros(plan.scenario.ranks)
    for row, fault in enumerate(faults):
        if fault.cause in ON_GPU and plan.active[row, step]:
            extra[list(fault.ranks)] += fault.size * step_ns
    return extra


def _on_host(plan: Plan, draws: Draws, faults: Sequence[Fault], timing: Timing, step: int, step_ns: float) -> Array:
    """[R] ns from a step's begin to its first launch; notes what the host and the copy spent."""
    scenario = plan.scenario
    spent = {"input": scenario.input_share * step_ns * draws.host[step], "h2d": H2D_SHARE * step_ns * draws.host[step]}
    names = {"cpu_contention": "runqueue"}
    for row, fault in enumerate(faults):
        if plan.active[row, step] and fault.cause in ("h2d", *ON_HOST):
            name = names.get(fault.cause, fault.cause)
            spent.setdefault(name, np.zeros(scenario.ranks))[list(fault.ranks)] += fault.size * step_ns
    if scenario.checkpoint_every and (step + 1) % scenario.checkpoint_every == 0:
        spent.setdefault("checkpoint", np.zeros(scenario.ranks))[0] += CHECKPOINT_STEPS * step_ns * draws.host[step, 0]
    timing.gpu["h2d"][step] = spent.pop("h2d")
    for name, value in spent.items():
        timing.host[name][step] = value
    return np.asarray(sum(spent.values()))


def _through_program(
    plan: Plan,
    draws: Draws,
    faults: Sequence[Fault],
    timing: Timing,
    step: int,
    now: Array,
    work: Array,
    random: np.random.Generator,
) -> Array:
    """[R] when the step's last computing ends. Operations of one communicator run one after the other."""
    wires, stretch, index = dict.fromkeys(plan.groups, now), 0, 0
    slow = _slow_links(plan, faults, step)
    for item in plan.items:
        if isinstance(item, Compute):
            started, now = now, now + work[:, stretch]
            timing.gpu[item.phase][step] += now - started
            stretch += 1
        elif isinstance(item, Collective):
            arrived = np.maximum(now, wires[item.groups])
            took = (
                plan.scenario.transfer_share
                * item.share
                * draws.transfer[step, min(index, draws.transfer.shape[1] - 1)]
            )
            took = took * plan.scenario.step_ms * 1e6 + slow.get(item.groups, 0.0)
            left = plan.groups[item.groups].latest(arrived) + took
            wire = left + random.exponential(LEAVING_NS, len(now))
            timing.collectives.append((step, item))
            timing.start.append(arrived)
            timing.end.append(wire)
            wires[item.groups] = wire
            now = wire if item.blocking else now
            index += 1
        else:
            last = np.maximum.reduce(list(wires.values()))
            timing.gpu["backward"][step] += np.maximum(last - now, 0)
            now = np.maximum(now, last)
    return now


def _slow_links(plan: Plan, faults: Sequence[Fault], step: int) -> dict[str, Array]:
    """Kind of group to [R] ns that each operation of a rank's group takes longer."""
    if not any(fault.cause == "network" for fault in faults):
        return {}
    name = "data" if "data" in plan.groups else "world"
    count = sum(isinstance(item, Collective) and item.groups == name for item in plan.items)
    extra = np.zeros(plan.scenario.ranks)
    for row, fault in enumerate(faults):
        if fault.cause == "network" and plan.active[row, step]:
            member = plan.groups[name].member
            hit = np.isin(member, member[list(fault.ranks)])
            extra[hit] += fault.size * plan.scenario.step_ms * 1e6 / count
    return {name: extra} if extra.any() else {}


#: How long all ranks were seen to wait at the last observation of a stopped job.
SEEN_SECONDS = 60
#: What a rank enters instead of each operation where its code takes another branch.
INSTEAD = {"all_reduce": "all_gather", "all_gather": "all_reduce", "reduce_scatter": "all_reduce"}


@dataclass(frozen=True)
class Standing:
    """``ranks`` are inside ``op`` where the program has its collective number ``index`` (of ``Timing.collectives``)."""

    index: int
    op: str
    ranks: Array


def stopped_ns(scenario: Scenario, timing: Timing) -> int:
    """When all ranks are inside an operation that does not end, ns since the run's begin: the planned end of the
    step."""
    return int(timing.finish[scenario.whole_steps].max())


def standing(scenario: Scenario, timing: Timing) -> list[Standing]:
    """The operations that each rank is inside forever, in the order of the program; empty where the job does not stop.

    A rank goes on until it must wait: for a group with a missing member, or at the end of computing for overlapped
    operations. A pipeline stops behind its last backward, where gradients are exchanged.
    """
    if scenario.halts_at is None:
        return []
    stuck, parted = _ranks(scenario, "hang"), _ranks(scenario, "desync")
    known, found = groups(scenario), list[Standing]()
    pending = {name: np.zeros(scenario.ranks, bool) for name in known}
    first = next(i for i, (step, _) in enumerate(timing.collectives) if step == scenario.halts_at)
    for place, item in _numbered(program(scenario)):
        if isinstance(item, Collective):
            wrong = parted & ~stuck if place == _parting(scenario) else np.zeros_like(stuck)
            kept_up = known[item.groups].latest((stuck | wrong | pending[item.groups]).astype(float)) > 0
            held = kept_up & ~stuck
            entered = ((item.op, held & ~wrong), (INSTEAD[item.op], wrong))
            found += [Standing(first + place, op, np.flatnonzero(who)) for op, who in entered if who.any()]
            pending[item.groups] |= held
            stuck = stuck | wrong | (held if item.blocking else False)
        elif not isinstance(item, Compute):
            stuck = np.logical_or.reduce([stuck, *pending.values()])
    return found


def _numbered(items: list[Item]) -> Iterator[tuple[int, Item]]:
    """Each item of a step with how many collectives come before it."""
    count = 0
    for item in items:
        yield count, item
        count += isinstance(item, Collective)


def _parting(scenario: Scenario) -> int:
    """The step's first collective among the most ranks: there the most can tell who is wrong."""
    known = groups(scenario)
    sizes = [known[item.groups].size for item in program(scenario) if isinstance(item, Collective)]
    return sizes.index(max(sizes))


def _ranks(scenario: Scenario, cause: str) -> Array:
    """[R] which ranks faults of a cause stop in the step that no rank ends."""
    out = np.zeros(scenario.ranks, bool)
    for fault in scenario.faults:
        if fault.cause == cause and fault.onset == scenario.halts_at:
            out[list(fault.ranks)] = True
    return out
