"""What a fix would save: the run's synchronisations replayed with one rank or set at its peers' pace.

Between two synchronisations the job takes as long as its slowest rank. Without a rank's persistent delay, and with all
of its noise, the replay gives the time that the job would have taken with that rank fixed.

Where hosts set the pace all steps are replayed: a max-plus recurrence over steps (Baccelli et al., Synchronization and
Linearity, 1992). A lane goes on as soon as what it needs is there, a collective ends for all when the last rank has
come.

Besides slow ranks all ranks may be slower together: that is what is left of steps without what verdicts cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.model import OTHER
from hindmost_judge.stats.robust import (
    ENOUGH_STEPS,
    alike,
    lower_median,
    mean,
    median,
    median_error,
    or_zero,
    peers_median,
    time_blocks,
)
from hindmost_judge.timeline import build_blocks
from hindmost_judge.types import Array, Floats, Ints, Lanes
from hindmost_judge.verdict.schema import Verdict


def without_slowdowns(blocks: Blocks, slowdowns: Sequence[Slowdown]) -> Floats:
    """[R, K] delays without these persistent slowdowns, each removed from its own steps.

    A slowdown is the median at the same place of the step, so that one slow interval of many is found and fixed. What
    is late in the typical step beyond that is in another place each time. What it is on top of stays. So does a rank's
    extra work by chance: no fix takes work away.
    """
    fixed: Floats = blocks.intervals.copy()
    own, interval_step = blocks.same_work, blocks.interval_step
    place = np.arange(len(interval_step)) - np.searchsorted(interval_step, interval_step)
    for slowdown in slowdowns:
        indices = np.flatnonzero((interval_step >= slowdown.first) & (interval_step < slowdown.stop))
        if slowdown.phase is not None:
            fixed[slowdown.row, indices] -= slowdown.delay
            continue
        peers = _peers(blocks, slowdown.row)
        level, elsewhere = _usual(own, peers, place, interval_step, slowdown)
        if slowdown.outer is not None:
            below, further = _usual(own, peers, place, interval_step, slowdown.outer)
            level, elsewhere = level - below, elsewhere - further
        level = np.maximum(level, 0.0)
        fixed[slowdown.row, indices] -= level[place[indices]]
        more = np.zeros(len(blocks.steps))
        more[slowdown.first : slowdown.stop] = max(elsewhere, 0.0)
        for step, stalled in (*slowdown.stalls, *slowdown.waits):
            more[step] += stalled
        _take(fixed[slowdown.row], interval_step, more)
    return fixed


def with_sole_peer_on_time(blocks: Blocks, slowdowns: Sequence[Slowdown]) -> Blocks:
    """The same, where of two ranks one is late by these slowdowns, with the other on time by its own measure.

    That one is ahead only of its late peer, and no longer once that is fixed: whichever of the two comes later by
    chance then is what a fix leaves.
    """
    if len(blocks.ranks) != 2 or blocks.lanes is not None:  # by its lanes each one's own work is known
        return blocks
    intervals: Floats = blocks.intervals.copy()
    for slowdown in slowdowns:
        during = (blocks.interval_step >= slowdown.first) & (blocks.interval_step < slowdown.stop)
        intervals[1 - slowdown.row, during] = 0.0
    return replace(blocks, intervals=intervals)


#: Parts of self time in which a rank is off the CPU, by what the delay is due to.
_OFF_CPU = {"cpu_contention": "self_runqueue", "blocked": "self_blocked"}


def with_waits(blocks: Blocks, slowdown: Slowdown, measure: str | None) -> Slowdown:
    """A slowdown that is due to this ``measure``, with what its rank waits off the CPU beyond the typical step.

    A quota or another process stops a rank now here and now there, in some steps longer than in others. The kernel
    counted it, for the others too: only what is surely more than its peers wait is due to the fault. It is in the steps
    in which the rank is later, in proportion.
    """
    waited = blocks.parts.get(_OFF_CPU.get(measure or "", ""))
    peers = _peers(blocks, slowdown.row)
    if waited is None or slowdown.phase is not None or blocks.overlapped or not len(peers):
        return slowdown
    steps, row = slowdown.steps(), slowdown.row
    alone = without_slowdowns(blocks, [replace(slowdown, outer=None)])[row]
    usual = np.bincount(blocks.interval_step, blocks.intervals[row] - alone, len(blocks.steps))
    beyond = (waited - peers_median(waited))[row]
    more = np.maximum(or_zero(np.fmin(blocks.delay[row], beyond) - usual), 0.0)[steps]
    own = (waited[row] - usual)[steps]
    own = own[~np.isnan(own)]
    if len(own) < ENOUGH_STEPS or not more.any():
        return slowdown
    excess = float(own.mean()) - float(lower_median(mean(waited[np.ix_(peers, steps)]), axis=0))
    if not excess > _SURE * np.sqrt(2 / len(own)) * float(own.std()):
        return slowdown
    more = more * min(excess * len(own) / more.sum(), 1.0)
    return replace(
        slowdown, waits=tuple((step, ns) for step, ns in zip(steps.tolist(), more.tolist(), strict=True) if ns)
    )


def _take(late: Floats, interval_step: Ints, more: Floats) -> None:
    """Remove ``more`` [S] ns of each step from a row's delays [K], in proportion to how late it is."""
    above = np.maximum(late, 0.0)
    whole = np.bincount(interval_step, above, len(more))
    part = np.divide(more, whole, out=np.zeros_like(more), where=whole > 0)
    late -= np.minimum(part, 1.0)[interval_step] * above


