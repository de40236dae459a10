"""Dependency replay of a pipeline's step: what fixing one rank saves, where others' idle time absorbs part of its
delay.

Between two operations a rank works, on its own clock. A receive ends when what was sent is there, a collective when its
last member has come. Replayed with other work, the same order gives the time that the step would have taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hindmost_judge.encoding import ordinals
from hindmost_judge.stats.robust import median, or_zero, peers_median
from hindmost_judge.timeline.messages import COLLECTIVE, RECEIVE, SEND, Schedule, fused_receives_in_full
from hindmost_judge.timeline.overlap import TRADED, traded
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.whatif.replay import Events

#: An operation was waited for if another follows within this time (ns) after its end.
_SOON = 2_000.0
#: A send holds its rank if the next operation waits for its end in this share of the steps.
_ALWAYS = 0.95
#: A send that takes this many times its usual minimum, and this much more (ns), waits for its receiver, if the receive
#: itself takes no time.
_HELD, _HELD_NS = 2.0, 50_000.0
#: Share of the steps in which it must wait: the first of these without a circular wait is taken.
_OFTEN = (0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class PipelineGraph:
    """Steps of a pipeline as a dependency graph: N operations, G steps; ``steps`` [G] are indices of all S.

    ``work`` [N, G] ns is what a rank does before each operation, ``delay`` [N, G] how much more than its peers.
    ``least`` [N, G] is what the peers of its cohort's slowest rank take.
    ``takes`` [N, G] ns is for how long a rank waits once the last of those that end together has come: 0 if it goes on
    meanwhile. ``wire`` [M, G] ns is how long messages travel that were sent ahead. ``events`` come after these times,
    in this order: each rank's to an operation, the operations' ends, and messages'; and then when ranks go on.
    ``comm_class`` [N] is a collective's class of communicators, below 0 for others. ``stage`` [R] is each rank's
    place in its pipeline, where that is a chain.
    """

    row: Ints
    place: Ints
    steps: Ints
    work: Floats
    delay: Floats
    least: Floats
    takes: Floats
    wire: Floats
    events: Events
    comm_class: Ints
    count: int
    stage: Ints | None = None

    @cached_property
    def _alike(self) -> Floats:
        """[G] ns of each step with all ranks at the pace of the peers of their cohort's slowest.

        In a cohort of two or three the peers of the others are slow with it: at that pace nothing would be lost.
        """
        return self.replay(self.least)

    @cached_property
    def lasted(self) -> Floats:
        """[G] ns of each step with what was measured."""
        return self.replay(self.work)

    def step_delay(self, intervals: Floats) -> Floats:
        """[S] ns by which each step is longer with these delays [R, S * P] before the operations than with none.

        Steps left out get their neighbours'.
        """
        width = intervals.shape[1] // self.count
        column = self.steps[None, :] * width + self.place[:, None]
        found = self.replay(np.maximum(self.work - self.delay + intervals[self.row[:, None], column], 0.0))
        return np.asarray(np.interp(np.arange(self.count), self.steps, found - self._alike))

    def replayed(self, pace: Floats) -> Floats:
        """[S] ns of each step, were all that a rank works so many times [R] as long; as next to it where left out."""
        found = self.replay(self.work * pace[self.row][:, None])
        return np.asarray(np.interp(np.arange(self.count), self.steps, found))

    def replay(self, work: Floats) -> Floats:
        """[G] ns of each step with this work [N, G] before the operations."""
        goes_on = self.events.times(np.concatenate([work, self.takes, self.wire]))[-len(work) :]
        return np.asarray(goes_on.max(axis=0))

    def intervals(self, ranks: int) -> tuple[Floats, Ints]:
        """[R, S * P] delay before each operation, 0 where there is none, and the index of each column's step."""
        width = int(self.place.max()) + 1
        found = np.zeros((ranks, self.count * width))
        found[self.row[:, None], self.steps[None, :] * width + self.place[:, None]] = self.delay
        return found, np.repeat(np.arange(self.count), width)

    def computing(self, ranks: int) -> Floats:
        """[R, S] ns of computing, by how much longer each interval but a step's first is than the peers' own.

        What delays the first (input, copies and the host's work) delays none of the others. All stages are put on
        one level, so that any rank may be compared with any.
        """
        later = (self.place > 0)[:, None]
        usual = self.work - self.delay
        sums = np.zeros((3, ranks, len(self.steps)))
        for block, values in zip(sums, (later * self.delay, later * usual, usual), strict=True):
            np.add.at(block, self.row, values)
        more, of_these, of_all = sums
        found = np.full((ranks, self.count), np.nan)
        found[:, self.steps] = of_all.mean() + of_all * more / np.maximum(of_these, 1.0)
        return found

    def self_time(self, ranks: int) -> Floats:
        """[R, S] ns that each rank works in a step; of steps left out what is usual."""
        sums = np.zeros((ranks, len(self.steps)))
        np.add.at(sums, self.row, self.work)
        found: Floats = np.repeat(median(sums, axis=1)[:, None], self.count, axis=1)
        found[:, self.steps] = sums
        return found

    def before_first(self, ranks: int) -> Floats:
        """[R, S] ns that each rank works before a step's first operation; NaN of steps left out."""
        first = np.flatnonzero(self.place == 0)
        found = np.full((ranks, self.count), np.nan)
        found[self.row[first][:, None], self.steps[None, :]] = self.work[first]
        return found


