"""From findings to verdicts on slow ranks and links: costs by what-if, causes by share, sentences, confidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown, SlowLink, SlowNetwork
from hindmost_judge.causes import backward, cpu_wait, loading, why_late
from hindmost_judge.causes.cpu_sharing import NEEDS
from hindmost_judge.causes.table import Cause
from hindmost_judge.detect import straggler
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median, peers_median
from hindmost_judge.timeline import cohorts
from hindmost_judge.types import Floats
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import ESTIMATE, Verdict
from hindmost_judge.verdict.whole_job import costing
from hindmost_judge.whatif import hidden_delay, savings
from hindmost_judge.whatif.savings import BY_ITSELF, imbalance_cost, step_delay, without_slowdowns


def of_slowdowns(
    slowdowns: list[Slowdown], blocks: Blocks, settings: Settings, same_work: Blocks | None = None
) -> tuple[list[Verdict], list[str]]:
    """Verdicts of persistently late ranks that cost something, and notes on those that others hide.

    ``same_work`` are the same steps with work of one size: there a slowdown must stand out of what ranks wait.
    """
    same_work = same_work or blocks
    slowdowns = why_late.split_by_cause(slowdowns, blocks, settings)
    blocks = replace(blocks, equalised=hidden_delay.without(same_work).intervals)
    late = slowdowns
    if blocks.joined is not None and blocks.group.shape[1] > 1 and len(late) > 1:
        delay = [slowdown.delay for slowdown in late]
        waiting = cohorts.waits_inside(blocks.joined, blocks.starts, [slowdown.row for slowdown in late], delay)
        late = [slowdown for slowdown in late if slowdown.row not in waiting]
    costly, notes = _that_count(late, hidden_delay.as_seen(blocks), settings)
    explained = [(slowdown, why_late.cause_of(blocks, slowdown, settings)) for slowdown in costly]
    explained = [(loading.with_stalls(blocks, slowdown, cause, settings), cause) for slowdown, cause in explained]
    explained = [
        (savings.with_waits(blocks, one, why.partial if why.cause == "unknown" and why.partial else why.cause), why)
        for one, why in explained
    ]
    whole = dict(zip(costly, (slowdown for slowdown, _ in explained), strict=True))
    costly, slowdowns = list(whole.values()), [whole.get(slowdown, slowdown) for slowdown in slowdowns]
    seen, blocks = blocks, backward.in_full(blocks, explained)
    left, verdicts = _groups(explained), []
    before: list[Slowdown] = []
    replay, shown = _replay(left, costly, blocks, slowdowns), _Replay(seen)
    while left:  # what saves most as things are comes first: the rest counts as what it adds to that
        group, cause = most = max(left, key=lambda one: float(replay.adds(one[0], before).sum()))
        left.remove(most)
        verdict = _straggler(group, cause, before, replay, blocks, same_work, settings)
        if verdict is None:
            notes.append(f"{wording.slower(blocks, group)}, but a fix saves too little to act on")
            continue
        verdicts.append(replace(verdict, shown_ms=shown.saves(group, before) / 1e6))
        before += group
    return verdicts, notes


@dataclass(frozen=True)
class _Replay:
    """The job with all slowdowns on the scale of those that show least of their delay: ``scale`` times too small."""

    blocks: Blocks
    scale: float = 1.0
    costly: Sequence[Slowdown] = ()
    #: [S] ns saved with these fixed: most are asked for more than once.
    saved: dict[tuple[Slowdown, ...], Floats] = field(default_factory=dict)

    @cached_property
    def _delay(self) -> Floats:
        return step_delay(self.blocks, self.blocks.intervals)

    def saving(self, slowdowns: Sequence[Slowdown]) -> Floats:
        """[S] ns saved with all of these fixed, each in the steps of its own slowdown, on the blocks' own scale."""
        key = tuple(slowdowns)
        if not key:
            return np.zeros(len(self.blocks.steps))
        if key not in self.saved:
            blocks = savings.with_sole_peer_on_time(self.blocks, slowdowns)
            delay = self._delay if blocks is self.blocks else step_delay(blocks, blocks.intervals)
            self.saved[key] = np.subtract(delay, step_delay(blocks, without_slowdowns(blocks, slowdowns)))
        return self.saved[key]

    def adds(self, slowdowns: list[Slowdown], before: list[Slowdown]) -> Floats:
        """[S] ns that the repair of these saves once those before are repaired."""
        return self.scale * (self.saving([*before, *slowdowns]) - self.saving(before))

    def saves(self, slowdowns: list[Slowdown], before: list[Slowdown]) -> float:
        """The same, ns in each of their steps."""
        return float(self.adds(slowdowns, before)[_span(slowdowns)].mean())

    def others(self, slowdowns: list[Slowdown]) -> list[Slowdown]:
        """All but these."""
        return [slowdown for slowdown in self.costly if slowdown not in slowdowns]


