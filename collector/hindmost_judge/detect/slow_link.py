"""Groups whose transfers take long although no member is late: a link, not a rank.

The shortest duration in a group is about the transfer. Groups of one class move the same bytes. If one group's shortest
durations are persistently above its sisters', throughout or for a segment of steps, its link is slow. Slow groups of
several classes share the link or node where they meet. A group that moves other bytes than its sisters, as a pipeline
stage may, is also compared with its own past. By what steps became longer while computing did not is the visible cost.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks, SlowLink
from hindmost_judge.causes import cpu_wait
from hindmost_judge.detect import Case
from hindmost_judge.detect.nested_segments import is_persistent, lowest_level, main_segment, only_inside, together
from hindmost_judge.model import Run
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, median, or_zero, peers_median, standard_error, sums_by_step
from hindmost_judge.timeline.matching import shortest
from hindmost_judge.timeline.messages import job_ranks
from hindmost_judge.types import Floats, Ints
from hindmost_judge.verdict import wording
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.slow_ranks import of_link, of_links
from hindmost_judge.whatif import pipeline_replay
from hindmost_judge.whatif.savings import cost_of_link, others_grew

#: By how much steps must be longer, besides `min_z` for the transfers (standard errors).
_NETWORK_Z = 3.0


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on a group whose transfers are slow although no member is late, or on two ranks' messages."""
    return (
        of_links(find(case.blocks, case.settings), case.blocks, case.settings) or of_pair(case) or of_neighbours(case)
    )


def find(blocks: Blocks, settings: Settings) -> SlowLink | None:
    """The slow link of a job whose ranks talk in several groups of a class; ``None`` where there is none to compare."""
    if blocks.joined is None or len(blocks.steps) < settings.min_steps:
        return None
    least = shortest(blocks.joined)
    slow = [
        link
        for comm_class in np.unique(blocks.joined.comm_class).tolist()
        for group in _groups(blocks, least, comm_class, settings)
        if (link := _judged(group, blocks, comm_class, settings)) is not None
    ]
    if not slow:
        return None
    worst = max(slow, key=lambda one: one.in_all)
    shared = set.intersection(*(set(one.rows) for one in slow if together(one.steps, worst.steps)))
    return replace(worst, rows=tuple(sorted(shared or worst.rows)))


@dataclass(frozen=True)
class _Group:
    """``rows`` that talk to each other and, of steps ``at`` (indices), ns that transfers take there and would take.

    ``throughout``: whether what they would take is known by sisters that move the same, so that they may always differ.
    """

    rows: tuple[int, ...]
    at: Ints
    more: Floats
    usual: Floats
    throughout: bool


def _groups(blocks: Blocks, least: Floats, comm_class: int, settings: Settings) -> Iterator[_Group]:
    """The groups of a class that can be compared with anything."""
    groups = blocks.group[:, comm_class]
    names = np.unique(groups[groups >= 0])
    if len(names) < 2:
        return
    took, size = _transfers(blocks, least, comm_class, [int(np.flatnonzero(groups == name)[0]) for name in names])
    at = np.flatnonzero(~np.isnan(took).any(axis=0))  # groups may be at different steps, or end earlier
    if len(at) < settings.min_steps:
        return
    took, size = took[:, at], size[:, at]
    for place, name in enumerate(names):
        sisters = np.flatnonzero((size == size[place]).all(axis=1))
        if len(sisters) > 1:
            usual: Floats | None = peers_median(took[sisters])[np.searchsorted(sisters, place)]
        else:
            usual = _by_its_past(took, size, place, settings)
        if usual is not None:
            rows = tuple(int(row) for row in np.flatnonzero(groups == name))
            yield _Group(rows, at, took[place] - usual, usual, len(sisters) > 1)


def _by_its_past(took: Floats, size: Floats, place: int, settings: Settings) -> Floats | None:
    """[S] ns that a group's transfers would take if they had grown as the others' did from their lasting minimum.

    ``None`` where messages differ from step to step, which leaves no baseline."""
    if (size != size[:, :1]).any():
        return None
    grown = took / median(took, axis=1)[:, None]
    usual: Floats = float(median(took[place])) * peers_median(grown)[place]
    more = took[place] - usual
    return usual + (lowest_level(more, settings.min_effect * float(median(took[place])), settings) or 0.0)


