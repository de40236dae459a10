"""From the events of one ring to rows: steps with exclusive phases, collectives with the gap before them, intervals.

Pure: no files, no clocks. Durations are integer ns; -1 means not measured.
"""

from __future__ import annotations

from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost import ring
from hindmost.ring import layout

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from hindmost.ring import Event

UNMEASURED = -1
GPU_TIME, PHASE, NONE16 = ring.GPU_TIME, ring.PHASE, layout.NONE16
#: The kinds of events that are calls.
CALLS = (ring.P2P, ring.COLLECTIVE)
#: Of an event's flags, those that its row keeps.
COLLECTIVE_FLAGS = ring.GPU_TIME | ring.NONBLOCKING | ring.ERROR
#: Phases that wait for their step; a loop that never marks a step must not grow without bound.
PENDING_LIMIT = 8192
#: Launches whose operations have not come: with more, something was lost.
LAUNCHES_LIMIT = 64
#: A longer time (13 days) is damage, not a measurement: columns are signed 64-bit, and sums must fit in them too.
LONGEST_NS = 1 << 50
#: What a signed 64-bit column holds.
MOST = (1 << 63) - 1
#: Phases that are amounts within a step (CPU time, GPU time, the part of a wait), not intervals of the host: nothing
#: nests in them, and they nest in nothing.
AMOUNTS = frozenset({"cpu", "runqueue", "negotiation"})
#: GPU times come when the GPU has got there, steps later, with the step's number: so long a step waits for them.
GPU_LATE_STEPS = 16
GPU_LATE_NS = 2_000_000_000


class StepRow(NamedTuple):
    """One step of one rank; ``phases`` are exclusive of what nests in them."""

    kind: str
    step: int
    start_ns: int
    duration_ns: int
    work: int
    phases: dict[str, int]


class CollectiveRow(NamedTuple):
    """One collective or point-to-point call; the last four: the gap before it, and when a GPU's was enqueued."""

    op: str
    comm: int
    seq: int
    start_ns: int
    duration_ns: int
    bytes: int
    flags: int
    peer: int
    self_ns: int
    cpu_ns: int
    runqueue_ns: int
    enqueue_ns: int = UNMEASURED


class IntervalRow(NamedTuple):
    """What belongs to no step: a phase between steps, a mark, file I/O."""

    name: str
    start_ns: int
    duration_ns: int
    value: float


class Rows(NamedTuple):
    """What was finished since last asked."""

    steps: list[StepRow]
    collectives: list[CollectiveRow]
    intervals: list[IntervalRow]


#: Rows without a Python frame around them, as ``_make`` has: there are hundreds a second.
_step_row: Callable[[tuple[Any, ...]], StepRow] = partial(tuple.__new__, StepRow)
_collective_row: Callable[[tuple[Any, ...]], CollectiveRow] = partial(tuple.__new__, CollectiveRow)

#: A host phase: start and duration; with its name and the time that is its own alone. Plain tuples, for there are
#: thousands.
_Span = tuple[int, int]
_Phase = tuple[int, int, str, int]


@lru_cache(maxsize=1024)
def is_amount(name: str) -> bool:
    """Whether a phase of this name is a quantity of its step rather than an interval of the host's time."""
    return name in AMOUNTS or name.startswith("gpu_")


