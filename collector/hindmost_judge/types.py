"""What the judge's parts hand to each other.

Shapes: R ranks, S steps, P phases of a host in program order. Times are ns. A *host* is the thread of a rank that runs
the training loop, a *GPU* the device that runs what this thread launches.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]
Bools = np.ndarray[Any, np.dtype[np.bool_]]
Array = np.ndarray[Any, Any]

#: How the text begins that stands in for a stack that could not be read; its reason follows after a colon.
UNREAD = "no stack of process"


@dataclass(frozen=True)
class Timeline:
    """What was recorded of hosts and GPUs in each step, with clocks aligned. NaN is unknown.

    Of hosts:

    - ``phases`` [P]: names of what a host does in a step; the first one is input, the last one the time until the
      next step
    - ``began`` [R, S]: when the host began the step
    - ``spent`` [P, R, S]: how long it was in each phase, waits included
    - ``launched``: index of the phase at whose end the step's last collective is launched
    - ``enqueued`` [R, S]: when that collective was launched; ``None`` where launches were not recorded
    - ``queued`` [R, S]: how long the step's first collective was queued on its GPU; ``None`` likewise

    Of GPUs:

    - ``arrived``, ``left`` [R, S]: when the step's last collective began and ended
    - ``waited`` [R, S]: how long the GPU waited for other ranks in all of the step's collectives
    - ``between`` [R, S]: how long it was in none of them

    Of both:

    - ``cohort`` [R]: a number for each rank, equal for ranks that do the same work
    - ``clock``: by how many ns times of a host and of its GPU may be misaligned
    - ``gathers``: whether parameters are gathered, so that hosts launch collectives all along a step
    """

    phases: tuple[str, ...]
    began: Floats
    spent: Floats
    launched: int
    enqueued: Floats | None
    queued: Floats | None
    arrived: Floats
    left: Floats
    waited: Floats
    between: Floats
    cohort: Ints
    clock: float
    gathers: bool = False

    @cached_property
    def step(self) -> float:
        """Ns of the typical step."""
        return float(np.nanmedian(np.diff(self.left, axis=1)))

    @cached_property
    def last(self) -> tuple[Ints, Ints]:
        """[N] the rank that waits least for others in a step, so comes last, and [N] the steps that show it."""
        steps = np.flatnonzero(~np.isnan(self.waited + self.left).any(axis=0))
        return np.argmin(self.waited[:, steps], axis=0), steps

    @cached_property
    def ends(self) -> Floats:
        """[P, R, S] when each host ended each phase."""
        return np.asarray(self.began + np.cumsum(self.spent, axis=0))

    @cached_property
    def transfer(self) -> Floats:
        """[S] ns that a step's last collective takes once all ranks are there."""
        return np.asarray(np.fmin.reduce(self.left - self.arrived, axis=0))

    @cached_property
    def lead(self) -> Floats:
        """[R, S] ns by which a host is ahead: from the phase end after its last launch until all GPUs have arrived."""
        return np.asarray(self.left - self.transfer - self.ends[self.launched])

    @cached_property
    def lead_of_launch(self) -> Floats:
        """[R, S] the same from the launch itself where that was recorded, else from the phase end."""
        return self.lead if self.enqueued is None else np.asarray(self.left - self.transfer - self.enqueued)


class HostWait(NamedTuple):
    """Where a host that is ahead of its GPU waits for it.

    The host cannot end ``phase`` (an index) before the last collective of the step ``lag`` steps earlier has ended on
    its GPU, and ``after`` [R] ns have passed since. ``several``: it waits in other phases, too.
    """

    phase: int
    lag: int
    after: Floats
    several: bool = False


@dataclass(frozen=True)
class Lanes:
    """The job as a graph: a host lane and a GPU lane for each rank, with work and no waits, and what joins the lanes.

    The host lane:

    - ``phases`` [P], ``launched``, ``cohort`` [R]: as in :class:`Timeline`
    - ``host`` [P, R, S]: likely self time in each phase
    - ``least``, ``most`` [P, R, S]: bounds of it; they differ where a wait was not recorded
    - ``doubt`` [R]: by how many ns a step the usual self time may be off in the phase of ``wait``
    - ``peer_pace`` [R, S]: median self time in the step of the *other* ranks of the cohort
    - ``cohort_pace`` [R, S]: median self time in the step of the whole cohort; of an even number the lower middle one
    - ``ahead`` [R, S]: whether the host launched the step's last collective long before its GPU reached it
    - ``wait``: where hosts that are ahead wait for their GPUs; ``None`` where none was ahead
    - ``early`` [R, S]: which share of the work in no phase comes before the step's last launch; ``None``: nothing

    The GPU lane:

    - ``gpu``: ns that a GPU needs for a step's kernels with all of them launched in time, at most
    - ``tail`` [R]: ns from the launch of a step's last collective to its begin, on a GPU that has nothing else to do
    - ``transfer`` [S]: ns that this collective takes with all ranks there
    """

    phases: tuple[str, ...]
    host: Floats
    least: Floats
    most: Floats
    doubt: Floats
    peer_pace: Floats
    cohort_pace: Floats
    launched: int
    wait: HostWait | None
    ahead: Bools
    gpu: float
    tail: Floats
    transfer: Floats
    cohort: Ints
    early: Floats | None = None
