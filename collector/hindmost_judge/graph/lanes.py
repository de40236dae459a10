"""Own work of hosts and GPUs from when they were where.

A host that is ahead of its GPU is held up somewhere: it synchronises, copies, or its launch queue is full. No host
passes that point before the GPU has come so far, so it is the first mark of a step that never precedes the end of the
GPU's collective, of any rank in any step. What a host took there beyond that is its own; what it took before it may be
work or a wait. Of such a step its work is known within bounds, and taken to be what it is in steps without a wait, of
this rank or else of its cohort.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.graph.cohorts import paces
from hindmost_judge.stats import segmentation
from hindmost_judge.types import Lanes, Wait

if TYPE_CHECKING:
    from hindmost_judge.types import Bools, Floats, Ints, Timeline

#: Hosts set the pace where work of the host that comes last is this share of the steps …
_PACED = 0.75
#: … and its GPU runs what it launches within this share of a step. Where launches were not recorded, GPUs of hosts that
#: are ahead must show that they need no more than the first share of a step.
_AT_ONCE = 0.05
#: Share of the steps that may contradict what holds of all: marks are lost, and clocks are compared now and then.
_OFF = 0.02
#: Steps that give a rank's usual work.
_ENOUGH = 5
#: A host that waits in nearly all steps takes less than in all but this share of them.
_LEAST = 0.05
#: Hosts that are ahead in most steps, how many of them show where else they wait, and of how many that is asked.
_MOSTLY, _SEVERAL, _SAMPLE = 0.5, 2, 16
#: Times after its GPU at which a host leaves a place where it is held up vary as little as the least, but for this
#: factor; or, where it comes after its GPU, as the geometric mean of that and of where it is free.
_HELD = 1.5
#: Fewer hosts than this may all become slow at once, which those that are ahead do not show.
_MANY = 4
#: A host that takes longer than usual by this share of a step and stays ahead of its GPU waits there for that.
_LONG = 0.25
#: Most steps that a host is taken to be ahead by.
_FARTHEST = 8


def paced_by_hosts(timeline: Timeline, lanes: Lanes) -> bool:
    """Whether work of the host that comes last is most of each step, and its GPU soon runs what it launches."""
    last, steps = _last(timeline)
    if len(steps) < _ENOUGH or (lanes.wait is not None and lanes.wait[:2] == (timeline.launched, 0)):
        return False  # hosts wait for each collective where they launch it: who works there longer comes later
    step = float(np.nanmean(np.diff(timeline.left, axis=1)))
    if lanes.wait is not None and lanes.wait.lag and _elsewhere(timeline, lanes.wait) > _OFF * step:
        return False
    worked = float(lanes.least.sum(axis=0)[last, steps].mean())
    lead = float(np.nanmedian(_queued(timeline)[last, steps]))
    if timeline.enqueued is not None or (lanes.wait is not None and lanes.wait.lag == 0):
        soon = max(_AT_ONCE * step, timeline.clock, _launches_nothing(timeline, lanes))
        return worked >= _PACED * step and lead <= soon
    return worked >= _PACED * step and max(lead / (1.0 - _PACED), lanes.gpu / _PACED) <= step


def _launches_nothing(timeline: Timeline, lanes: Lanes) -> float:
    """Ns a step in which the host that comes last works and launches nothing: what it launched before is run by then.

    That is from a step's last collective to the next one's first kernel, less the transfer meanwhile.
    """
    last, steps = _last(timeline)
    works = lanes.least[timeline.launched + 1 :].sum(axis=0) + lanes.least[0] - lanes.transfer
    return float(np.median(works[last, steps]))


def _elsewhere(timeline: Timeline, wait: Wait) -> float:
    """Ns a step by which hosts that are ahead take longer than those that come last, but for where they wait.

    If that is much, they wait in several places, and what they work is unknown. Of a single host it may be its work.
    """
    ahead, usual = _ahead(timeline), np.arange(len(timeline.phases)) != wait.phase
    rows = np.flatnonzero(ahead.mean(axis=1) > _MOSTLY)
    rows = rows[:: len(rows) // _SAMPLE + 1]
    if len(rows) < _SEVERAL or not (~ahead).any():
        return 0.0
    paced = _median(timeline.spent[:, ~ahead])
    each = [np.maximum(_median(timeline.spent[:, row, ahead[row]]) - paced, 0.0)[usual].sum() for row in rows]
    return float(np.median(each))


def build(timeline: Timeline) -> Lanes:
    """The lanes of a job: of hosts within bounds, of GPUs at most."""
    usual, ahead = _usual(timeline.spent), _ahead(timeline)
    spent = np.where(np.isnan(timeline.spent), usual, timeline.spent)
    wait, ends = _where(timeline)
    host = np.where(ahead & (spent > usual + _LONG * _step(timeline)), usual, spent)
    host[0] = spent[0]  # for a batch no host waits for its GPU
    least, doubt = host.copy(), np.zeros(spent.shape[1])
    if wait is not None:
        least[wait.phase], host[wait.phase], doubt = _own(timeline, spent[wait.phase], ends[wait.phase], wait)
    last, steps = _last(timeline)
    lead = np.full(timeline.left.shape, np.nan)
    lead[last, steps] = _lead(timeline)[last, steps]
    tail = np.where(np.sum(~np.isnan(lead), axis=1) >= _ENOUGH, _median(lead), _median(lead.ravel()))
    pace, even = paces(host.sum(axis=0), timeline.cohort)
    return Lanes(
        phases=timeline.phases,
        host=host,
        least=least,
        most=spent,
        doubt=doubt,
        pace=pace,
        even=even,
        launched=timeline.launched,
        wait=wait,
        ahead=ahead,
        gpu=max(float(np.nan_to_num(_quantile(np.fmin.reduce(timeline.between, axis=0), 0.5))), 0.0),
        tail=np.nan_to_num(tail),
        transfer=np.nan_to_num(_transfer(timeline)),
        cohort=timeline.cohort,
    )


def _last(timeline: Timeline) -> tuple[Ints, Ints]:
    """[N] the rank that waits least for others, and the steps (indices) of which that is known."""
    steps = np.flatnonzero(~np.isnan(timeline.waited + timeline.left).any(axis=0))
    return np.argmin(timeline.waited[:, steps], axis=0), steps


def _marks(timeline: Timeline) -> Floats:
    """[P, R, S] when each host ended each phase."""
    return np.asarray(timeline.began + np.cumsum(timeline.spent, axis=0))


def _lead(timeline: Timeline) -> Floats:
    """[R, S] ns from the end of the phase in which a step's last collective is launched until all ranks are in it."""
    return np.asarray(_met(timeline) - _marks(timeline)[timeline.launched])


