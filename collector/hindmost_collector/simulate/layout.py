"""The communication and the order of work in a step, for each way of making a job parallel."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from hindmost_collector.simulate.scenario import Scenario

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