#: Ranks that show what the typical step of a healthy one has beyond its medians.
_PEERS = 8
#: What is late now here and now there must exceed what it is for peers by so many standard errors.
_SURE = 3.0


def _peers(blocks: Blocks, row: int) -> Ints:
    """Others of a row's cohort: all of few, else some from first to last."""
    others = np.setdiff1d(np.flatnonzero(blocks.cohort == blocks.cohort[row]), row)
    return np.asarray(others[np.linspace(0, len(others) - 1, min(len(others), _PEERS)).astype(np.int64)])


def _usual(late: Floats, peers: Ints, place: Ints, interval_step: Ints, slowdown: Slowdown) -> tuple[Floats, float]:
    """[P] median of a slowdown's row of ``late`` [R, K] at each place of a step, over the steps that show it; never
    ahead.

    And ns by which the typical such step is later than these together, surely beyond those of its ``peers``: what is
    late by chance now here and now there adds up for all ranks.
    """
    acts = np.zeros(max(slowdown.stop, int(interval_step.max(initial=-1)) + 1), bool)
    acts[slowdown.steps()] = True
    shown = acts[interval_step]
    spots = int(place.max(initial=-1)) + 1
    chosen = late[[slowdown.row, *peers]] if spots > 1 else late[[slowdown.row]]
    levels = np.zeros((len(chosen), spots))
    for spot in range(spots):
        levels[:, spot] = np.maximum(or_zero(median(chosen[:, shown & (place == spot)], axis=1)), 0.0)
    if len(chosen) == 1:
        return levels[0], 0.0
    further = chosen - levels[:, place]
    whole = np.stack([np.bincount(interval_step, one, len(acts)).astype(np.float64) for one in further])[:, acts]
    beyond, error = median(whole, axis=1), float(median_error(whole[0]))
    elsewhere = float(beyond[0] - lower_median(np.maximum(beyond[1:], 0.0), axis=0))
    return levels[0], elsewhere if elsewhere > _SURE * np.sqrt(2) * error else 0.0


#: If a fix alone saves less than this share of what it saves after the others are fixed, the report gives the latter.
BY_ITSELF = 0.9
#: Stalls that do the same: each far exceeds the usual differences of steps, and of five the median and its error hold
#: even if two have another cause.
_STALLS = 5


