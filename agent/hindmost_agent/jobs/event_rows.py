"""From the records of one ring to rows: steps with exclusive phases, calls with the gap before them, intervals.

Pure: no files, no clocks. Durations are integer ns; -1 means not measured. Records of calls, of which there are
thousands a second, become columns; records of other kinds become events, one by one.
"""

from __future__ import annotations

from functools import lru_cache, partial
from itertools import compress
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hindmost import ring
from hindmost.ring import layout

from hindmost_agent.jobs.calls import KIND, LATEST_NS, SIZE, CallBuilder, Calls, Tables, mask

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from hindmost.ring import Event

UNMEASURED = -1
GPU_TIME, PHASE = ring.GPU_TIME, ring.PHASE
#: Phases that wait for their step; a loop that never marks a step must not grow without bound.
PENDING_LIMIT = 8192
#: Phases that are amounts within a step (CPU time, GPU time, the part of a wait), not intervals of the host: nothing
#: nests in them, and they nest in nothing.
AMOUNTS = frozenset({"cpu", "runqueue", "negotiation"})
#: GPU times come when the GPU has got there, steps later, with the step's number: so long a step waits for them.
GPU_LATE_STEPS = 16
GPU_LATE_NS = 2_000_000_000


#: A longer time (13 days) is damage, not a measurement: columns are signed 64-bit, and sums must fit in them too.
LONGEST_NS = 1 << 50
#: What a signed 64-bit column holds.
MOST = (1 << 63) - 1
#: Kinds that become rows of calls, and slots that were claimed in vain.
NO_EVENTS = mask(layout.VOID, ring.P2P, ring.COLLECTIVE, ring.SELF, ring.LAUNCH)


#: The highest bytes of start, duration and value in a record, and below what they are nothing is damaged.
_HIGHEST = {15: LATEST_NS >> 56, 22: LONGEST_NS >> 48, 23: 1, 39: MOST + 1 >> 56}


class Records(Tables, Protocol):
    """A ring, as far as its records refer to it."""

    def event(self, words: tuple[int, ...]) -> Event | None: ...


class StepRow(NamedTuple):
    """One step of one rank; ``phases`` are exclusive of what nests in them."""

    kind: str
    step: int
    start_ns: int
    duration_ns: int
    work: int
    phases: dict[str, int]


class IntervalRow(NamedTuple):
    """What belongs to no step: a phase between steps, a mark, file I/O."""

    name: str
    start_ns: int
    duration_ns: int
    value: float


class Rows(NamedTuple):
    """What was finished since last asked."""

    steps: list[StepRow]
    collectives: Calls
    intervals: list[IntervalRow]


#: Rows without a Python frame around them, as ``_make`` has: there are hundreds a second.
_step_row: Callable[[tuple[Any, ...]], StepRow] = partial(tuple.__new__, StepRow)

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
        self.intervals: list[IntervalRow] = []
        self.last_step = UNMEASURED
        self._calls = CallBuilder()
        self._phases: list[_Phase] = []
        self._outermost: list[_Span] = []
        self._seen: dict[str, None] = {}
        #: By the word of a record that holds kind, flags and name: the name, of those that are phases of the host.
        self._host_phases: dict[int, str] = {}
        self._held: list[StepRow] = []
        self._gpu_step = UNMEASURED
        #: Events left out because their times or values are damaged: they would not fit their columns.
        self.damaged = 0
        self._takers = {ring.PHASE: self._phase, ring.STEP: self._step}

    @property
    def collectives(self) -> Calls:
        """Finished rows of calls."""
        return self._calls.rows

    def feed(self, block: bytes, of: Records) -> None:
        """Take in whole records of a ring. Finished rows are added to ``steps``, ``collectives``, ``intervals``."""
        kinds = self._undamaged(block)
        self._calls.feed(block, kinds, of)
        left = kinds.translate(NO_EVENTS)
        if 0 in left:
            words = layout.WORDS.iter_unpack(block)
            self._events(words if 1 not in left else compress(words, left.translate(mask(0))), of.event)
            self._bound()

    def _undamaged(self, block: bytes) -> bytes:
        """The kind of each record; 0 for those whose times or values would not fit their columns."""
        kinds = block[KIND::SIZE]
        if all(not block[at::SIZE].translate(None, bytes(most)) for at, most in _HIGHEST.items()):
            return kinds
        fits = bytes(
            start < LATEST_NS and duration <= LONGEST_NS and value <= MOST
            for _, start, duration, _, value in layout.WORDS.iter_unpack(block)
        )
        left = bytes(map(mul, kinds, fits))
        self.damaged += left.count(0) - kinds.count(0)
        return left

    def _events(self, records: Iterable[tuple[int, ...]], event: Callable[[tuple[int, ...]], Event | None]) -> None:
        """Take records as words, which ``event`` makes events of: phases, mostly all, need none."""
        known, takers, phases, outermost = self._host_phases, self._takers, self._phases, self._outermost
        for record in records:
            what, start, duration, _, _ = record
            name = known.get(what)
            if name is not None:
                # As ``_host_phase`` has it, without the call: seven of nine records come here.
                exclusive = duration
                while outermost and outermost[-1][0] >= start:
                    exclusive -= outermost.pop()[1]
                outermost.append((start, duration))
                phases.append((start, duration, name, exclusive if exclusive > 0 else 0))
            elif (found := event(record)) is not None:
                takers.get(found[0], self._interval)(found)
                phases, outermost = self._phases, self._outermost
                if found[0] == PHASE and not found[1] & GPU_TIME and found[2] in self._seen:
                    known[what] = found[2]

    def broke(self) -> None:
        """Events were lost here: what was pending may lack its other half."""
        self._calls.broke()
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
        self.steps, self._calls.rows, self.intervals = [], Calls(), []
        return rows

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
