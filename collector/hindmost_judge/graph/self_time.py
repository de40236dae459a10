"""Self time of hosts and GPUs, from recorded phases that include waits.

A host that runs ahead of its GPU waits for it somewhere: it synchronises, it copies, or its launch queue is full. The
recording shows one long phase, and not which part of it was the wait. Taken for work, that wait would make the host
that is ahead look like the slow one.

The place is found from the times alone. No host passes it before its GPU has ended a certain collective. So it is the
first phase in program order whose end never precedes that, in any rank and step. What the host does there after its
GPU is work. What it did there before may be work or a wait: the self time of such a step is known within bounds only.
Its likely value is that of steps without a wait, of the same rank or else of its cohort.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hindmost_judge.model import OTHER
from hindmost_judge.stats.robust import median, of_cohorts, or_zero, others_median, percentile, quantile
from hindmost_judge.types import Bools, Floats, HostWait, Ints, Lanes, Timeline

#: Hosts set the pace if the host that comes last works for this share of the steps …
_HOST_SHARE = 0.75
#: … and its GPU runs what it launches within this share of a step. A host whose launch is run later is ahead; a full
#: queue of less than a step blocks it all along. Without recorded launches, marks tell as far as clocks agree, and the
#: GPUs themselves may need no more than ``_HOST_SHARE`` of a step.
_PROMPT = 0.05
#: Per cent of the steps that may contradict what holds for all, and one step at least: records get lost, clocks jump.
_OUTLIERS = 2
#: A wait of up to this share of a step counts as none.
_NEGLIGIBLE = 0.02
#: The fewest steps that show the usual self time of a rank.
_MIN_STEPS = 5
#: Share of its steps that are a host's fastest. One that waits in nearly all steps works no longer than in these.
_FASTEST = 0.05
#: A host is mostly ahead if it is in more than this share of the steps.
_MOSTLY_AHEAD = 0.5
#: Hosts that are mostly ahead: fewer show nothing of the program, for a single one may just work longer.
_MIN_HOSTS = 2
#: At a place where a host is blocked, the time that it needs after its GPU varies up to this many times as much as
#: where it varies least.
_SPREAD_RATIO = 1.5
#: … or the wait leaves no more than this share of how much it varies elsewhere. On H200s it left 0.2 to 4 %.
_ABSORBED = 0.1
#: A host that takes longer than usual by this share of a step, and is ahead of its GPU all the same, waited for it.
_LONG = 0.25
#: That hosts wait, and from where on, must gain so many standard deviations squared: 4.5 sigma, for it may be anywhere.
_GAIN = 20.0
#: The most steps that hosts are taken to run ahead.
_MAX_LAG = 8


def paced_by_hosts(timeline: Timeline, lanes: Lanes) -> bool:
    """Whether hosts set the pace, with the ``lanes`` built from the same ``timeline``.

    They do if work of the host that comes last fills most of each step, and its GPU soon runs what it launches. Else
    GPUs do, and a slower host may cost nothing.
    """
    last, steps = timeline.last
    if len(steps) < _MIN_STEPS or (lanes.wait is not None and lanes.wait[:2] == (timeline.launched, 0)):
        return False  # hosts that wait for each collective at its launch are never ahead: arrivals show who is slow
    step = float(np.nanmean(np.diff(timeline.left, axis=1)))
    worked = float(lanes.least.sum(axis=0)[last, steps].mean())
    lead = float(np.nanmedian(timeline.lead_of_launch[last, steps]))
    if _as_far_behind(timeline, last, steps, lead, _PROMPT * step):
        return False
    launches, rest = timeline.enqueued is not None, timeline.phases.index(OTHER)
    before_launches = lanes.host[: timeline.launched, last, steps].sum(axis=0).mean()
    if not launches and rest > timeline.launched:  # what only this host does in no phase may be before its last launch
        beyond_peers = lanes.least[rest] - pace_of_peers(lanes.least[rest], lanes.cohort)
        lead -= max(float(np.median(beyond_peers[last, steps])), 0.0)
    elif not timeline.gathers and lanes.wait is not None and lanes.wait.several and before_launches < step / 2:
        return False  # what it needs from one launch to the next is known, and better than in phases
    if launches or (lanes.wait is not None and lanes.wait.lag == 0):
        soon = max(_PROMPT * step, 0.0 if launches else timeline.clock)
        if not timeline.gathers:  # these are launched all along; else a GPU catches up while its host launches nothing
            idle = lanes.least[timeline.launched + 1 :].sum(axis=0) + lanes.least[0] - lanes.transfer
            soon = max(soon, float(np.median(idle[last, steps])))
        return worked >= _HOST_SHARE * step and lead <= soon
    return worked >= _HOST_SHARE * step and max(lead / (1.0 - _HOST_SHARE), lanes.gpu / _HOST_SHARE) <= step


def _as_far_behind(timeline: Timeline, last: Ints, steps: Ints, lead: float, least: float) -> bool:
    """Whether GPUs run a step's first collective as late after its launch as its last, by more than ``least`` ns.

    Then hosts launch as fast as GPUs run, and that is no work: they wait for a place in their full launch queue.
    """
    if timeline.queued is None:
        return False
    launching = float(np.nanmedian(timeline.spent[timeline.launched, last, steps]))
    first = float(np.nanmedian(timeline.queued[last, steps]))
    return least < first < launching and abs(lead - first) <= _NEGLIGIBLE * launching


def build_lanes(timeline: Timeline) -> Lanes:
    """The lanes of a job: self time of hosts as likely and within bounds, that of GPUs at most."""
    usual, ahead = or_zero(median(timeline.spent, axis=-1))[..., None], _is_ahead(timeline)
    unknown = np.isnan(timeline.spent)
    spent = np.where(unknown, usual, timeline.spent)
    wait = _find_wait(timeline)
    host = np.where(ahead & (spent > usual + _LONG * timeline.step), usual, spent)
    if wait is not None and wait.lag:
        elsewhere = _waits_elsewhere(timeline, wait)
        wait = wait._replace(several=bool(elsewhere.any()))
        host = np.where(ahead, np.maximum(host - elsewhere[..., None], 0.0), host)
    host[0] = spent[0]  # input: batches do not come from the GPU
    least, doubt = host.copy(), np.zeros(spent.shape[1])
    if wait is not None:
        least[wait.phase], host[wait.phase], doubt = _without_wait(timeline, spent[wait.phase], wait)
    most = spent
    if unknown.any():
        host, least, most = (_filled(bound, unknown, timeline.cohort) for bound in (host, least, most))
    last, steps = timeline.last
    lead = np.full(timeline.left.shape, np.nan)
    lead[last, steps] = timeline.lead[last, steps]
    tail = np.where(np.sum(~np.isnan(lead), axis=1) >= _MIN_STEPS, median(lead, axis=-1), median(lead.ravel()))
    in_step = host.sum(axis=0)
    return Lanes(
        phases=timeline.phases,
        host=host,
        least=least,
        most=most,
        doubt=doubt,
        peer_pace=pace_of_peers(in_step, timeline.cohort),
        cohort_pace=_pace_of_cohort(in_step, timeline.cohort),
        launched=timeline.launched,
        wait=wait,
        ahead=ahead,
        gpu=max(float(np.nan_to_num(percentile(np.fmin.reduce(timeline.between, axis=0), 50))), 0.0),
        tail=or_zero(tail),
        transfer=or_zero(timeline.transfer),
        cohort=timeline.cohort,
    )


def _filled(self_time: Floats, unknown: Bools, cohort: Ints) -> Floats:
    """[P, R, S] self time, of steps that a host did not log as its peers' in that step: it is no work of 0 ms."""
    known = np.moveaxis(np.where(unknown, np.nan, self_time), 1, 0)
    usual = np.moveaxis(of_cohorts(known, cohort, lambda rows: median(rows, axis=0)), 0, 1)
    return np.where(unknown & ~np.isnan(usual), usual, self_time)


