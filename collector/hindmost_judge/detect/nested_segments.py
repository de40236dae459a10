"""Segments of steps in which a series is high: one after the other, and one on top of the other.

A series is cut where its level changes, for good or for a while. A rank that is a little late throughout, and much
later for a while, has two: one from end to end, and one on top of it.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import (
    MAD_TO_SIGMA,
    block_medians,
    median,
    or_zero,
    spread,
    standard_error,
    time_blocks,
)
from hindmost_judge.stats.segmentation import cheapest
from hindmost_judge.types import Floats

#: A segment against as many steps on each side; a high bar, since it is the highest of very many (standard
#: deviations).
_MIN_ABOVE_AROUND = 5.0
#: A rank that becomes later by this much is reported again; a fault varies by less, and filling caches make 12 % (of
#: the lower level).
_MIN_CHANGE = 0.15

#: Shortest segment of steps that a change of pace can make: fewer steps have no useful median.
SHORTEST = 8
#: Shortest time, in ns, that a change of pace lasts. Linux leaves two threads on one of several CPUs for some hundred
#: ms (``busy_factor`` times ``balance_interval``), stops a control group for most of a period of 100 ms, and flushes
#: pages as long: that ends as it came.
_LASTING_NS = 0.5e9
#: Least steps in the median of one bin, and most bins in a series.
_BIN, _MOST_BINS = 4, 256
#: Cost of one more change, in variances of a bin and for the logarithm of their number: Bayes' criterion.
_PENALTY = 2.0
#: The levels on both sides of a change must differ by this many standard errors.
_APART = 3.0
#: A pause is brief up to this share of the segments on either side of it.
_BRIEF = 0.2
#: Large segments are reported up to this many times ``max_segments``, those that cost most: a rank may be slow often.
_LARGE = 4
#: Without its segments a rank that is slow in turns scatters as healthy ranks do: up to so many times as much. Nine
#: turns left 0.3 to 1.2 times as much, 40 ranks of slow noise (autocorrelation 0.9 to 0.98) 1.8 to 8.
_AS_HEALTHY = 1.5
#: A segment up to this share of the series is one of many alike; noise may raise any one of them.
_PICKED = 0.25


@dataclass(frozen=True)
class Layer:
    """Steps [first, stop) in which a series is higher by ``level`` than the rest; ``outer`` is the layer below it.

    ``inner`` are the segments inside in which it is higher still. It may go on until ``end``: too few steps follow
    to tell.
    """

    first: int
    stop: int
    end: int
    level: float
    inner: tuple[tuple[int, int], ...] = ()
    outer: Layer | None = None


def lasts(took: Floats, first: int, stop: int) -> bool:
    """Whether steps [first, stop), of which each ``took`` [S] ns, are so long that noise does not fill them.

    In a short recording a good part of it is enough.
    """
    steps = stop - first
    return steps > _PICKED * len(took) or steps * float(median(took[first:stop])) >= _LASTING_NS


def _not_known(_: int) -> float:
    return math.inf


def find(
    series: Floats,
    took: Floats,
    smallest: float,
    settings: Settings,
    large: float = np.inf,
    *,
    shared: bool = False,
    noise: Callable[[int], float] = _not_known,
) -> list[Layer]:
    """All segments higher by at least ``smallest``, outer ones first; their ends are at least a few steps apart.

    Each of the steps ``took`` [S] ns: a segment lasts some time.

    A segment is over when enough lower steps follow: until then it may only pause. On ``shared`` CPUs other ranks may
    hide it for longer. A segment higher by ``large`` is not noise, however many there are in a long run. Nor is one
    far above the ``noise`` of healthy ranks, how much medians of so many of their steps differ, if the rest of the
    series has no more. Neither counts when segments that come and go too often are taken as one.
    """
    cache = _LevelCache(or_zero(series))
    edges = _without_pauses(cache, _edges(cache, smallest), settings.recovered_steps)
    high: list[Layer] = []
    calm, brief = cache, _BRIEF if shared else 0.0
    rest = _without(series, _layered(cache, edges, smallest, settings.recovered_steps, brief))
    noise = noise if scatter(rest, SHORTEST) <= _AS_HEALTHY * noise(SHORTEST) else _not_known
    while True:
        layers = _layered(cache, edges, smallest, settings.recovered_steps, brief)
        left_out, high = high, [layer for layer in layers if layer.outer is None and layer.level >= large]
        calm = calm if high == left_out else _LevelCache(_without(series, high))
        sure = [
            _stands_out(cache, calm, layer, layers, smallest, noise) if lasts(took, layer.first, layer.stop) else 0.0
            for layer in layers
        ]
        if min(sure, default=1.0) >= 1:
            outer = [layer for layer in layers if layer.outer is None]
            if sum(layer.level < min(large, _beyond(noise, layer)) for layer in outer) > settings.max_segments:
                # Segments that come and go so often are one persistent slowdown, or none.
                first, stop, end = layers[0].first, max(one.stop for one in layers), max(one.end for one in layers)
                return [Layer(first, stop, end, float(np.median(series[first:stop])))]
            outer.sort(key=lambda layer: layer.level * (layer.stop - layer.first))
            return _on(outer[-_LARGE * settings.max_segments :], layers)
        least = layers[int(np.argmin(sure))]
        borders = {0, len(series)} | ({least.outer.first, least.outer.stop} if least.outer is not None else set())
        edges = [edge for edge in edges if edge not in {least.first, least.stop} - borders]


def _on(outer: list[Layer], layers: list[Layer]) -> list[Layer]:
    """Those of the layers that are among these ``outer`` ones, or on top of them."""
    connected = [layer for layer in layers if layer in outer]
    for layer in layers:
        connected += [layer] if layer.outer in connected else []
    return [layer for layer in layers if layer in connected]


def _without(series: Floats, layers: list[Layer]) -> Floats:
    left: Floats = series.copy()
    for layer in layers:
        left[layer.first : layer.stop] -= layer.level
    return left


def _beyond(noise: Callable[[int], float], layer: Layer) -> float:
    """Ns by which a layer of so many steps must be higher than its base not to be noise."""
    return _MIN_ABOVE_AROUND * noise(layer.stop - layer.first)


def _stands_out(
    cache: _LevelCache,
    calm: _LevelCache,
    layer: Layer,
    layers: list[Layer],
    smallest: float,
    noise: Callable[[int], float],
) -> float:
    """How far a segment stands above the steps around it, from which it was picked, as a multiple of what is required.

    Its base is those steps, not zero: a rank that is always a little late has higher chance segments. The segment
    must exceed them by an effect, and by far more than the scatter of as many of them, or than the ``noise`` of healthy
    ranks: a rank that is slow in turns scatters by these. A segment at either end of the series that takes much of it
    was not picked from many: a fault began there, or ended.
    """
    outer, size = layer.outer, len(cache.series)
    at_an_end = outer is None and (layer.first == 0 or layer.stop == size)
    if at_an_end and layer.stop - layer.first > _PICKED * size:
        return 1.0
    if layer.stop - layer.first < SHORTEST:
        return 0.0
    first, stop = (0, size) if outer is None else (outer.first, outer.stop)
    error, scatter = calm.around(first, layer.first, layer.stop, stop)
    least = _MIN_ABOVE_AROUND * max(cache.of(layer.first, layer.stop)[1] + error, scatter)
    least = min(least, _beyond(noise, layer))
    alone = np.zeros(size, bool)
    alone[first:stop] = True
    for one in layers:
        if one.outer is outer:
            alone[one.first : one.end] = False
    if np.count_nonzero(alone) >= SHORTEST:
        above = min(layer.level, cache.level(layer.first, layer.stop) - float(median(cache.series[alone])))
    else:  # on top of another segment the difference is unknown if too few steps show that other one alone
        above = layer.level if outer is None else 0.0
    return min(above / smallest, above / least if least else math.inf)


def scatter(series: Floats, length: int) -> float:
    """How much medians of so many steps on end differ; of fewer blocks than tell that, those of shorter ones."""
    count = len(series) // length
    if count <= len(time_blocks(len(series))):
        return spread(block_medians(series))
    return spread(median(series[: count * length].reshape(count, length), axis=1))


def _layered(cache: _LevelCache, edges: list[int], smallest: float, recovered: int, brief: float) -> list[Layer]:
    """The layers between these edges; a level that is not sure to be above nothing is none to be on top of.

    What follows the last may be a pause of it where it takes less than the ``brief`` part of it.
    """
    known = [cache.of(first, stop) for first, stop in itertools.pairwise(edges)]
    levels = [level if level >= _APART * error else min(level, 0.0) for level, error in known]
    end = {edges[-1]: edges[-1]}
    paused = max(recovered, int(brief * (edges[-2] - edges[max(len(edges) - 3, 0)])))
    if len(levels) > 1 and _is_pause(levels, edges, len(levels) - 1, paused):
        edges, levels = edges[:-1], levels[:-1]
        end[edges[-1]] = len(cache.series)
    return list(_layers(edges, levels, 0.0, smallest, None, end))


def _layers(
    edges: list[int], levels: list[float], floor: float, smallest: float, outer: Layer | None, end: dict[int, int]
) -> Iterator[Layer]:
    """Each run of segments above the floor as one layer as high as its lowest, and what is on top of that."""
    for high, run in itertools.groupby(range(len(levels)), key=lambda at: levels[at] - floor >= smallest):
        if not high:
            continue
        group = list(run)
        lowest = min(levels[at] for at in group)
        more = [at for at in group if levels[at] - lowest >= smallest]
        inner = tuple((edges[at], edges[at + 1]) for at in more)
        begin, stop = group[0], group[-1] + 1
        layer = Layer(edges[begin], edges[stop], end.get(edges[stop], edges[stop]), lowest - floor, inner, outer)
        yield layer
        yield from _layers(edges[begin : stop + 1], levels[begin:stop], lowest, smallest, layer, end)


def _without_pauses(cache: _LevelCache, edges: list[int], recovered: int) -> list[int]:
    """Edges of the segments with each short one joined to its neighbours that is lower than both."""
    while True:
        levels = cache.of_each(edges)
        pause = next((at for at in range(1, len(levels) - 1) if _is_pause(levels, edges, at, recovered)), None)
        if pause is None:
            return edges
        before, after = levels[pause - 1], levels[pause + 1]
        alike = _alike(before, after)
        joined = {edges[pause]} if alike or before <= after else set()
        joined |= {edges[pause + 1]} if alike or after <= before else set()
        edges = [edge for edge in edges if edge not in joined]


def _is_pause(levels: list[float], edges: list[int], at: int, recovered: int) -> bool:
    """Whether a piece is lower than its neighbours, and too short to show that the earlier level is over.

    Its neighbours must be equally high: noise of another rank's host may hide a slowdown for a while.
    """
    before, after = levels[at - 1], levels[at + 1] if at + 1 < len(levels) else np.inf
    if levels[at] >= min(before, after):
        return False
    length = edges[at + 1] - edges[at]
    if length < recovered or not _alike(before, after):
        return length < recovered
    return length < _BRIEF * min(edges[at] - edges[at - 1], edges[at + 2] - edges[at + 1])


def _alike(one: float, other: float) -> bool:
    return 2 * min(one, other) >= max(one, other)


def main_segment(series: Floats, smallest: float, settings: Settings) -> tuple[int, int]:
    """[first, stop) of the steps in which a series is persistently high on the whole.

    Neighbouring segments count as one while each is at least half as high as the highest.
    """
    edges = segment_edges(series, smallest)
    levels = np.array(_LevelCache(series).of_each(edges))
    best = int(np.argmax(levels * np.diff(edges)))
    level = float(levels[best])
    lower = np.flatnonzero(~(levels >= level / 2))
    first, stop = max(lower[lower < best], default=-1) + 1, edges[min(lower[lower > best], default=len(levels))]
    after = series[stop:]
    # What follows is long enough to tell that it has ended, and clearly lower throughout.
    lasting = len(after) < settings.recovered_steps or np.nanmax(block_medians(after)) >= level / 2
    return edges[first], len(series) if lasting or float(median(after)) >= level / 4 else stop


def segment_edges(series: Floats, smallest: float) -> list[int]:
    """Edges of the segments between the changes of a series, with its own ends."""
    return _edges(_LevelCache(or_zero(series)), smallest)


def lowest_level(series: Floats, smallest: float, settings: Settings) -> float | None:
    """The level of a series in the lowest of its segments that last; ``None`` where none does."""
    edges = itertools.pairwise(segment_edges(series, smallest))
    return min((float(median(series[a:b])) for a, b in edges if b - a >= settings.min_steps), default=None)


def _edges(cache: _LevelCache, smallest: float) -> list[int]:
    edges = _cut(cache.series, smallest)
    while True:
        for at in range(1, len(edges) - 1):  # to where the levels on both sides fit best
            edges[at] = cache.sharpened(edges[at - 1], edges[at], edges[at + 1])
        sure = [_sureness(cache, *change, smallest) for change in zip(edges, edges[1:], edges[2:], strict=False)]
        if min(sure, default=1.0) >= 1:
            return edges
        del edges[sure.index(min(sure)) + 1]


class _LevelCache:
    """The level of each requested segment of a series, and its certainty: each is worked out once."""

    def __init__(self, series: Floats) -> None:
        self.series = series
        self.level, self.of = functools.cache(self._level), functools.cache(self._of)
        self.around, self.sharpened = functools.cache(self._around), functools.cache(self._sharpened)

    def _level(self, first: int, stop: int) -> float:
        """The median of these steps."""
        return float(median(self.series[first:stop]))

    def _of(self, first: int, stop: int) -> tuple[float, float]:
        """The median of these steps and its standard error."""
        level = self.level(first, stop)
        return level, standard_error(self.series[first:stop], level)

    def of_each(self, edges: list[int]) -> list[float]:
        """The medians of the segments between these edges."""
        return [self.level(first, stop) for first, stop in itertools.pairwise(edges)]

    def _around(self, begin: int, first: int, stop: int, end: int) -> tuple[float, float]:
        """The standard error of the steps [begin, end) without [first, stop), and how medians of as many scatter."""
        left = np.concatenate([self.series[begin:first], self.series[stop:end]])
        return standard_error(left), scatter(left, stop - first)

    def _sharpened(self, start: int, split: int, stop: int) -> int:
        """Where, at most a few steps from ``split``, the levels of these steps on its two sides fit best."""
        before, after = self.level(start, split), self.level(split, stop)
        first, last = max(start + 1, split - SHORTEST), min(stop - 1, split + SHORTEST)
        part = self.series[first:last]
        return first + int(np.append(0.0, np.cumsum(np.abs(part - before) - np.abs(part - after))).argmin())


def _sureness(cache: _LevelCache, start: int, split: int, stop: int, smallest: float) -> float:
    """How many times the least that makes a change the levels on its two sides differ by."""
    if min(split - start, stop - split) < SHORTEST // 2:
        return 0.0
    (before, noise), (after, more) = cache.of(start, split), cache.of(split, stop)
    low, high = sorted([before, after])
    return (high - low) / max(smallest / 2, _APART * (noise + more), _MIN_CHANGE * low)


def _cut(series: Floats, smallest: float) -> list[int]:
    """Edges of the levels that fit the medians of its bins best, each change at a price; none is too short."""
    if len(series) < 2 * SHORTEST:
        return [0, len(series)]
    size = max(_BIN, -(-len(series) // _MOST_BINS))
    count = len(series) // size
    levels = median(series[: count * size].reshape(count, size), axis=1)
    noise = MAD_TO_SIGMA * float(median(np.abs(np.diff(levels)))) / np.sqrt(2)
    price = max(_PENALTY * noise**2 * np.log(count), smallest**2 / 2)
    bounds = cheapest(np.append(0.0, np.cumsum(levels)), np.arange(count + 1), price, shortest=2)
    return [at * size if at < count else len(series) for at in bounds]


def is_persistent(more: Floats, smallest: float, settings: Settings) -> bool:
    """Whether a series [S] is at least ``smallest`` in most of these steps, and surely."""
    level = float(median(more))
    steady = float(np.mean(block_medians(more) >= level / 2)) >= settings.min_consistency
    return level >= smallest and steady and level >= settings.min_z * standard_error(more)


def only_inside(inside: Floats, outside: Floats, smallest: float, settings: Settings) -> bool:
    """Whether a series is persistently at least ``smallest`` in these steps, and hardly ever in those outside."""
    level = float(median(inside))
    calm = float(block_medians(outside).max()) < level / 3 and level >= settings.min_z * standard_error(outside)
    return calm and is_persistent(inside, smallest, settings)


def together(one: slice, other: slice) -> bool:
    """Whether two segments of steps are mostly the same."""
    common = min(one.stop, other.stop) - max(one.start, other.start)
    return bool(2 * common > max(one.stop - one.start, other.stop - other.start))