def build(schedule: Schedule, cohort: Ints, count: int) -> PipelineGraph | None:
    """The dependencies of a schedule in a run of ``count`` steps; ``None`` where operations have no partner.

    ``cohort`` [R] says who does the same work.
    """
    source = _sources(schedule)
    if source is None:
        return None
    if not schedule.exact:
        schedule = fused_receives_in_full(schedule, source, _units(schedule, source, np.zeros(len(source), bool)))
    holds = _holding(schedule, source)
    often = _waited(schedule, source, holds).mean(axis=1)
    for least in _OFTEN:  # sends that seem to wait in a circle were gone before they were received
        found = _dependencies(schedule, cohort, count, source, holds, often > least)
        if found is not None:
            return found
    return None


def _dependencies(
    schedule: Schedule, cohort: Ints, count: int, source: Ints, holds: Array, met: Array
) -> PipelineGraph | None:
    """With those receives whose sends wait for them ``met`` [N]; ``None`` where operations wait in a circle."""
    unit = _units(schedule, source, met)
    took = schedule.end - schedule.start
    takes = np.full_like(took, np.inf)  # the shortest of each unit: what it took when the last had come
    np.minimum.at(takes, unit, took)
    takes = takes[unit]
    eager = np.where(met, -1, source)
    travels, after = _travelled(schedule, took, source)
    takes[eager >= 0] = after[eager >= 0]
    previous = np.where(schedule.place > 0, np.arange(len(schedule.row)) - 1, -1)
    base, work = _work(schedule, _fronts(schedule, holds), previous)
    against = _against_peers(schedule, work, cohort)
    # A step's begin, when each rank comes to an operation, when all that end together have come, and when it goes on.
    each, sent, inner = np.arange(len(unit)), np.flatnonzero(eager >= 0), np.flatnonzero(previous >= 0)
    came, met, goes_on = 1 + each, 1 + len(unit) + unit, 1 + 2 * len(unit) + each
    follows = [
        (np.where(base >= 0, goes_on[base], 0), came),
        (np.where(holds, met, came), goes_on),
        (came[eager[sent]], met[sent]),
        (came, met),
        (goes_on[previous[inner]], goes_on[inner]),
    ]
    events = Events(1 + 3 * len(unit), follows)
    if events.circular or against is None:
        return None
    delay, least = against
    return PipelineGraph(
        row=schedule.row,
        place=schedule.place,
        steps=schedule.steps,
        work=work,
        delay=delay,
        least=least,
        takes=np.where(holds[:, None], takes, 0.0),
        wire=(travels - after)[sent],
        events=events,
        comm_class=schedule.kind - COLLECTIVE,
        count=count,
        stage=schedule.stages(len(cohort)),
    )