def with_unmarked_work(timeline: Timeline, lanes: Lanes) -> Lanes:
    """The lanes of a job that hosts pace, with what they surely work in no phase before their last launch.

    Phases have no place for it, and it looks like a wait. A host that waits for its GPU in each step finds it empty. So
    if that would arrive later than its peers' after the same phases, without a wait for others, its kernels were
    launched later. What clocks are apart by proves nothing.
    """
    wait, unmarked = lanes.wait, timeline.phases.index(OTHER)
    if timeline.enqueued is not None or wait is None or wait.lag or wait.phase != unmarked:
        return lanes
    arrives = timeline.lead - timeline.waited + wait.after[:, None]
    later = or_zero(arrives - pace_of_peers(arrives, lanes.cohort))
    early = np.where(later > timeline.clock, later, 0.0)
    host, least = lanes.host.copy(), lanes.least.copy()
    for self_time in (host, least):
        self_time[unmarked] = np.minimum(self_time[unmarked] + early, lanes.most[unmarked])
    in_step = host.sum(axis=0)
    return replace(
        lanes,
        host=host,
        least=least,
        peer_pace=pace_of_peers(in_step, lanes.cohort),
        cohort_pace=_pace_of_cohort(in_step, lanes.cohort),
        ahead=lanes.ahead & (early == 0),
        early=np.minimum(early / np.maximum(host[unmarked], 1.0), 1.0),
    )