def _judged(group: _Group, blocks: Blocks, comm_class: int, settings: Settings) -> SlowLink | None:
    """How a group is slow, in a segment of steps or else throughout; ``None``: it is not."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    smallest = max(settings.min_effect * blocks.step_ns, (settings.network_longer - 1) * float(median(group.usual)))
    part = _slow_segment(group.more, smallest, settings)
    if part is None and group.throughout and is_persistent(group.more, smallest, settings):
        part = slice(0, len(group.more))
    if part is None:
        return None
    delay, usual = float(median(group.more[part])), float(median(group.usual[part]))
    overlapping = float(np.mean(blocks.overlapping[blocks.joined.comm_class == comm_class]))
    shown, steps = delay * (1 - overlapping), (0, len(blocks.steps))
    if blocks.overlapped and part.stop - part.start == len(group.more):
        return None  # nothing tells how much of it computing hides
    if part.stop - part.start < len(group.more):
        last = len(group.more) == part.stop
        steps = int(group.at[part.start]), len(blocks.steps) if last else int(group.at[part.stop])
        rest = np.setdiff1d(np.arange(len(blocks.ranks)), group.rows)  # their self time may hold unrecorded waiting
        shown = lengthened(blocks, *steps, shown, settings, rest.tolist())
    elif blocks.pipeline is not None:
        shown = min(
            shown, pipeline_replay.saved_by_transfers(blocks.pipeline, group.rows, comm_class, usual / (usual + delay))
        )
    if cpu_wait.explains_transfers(blocks, np.array(group.rows), *steps, delay):
        return None
    return SlowLink(group.rows, delay, usual, shown, *steps, sisters=group.throughout)


def _slow_segment(more: Floats, smallest: float, settings: Settings) -> slice | None:
    """The steps, not all, in which transfers are persistently longer, and outside of which they hardly are."""
    first, stop = main_segment(more, smallest, settings)
    inside, outside = more[first:stop], np.concatenate([more[:first], more[stop:]])
    enough = min(len(inside), len(outside)) >= settings.min_steps
    return slice(first, stop) if enough and only_inside(inside, outside, smallest, settings) else None


def _transfers(blocks: Blocks, least: Floats, comm_class: int, rows: list[int]) -> tuple[Floats, Floats]:
    """[G, S] ns of transfer a step in the groups of these rows, NaN where some of it is not known, and its bytes."""
    assert blocks.joined is not None  # noqa: S101 - find() has looked
    of_class = blocks.joined.comm_class == comm_class
    took = np.where(of_class, least[rows], 0.0)
    size = np.where(of_class, blocks.joined.size[rows], 0).astype(float)
    known = sums_by_step(np.isnan(took).astype(float), blocks.starts) == 0
    return np.where(known, sums_by_step(took, blocks.starts), np.nan), sums_by_step(size, blocks.starts)


def lengthened(
    blocks: Blocks, first: int, stop: int, delay: float, settings: Settings, rows: Sequence[int] = ()
) -> float:
    """Ns by which steps [first, stop) are longer than the others, up to ``delay``; 0 where that is not sure.

    What the work of the typical rank but ``rows`` grew by is taken off.
    """
    outside = blocks.period[others(first, stop, len(blocks.steps), settings)]
    inside = blocks.period[first:stop]
    longer = float(median(inside) - median(outside))
    noise = float(np.hypot(standard_error(inside), standard_error(outside)))
    grew = others_grew(blocks, rows, slice(first, stop))
    if grew is None or longer < _NETWORK_Z * noise:
        return 0.0
    return min(longer - max(grew, 0.0), delay)


def others(first: int, stop: int, count: int, settings: Settings) -> Ints:
    """Indices, of so many steps, of those that steps [first, stop) are set against.

    These come before. If the segment begins with the run, or so soon that few do, those that follow count, too.
    """
    before = np.arange(first)
    return before if first >= settings.min_steps else np.append(before, np.arange(stop, count))


#: Steps seen as one: not each has messages. Of all that two ranks wait in theirs, this is beyond what any other does.
_SEEN_AS_ONE, _BEYOND = 4, 0.5


def _exchange(run: Run, pair: Ints) -> bool:
    """Whether each of two ranks receives messages of the other."""
    table = run.collectives
    of_pair = np.flatnonzero((table["peer"] >= 0) & (table["op"] != "send") & np.isin(table["rank"], pair))
    source = job_ranks(run, table["comm"][of_pair], table["peer"][of_pair])
    return set(pair.tolist()) == set(table["rank"][of_pair[np.isin(source, pair)]].tolist())


def of_pair(case: Case) -> list[Verdict]:
    """The verdict on two ranks whose messages with each other take longer than waits for any rank's work.

    No work explains when these two come to collectives, nor does another message: no other rank comes as late."""
    blocks, grid, ranks = case.blocks, case.blocks.joined, case.blocks.ranks
    if grid is None or blocks.pipeline is not None or not grid.peer_wait.any() or len(ranks) < 3:
        return []
    own, taken, settings = or_zero(grid.self_time), np.arange(0, len(blocks.steps), _SEEN_AS_ONE), case.settings
    late = sums_by_step(np.maximum(own + grid.peer_wait - own.max(axis=0), 0.0), blocks.starts)
    *_, second, latest = np.argsort(late.sum(axis=1)).tolist()
    pair = sorted((second, latest))
    if case.named & set(ranks[pair].tolist()) or not _exchange(case.run, ranks[pair]):
        return []
    each = late[pair].min(axis=0)
    more = each - np.delete(late, pair, axis=0).max(axis=0)
    typical = sums_by_step(more[None], taken)[0] / np.diff(np.append(taken, len(more)))
    smallest = settings.effect(len(ranks)) * average(blocks.period)
    first, stop = main_segment(typical, smallest, settings)
    if not is_persistent(typical[first:stop], smallest, settings):
        return []
    inside = np.flatnonzero(more >= float(median(typical[first:stop])) / 2)
    begin = int(inside[inside >= taken[first - 1]][0]) if first else 0
    end = len(more) if stop == len(taken) else int(inside[inside < taken[stop] + _SEEN_AS_ONE][-1]) + 1
    cost, waits = average(more[begin:end]), sums_by_step(grid.peer_wait, blocks.starts)[:, begin:end].mean(axis=1)
    if cost < _BEYOND * average(each[begin:end]):
        return []
    both = tuple(ranks[pair].tolist())
    lines = wording.pair(both, float(waits[pair].min()), float(median(np.delete(waits, pair))), cost)
    return [of_link(blocks, (begin, end), cost, both, lines)]


#: Clocks are apart by as much as messages seem to arrive before they are sent, in this percentage of the steps. A delay
#: beyond so many times as much is no error of clocks.
_EARLIEST, _CLOCKS = 5, 2.0


def of_neighbours(case: Case) -> list[Verdict]:
    """The verdict on two neighbours that both wait on when all have sent: their messages travel longer than others'.

    Messages between nodes travel longer by right: they are compared with those of other pairs of two nodes.
    """
    blocks, settings, ranks = case.blocks, case.settings, case.blocks.ranks
    if blocks.travel is None or blocks.neighbours is None or len(ranks) <= _FEWEST_OTHERS:
        return []
    row, source = blocks.neighbours
    edges = {(a, b): edge for edge, (a, b) in enumerate(blocks.neighbours.T.tolist())}
    both = np.array([two for two in edges if two[0] < two[1] and two[::-1] in edges], np.int64).reshape(-1, 2)
    if not len(both) or np.isnan(blocks.travel).any(axis=1).mean() > 1 - settings.min_consistency:
        return []
    after = or_zero(np.fmin.reduceat(blocks.travel, np.searchsorted(row, np.arange(len(ranks))), axis=0))
    early = np.nan_to_num(np.nanpercentile(blocks.travel[row != source], _EARLIEST, axis=1))
    apart = -float(np.min(early, initial=0.0))
    longest = after.copy()  # and below, of two that wait for each other now one sends first, now the other
    after[:, 1:] = (after[:, 1:] + after[:, :-1]) / 2
    each = after[both].min(axis=1)
    nodes = dict(zip(case.run.ranks["rank"].tolist(), case.run.ranks["node"].tolist(), strict=True))
    crosses = np.array([len({nodes[int(rank)] for rank in ranks[two]}) for two in both]) > 1
    at = int(np.argmax(median(each, axis=1)))
    slowest = both[at]
    alike = (crosses == crosses[at]) & ~np.isin(both, slowest).any(axis=1)
    if not alike.any():
        return []
    ways = np.array([(edges[a, b], edges[b, a]) for a, b in both.tolist()])
    takes = np.fmin.reduce(blocks.travel[ways], axis=1)  # at most: who goes on later may have waited for another
    others = or_zero(median(takes[alike], axis=0))
    more = after[slowest].min(axis=0) - others
    smallest = settings.effect(len(ranks)) * average(blocks.period) + _CLOCKS * apart
    first, stop = main_segment(more, smallest, settings)
    pair = tuple(ranks[slowest].tolist())
    lasts = stop - first >= settings.min_steps and is_persistent(more[first:stop], smallest, settings)
    if not lasts or case.named & set(pair):
        return []
    travel = float(median(longest[slowest].max(axis=0)[first:stop]))
    longer = np.zeros(len(more))
    longer[first:stop] = travel - float(median(others))
    cost = cost_of_link(blocks, ways[at], longer)
    if cost < settings.min_cost * blocks.step_ns:
        return []
    return [of_link(blocks, (first, stop), cost, pair, wording.neighbours(pair, travel, float(median(others)), cost))]


#: So many ranks besides the two at least show how long messages usually travel.
_FEWEST_OTHERS = 3