def _sources(schedule: Schedule) -> Ints | None:
    """[N] the send that each receive gets, -1 for others; ``None`` where some have no partner.

    What one rank sends another arrives in order.
    """
    ranks = int(schedule.row.max()) + 1
    sends, receives = (np.flatnonzero(schedule.kind == kind) for kind in (SEND, RECEIVE))
    from_to = schedule.row[sends] * ranks + schedule.with_whom[sends]
    to_from = schedule.with_whom[receives] * ranks + schedule.row[receives]
    size = len(schedule.row) + 1
    sent, got = from_to * size + ordinals(from_to), to_from * size + ordinals(to_from)
    if len(sent) != len(got) or not np.array_equal(np.sort(sent), np.sort(got)):
        return None
    source = np.full(len(schedule.row), -1, np.int64)
    source[receives[np.argsort(got)]] = sends[np.argsort(sent)]
    return source


def _holding(schedule: Schedule, source: Ints) -> Array:
    """[N] whether a rank goes on only when the operation has ended: a send that others overtake is overlapped.

    All sends are overlapped if a longer wait for the receiver goes with a shorter time after it.
    """
    follows = np.full_like(schedule.start, np.inf)  # when the same rank's next operation begins
    inner = np.flatnonzero(schedule.place[1:] > 0)
    follows[inner] = schedule.start[inner + 1]
    waits = (follows >= schedule.end - _SOON).mean(axis=1) >= _ALWAYS
    holds = np.asarray(np.where(schedule.kind == SEND, waits, ~schedule.overlapping))
    waited = _waited(schedule, source, holds)
    sends = source[waited.mean(axis=1) > _OFTEN[0]]
    sends = sends[np.isfinite(follows[sends]).all(axis=1)]
    if len(sends):
        took, gap = (schedule.end - schedule.start)[sends], (follows - schedule.end)[sends]
        if traded(took, gap, np.zeros(took.shape[1])) > TRADED:
            holds[schedule.kind == SEND] = False
    return holds


def _waited(schedule: Schedule, source: Ints, holds: Array) -> Array:
    """[N, G] whether a receive's send waited for it: long for such a send, and over once received."""
    took = schedule.end - schedule.start
    waited = np.zeros(took.shape, bool)
    receives = np.flatnonzero((source >= 0) & holds[source])
    if len(receives):
        sends = source[receives]
        names, which = _pairs(schedule, sends, receives)
        least = np.full(names, np.inf)  # of all messages that the sender of each sends its receiver
        np.minimum.at(least, which, np.percentile(took[sends], 10, axis=1))
        long = took[sends] > (_HELD * least[which] + _HELD_NS)[:, None]
        waited[receives] = long & (took[receives] < took[sends])
    return waited


def _pairs(schedule: Schedule, sends: Ints, receives: Ints) -> tuple[int, Ints]:
    """How many pairs of ranks send each other these messages, and [M] the number of each one's."""
    pair = schedule.row[sends] * (schedule.row.max() + 1) + schedule.row[receives]
    names, which = np.unique(pair, return_inverse=True)
    return len(names), which