def _replay(groups: list[_Group], costly: list[Slowdown], blocks: Blocks, slowdowns: list[Slowdown]) -> _Replay:
    scale = max((cause.beyond for _, cause in groups), default=1.0)
    intervals = hidden_delay.scaled(blocks, slowdowns, scale)
    same_work = blocks.same_work  # of which a repair takes what is on that scale
    for group, cause in groups:
        too_large = 1.0 - cause.beyond / scale
        if too_large > 0:
            slower = without_slowdowns(blocks, group) - blocks.intervals
            intervals, same_work = intervals + too_large * slower, same_work + too_large * slower
    return _Replay(replace(blocks, intervals=intervals, equalised=same_work), scale, costly)


def _that_count(slowdowns: list[Slowdown], blocks: Blocks, settings: Settings) -> tuple[list[Slowdown], list[str]]:
    """Leave out, from the least late on, ranks whose fix adds nothing to that of the rest.

    From the least late, since among equally late ranks fixing any one alone saves nothing.
    """
    costly, notes, replay = list(slowdowns), [], _Replay(blocks)
    for slowdown in reversed(slowdowns):
        rest = [one for one in costly if one is not slowdown]
        gain = replay.saving(costly) - replay.saving(rest)
        if float(gain[slowdown.first : slowdown.stop].mean()) < settings.min_cost * blocks.step_ns:
            costly = rest
            if costly:
                span = slowdown.first, slowdown.stop
                whole = span == (0, len(blocks.steps))
                steps = "" if whole else f" in steps {blocks.steps[span[0]]} to {blocks.steps[span[1] - 1]}"
                notes.append(f"{wording.slower(blocks, [slowdown])}{steps}, at no cost: other ranks are later")
    return costly, notes


def _span(slowdowns: list[Slowdown]) -> slice:
    return slice(min(slowdown.first for slowdown in slowdowns), max(slowdown.stop for slowdown in slowdowns))


#: Slowdowns of one verdict, and the cause of the first.
_Group = tuple[list[Slowdown], Cause]

#: Ranks of one verdict are late by at least this share of what the latest of them is: of a smaller delay the cause is
#: rarely the same, and a mean of both describes neither.
_ALIKE = 0.125


def _groups(explained: list[tuple[Slowdown, Cause]]) -> list[_Group]:
    """Ranks with one cause, about one interval and a like delay are one verdict: they would be repaired together.

    So are phases of one rank.
    """
    groups: list[_Group] = []
    for slowdown, cause in explained:
        for group, why in groups:
            other = group[0]
            near = abs(other.first - slowdown.first) <= 8 and abs(other.stop - slowdown.stop) <= 8
            phases = {(one.row, one.phase) for one in group}
            alike = slowdown.delay >= _ALIKE * other.delay
            if why.cause == cause.cause and near and alike and (slowdown.row, slowdown.phase) not in phases:
                group.append(slowdown)
                break
        else:
            groups.append(([slowdown], cause))
    return groups