def _waits_elsewhere(timeline: Timeline, wait: HostWait) -> Floats:
    """[P, R] ns a step by which hosts typically take longer where they are ahead, in all phases but that of ``wait``.

    A full queue blocks a host at each launch, so in several phases. 0 where that is little in the typical host that is
    mostly ahead, or where too few are.
    """
    ahead, nowhere = _is_ahead(timeline), np.zeros(timeline.spent.shape[:2])
    mostly = ahead.mean(axis=1) > _MOSTLY_AHEAD
    if mostly.sum() < _MIN_HOSTS or not (~ahead).any():
        return nowhere
    not_ahead = median(timeline.spent[:, ~ahead], axis=-1)[:, None]
    longer = np.fmax(median(np.where(ahead, timeline.spent, np.nan), axis=-1) - not_ahead, 0.0)
    longer[wait.phase] = 0.0
    much = float(np.median(longer[:, mostly].sum(axis=0))) > _NEGLIGIBLE * timeline.step
    return longer if much else nowhere


def _is_ahead(timeline: Timeline) -> Bools:
    """[R, S] whether a host launched a step's last collective long before its GPU got there.

    That is earlier than hosts that come last usually do, by more than a small share of a step.
    """
    last, steps = timeline.last
    lead = timeline.lead_of_launch
    usual = float(median(lead[last, steps]))
    return np.asarray(or_zero(lead) > usual + _PROMPT * timeline.step)


