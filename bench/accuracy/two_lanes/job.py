"""What is simulated: how a job runs, its noise, and what is wrong with it. Times are ms."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Array: TypeAlias = "np.ndarray[Any, Any]"

#: Where a host waits for its GPU: nowhere, at the end of a step, in a pageable copy of its input, in each collective.
SYNCHRONISES = ("never", "step", "copy", "collective")


@dataclass(frozen=True)
class Fault:
    """``ms`` more a step on some ranks, in a ``lane`` (host, gpu, input or link) and phase.

    It acts from step ``onset`` to before ``end``, in every ``every``-th of those steps.
    """

    lane: str
    phase: str
    ranks: tuple[int, ...]
    ms: float
    onset: int = 0
    end: int | None = None
    every: int = 1


@dataclass(frozen=True)
class Noise:
    """Shares of each amount of work, of hosts and of GPUs.

    ``ranks``: lasting differences between ranks. ``each``: every interval for itself. ``drift``: an autoregressive
    process of the steps, whose ``memory`` is its correlation from one step to the next. ``tail``: in so many steps of a
    rank its host takes longer by a Pareto-distributed share of a step.
    """

    ranks: tuple[float, float] = (0.004, 0.002)
    each: tuple[float, float] = (0.05, 0.01)
    drift: tuple[float, float] = (0.01, 0.003)
    memory: float = 0.9
    tail: float = 0.002


@dataclass(frozen=True)
class Job:
    """One job. ``host`` is the Python and launches of a step, ``gpu`` its kernels, ``load`` the loading of one batch.

    ``workers`` load batches ahead; without any, the training thread loads. ``evaluate`` steps of evaluation follow
    every ``evaluate_every``-th step; all ranks pause for ``pause`` before every ``pause_every``-th one. ``uneven``,
    below 1: how far the work of ranks differs from step to step, in samples that are recorded; ``unequal``: how much
    more rank 0 always has. ``crowd``: how far processes that share CPUs lengthen each other's intervals, in bursts;
    ``neighbour``: how far another job does that to all ranks of a node. ``gathers``: parameters are gathered while the
    GPU computes, and a host waits until at most so many gathers are needed yet; 0: right before they are needed.
    """

    seed: int
    ranks: int = 8
    steps: int = 200
    shape: str = "ddp"
    groups: int = 1
    chunks: int = 1
    gathers: int = 0
    micro_batches: int = 1
    blocks: int = 4
    launches: int = 600
    host: float = 20.0
    gpu: float = 60.0
    load: float = 1.0
    workers: int = 0
    transfer: float = 4.0
    synchronises: str = "step"
    evaluate_every: int = 0
    evaluate: int = 0
    pause_every: int = 0
    pause: float = 0.0
    uneven: float = 0.0
    unequal: float = 0.0
    crowd: float = 0.0
    neighbour: float = 0.0
    written: str = "traces"
    noise: Noise = field(default_factory=Noise)
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True)
class Truth:
    """``total`` ms of the run, ``repaired`` without any fault and ``each`` without that one, all at the same random
    numbers; ``active`` steps of each fault."""

    total: float
    repaired: float
    each: tuple[float, ...]
    active: tuple[int, ...]