def _straggler(
    slowdowns: list[Slowdown],
    cause: Cause,
    before: list[Slowdown],
    replay: _Replay,
    blocks: Blocks,
    same_work: Blocks,
    settings: Settings,
) -> Verdict | None:
    """The verdict on ranks of one cause, ``before`` repaired; ``None`` where even the repair of all hardly needs it."""
    span, rows = _span(slowdowns), [slowdown.row for slowdown in slowdowns]
    repaired_rows = {slowdown.row for slowdown in before} - set(rows)
    before = [slowdown for slowdown in replay.costly if slowdown.row in repaired_rows]  # each repaired of all it has
    saved = replay.saves(slowdowns, before)
    conditional_on = before if before and replay.saves(slowdowns, []) < BY_ITSELF * saved else []
    cost, on_cost, cost_is = (saved, [], None) if conditional_on else _cost(slowdowns, cause, replay, before, blocks)
    in_all = replay.saves(slowdowns, replay.others(slowdowns))
    worth = in_all if in_all > saved and cost > 0 else cost  # of two equally late neither fix alone saves anything
    if worth < settings.min_cost * blocks.step_ns:
        return None
    shown = max(worth, _Replay(same_work).saves(slowdowns, []))
    rest = hidden_delay.without(same_work)
    rest = replace(rest, intervals=without_slowdowns(rest, replay.costly))
    without_owner = imbalance_cost(rest)  # lost were all of these repaired
    measured = all(_measured(one, same_work, settings) for one in slowdowns)
    if not measured and shown < settings.min_share_of_waste * (shown + without_owner):  # waits alone may be noise
        return None
    ranks = tuple(sorted({int(blocks.ranks[slowdown.row]) for slowdown in slowdowns}))
    victims = _victims(blocks, rows)
    uneven = blocks.work_delay is not None or same_work.delay is not blocks.delay  # work makes ranks late
    return costing(
        *(blocks, span.start, span.stop, cost),
        kind="straggler",
        ranks=ranks,
        victims=victims,
        cause=cause.cause,
        cost_is=cost_is,
        given=tuple(sorted({int(blocks.ranks[slowdown.row]) for slowdown in conditional_on})),
        confidence=_confidence(slowdowns, settings),
        explained=cause.explained,
        partial=cause.partial,
        causes=tuple(wording.together(slowdowns[0].delay, cause)),
        evidence=(
            *wording.why(blocks, slowdowns, cause),
            *backward.limits_of_evidence(blocks, slowdowns, cause),
            *loading.stalls_sentence(slowdowns, cause),
            *wording.victims(victims, ranks),
            *on_cost,
            *_ranged(slowdowns, before, blocks),
            *wording.left_by_batches(slowdowns[0].delay, cost, uneven=uneven),
        ),
        on_host=slowdowns[0].phase is not None and cause.cause == "compute",
    )


def _measured(slowdown: Slowdown, blocks: Blocks, settings: Settings) -> bool:
    """Whether a rank's longer work was measured, and is no noise: of a host's phase, if it is a large part of a step.

    Then it counts, however long all ranks wait.
    """
    if slowdown.phase is not None:
        return slowdown.delay >= settings.large_effect * blocks.step_ns
    steps = slice(slowdown.first, slowdown.stop)
    return straggler.surely_longer(blocks, slowdown.row, steps, slowdown.delay, settings)


def _cost(
    slowdowns: list[Slowdown], cause: Cause, replay: _Replay, before: list[Slowdown], blocks: Blocks
) -> tuple[float, list[str], str | None]:
    """Ns a step that the fix saves, with ``before`` fixed, its parts beyond the visible delay, and what it is."""
    span, rows = _span(slowdowns), [slowdown.row for slowdown in slowdowns]
    by_step = replay.adds(slowdowns, before)
    saved = float(by_step[span].mean())
    columns = np.arange(len(blocks.steps))[span]
    held_up = cpu_wait.held_up_transfers(blocks, rows, columns, saved) if cause.cause == "cpu_contention" else 0.0
    cost = saved + held_up
    others = [_span([slowdown]) for slowdown in replay.others(slowdowns)]
    if blocks.exchanges:  # far ranks show it many steps later, and the typical one less of it
        return cost, wording.held_up(held_up), None
    change = savings.observed_change(blocks, span, others)  # with other slowdowns in it
    if change is not None:
        waited = savings.caused_more(blocks, rows, span) + held_up
        replayed = float(by_step[change.steps].mean()) + held_up
        seen = change.cost(replayed, waited, savings.others_grew(blocks, rows, span))
        seen = max(seen, replayed) if slowdowns[0].phase is not None else seen  # peers that became faster hide none
        cost *= seen / replayed if replayed > 0 else 1.0  # others may hide it in steps that cannot be compared
    estimated = wording.estimated(cost, saved, change) if blocks.evidence == NEEDS else []
    lines = estimated or wording.longer_than_replayed(change, cost)
    return cost, [*wording.held_up(held_up), *lines], ESTIMATE if estimated else None


