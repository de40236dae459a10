"""What the torch probe takes of a step that its host bounds, and of what: hooks, measuring, and what neither tells.

hooks     single steps with hooks in and out by turns, in fours whose second half is the first in reverse (in, out,
          out, in, or the other way round, drawn), so that any drift that is even over a four cancels; no step is
          measured
measured  what a step takes more whose GPU times, CPU time and copies are measured: blocks of steps all of which are,
          and none of which is, in the same order; a job measures one step in ``measured_every``

Of each there is also what the hooks themselves say that they took. The remainder is what a step loses by caches that
hooks have used, by a GPU that gets its work later, and by calls that are not timed. Intervals are of 95 %, from how the
fours are spread: of their mean and, which single interruptions of a step do not move, of the mean of the middle 90 %.
"""

from __future__ import annotations

import gc
import importlib
import math
import random
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from observing import Hooks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 8
NEVER = (1 << 62) - 1
#: Of the time, for what a measured step takes more: a job pays it rarely.
SHARE_MEASURED = 0.15
TRIMMED = 0.05
NORMAL_95 = 1.96
mean = statistics.fmean


class Four(NamedTuple):
    """us a step that the one half took more than the other: of time, and as hooks say; and of the other."""

    more: float
    own: float
    less: float


class Probe:
    """The probe of this process: whether it is in, whether it measures, and what its hooks say that they took."""

    def __init__(self, torch: Any) -> None:
        self._hooks = Hooks(torch)
        self._recorder = recorder = importlib.import_module("hindmost.stepping").attached
        self._loops = [follower.loop for follower in recorder._followers]
        self._told_ns = 0
        sampling = recorder.sampling
        self.every = sampling.mask + 1  # one step in so many is measured
        self._reckon, sampling._reckon = sampling._reckon, lambda _: None
        self._mask = sampling._mask
        self._told, sampling.limit.add = sampling.limit.add, self._tell
        self.put = self._hooks.put

    def _tell(self, own_ns: int, _elapsed_ns: int) -> None:
        self._told_ns += own_ns

    def measure(self, every_step: bool) -> None:
        self._set_mask(0 if every_step else NEVER)

    def _set_mask(self, mask: int) -> None:
        self._recorder.sampling._mask = mask
        for loop in self._loops:
            loop.mask = mask

    def own_ns(self) -> int:
        """What hooks have taken so far."""
        return int(self._told_ns + self._recorder.own_ns + sum(loop.own for loop in self._loops))

    def restore(self) -> None:
        self._hooks.put(True)
        self._set_mask(self._mask)
        self._recorder.sampling._reckon, self._recorder.sampling.limit.add = self._reckon, self._told


def compared(torch: Any, step: Callable[[], Any], settle: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Fours for so long. What Python has allocated by now is left out of its collections: their pauses are not ours."""
    gc.collect()
    gc.freeze()
    probe = Probe(torch)

    def single(inside: bool) -> tuple[float, float]:
        probe.put(inside)
        before, start = probe.own_ns(), time.perf_counter_ns()
        step()
        end = time.perf_counter_ns()
        return (end - start) / 1e3, (probe.own_ns() - before) / 1e3

    def block(measured: bool) -> tuple[float, float]:
        probe.measure(measured)
        for _ in range(2):  # what the blocks before have left is read and written
            step()
        before, start = probe.own_ns(), time.perf_counter_ns()
        for _ in range(BLOCK):
            step()
        end = time.perf_counter_ns()
        return (end - start) / BLOCK / 1e3, (probe.own_ns() - before) / BLOCK / 1e3

    probe.measure(False)
    for _ in range(4):
        step()
    hooks = fours(single, settle, seconds * (1 - SHARE_MEASURED), 64)
    probe.put(True)
    measured = fours(block, settle, seconds * SHARE_MEASURED, 1)
    probe.restore()
    gc.unfreeze()
    return summary(hooks, measured, probe.every)


def fours(
    took: Callable[[bool], tuple[float, float]], settle: Callable[[], Any], seconds: float, between: int
) -> list[Four]:
    """Fours for so long; the GPU is waited for after so many."""
    draw, found = random.Random(7), []  # noqa: S311 - an order
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(found) < 2 * between:
        first = draw.random() < 0.5
        halves: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
        for which in (first, not first, not first, first):
            halves[which].append(took(which))
        (more, own), (less, other) = ([mean(each) for each in zip(*halves[one], strict=True)] for one in (True, False))
        found.append(Four(more - less, own - other, less))
        if len(found) % between == 0:
            settle()
    return found


def summary(hooks: list[Four], measured: list[Four], every: int) -> dict[str, Any]:
    """One step in ``every`` is measured in a job."""
    seldom = told([one.more / every for one in measured])
    a_step = {
        f"{kind}{what}": value
        for kind in ("mean", "middle_mean")
        for what, value in zip(("", "_95"), together(told([one.more for one in hooks]), seldom, kind), strict=True)
    }
    return {
        "fours": len(hooks),
        "fours_of_blocks": len(measured),
        "step_us_without": statistics.median(one.less for one in hooks),
        "measured_every": every,
        "a_step_us": a_step,
        "hooks_of_it": parts(hooks),
        "a_measured_step_more": parts(measured),
    }


def parts(found: Sequence[Four]) -> dict[str, Any]:
    """Differences, what hooks say of them, and the rest."""
    return {
        "difference_us": told([one.more for one in found]),
        "own_us": told([one.own for one in found]),
        "remainder_us": told([one.more - one.own for one in found]),
    }


def told(values: Sequence[float]) -> dict[str, Any]:
    """Mean and trimmed mean, and their intervals: the latter's from the spread of what is trimmed to its border."""
    cut = int(len(values) * TRIMMED)
    inner = sorted(values)[cut : len(values) - cut]
    winsorized = [*[inner[0]] * cut, *inner, *[inner[-1]] * cut]
    share = len(inner) / len(values)
    return {
        **around("mean", mean(values), statistics.stdev(values) / len(values) ** 0.5),
        **around("middle_mean", mean(inner), statistics.stdev(winsorized) / share / len(values) ** 0.5),
    }


def around(name: str, value: float, error: float) -> dict[str, Any]:
    return {name: value, f"{name}_95": [value - NORMAL_95 * error, value + NORMAL_95 * error]}


def together(one: dict[str, Any], other: dict[str, Any], name: str) -> tuple[float, list[float]]:
    """The sum of two means that were measured apart, and its interval."""
    value = one[name] + other[name]
    half = math.hypot(*(each[f"{name}_95"][1] - each[name] for each in (one, other)))
    return value, [value - half, value + half]