@dataclass(frozen=True)
class StepTimeChange:
    """Ns a step by which the job became longer, its standard error, and the steps (indices) in which it shows."""

    longer: float
    noise: float
    steps: Ints

    def cost(self, saved: float, waited: float, others: float | None) -> float:
        """The saving of a fix: the observed change where it surely differs from the replay's, else the replay's.

        Steps that grew by more count as far as the job ``waited`` for these ranks, less what the ``others``' own
        work grew by (``None``: unknown).
        """
        if saved > self.longer + 2 * self.noise:
            return self.longer
        if others is None or saved > self.longer - 2 * self.noise:
            return saved
        return max(saved, min(waited, self.longer - max(others, 0.0)))


def observed_change(
    blocks: Blocks, during: slice, others: Sequence[slice] = (), longest: float = 3.0
) -> StepTimeChange | None:
    """By how much the job became longer in ``during``; ``None`` where the steps outside are too few to tell.

    Waiting ranks cool down and clock higher, so a fix saves less than they wait: an onset shows how much less. A
    step counts for at most ``longest`` typical ones of its side, so that a checkpoint decides nothing. Only steps in
    which the same ``others`` act are compared, to exclude their effect. Steps with a known mean length only show no
    change.
    """
    if alike(blocks.period):
        return None
    inside = np.zeros(len(blocks.steps), bool)
    inside[during] = True
    known = ~np.isnan(blocks.period) & _alike(len(blocks.steps), inside, others)
    before, after = blocks.period[~inside & known], blocks.period[inside & known]
    if len(before) < ENOUGH_STEPS or len(after) < ENOUGH_STEPS:
        return None
    before, after = (np.minimum(side, longest * float(median(side))) for side in (before, after))
    noise = float(np.hypot(_mean_error(before), _mean_error(after)))
    change = float(after.mean() - before.mean())
    return StepTimeChange(change, noise, np.flatnonzero(inside & known)) if change > 2 * noise else None


#: Blocks of steps of which fewer do not show how a mean scatters; steps take turns where it is by less than this share
#: of what it is for steps that do not depend on each other.
_BLOCKS, _IN_TURN = 5, 0.33


def _mean_error(steps: Floats) -> float:
    """Standard error of the mean of [S]: by blocks where loaders that are behind in one step are ahead in the next."""
    blocks, error = time_blocks(len(steps)), float(steps.std() / np.sqrt(len(steps)))
    by_blocks = float(np.std([steps[block].mean() for block in blocks]) / np.sqrt(len(blocks)))
    return by_blocks if len(blocks) >= _BLOCKS and by_blocks < _IN_TURN * error else error


def _alike(steps: int, inside: Array, others: Sequence[slice]) -> Array:
    """[S] the steps in which the same of the others act: those of which there are most both ``inside`` and not."""
    acting = np.zeros((len(others), steps), bool)
    for row, other in enumerate(others):
        acting[row, other] = True
    _, which = np.unique(acting, axis=1, return_inverse=True) if len(others) else (None, np.zeros(steps, int))
    which = np.asarray(which).ravel()
    both = [min(np.sum(inside[which == one]), np.sum(~inside[which == one])) for one in range(int(which.max()) + 1)]
    return np.asarray(which == int(np.argmax(both)))


def caused_more(blocks: Blocks, rows: Sequence[int], during: slice) -> float:
    """Ns a step by which the others waited longer for these ranks than they did before and after."""
    caused = or_zero(blocks.caused[list(rows)]).sum(axis=0)
    return float(caused[during].mean() - np.delete(caused, np.arange(len(caused))[during]).mean())


def others_grew(blocks: Blocks, rows: Sequence[int], during: slice) -> float | None:
    """Ns a step by which the typical other rank's own work is longer than before and after; ``None`` where unknown.

    The length of overlapped computing is not visible: it is taken to grow in the ratio in which forward does.
    """
    work = blocks.parts.get("gpu_forward") if blocks.overlapped else blocks.self_time
    if work is None:
        return None
    of_others = np.delete(work, list(rows), axis=0)
    inside = float(median(median(of_others[:, during], axis=1)))
    outside = float(median(median(np.delete(of_others, np.arange(work.shape[1])[during], axis=1), axis=1)))
    grew = inside - outside if not blocks.overlapped else (inside / outside - 1) * blocks.step_ns
    return grew if np.isfinite(grew) else None