def _ranged(slowdowns: list[Slowdown], before: list[Slowdown], blocks: Blocks) -> list[str]:
    """What the fix of hosts saves at least and at most, with waits of the others at their longest and shortest."""
    lanes, rows = blocks.lanes, [slowdown.row for slowdown in slowdowns]
    if lanes is None or lanes.wait is None or not lanes.doubt.any():
        return []
    doubt = lanes.doubt[:, None] * ~np.isin(np.arange(len(lanes.doubt)), rows)[:, None]
    saved = []
    for sign in (1.0, -1.0):
        phase, host = lanes.wait.phase, lanes.host.copy()
        host[phase] = np.clip(host[phase] + sign * doubt, lanes.least[phase], lanes.most[phase])
        peer_pace = lanes.peer_pace + (host - lanes.host).sum(axis=0)
        varied = replace(blocks, lanes=replace(lanes, host=host, peer_pace=peer_pace))
        saved.append(_Replay(varied).saves(slowdowns, before))
    return wording.ranged(max(min(saved), 0.0), max(*saved, 1.0))


def _victims(blocks: Blocks, rows: list[int]) -> tuple[int, ...]:
    """Ranks that look late and are not: their group waits for a culprit before it meets the others."""
    if blocks.joined is None or blocks.overlapped or blocks.group.shape[1] < 2:
        return ()
    late = peers_median(blocks.joined.duration) - blocks.joined.duration
    own = median(blocks.delay, axis=1)
    threshold = float(np.min(own[rows])) / 2
    found = cohorts.victims(blocks.joined, blocks.starts, late, rows, threshold)
    return tuple(int(blocks.ranks[row]) for row in found if own[row] < threshold)


def _confidence(slowdowns: list[Slowdown], settings: Settings) -> float:
    """How far the weakest criterion of the weakest rank is above its threshold, as a share of such names right.

    A threshold of 0 asks for nothing, so nothing is known by it; where both are 0 a name is the least sure.
    """
    asked = (("z", settings.min_z), ("spread_ratio", settings.min_spread_ratio))
    margins = [
        getattr(slowdown, name) / least * slowdown.consistency
        for slowdown in slowdowns
        for name, least in asked
        if least > 0
    ]
    return right(min(margins, default=0.0))


def right(margin: float) -> float:
    """The share of names right that stand out so many times as far as they must."""
    return float(np.interp(np.log(max(margin, MARGINS[0])), np.log(MARGINS), RIGHT))


def of_links(link: SlowLink | None, blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The verdict on a group whose transfers are slow although no member is late; the run shows where to look."""
    if link is None or link.shown < settings.min_cost * blocks.step_ns:
        return []
    ranks = tuple(int(blocks.ranks[row]) for row in link.rows)
    return [of_link(blocks, (link.first, link.stop), link.shown, ranks, wording.link(ranks, link))]


def of_link(
    blocks: Blocks, span: tuple[int, int], cost: float, ranks: tuple[int, ...], lines: Sequence[str]
) -> Verdict:
    """The verdict on what is slow between these ranks, in steps [first, stop) by index, at this cost (ns a step)."""
    found = costing(blocks, *span, cost, kind="slow_link", cause="network", ranks=ranks)
    return replace(found, confidence=0.9, explained=1.0, evidence=tuple(lines), shown_ms=0.0)


def of_network(found: SlowNetwork, blocks: Blocks, others: Sequence[Verdict]) -> list[Verdict]:
    """The verdict on transfers that take longer than they did, in every group of the job, next to these ``others``."""
    verdict = costing(blocks, found.first, found.stop, found.cost, kind="slow_link", cause="network")
    verdict = verdict if found.early else replace(verdict, since_step=found.past.since_step)
    lines = tuple(wording.network(found, late=any(one.ranks for one in others)))
    past = found.past if found.stop >= len(blocks.steps) else None
    return [replace(verdict, confidence=0.9, explained=1.0, evidence=lines, past=past)]


#: How often a name is right that stands out so far: a monotone map, fitted by ``bench/accuracy`` on simulated jobs that
#: are hard to judge. They have few ranks and steps, and noise as large as their faults, some of it so slow that a
#: healthy rank is slow for most of the run; in calmer jobs more names are right than this says.
#: Margin above the thresholds: how many times as far as it must a name stands out, by its weakest criterion.
MARGINS = (1.0, 1.2, 1.4, 2.0, 3.0, 5.0, 10.0)
#: Share of names right at each of these margins or further out in simulated jobs, pooled so that it never falls.
RIGHT = (0.65, 0.72, 0.85, 0.89, 0.93, 0.97, 0.99)
