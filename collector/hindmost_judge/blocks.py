"""What detectors take: blocks of [rank x step], on no clock but each rank's own; and what they find in these."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from hindmost_judge.causes.telemetry import Samples
from hindmost_judge.model import Past
from hindmost_judge.stats.robust import median, or_zero
from hindmost_judge.timeline.matching import Grid
from hindmost_judge.types import Array, Floats, Ints, Lanes
from hindmost_judge.whatif.pipeline_replay import PipelineGraph


@dataclass(frozen=True)
class Blocks:
    """What every rank did in every step; ns, NaN where unmeasured; R ranks, S steps, K intervals, C classes.

    Rows are ``ranks`` [R], columns ``steps`` [S] by number; ``warmup`` steps before them are left out. An interval ends
    with a synchronisation: with a collective that all ranks of a communicator enter, or with the step where there is
    none; ``collectives`` is how many synchronise.

    Of steps: ``period`` [S] is the job's step time, ``starts`` [S] the first interval of each. Of a rank in a step,
    [R, S]: ``self_time``, and the ``parts`` that it consists of, by phase; ``delay`` how much later than its median
    peer a rank was through its own work; ``wait`` what it waited in collectives, ``transfer`` what they took beyond
    that, ``caused`` what it made each other one wait, ``last`` the share of collectives that it entered last; ``work``
    its samples or tokens; ``took`` how long its host was in the step, ``ended`` when it left it (job clock).

    Of intervals: ``intervals`` [R, K] is the delay in each, ``interval_step`` [K] the index of its step,
    ``comm_class`` [K] the class of the communicators that it ends with, ``overlapping`` [K] whether computing goes on
    during that collective. ``group`` [R, C] is the communicator of each rank in each class, ``cohort`` [R] which ranks
    may be compared. ``equalised`` [R, K] are the delays with work of one size, where known.

    ``joined`` are the collectives that this was made of, ``evidence`` what it was made of, ``samples`` what the metrics
    say of each rank. ``overlapped``: hosts or GPUs compute during collectives, so that a delay shows once a step.
    In a ``pipeline`` whose sends and receives are in order, intervals are those between these, ``computing`` [R, S] is
    what its GPUs' take, all stages on one level, and ``starvation`` [R, S] how long these idled because their hosts
    launched late. ``work_delay`` is the full delay due to uneven work, where only a part of it shows. ``unsure`` [R] is
    ns a step by which a rank may be late, or the others ahead. Where hosts set the pace, their work is in ``lanes``,
    and delays are how much more of it a rank has. Where loaders' workers do, in turn, a delay is the mean of ``turn``
    steps. ``apart``: two of three ranks are set against the third, which alone shows what is usual.
    ``neighbours`` [2, E] are rows, in order, and a row of which each receives messages in its steps, or its own, where
    ranks meet in no collective in them. ``alone`` [R]: no other rank does the same work, so that a delay is against the
    rank's own usual work. Ranks of one ``kind`` [R] make the same calls. ``travel`` [E, S]: for how long it waited on
    after each neighbour had sent, ns of the job clock. ``entered_ns``: when the last rank first met the others in a
    step, those of warm-up too, on the hosts' clock; before all, where that is unknown.
    """

    ranks: Ints
    steps: Ints
    period: Floats
    self_time: Floats
    delay: Floats
    intervals: Floats
    interval_step: Ints
    wait: Floats
    transfer: Floats
    caused: Floats
    last: Floats
    collectives: int
    starts: Ints
    warmup: int
    group: Ints
    comm_class: Ints
    overlapping: Array
    cohort: Ints
    parts: dict[str, Floats] = field(default_factory=dict)
    samples: Samples | None = None
    joined: Grid | None = None
    work: Floats | None = None
    took: Floats | None = None
    ended: Floats | None = None
    evidence: str = "collectives"
    overlapped: bool = False
    pipeline: PipelineGraph | None = None
    computing: Floats | None = None
    starvation: Floats | None = None
    work_delay: WorkDelay | None = None
    equalised: Floats | None = None
    unsure: Floats | None = None
    lanes: Lanes | None = None
    turn: int = 1
    apart: bool = False
    neighbours: Ints | None = None
    alone: Array | None = None
    kind: Ints | None = None
    travel: Floats | None = None
    entered_ns: float = float("-inf")

    @property
    def exchanges(self) -> bool:
        """Whether ranks meet in messages to neighbours, and in no collective."""
        return self.neighbours is not None

    @property
    def same_work(self) -> Floats:
        """[R, K] the segments with work of one size; as measured, where that size is unknown."""
        return self.intervals if self.equalised is None else self.equalised

    def by_delay(self, delay: Floats, **changes: Any) -> Blocks:
        """The blocks with this delay [R, S], which is known of whole steps, and with other ``changes``."""
        steps = np.arange(len(self.steps))
        classes = np.zeros_like(steps)
        return replace(self, delay=delay, intervals=or_zero(delay), interval_step=steps, comm_class=classes, **changes)

    def works_alone(self, rows: list[int]) -> bool:
        """Whether no other rank does the same work as any of these."""
        return self.alone is not None and bool(self.alone[rows].all())

    def gauge(self, name: str, columns: Array | None = None) -> Floats | None:
        """[R] one quantity in these steps (indices), or all; ``None`` where no rank has it."""
        return self.samples.level(name, columns) if self.samples is not None else None

    @cached_property
    def step_ns(self) -> float:
        """Typical step time of the job."""
        return float(median(self.period))


@dataclass(frozen=True)
class Slowdown:
    """One rank's persistent slowdown: ``row`` in the blocks, steps [first, stop) by index, delay in ns a step.

    How clearly it shows: the delay in its standard errors (``z``) and in the spread of healthy ranks, the share of its
    blocks of steps that show it (``consistency``), and of its steps in which no other rank is later (``latest``).

    A rank may have several. A rank that is late throughout and later for a while has a second one for that while, on
    top of its ``outer`` one, whose segments ``inner`` contain it. ``stalls`` are steps (by index) in which the same
    cause made it far later still, with their ns; ``waits`` are those in which it waits off the CPU for longer.
    ``phase``: in which the rank's host works longer.
    """

    row: int
    first: int
    stop: int
    delay: float
    z: float
    consistency: float
    spread_ratio: float
    latest: float
    inner: tuple[tuple[int, int], ...] = ()
    outer: Slowdown | None = None
    stalls: tuple[tuple[int, float], ...] = ()
    waits: tuple[tuple[int, float], ...] = ()
    phase: str | None = None

    def steps(self) -> Ints:
        """Indices of the steps that show this slowdown and nothing on top of it."""
        shown = np.ones(self.stop - self.first, bool)
        for first, stop in self.inner:
            shown[first - self.first : stop - self.first] = False
        return np.asarray(self.first + np.flatnonzero(shown))


@dataclass(frozen=True)
class Stalls:
    """The stalls of one rank, or of several that stall together.

    Holds the indices of the stalled steps, and their share of all stalls in the job. ``widespread``: so many peers
    stall that the delay against their median says little. ``frequent``: outside its stalls the rank is on time,
    however many there are.
    """

    rows: tuple[int, ...]
    stalled: Ints
    delay: float
    share: float
    widespread: bool = False
    frequent: bool = False
    #: The share of all stalls that all reported ranks have, where several ranks were looked for at once; of few stalls
    #: of one size, how sure it is that they are not chance.
    explained_share: float = 0.0


#: If the cost is at least this share of the longer transfers, the report does not explain what hides the rest.
_MOST = 0.9


@dataclass(frozen=True)
class SlowLink:
    """Rows that share the slow link, and how much longer a step's transfers take there in steps [first, stop).

    Ns a step: ``delay`` in all, ``shown`` where computing waits for the transfers, ``usual`` what they would take:
    as ``sisters`` that move the same, or else as the group itself at other times."""

    rows: tuple[int, ...]
    delay: float
    usual: float
    shown: float
    first: int
    stop: int
    sisters: bool

    @property
    def steps(self) -> slice:
        """Those in which it is slow, by index."""
        return slice(self.first, self.stop)

    @property
    def hidden(self) -> bool:
        """Whether a good part of it costs nothing."""
        return self.shown < _MOST * self.delay

    @property
    def in_all(self) -> float:
        """Ns of the whole run."""
        return self.delay * (self.stop - self.first)


@dataclass(frozen=True)
class SlowNetwork:
    """Steps [first, stop) by index; ns a step: what transfers take, ``usual`` before, and by what steps are longer.

    ``early``: it began too soon for steps before it to tell, and is set against those after it.
    """

    first: int
    stop: int
    took: float
    usual: float
    cost: float
    past: Past
    early: bool = False


@dataclass(frozen=True)
class Sharing:
    """Ranks of a node that share fewer CPUs than they are: how many ranks, how many CPUs."""

    node: str
    ranks: int
    cpus: int

    def __str__(self) -> str:
        return f"{self.ranks} ranks share the {self.cpus} CPU{'s' if self.cpus > 1 else ''} of {self.node}"


@dataclass(frozen=True)
class CpuBinding(Sharing):
    """The ranks ``members`` are bound to CPUs, ``listed`` as the kernel does, or by a quota (empty), though their node
    has ``of`` CPUs. A quota stopped them for ``throttled`` s per s."""

    members: tuple[int, ...]
    listed: str
    of: int
    throttled: float = 0.0

    def __str__(self) -> str:
        cpus, has = f"CPU{'s' if self.cpus > 1 else ''}", f"({self.node} has {self.of} CPUs)"
        if not self.listed:
            return f"{self.ranks} ranks share a quota of {self.cpus} {cpus} {has}"
        return f"{self.ranks} ranks run only on {cpus}{' number' if self.cpus == 1 else ''} {self.listed} {has}"


@dataclass(frozen=True)
class WorkDelay:
    """``more`` work [R, S], in shares of a usual step's, delays by ``slope`` ns for each unit.

    Each rank shows its own part of that, ``seen`` [R, 1]. Ranks with persistently slow computing are later by
    ``times`` their visible delay. ``counted``: work in samples or tokens, else from the GPU's time.
    """

    more: Floats
    slope: float
    seen: Floats
    times: float
    counted: bool = True

    @property
    def ns(self) -> Floats:
        """[R, S] by which work makes ranks late in full."""
        return np.asarray(self.slope * self.more)
