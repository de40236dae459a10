"""Why a slowdown makes its rank late: what is measured in its steps, less the rank's delay without it.

Cause change: a rank stays late, while one cause of its delay ends and another begins at some step. The delay alone
shows one slowdown there, or one on top of the other. The measurements in these steps show two, one after the other:
nothing that explains one is left in the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes import backward, table
from hindmost_judge.causes.slow_computing import COMPUTE_CAUSES
from hindmost_judge.causes.table import Cause
from hindmost_judge.detect import nested_segments
from hindmost_judge.graph.host_paced import of_phase
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import SAMPLE, median, or_zero, standard_error, with_peers
from hindmost_judge.types import Floats, Ints

#: Phases of the host, of which the GPU's queue may hide a part.
_HIDDEN = ("input", "h2d")


def cause_of(blocks: Blocks, slowdown: Slowdown, settings: Settings) -> Cause:
    """The cause of a slowdown."""
    if slowdown.phase is not None:
        return table.explain(of_phase(blocks, slowdown.phase), slowdown.row, slowdown.steps(), settings)
    seen = backward.of_slowdown(blocks, slowdown, settings)
    why = table.explain(
        _without_outer(blocks, slowdown, settings), slowdown.row, slowdown.steps(), settings, seen.longer
    )
    if why.cause not in backward.COMPUTED:
        return why
    return replace(why, hidden=seen.beyond(why.beyond * slowdown.delay) / why.beyond)


def _known_parts(parts: dict[str, Floats]) -> dict[str, Floats]:
    """The parts of self time; occasional parts count as nothing where they were not seen."""
    return {name: or_zero(part) if name in table.NOW_AND_THEN else part for name, part in parts.items()}


def _without_outer(blocks: Blocks, slowdown: Slowdown, settings: Settings) -> Blocks:
    """The blocks without the rank's delay outside the slowdown, and without what its measurements are longer by then.

    No more of a phase goes than that: what was hidden then may be what comes on top.
    """
    outer, row = slowdown.outer, slowdown.row
    if outer is None:
        return blocks
    steps, usual = np.arange(slowdown.first, slowdown.stop), table.typical(blocks, row, outer.steps(), settings)
    why = table.explain(blocks, row, outer.steps(), settings).cause

    def less(block: Floats, most: float = np.inf) -> Floats:
        fixed: Floats = block.copy()
        fixed[row, steps] -= min(table.excess_of(block, row, usual), most)
        return fixed

    return replace(
        blocks,
        delay=less(blocks.delay),
        parts={
            name: less(block, outer.delay if name == why and name in _HIDDEN else np.inf)
            for name, block in _known_parts(blocks.parts).items()
        },
        computing=less(blocks.computing) if blocks.computing is not None else None,
    )


#: A cause is over even if it still measures as this share of the lesser delay: phases scatter by that.
_OVER = 0.2
#: A measurement that changes by less of the delay does not mark a cause that begins or ends.
_CHANGE = 0.2
#: A slowdown shorter than its segment by at most this many steps fills it, and one with this few steps is none: noise
#: moves each end by up to two.
_NEAR = 4


def split_by_cause(slowdowns: Sequence[Slowdown], blocks: Blocks, settings: Settings) -> list[Slowdown]:
    """The slowdowns, largest delay first, split where one cause takes over from another."""
    found: list[Slowdown] = []
    for whole in slowdowns:
        if whole.outer is None:
            own = [one for one in slowdowns if _outermost(one) is whole]
            own.sort(key=lambda one: one.first - one.stop)
            spans = list(itertools.pairwise(_edges(own, blocks, settings)))
            found += (
                own if len(spans) == 1 else [part for span in spans for part in segments_within(*span, own, blocks)]
            )
    return sorted(found, key=lambda slowdown: -slowdown.delay)


def _outermost(slowdown: Slowdown) -> Slowdown:
    while slowdown.outer is not None:
        slowdown = slowdown.outer
    return slowdown


def _edges(own: list[Slowdown], blocks: Blocks, settings: Settings) -> list[int]:
    """Where a rank's slowdown, the first of its ``own``, begins and ends, and where between one cause takes over.

    These are what is left of all steps with a change, once the least certain of them are dropped.
    """
    sure = _changes(own, blocks, settings)
    found = sorted(sure)

    @cache
    def explained(first: int, stop: int) -> _Explained:
        return _explained(own[0], (first, stop), blocks, settings)

    while len(found) > 2:
        spans = zip(found, found[1:-1], found[2:], strict=False)
        parts = [(edge, explained(first, edge), explained(edge, stop)) for first, edge, stop in spans]
        others = [edge for edge, one, other in parts if not _takes_over(one, other)]
        if not others:
            break
        found.remove(min(others, key=lambda edge: sure[edge]))
    return found


class _Explained(NamedTuple):
    """A segment of delay and what explains it."""

    slowdown: Slowdown
    why: Cause


def _explained(whole: Slowdown, span: tuple[int, int], blocks: Blocks, settings: Settings) -> _Explained:
    """A segment of a slowdown with its cause; a pause has none."""
    part = _part(whole, *span, blocks)
    pauses = part.delay < whole.delay / 2
    return _Explained(part, Cause("unknown") if pauses else cause_of(blocks, part, settings))


def _takes_over(one: _Explained, other: _Explained) -> bool:
    """Whether two segments have two causes, each of which is over in the other."""
    whys = one.why.cause, other.why.cause
    if "unknown" in whys or whys[0] == whys[1]:
        return False
    left = max(_left(whys[0], other), _left(whys[1], one))
    return left <= _OVER * min(one.slowdown.delay, other.slowdown.delay)


def _left(cause: str, other: _Explained) -> float:
    """Ns a step of a segment's delay, explained by another cause, that are still measured as this cause."""
    name, its = ("compute" if why in COMPUTE_CAUSES else why for why in (cause, other.why.cause))
    return dict(other.why.shares_ns).get(name, 0.0) if name != its else 0.0


