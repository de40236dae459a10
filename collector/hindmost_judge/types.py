"""What the judge's parts hand to each other. R ranks, S steps, P phases of a host in program order; times in ns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

Floats: TypeAlias = "np.ndarray[Any, np.dtype[np.float64]]"
Ints: TypeAlias = "np.ndarray[Any, np.dtype[np.int64]]"
Bools: TypeAlias = "np.ndarray[Any, np.dtype[np.bool_]]"


@dataclass(frozen=True)
class Timeline:
    """When hosts and GPUs were where in each step, all on about one clock; NaN is unknown.

    ``phases`` [P] names what hosts do in a step, the last one the time until the next step. ``began`` [R, S] is when a
    host began the step, ``spent`` [P, R, S] how long it was in each phase, waits included. ``launched`` is the phase at
    whose end the step's last collective is launched, ``enqueued`` [R, S] when it was; ``None``: not recorded.
    ``arrived`` and ``left`` [R, S] are when that collective began and ended on each GPU, ``waited`` [R, S] how long the
    GPU waited for others in all of the step's collectives and ``between`` [R, S] how long it was in none. ``cohort``
    [R] numbers the ranks that do the same work. ``clock`` is by how many ns marks of a host and its GPU may be off.
    """

    phases: tuple[str, ...]
    began: Floats
    spent: Floats
    launched: int
    enqueued: Floats | None
    arrived: Floats
    left: Floats
    waited: Floats
    between: Floats
    cohort: Ints
    clock: float


class Wait(NamedTuple):
    """Where hosts wait for their GPUs: in ``phase``, until the last collective of the step ``lag`` steps before has
    ended, and ``after`` [R] ns more."""

    phase: int
    lag: int
    after: Floats


@dataclass(frozen=True)
class Lanes:
    """A host lane and a GPU lane for each rank: work without waits, and what joins the lanes.

    ``host`` [P, R, S] is the hosts' own work, between ``least`` and ``most`` [P, R, S] where a wait was not recorded;
    ``doubt`` [R] is by how many ns its typical level may be off there. ``pace`` [R, S] is what the *other* hosts of its
    cohort typically work in a step, ``even`` [R, S] what all of them do, of two the faster. ``wait`` is where a host
    that is ahead waits; ``None``: it never did. ``ahead`` [R, S] is in which steps a host launched a step's last
    collective long before its GPU got there. ``gpu`` is what GPUs take for a step with everything launched, at most;
    ``tail`` [R] how long after the launch of a step's last collective a GPU that its host kept waiting begins it, and
    ``transfer`` [S] how long that takes with all ranks there.
    """

    phases: tuple[str, ...]
    host: Floats
    least: Floats
    most: Floats
    doubt: Floats
    pace: Floats
    even: Floats
    launched: int
    wait: Wait | None
    ahead: Bools
    gpu: float
    tail: Floats
    transfer: Floats
    cohort: Ints