def _travelled(schedule: Schedule, took: Floats, source: Ints) -> tuple[Floats, Floats]:
    """[N, G] ns that a receive's message travels, and for how much of that the receive goes on however late it comes.

    Whichever of the two comes last takes as long as the message travels, or less where that was on its way before.
    What its send took beyond that, it waited for the receiver.
    """
    travelled, after = np.zeros((2, *took.shape))
    receives = np.flatnonzero(source >= 0)
    if len(receives) == 0:
        return travelled, after
    sends = source[receives]
    names, which = _pairs(schedule, sends, receives)
    usual = np.zeros(names)
    np.maximum.at(usual, which, median(np.minimum(took[sends], took[receives]), axis=1))
    travelled[receives] = np.minimum(took[sends], np.maximum(took[receives], usual[which][:, None]))
    soonest = np.full(names, np.inf)  # of receives whose message is there
    np.minimum.at(soonest, which, np.percentile(took[receives], 10, axis=1))
    after[receives] = np.minimum(travelled[receives], np.minimum(took[receives], soonest[which][:, None]))
    return travelled, after


def _units(schedule: Schedule, source: Ints, met: Array) -> Ints:
    """[N] which operations end together: a collective's members, and a send and its receive where they meet."""
    unit = np.arange(len(schedule.row))
    unit[met] = source[met]
    indices = np.flatnonzero(schedule.kind >= COLLECTIVE)
    if len(indices):
        kind, group = schedule.kind[indices], schedule.with_whom[indices]
        ranks = int(schedule.row.max()) + 1
        number = ordinals(kind * ranks + schedule.row[indices])
        key = (kind * (group.max() + 2) + group + 1) * (number.max() + 1) + number
        _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
        unit[indices] = indices[first][inverse]
    return unit


def _fronts(schedule: Schedule, holds: Array) -> Floats:
    """[N, G] when the rank could go on after each operation and all before it."""
    left: Floats = np.where(holds[:, None], schedule.end, schedule.start)
    first = np.flatnonzero(schedule.place == 0)
    for one, stop in zip(first.tolist(), np.append(first[1:], len(left)).tolist(), strict=True):
        np.maximum.accumulate(left[one:stop], axis=0, out=left[one:stop])
    return left


def _work(schedule: Schedule, front: Floats, previous: Ints) -> tuple[Ints, Floats]:
    """What each operation follows on its rank, and the ns between: operations entered meanwhile are not waited for."""
    base = previous.copy()
    while True:
        since = np.where((base >= 0)[:, None], front[base], -np.inf)
        too_late = (base >= 0) & (np.mean(since > schedule.start + _SOON, axis=1) > 0.5)
        if not too_late.any():
            break
        base[too_late] = previous[base[too_late]]
    begin = np.where((base >= 0)[:, None], since, schedule.begin)
    work = np.maximum(schedule.start - begin, 0.0)
    unknown = np.isnan(work)
    if unknown.any():
        work = np.where(unknown, or_zero(median(work, axis=1))[:, None], work)
    return base, work


def _against_peers(schedule: Schedule, work: Floats, cohort: Ints) -> tuple[Floats, Floats] | None:
    """[N, G] how far work is above that of the peers before the same operation, and the least that any one's peers
    take there; ``None`` where peers do others.
    """
    delay, least = np.zeros_like(work), work.copy()
    for one in np.unique(cohort):
        members = np.flatnonzero(cohort == one)
        indices = np.flatnonzero(np.isin(schedule.row, members))
        if len(members) < 2:
            continue
        if len(indices) % len(members):
            return None
        block = indices.reshape(len(members), -1)
        if (schedule.kind[block] != schedule.kind[block[0]]).any():
            return None
        values = work[block].reshape(len(members), -1)
        peers = peers_median(values)
        delay[block] = (values - peers).reshape(work[block].shape)
        least[block] = np.broadcast_to(peers.min(axis=0), peers.shape).reshape(work[block].shape)
    return delay, least


def saved_by_transfers(built: PipelineGraph, rows: Sequence[int], comm_class: int, share: float) -> float:
    """Ns by which the mean step would be shorter, took collectives of a class these ranks this ``share`` of their time.

    What others' work hides of them is no part of it.
    """
    link = (built.comm_class == comm_class) & np.isin(built.row, rows)
    mended = replace(built, takes=np.where(link[:, None], share * built.takes, built.takes))
    return float((built.lasted - mended.lasted).mean())