def _find_wait(timeline: Timeline) -> HostWait | None:
    """Where hosts wait for their GPUs; ``None`` where nowhere.

    A *place* counts phases from the begin of a step on, through the steps after it: ``lag * P + phase``. Hosts wait at
    the first place that none passes before its GPU has ended the step's last collective.
    """
    phases, _, steps = timeline.spent.shape
    first_possible, outliers = 0, max(_OUTLIERS, 100 / (steps - 1))
    for place in range(timeline.launched, min(_MAX_LAG, steps // 2) * phases):
        earliest = percentile(_time_after_gpu(timeline, place), outliers)
        if not first_possible and earliest >= -timeline.clock:
            first_possible = place
        if first_possible and (earliest >= timeline.clock or place - first_possible == phases - 1):
            blocked = _first_blocked(timeline, first_possible, place)
            blocked += blocked % phases == 0  # batches do not come from the GPU: it waits right after its input
            after = _time_after_gpu(timeline, blocked)
            earliest = percentile(after, outliers)
            of_rank = or_zero(np.array([percentile(row, outliers) for row in after]))
            clipped = np.clip(of_rank, earliest, earliest + timeline.clock / 2)
            return HostWait(blocked % phases, blocked // phases, clipped)
    return None


def _time_after_gpu(timeline: Timeline, place: int) -> Floats:
    """[R, S - lag] ns from the end of a step's last collective until the host passes this place.

    Negative: the host passes it before its GPU has come that far.
    """
    lag, phase = divmod(place, len(timeline.phases))
    return np.asarray(timeline.ends[phase][:, lag:] - timeline.left[:, : timeline.left.shape[1] - lag])


def _first_blocked(timeline: Timeline, first_possible: int, last_possible: int) -> int:
    """The place at which hosts are blocked, of those that are possible as far as clocks are aligned.

    A host that is far ahead passes it at nearly the same time after its GPU in each step, and the places before at any
    time. So it is the first place where that time hardly varies. Places before ``first_possible`` are candidates, too,
    if hosts wait in a later step, and that time varies more before them: the collective that they wait for there may be
    one before the step's last.
    """
    phases = len(timeline.phases)
    first = first_possible if first_possible < phases else max(first_possible - 2 * phases, timeline.launched) + 1
    ahead = _is_ahead(timeline)
    row = int(np.argmax(ahead.mean(axis=1)))
    if ahead[row].mean() <= _MOSTLY_AHEAD:
        return first_possible
    places = np.arange(first, last_possible + 1)
    spreads = []  # of the lower values, which no rare delay changes
    for place in (timeline.launched, first - 1, *places.tolist()):
        after = _time_after_gpu(timeline, place)[row][ahead[row, place // phases :]]
        spreads.append(percentile(after, 25) - percentile(after, _OUTLIERS))
    if np.isnan(spreads).any():
        return first_possible
    unblocked, least = spreads[0], min(spreads[2:])  # a host that launches a collective is not blocked there
    before, spread = np.array(spreads[1:-1]), np.array(spreads[2:])
    possible = places >= first_possible
    levelled = spread <= least + _ABSORBED * (unblocked - least)
    tight = (spread <= _SPREAD_RATIO * least) | (possible & levelled)
    blocked = np.flatnonzero(tight & (possible | (_SPREAD_RATIO * spread <= before)))
    return first + int(blocked[0]) if len(blocked) else first_possible


def _without_wait(timeline: Timeline, spent: Floats, wait: HostWait) -> tuple[Floats, Floats, Floats]:
    """Self time in the phase of ``wait``, in which hosts ``spent`` [R, S]: least and likely one [R, S], and [R] by how
    much the latter may be off.
    """
    ended = timeline.ends[wait.phase]
    if wait.lag:
        waited, doubt = _waited_as_early(timeline, spent, ended - spent, wait)
        return spent - waited, spent - waited, doubt
    over = timeline.left + wait.after[:, None]
    waited = np.clip(or_zero(over - (ended - spent)), 0.0, spent)
    negligible = _NEGLIGIBLE * timeline.step
    came_later = (ended - over > negligible) & ~_is_ahead(timeline)  # than its GPU was done: it did not wait
    usual = _usual_of_same_step(np.where(waited <= negligible, spent, np.nan), spent, timeline.cohort)
    likely = np.where(came_later, spent, np.clip(usual[:, None], spent - waited, spent))
    return spent - waited, likely, np.zeros(len(spent))


def _waited_as_early(timeline: Timeline, spent: Floats, came: Floats, wait: HostWait) -> tuple[Floats, Floats]:
    """[R, S] ns that hosts which stay ahead wait in the phase of ``wait``, and [R] by how much that may be too long.

    A host that is held up until its GPU has come so far takes longer by all that it comes earlier. One that is not
    takes its time, however early. From where on it is held up is found by least squares, for each rank. One that
    is held up in all steps does not show that: the others do. Where most are held up in all steps, they wait for the
    collective itself, as far as clocks agree.
    """
    apart = median(timeline.left - median(timeline.left, axis=0), axis=-1)[:, None]  # all leave at once: by clocks
    left = timeline.left - np.clip(apart, -timeline.clock, timeline.clock)
    early, limits = np.full(spent.shape, np.nan), np.full(len(spent), np.inf)
    early[:, wait.lag :] = left[:, : spent.shape[1] - wait.lag] - came[:, wait.lag :]
    shown = ~np.isnan(early + spent) & _is_ahead(timeline)  # other steps of a host are those in which it was slow
    for row in np.flatnonzero(shown.sum(axis=1) >= 2 * _MIN_STEPS).tolist():
        limits[row] = _limit(early[row, shown[row]], spent[row, shown[row]])
    found, unknown, doubt = limits[np.isfinite(limits)], np.isnan(limits), 0.0
    limits[unknown] = median(found) if len(found) else np.inf
    if len(found) < unknown.sum():  # those that seem to show it come as early in all steps, too
        limits[:] = doubt = timeline.clock / 2 if timeline.enqueued is None else 0.0
    return np.clip(or_zero(early - limits[:, None]), 0.0, spent), np.full(len(spent), doubt)


def _limit(early: Floats, took: Floats) -> float:
    """From how many ns of ``early`` [N] on what a host ``took`` [N] grows with it; infinite: never; NaN: in all."""
    order = np.argsort(early)
    early, took = early[order], np.minimum(took, np.percentile(took, 100 - _OUTLIERS))[order]
    count = np.arange(1, len(took) + 1)
    squares = [np.cumsum(one**2) - np.cumsum(one) ** 2 / count for one in (took, (took - early)[::-1])]
    left = squares[0] + np.append(squares[1][-2::-1], 0.0)  # the first so many do not wait, and the others do
    best = int(np.argmin(left[:-_MIN_STEPS]))
    never, always = (one[-1] < (1 + _GAIN / len(took)) * left[best] for one in squares)
    if never or always:
        return np.inf if never else np.nan
    return float((early - took)[best + 1 :].mean() + took[: best + 1].mean())


def _usual_of_same_step(free: Floats, spent: Floats, cohort: Ints) -> Floats:
    """[R] usual self time of hosts that wait for their GPUs in the same step.

    ``spent`` [R, S] is how long the phase took, ``free`` the same with NaN in steps with a wait. The median of a rank's
    steps without a wait counts. Where these are too few, its cohort's does, and no more than its own fastest steps.
    """
    usual = np.where(np.sum(~np.isnan(free), axis=1) >= _MIN_STEPS, median(free, axis=-1), np.nan)
    for number in np.unique(cohort):
        members = np.flatnonzero(cohort == number)
        unknown = members[np.isnan(usual[members])]
        of_cohort = np.fmin(median(usual[members], axis=-1), median(spent[members], axis=-1).min())
        usual[unknown] = np.fmin(quantile(spent[unknown], _FASTEST), of_cohort)
    return usual


def pace_of_peers(self_time: Floats, cohort: Ints) -> Floats:
    """[R, S] median of the *other* ranks of each one's cohort, so that a slow rank is not compared with itself; for a
    rank alone its own self time."""
    return of_cohorts(self_time, cohort, lambda rows: others_median(rows) if len(rows) > 1 else rows)


def _pace_of_cohort(self_time: Floats, cohort: Ints) -> Floats:
    """[R, S] median of the whole cohort; of an even number the lower middle one, so of two ranks the faster sets it."""
    return of_cohorts(self_time, cohort, lambda rows: np.sort(rows, axis=0)[(len(rows) - 1) // 2])