def _changes(own: list[Slowdown], blocks: Blocks, settings: Settings) -> dict[int, float]:
    """Steps (indices) at which a rank's delay or a measurement of it changes, with the ends of its slowdown.

    None is nearer to another than a slowdown is long; with the standard errors by which a measurement changes.
    """
    whole, least = own[0], settings.min_steps
    series = _measured(whole, blocks)
    at = {edge for slowdown in own for edge in (slowdown.first, slowdown.stop)}
    for steps, more in series:
        if len(more):
            edges = nested_segments.segment_edges(more, 2 * _CHANGE * whole.delay)
            at.update(int(steps[edge]) for edge in edges[1:-1])
    sure = {edge: max(_sureness(edge, steps, more, 2 * least) for steps, more in series) for edge in at}
    found = {whole.first: 0.0, whole.stop: 0.0}
    for edge in sorted(at, key=lambda edge: -sure[edge]):
        if all(abs(edge - other) >= least for other in found):
            found[edge] = sure[edge]
    return found


def _measured(whole: Slowdown, blocks: Blocks) -> list[tuple[Ints, Floats]]:
    """The known measurements [N] of a slowdown's steps, and ns [N] beyond the typical peer."""
    rows = with_peers(whole.row, len(blocks.ranks), SAMPLE)
    span = slice(whole.first, whole.stop)
    parts = {name: part[rows, span] for name, part in blocks.parts.items()}
    measured = [blocks.delay[rows, span], *_known_parts(parts).values()]
    measured += [] if blocks.computing is None else [blocks.computing[rows, span]]
    usual = float(median(blocks.work)) if blocks.work is not None else 0.0
    if blocks.work is not None and usual > 0:
        measured.append(blocks.step_ns / usual * blocks.work[rows, span])
    found = []
    for block in measured:
        more = block[0] - median(block[1:], axis=0)
        there = np.flatnonzero(~np.isnan(more))
        found.append((whole.first + there, more[there]))
    return found


def _sureness(edge: int, steps: Ints, more: Floats, around: int) -> float:
    """By how many standard errors a measurement changes at a step, of so many steps on both sides; 0 of too few."""
    before = more[(steps >= edge - around) & (steps < edge)]
    after = more[(steps >= edge) & (steps < edge + around)]
    if min(len(before), len(after)) < 2:
        return 0.0
    noise = standard_error(before) + standard_error(after)
    return abs(float(median(after)) - float(median(before))) / max(noise, 1.0)


def segments_within(first: int, stop: int, own: list[Slowdown], blocks: Blocks) -> list[Slowdown]:
    """The slowdowns of one segment: what is late throughout as one, and what is on top of it for a while."""
    found: dict[Slowdown, Slowdown] = {}
    spans = {slowdown: (max(slowdown.first, first), min(slowdown.stop, stop)) for slowdown in own}
    on_top = [one for one, (begin, end) in spans.items() if _NEAR < end - begin < stop - first - _NEAR]
    base = _part(own[0], first, stop, blocks, tuple(spans[one] for one in on_top if one.outer not in on_top))
    for one in sorted(on_top, key=lambda one: one.first - one.stop):
        begin, end = spans[one]
        inner = tuple((max(a, begin), min(b, end)) for a, b in one.inner if a < end and b > begin)
        found[one] = replace(
            one, first=begin, stop=end, inner=inner, outer=found.get(one.outer, base) if one.outer else base
        )
    return [base, *found.values()]


def _part(
    slowdown: Slowdown, first: int, stop: int, blocks: Blocks, inner: tuple[tuple[int, int], ...] = ()
) -> Slowdown:
    """A segment of a slowdown, without what is on top of it, as one: the more certain, the later and longer it is."""
    part = replace(slowdown, first=first, stop=stop, inner=inner, outer=None)
    part = part if len(part.steps()) else replace(part, inner=())
    level = float(median(blocks.delay[slowdown.row, part.steps()]))
    later, shorter = level / slowdown.delay, np.sqrt((stop - first) / (slowdown.stop - slowdown.first))
    return replace(part, delay=level, z=slowdown.z * later * shorter, spread_ratio=slowdown.spread_ratio * later)
