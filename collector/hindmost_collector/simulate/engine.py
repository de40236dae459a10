"""A step's timing on every rank at once: computing, waiting for each other, the host that feeds the GPU."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.simulate.layout import (
    BACKWARD,
    FORWARD,
    Array,
    Collective,
    Compute,
    Groups,
    Item,
    groups,
    program,
)
from hindmost_collector.simulate.pipeline import PointToPoint, through_pipeline
from hindmost_collector.simulate.scenario import ON_GPU, ON_HOST, Fault, Scenario

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.simulate.draws import Draws

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

    @classmethod
    def of(cls, scenario: Scenario, draws: Draws, faults: Sequence[Fault]) -> Plan:
        """``faults`` may be fewer than the scenario's: what a repair leaves."""
        return cls(scenario, groups(scenario), program(scenario), activity(scenario, draws, faults))


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
    work = draws.computing[step] * _shares(plan)[None, :] * step_ns
    work *= WARMUP[step] if step < min(scenario.warmup, len(WARMUP)) else 1.0
    work += _slower(plan, faults, step, step_ns)[:, None] * _shares(plan)[None, :]
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


def _shares(plan: Plan) -> Array:
    """[K] each interval's share of the step's computing."""
    scenario = plan.scenario
    own = [item.share for item in plan.items if isinstance(item, Compute)]
    micro = scenario.microbatches if scenario.layout == "pp_dp" else 0
    return np.array([FORWARD / max(micro, 1)] * micro + [BACKWARD / max(micro, 1)] * micro + own)


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
    name = "data" if "data" in plan.groups else "world"
    count = sum(isinstance(item, Collective) and item.groups == name for item in plan.items)
    extra = np.zeros(plan.scenario.ranks)
    for row, fault in enumerate(faults):
        if fault.cause == "network" and plan.active[row, step]:
            member = plan.groups[name].member
            hit = np.isin(member, member[list(fault.ranks)])
            extra[hit] += fault.size * plan.scenario.step_ms * 1e6 / count
    return {name: extra} if extra.any() else {}