def stall_saving(blocks: Blocks, rows: Sequence[int], stalled: Ints) -> Floats:
    """[S] ns saved in the stalled steps if these ranks had been at their peers' pace in them."""
    fixed = without_stalls(blocks, rows, stalled)
    saved: Floats = np.subtract(step_delay(blocks, blocks.intervals), step_delay(blocks, fixed))
    if blocks.evidence != build_blocks.PHASES or not 0 < len(stalled) < len(blocks.steps):
        return saved
    total, most = float(saved[stalled].sum()), len(stalled) * _longer_by_itself(blocks, fixed, stalled)
    return saved * max(most, 0.0) / total if total > most else saved


def without_stalls(blocks: Blocks, rows: Sequence[int], stalled: Ints) -> Floats:
    """[R, K] delays with these ranks at their peers' pace in the stalled steps."""
    fixed: Floats = blocks.intervals.copy()
    columns = np.flatnonzero(np.isin(blocks.interval_step, stalled))
    indices = np.ix_(np.array(rows), columns)
    fixed[indices] = np.minimum(fixed[indices], 0.0)
    if blocks.evidence != build_blocks.PHASES and not blocks.overlapped:
        _take_ends(fixed, blocks, rows, stalled)
    return fixed


def _take_ends(fixed: Floats, blocks: Blocks, rows: Sequence[int], stalled: Ints) -> None:
    """Remove these ranks' delay after a stalled step's last synchronisation: it is in the first interval of the next
    step.

    Only as far as they are later there than usual: a persistent delay is not part of a stall.
    """
    first = np.searchsorted(blocks.interval_step, np.arange(len(blocks.steps)))
    after = np.setdiff1d(stalled + 1, stalled)
    after = first[after[after < len(first)]]
    for row in rows:
        usual = max(float(median(blocks.intervals[row, first])), 0.0)
        fixed[row, after] = np.minimum(fixed[row, after], usual)


def longer_when(blocks: Blocks, stalled: Ints) -> tuple[float, float] | None:
    """Ns by which the typical stall makes its step longer, and the next, in which its end may show, and the standard
    error; ``None`` where too few are known.
    """
    inside = np.isin(np.arange(len(blocks.steps)), stalled)
    after = np.append(False, inside[:-1]) & ~inside
    known = ~np.isnan(blocks.period)
    calm, during, next_ = (blocks.period[mask & known] for mask in (~inside & ~after, inside, after))
    if len(calm) < ENOUGH_STEPS or len(during) < _STALLS:
        return None
    usual, often = float(median(calm)), len(next_) / len(during)
    spilled = often * (float(median(next_)) - usual) if len(next_) else 0.0
    error = float(np.hypot(median_error(during), often * median_error(next_) if len(next_) > 1 else 0.0))
    return float(median(during)) - usual + spilled, error


def _longer_by_itself(blocks: Blocks, fixed: Floats, stalled: Ints) -> float:
    """Ns by which the typical stalled step exceeded a usual one, less what the next-latest rank's own work grew by.

    Phases show how late a rank came, not what it did while the others waited in backward. A GPU that stood idle is
    ahead of the others there, so that a step grows by less than its rank's delay.
    """
    next_latest = np.argmax(fixed[:, stalled], axis=0)
    calm = np.setdiff1d(np.arange(len(blocks.steps)), stalled)
    usual_own, usual = median(blocks.self_time[:, calm], axis=1), float(median(blocks.period[calm]))
    longer = blocks.period[stalled] - usual
    return float(median(longer - (blocks.self_time[next_latest, stalled] - usual_own[next_latest])))


def own_part(blocks: Blocks) -> Floats:
    """[R, 1] the weight of a pipeline's rank in the mean of its cohort, with whose others it is compared.

    With work equal to these others', the two of a pair would have changed places. 0 where all are one cohort.
    """
    if blocks.pipeline is None:
        return np.zeros((len(blocks.ranks), 1))
    _, which, count = np.unique(blocks.cohort, return_inverse=True, return_counts=True)
    return np.asarray(1 / count[which])[:, None]