def _met(timeline: Timeline) -> Floats:
    """[R, S] when the last rank came to a step's last collective, on each GPU's clock."""
    return np.asarray(timeline.left - _transfer(timeline))


def _transfer(timeline: Timeline) -> Floats:
    """[S] ns that a step's last collective takes with all ranks there."""
    return np.asarray(np.fmin.reduce(timeline.left - timeline.arrived, axis=0))


def _queued(timeline: Timeline) -> Floats:
    """[R, S] the same from its launch, where that was recorded."""
    return _lead(timeline) if timeline.enqueued is None else np.asarray(_met(timeline) - timeline.enqueued)


def _step(timeline: Timeline) -> float:
    """Ns of the typical step."""
    return float(np.nanmedian(np.diff(timeline.left, axis=1)))


def _where(timeline: Timeline) -> tuple[Wait | None, Floats]:
    """Where hosts may wait, and [P, R, S] when they ended each phase."""
    ends = _marks(timeline)
    phases, maybe = len(ends), 0
    for place in range(timeline.launched, min(_FARTHEST, ends.shape[2] // 2) * phases):
        least = _quantile(_after(timeline, ends, place), _OFF)
        if not maybe and least >= -timeline.clock:
            maybe = place
        if maybe and (least >= timeline.clock or place - maybe == phases - 1):
            held = _first_held(timeline, ends, maybe, place)
            after = _after(timeline, ends, held)
            least = _quantile(after, _OFF)
            each = np.nan_to_num(np.array([_quantile(one, _OFF) for one in after]))
            return Wait(held % phases, held // phases, np.clip(each, least, least + timeline.clock / 2)), ends
    return None, ends


def _after(timeline: Timeline, ends: Floats, place: int) -> Floats:
    """[R, S - lag] ns from a step's last collective to the end of a phase, both at this place in the program."""
    lag, phase = divmod(place, len(ends))
    return np.asarray(ends[phase][:, lag:] - timeline.left[:, : ends.shape[2] - lag])


def _first_held(timeline: Timeline, ends: Floats, maybe: int, place: int) -> int:
    """The first of the places at which hosts may be held that a host far ahead always passes as soon after its GPU.

    Clocks leave open which of the places from ``maybe`` to this one is the first behind the end of a step's last
    collective. What a host waits for a step later may be before that end.
    """
    first = maybe if maybe < len(ends) else max(maybe - 2 * len(ends), timeline.launched) + 1
    ahead = _ahead(timeline)
    row = int(np.argmax(ahead.mean(axis=1)))
    if ahead[row].mean() <= _MOSTLY:
        return maybe
    spread = []
    for one in (timeline.launched, *range(first, place + 1)):
        after = _after(timeline, ends, one)[row][ahead[row, one // len(ends) :]]
        spread.append(_quantile(after, 0.25) - _quantile(after, _OFF))
    if np.isnan(spread).any():
        return maybe
    free, least = spread[0], min(spread[1:])  # a host that launches a collective is not held up there
    likely = np.where(np.arange(first, place + 1) < maybe, 0.0, np.sqrt(least * free))
    held = np.flatnonzero(np.array(spread[1:]) <= np.maximum(_HELD * least, likely))
    return first + int(held[0])


def _own(timeline: Timeline, spent: Floats, ended: Floats, wait: Wait) -> tuple[Floats, Floats, Floats]:
    """[R, S] least own work in the phase in which hosts wait, the likely one, and [R] how far that may be off."""
    if wait.lag == 0:
        over = np.nan_to_num(timeline.left + wait.after[:, None] - (ended - spent), nan=0.0)
        waited = np.clip(over, 0.0, spent)
    else:  # it stays ahead, by how much no one mark tells
        waited = np.where(_ahead(timeline), spent, 0.0)
    if not waited.any():
        return spent, spent, np.zeros(len(spent))
    least = spent - waited
    free = np.where(waited <= _OFF * _step(timeline), spent, np.nan)
    doubt = np.zeros(len(spent))
    if wait.lag == 0:
        usual = _in_step(free, spent, timeline.cohort)
    else:
        usual, doubt = _ahead_of_all(free, spent, timeline.cohort)
    return least, np.clip(usual[:, None], least, spent), doubt


def _in_step(free: Floats, spent: Floats, cohort: Ints) -> Floats:
    """[R] what is usual of each rank in steps without a wait; where these are too few, of its cohort, and at most its
    least."""
    usual = np.where(np.sum(~np.isnan(free), axis=1) >= _ENOUGH, _median(free), np.nan)
    for one in np.unique(cohort):
        members = np.flatnonzero(cohort == one)
        unknown = members[np.isnan(usual[members])]
        theirs = np.fmin(_median(usual[members]), _median(spent[members]).min())
        usual[unknown] = np.fmin(np.nanquantile(spent[unknown], _LEAST, axis=1), theirs)
    return usual


def _ahead_of_all(free: Floats, spent: Floats, cohort: Ints) -> tuple[Floats, Floats]:
    """[R] what a host needs while it is ahead, and how far that may be off.

    It is its least, and as much more as steps of hosts that are not ahead differ; at most what half of these need. Its
    least are a share of its steps, or the few in which it got ahead.

    Its own steps in which it is not ahead say less: they are those in which it was slow.
    """
    usual, doubt = np.nanquantile(spent, _LEAST, axis=1), np.zeros(len(spent))
    count = np.sum(~np.isnan(free), axis=1)
    for one in np.unique(cohort):
        members = np.flatnonzero(cohort == one)
        most = count[members].max()
        if most < _ENOUGH:
            continue
        paced = members[count[members] >= max(_ENOUGH, most / 2)]  # few steps do not show how far they differ
        half = (len(paced) - 1) // 2
        typical = _median(free[paced])
        many = len(members) >= _MANY  # a change of one of these is no change of all
        above = [np.sort(-low) for low in _lowest(_varying(free[paced], lasting=not many))]
        likely = [low + differ[half] for low, differ in zip(_lowest(spent[members]), above, strict=True)]
        usual[members] = np.minimum(np.min(likely, axis=0), np.sort(typical)[half])
        doubt[members] = above[0][half if many else -1]
    return usual, doubt


def _varying(spent: Floats, *, lasting: bool) -> Floats:
    """[R, S] how far each known step is from what is typical of the rank, or of the steps around without ``lasting``
    changes."""
    if lasting:
        return np.asarray(spent - _median(spent)[:, None])
    found = np.full(spent.shape, np.nan)
    for row, known in enumerate(~np.isnan(spent)):
        found[row, known] = spent[row, known] - segmentation.levels(spent[row, known])
    return found


def _lowest(spent: Floats) -> Floats:
    """[2, R] what a host takes in its fastest steps: the most of a share of them, and the median of a few."""
    few = np.sort(spent, axis=1)[:, :_ENOUGH]  # NaN comes last
    return np.stack([np.nanquantile(spent, _LEAST, axis=1), np.median(few, axis=1)])


def _ahead(timeline: Timeline) -> Bools:
    """[R, S] in which steps a host has launched a step's last collective long before its GPU gets there."""
    last, steps = _last(timeline)
    lead = _queued(timeline)
    return np.asarray(np.nan_to_num(lead) > float(np.nanmedian(lead[last, steps])) + _AT_ONCE * _step(timeline))


def _usual(spent: Floats) -> Floats:
    """[P, R, 1] median of what is known of each phase and rank; 0 of nothing."""
    return np.nan_to_num(_median(spent))[..., None]


def _median(block: Floats) -> Floats:
    """Median of what is known along the last axis; NaN of nothing."""
    known = ~np.isnan(block).all(axis=-1)
    found = np.full(block.shape[:-1], np.nan)
    if known.any():
        found[known] = np.nanmedian(block[known], axis=-1)
    return found


def _quantile(block: Floats, share: float) -> float:
    known = block[~np.isnan(block)]
    return float(np.quantile(known, share)) if known.size else float("nan")