class RowBuilder:
    """Folds one ring's events, in the order they were written, across any number of reads."""

    def __init__(self) -> None:
        self.steps: list[StepRow] = []
        self.collectives: list[CollectiveRow] = []
        self.intervals: list[IntervalRow] = []
        self.last_step = UNMEASURED
        self._phases: list[_Phase] = []
        self._outermost: list[_Span] = []
        self._seen: dict[str, None] = {}
        #: By the word of a record that holds kind, flags and name: the name, of those that are phases of the host.
        self._host_phases: dict[int, str] = {}
        self._held: list[StepRow] = []
        self._gpu_step = UNMEASURED
        self._gap: tuple[int, int, int] | None = None
        self._left_ns = UNMEASURED
        self._launched: dict[tuple[str, int, int, int], int] = {}  # when each was, by operation
        #: Events left out because their times or values are damaged: they would not fit their columns.
        self.damaged = 0
        self._takers = {
            ring.PHASE: self._phase,
            ring.COLLECTIVE: self._collective,
            ring.P2P: self._collective,
            ring.SELF: self._take_gap,
            ring.LAUNCH: self._launch,
            ring.STEP: self._step,
        }

    def feed(self, events: Iterable[Event]) -> None:
        """Take in what was read. Finished rows are added to ``steps``, ``collectives`` and ``intervals``."""
        for event in events:
            self._take(event)
        self._bound()

    def feed_words(self, words: Iterable[tuple[int, ...]], event: Callable[[tuple[int, ...]], Event | None]) -> None:
        """The same from a ring's records as words, which ``event`` makes events of: phases, mostly all, need none."""
        known, take, phases, outermost = self._host_phases, self._take, self._phases, self._outermost
        for record in words:
            what, start, duration, _, value = record
            name = known.get(what)
            if name is not None and duration <= LONGEST_NS and start <= MOST and value <= MOST:
                # As ``_host_phase`` has it, without the call: seven of nine records come here.
                exclusive = duration
                while outermost and outermost[-1][0] >= start:
                    exclusive -= outermost.pop()[1]
                outermost.append((start, duration))
                phases.append((start, duration, name, exclusive if exclusive > 0 else 0))
            elif (found := event(record)) is not None:
                take(found)
                phases, outermost = self._phases, self._outermost
                if found[0] == PHASE and not found[1] & GPU_TIME and found[2] in self._seen:
                    known[what] = found[2]
        self._bound()

    def feed_calls(
        self,
        records: Iterable[tuple[int, ...]],
        names: Mapping[int, str],
        comms: Mapping[int, int],
        event: Callable[[tuple[int, ...]], Event | None],
    ) -> None:
        """The same from a ring's records of ``layout.RECORD``: calls and the gaps before them, mostly all."""
        add, gap, left_ns = self.collectives.append, self._gap, self._left_ns
        for record in records:
            _, kind, flags, name, start, took, seq, peer, comm, value = record
            if kind not in CALLS or took > LONGEST_NS or start > MOST or value > MOST:
                if (found := event(record)) is not None:
                    self._gap = gap
                    self._take(found)
                    gap = self._gap
                continue
            # As ``_collective`` has it, without the event and the calls: there are 10,000 a second.
            own = cpu = queued = UNMEASURED
            if gap is not None:
                (own, cpu, queued), gap = gap, None
            elif left_ns != UNMEASURED and not flags & GPU_TIME:
                own = start - left_ns if start > left_ns else 0
            op, comm, peer = names[name], comms[comm], UNMEASURED if peer == NONE16 else peer
            enqueue = UNMEASURED
            if not flags & GPU_TIME:
                left_ns = start + took
            else:
                enqueue = self._launched.pop((op, comm, seq, peer), UNMEASURED)
            kept = flags & COLLECTIVE_FLAGS
            add(_collective_row((op, comm, seq, start, took, value, kept, peer, own, cpu, queued, enqueue)))
        self._gap, self._left_ns = gap, left_ns
        self._bound()

    def _take(self, event: Event) -> None:
        if event[4] > LONGEST_NS or event[3] > MOST or event[8] > MOST:
            self.damaged += 1
        else:
            self._takers.get(event[0], self._interval)(event)

    def broke(self) -> None:
        """Events were lost here: what was pending may lack its other half."""
        self._gap = None
        self._left_ns = UNMEASURED
        self._launched.clear()
        self._outermost.clear()

    def age(self, now_ns: int) -> None:
        """Let go of steps whose GPU times should have come by now."""
        self._let_go(lambda step: now_ns - step.start_ns - step.duration_ns > GPU_LATE_NS)

    def finish(self) -> None:
        """Nothing more comes: steps wait no longer, phases that no step took become intervals."""
        self._let_go(lambda _: True)
        self._release(self._phases)
        self._phases = []

    @property
    def pending(self) -> tuple[int, int]:
        """How many steps wait for their GPU times, and phases for their step; always the latest ones read."""
        return len(self._held), len(self._phases)

    def resume(self, steps: int, phases: int) -> None:
        """Forget what an earlier agent has made rows of: of what was fed, all but that many pending ones."""
        self.take()
        del self._held[: max(len(self._held) - steps, 0)]
        del self._phases[: max(len(self._phases) - phases, 0)]

    def take(self) -> Rows:
        """Hand over the finished rows and forget them."""
        rows = Rows(self.steps, self.collectives, self.intervals)
        self.steps, self.collectives, self.intervals = [], [], []
        return rows

    def _collective(self, event: Event) -> None:
        _, flags, name, start, duration, seq, peer, comm, value = event
        on_host = not flags & GPU_TIME
        gap, self._gap = self._gap, None
        if gap is None:
            known = on_host and self._left_ns != UNMEASURED
            gap = (max(start - self._left_ns, 0) if known else UNMEASURED, UNMEASURED, UNMEASURED)
        enqueue = UNMEASURED
        if on_host:
            self._left_ns = start + duration
        elif self._launched:
            enqueue = self._launched.pop((name, comm, seq, peer), UNMEASURED)
        row = (name, comm, seq, start, duration, value, flags & COLLECTIVE_FLAGS, peer, *gap, enqueue)
        self.collectives.append(_collective_row(row))

    def _take_gap(self, event: Event) -> None:
        self._gap = _gap(event)

    def _launch(self, event: Event) -> None:
        if len(self._launched) >= LAUNCHES_LIMIT:
            self._launched.clear()
        self._launched[event.name, event.comm_id, event.seq, event.peer] = event.start_ns

    def _interval(self, event: Event) -> None:
        self.intervals.append(IntervalRow(event.name, event.start_ns, event.duration_ns, float(event.value)))

    def _phase(self, event: Event) -> None:
        _, flags, name, start, duration, seq, _, _, _ = event
        amount = flags & GPU_TIME or (name not in self._seen and is_amount(name))
        if seq and amount:
            self._gpu_time(event)
        elif amount:
            self._phases.append((start, duration, name, duration))
        else:
            self._seen[name] = None
            self._host_phase(start, duration, name)

    def _host_phase(self, start: int, duration: int, name: str) -> None:
        exclusive, outermost = duration, self._outermost
        # Inner phases end, and are written, before the one around them.
        while outermost and outermost[-1][0] >= start:
            exclusive -= outermost.pop()[1]
        outermost.append((start, duration))
        self._phases.append((start, duration, name, exclusive if exclusive > 0 else 0))

    def _bound(self) -> None:
        """Keep only the latest phases of a loop that marks no step."""
        phases = self._phases
        if len(phases) > PENDING_LIMIT:
            self._release(phases[: -PENDING_LIMIT // 2])
            del phases[: -PENDING_LIMIT // 2]
            del self._outermost[: -PENDING_LIMIT // 2]

    def _step(self, event: Event) -> None:
        """A step takes the phases that start in it. Steps may be written late, when their GPU times have come."""
        _, _, kind, start, duration, seq, _, _, value = event
        end = start + duration
        # A phase that has been seen in this loop and did not happen in this step took no time: measured, not missing.
        phases = dict.fromkeys(self._seen, 0)
        others = []
        for phase in self._phases:
            began, _, name, exclusive = phase
            if start <= began < end:
                phases[name] = phases.get(name, 0) + exclusive
            else:
                others.append(phase)
        if others:
            self._release([phase for phase in others if phase[0] < start])
            others = [phase for phase in others if phase[0] >= start]
        self._phases = others
        if self._outermost:
            self._outermost = [span for span in self._outermost if span[0] >= end]
        self.last_step = seq
        self._held.append(_step_row((kind, seq, start, duration, value or UNMEASURED, phases)))
        if self._gpu_step == UNMEASURED:
            self.steps += self._held
            self._held = []
        elif len(self._held) > GPU_LATE_STEPS:
            self.steps.append(self._held.pop(0))

    def _gpu_time(self, event: Event) -> None:
        """A GPU time of an earlier train step; steps before that one have all of theirs."""
        for step in self._held:
            if step.step == event.seq and step.kind != "eval":
                step.phases[event.name] = step.phases.get(event.name, 0) + event.duration_ns
        self._gpu_step = max(self._gpu_step, event.seq)
        self._let_go(lambda step: step.step < self._gpu_step or step.kind == "eval")

    def _let_go(self, ready: Callable[[StepRow], bool]) -> None:
        while self._held and ready(self._held[0]):
            self.steps.append(self._held.pop(0))

    def _release(self, phases: Iterable[_Phase]) -> None:
        nan = float("nan")
        self.intervals += (IntervalRow(name, start, duration, nan) for start, duration, name, _ in phases)


def _gap(event: Event) -> tuple[int, int, int]:
    """Self time, CPU time and run-queue time of a SELF event, ns (its ``seq`` holds the run queue's us)."""
    _, flags, _, _, duration, seq, _, _, value = event
    cpu = value if flags & ring.CPU_KNOWN else UNMEASURED
    runqueue = seq * 1000 if flags & ring.RUNQUEUE_KNOWN else UNMEASURED
    return duration, cpu, runqueue