def imbalance_cost(blocks: Blocks) -> float:
    """Ns that a typical step loses to differences between ranks: every interval at its ranks' mean instead of its
    slowest."""
    if blocks.intervals.size == 0:
        return 0.0
    level = np.broadcast_to(blocks.intervals.mean(axis=0), blocks.intervals.shape)
    if blocks.pipeline is not None:
        level = blocks.intervals * own_part(blocks)
    return float((step_delay(blocks, blocks.intervals) - step_delay(blocks, level)).mean())


def step_delay(blocks: Blocks, intervals: Floats) -> Floats:
    """[S] ns by which each step is longer than one of equal peers, were this the delay in each interval.

    At every synchronisation the members of a group leave together, when the last of them has come; a step ends for
    all.
    """
    if blocks.pipeline is not None:
        return blocks.pipeline.step_delay(intervals)
    if blocks.lanes is not None:
        return step_delay_of_lanes(blocks.lanes, intervals)
    if blocks.neighbours is not None or blocks.group.shape[1] == 1:
        near = blocks.neighbours
        by_each = intervals.max(axis=0) if near is None else _step_delay_of_exchanges(near, intervals)
        return np.bincount(blocks.interval_step, weights=by_each, minlength=len(blocks.steps)).astype(np.float64)
    first = np.searchsorted(blocks.interval_step, np.arange(len(blocks.steps)))
    count = np.diff(np.append(first, len(blocks.interval_step)))
    behind = np.zeros((len(blocks.ranks), len(blocks.steps)))
    for place in range(int(count.max())):
        for comm_class in np.unique(blocks.comm_class[(first + place)[place < count]]):
            column = np.minimum(first + place, len(blocks.comm_class) - 1)
            indices = np.flatnonzero((place < count) & (blocks.comm_class[column] == comm_class))
            if blocks.overlapping[first[indices] + place].all():  # no rank's computing waits for these
                continue
            arrived = behind[:, indices] + intervals[:, first[indices] + place]
            group = blocks.group[:, comm_class]
            for one in np.unique(group[group >= 0]):  # a rank of no group leaves as it came
                arrived[group == one] = arrived[group == one].max(axis=0)
            behind[:, indices] = arrived
    return np.asarray(behind.max(axis=0))


#: Steps that are replayed one after the other; before the first of them all ranks are on time.
_REPLAYED = 512


def cost_of_link(blocks: Blocks, edges: Ints, longer: Floats) -> float:
    """Ns a step that the messages of these ``edges`` (indices of neighbours) cost by travelling ``longer`` [S] ns."""
    assert blocks.neighbours is not None  # noqa: S101 - of exchanges
    wire = np.zeros((blocks.neighbours.shape[1], len(longer)))
    wire[edges] = longer
    with_link = _step_delay_of_exchanges(blocks.neighbours, blocks.intervals, wire)
    return float((with_link - step_delay(blocks, blocks.intervals)).sum() / max(np.count_nonzero(longer), 1))


def _step_delay_of_exchanges(neighbours: Ints, intervals: Floats, wire: Floats | None = None) -> Floats:
    """The same of ranks that leave a step [S] when they and their ``neighbours`` [2, E] have come to it.

    ``wire`` [E, S]: how much longer the messages of each of these travel.
    Far ranks may be steps apart, so that noise of one is gone before it reaches the other.
    """
    ranks, steps = intervals.shape
    row, source = neighbours
    first = np.searchsorted(row, np.arange(ranks))
    parts = -(-steps // _REPLAYED)
    padded = np.pad(intervals, ((0, 0), (0, parts * _REPLAYED - steps))).reshape(ranks, parts, _REPLAYED)
    left, last = np.zeros((ranks, parts)), np.zeros((parts, _REPLAYED))
    travels = np.zeros((len(source), steps)) if wire is None else wire
    travels = np.pad(travels, ((0, 0), (0, parts * _REPLAYED - steps))).reshape(len(source), parts, _REPLAYED)
    for at in range(_REPLAYED if parts > 1 else steps):
        left = np.maximum.reduceat((left + padded[:, :, at])[source] + travels[:, :, at], first, axis=0)
        last[:, at] = left.max(axis=0)
    return np.asarray(np.diff(last, axis=1, prepend=0.0).ravel()[:steps])


#: Kinds of verdicts on ranks, or groups, that are not alike: their cost is known by step.
UNLIKE = ("straggler", "intermittent", "slow_link", "uneven_workload")
#: A change that begins or ends within this many steps of a verdict may be caused by that verdict.
_NEAR_STEPS = 16


def residual_period(blocks: Blocks, found: Sequence[Verdict]) -> Floats:
    """[S] ns of each step without what these cost."""
    left: Floats = blocks.period.copy()
    for verdict in found:
        if verdict.kind in UNLIKE:
            left[slice(*span_of(verdict, blocks))] -= (verdict.cost_ms_per_step or 0.0) * 1e6
    return left


def began_apart(blocks: Blocks, found: Sequence[Verdict], first: int, stop: int) -> bool:
    """Whether none of these began or ended in steps [first, stop), by index, or near them."""
    borders = [edge for verdict in found for edge in span_of(verdict, blocks) if 0 < edge < len(blocks.steps)]
    return not any(first - _NEAR_STEPS < edge < stop + _NEAR_STEPS for edge in borders)


def span_of(one: Verdict, blocks: Blocks) -> tuple[int, int]:
    """The steps [first, stop), by index, that a verdict's cost is a mean over."""
    until = blocks.steps[-1] + 1 if one.until_step is None else one.until_step
    first, stop = np.searchsorted(blocks.steps, [one.since_step or 0, until])
    return int(first), int(stop)


def ends(lanes: Lanes, host: Floats) -> Floats:
    """[S] ns after the start at which each step's last collective ends, if hosts work ``host`` [P, R, S].

    All lanes start at 0 ns. What hosts do in no phase before their last launch is in the phase of that launch.
    """
    if lanes.early is not None:
        host, unmarked = host.copy(), lanes.phases.index(OTHER)
        early = lanes.early * host[unmarked]
        host[lanes.launched] += early
        host[unmarked] -= early
    phases, ranks, steps = host.shape
    lag, waits, after = (
        (lanes.wait.lag, lanes.wait.phase, lanes.wait.after)
        if lanes.wait is not None
        else (steps, phases - 1, np.zeros(ranks))
    )
    waits_first = lag > 0 and waits <= lanes.launched
    # What lies between two points at which a lane may wait is one sum: to the wait, or to the launch. Each [S, R].
    parts = np.split(host, sorted((waits + 1, lanes.launched + 1)))
    first, second, rest = (part.sum(axis=0).T.copy() for part in parts)
    ended, now, end = np.full(lag + steps, -np.inf), np.zeros(ranks), 0.0
    for step in range(steps):
        now = now + first[step]
        if waits_first:
            now = np.maximum(now, ended[step] + after) + second[step]
        ended[lag + step] = end = max(float((now + lanes.tail).max()), end + lanes.gpu) + lanes.transfer[step]
        if not waits_first:
            now = np.maximum(now + second[step], ended[step] + after)
        now = now + rest[step]
    return ended[lag:]


def step_delay_of_lanes(lanes: Lanes, delays: Floats) -> Floats:
    """[S] ns by which ``delays`` of hosts [R, S], each against its peers, make each step longer.

    Compared with all hosts at their cohort's pace.
    """
    return np.diff(
        ends(lanes, _in_phases(lanes, lanes.peer_pace + delays)) - ends(lanes, _in_phases(lanes, lanes.cohort_pace)),
        prepend=0.0,
    )


def _in_phases(lanes: Lanes, total: Floats) -> Floats:
    """[P, R, S] work of hosts in each phase if it is ``total`` [R, S] in the step, parted as their own is."""
    return np.asarray(lanes.host * np.maximum(total / np.maximum(lanes.host.sum(axis=0), 1.0), 0.0))
