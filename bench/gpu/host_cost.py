"""What the torch probe takes of a step that its host bounds, and of what: hooks, measuring, and what neither tells.

Three arms alternate in blocks of a few steps, in rounds of six whose second half is the first in reverse, so that any
drift that is even over a round cancels: hooks out, hooks in with no step measured, hooks in with every step measured
(CPU time, GPU events, watching for copies). Of each block there are the time of a step, the CPU time of the process in
it, which other processes do not disturb, and what the hooks themselves say that they took. So a step's difference falls
into what hooks take, what measuring takes in them, and the remainder: what the step loses by caches that hooks have
used, a GPU that gets its work later, or calls that are not timed. Intervals are the bootstrap's over rounds (95 %).
"""

from __future__ import annotations

import importlib
import random
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

from observing import Hooks
from step_cost import interval

if TYPE_CHECKING:
    from collections.abc import Callable

BLOCK = 8
OUT, IN, MEASURED = ARMS = ("out", "in", "measured")
#: Steps of a round: of each block one goes before.
STEPS_OF_ROUND = 2 * len(ARMS) * (BLOCK + 1)
NEVER = (1 << 62) - 1
mean = statistics.fmean


class Took(NamedTuple):
    """us a step: of time, of the process's CPU time, and what hooks say that they took."""

    step: float
    cpu: float
    own: float


class Probe:
    """The probe of this process: which arm it is in, and what its hooks say that they took."""

    def __init__(self, torch: Any) -> None:
        self._hooks = Hooks(torch)
        self._recorder = recorder = importlib.import_module("hindmost.stepping")._recorder
        self._loops = [follower.loop for follower in recorder._followers]
        self._told_ns = 0
        pace = recorder.pace
        self.every = pace.mask + 1  # one step in so many is measured
        self._reckon, pace._reckon = pace._reckon, lambda _: None
        self._mask = pace._mask
        self._told, pace.thrift.told = pace.thrift.told, self._tell

    def _tell(self, own_ns: int, _elapsed_ns: int) -> None:
        self._told_ns += own_ns

    def put(self, arm: str) -> None:
        self._hooks.put(arm != OUT)
        self._measure(0 if arm == MEASURED else NEVER)

    def _measure(self, mask: int) -> None:
        self._recorder.pace._mask = mask
        for loop in self._loops:
            loop.mask = mask

    def own_ns(self) -> int:
        """What hooks have taken so far."""
        return int(self._told_ns + self._recorder.own_ns + sum(loop.own for loop in self._loops))

    def restore(self) -> None:
        self._hooks.put(True)
        self._measure(self._mask)
        self._recorder.pace._reckon, self._recorder.pace.thrift.told = self._reckon, self._told


def compared(torch: Any, step: Callable[[], Any], settle: Callable[[], Any], seconds: float) -> dict[str, Any]:
    """Rounds of blocks for so long."""
    probe, draw = Probe(torch), random.Random(7)  # noqa: S311 - an order
    rounds: list[dict[str, Took]] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until or len(rounds) < 2:
        order = draw.sample(ARMS, len(ARMS))
        took: dict[str, list[Took]] = {arm: [] for arm in ARMS}
        for arm in (*order, *reversed(order)):
            probe.put(arm)
            took[arm].append(block(step, probe))
        settle()
        rounds.append({arm: Took(*map(mean, zip(*two, strict=True))) for arm, two in took.items()})
    probe.restore()
    return summary(rounds, probe.every)


def block(step: Callable[[], Any], probe: Probe) -> Took:
    step()
    before = time.perf_counter_ns(), time.process_time_ns(), probe.own_ns()
    for _ in range(BLOCK):
        step()
    after = time.perf_counter_ns(), time.process_time_ns(), probe.own_ns()
    return Took(*((b - a) / BLOCK / 1e3 for a, b in zip(before, after, strict=True)))


def summary(rounds: list[dict[str, Took]], every: int) -> dict[str, Any]:
    """Of what each arm took, by rounds; one step in ``every`` is measured in a job."""
    hooks, more = ([more_in(one, *arms) for one in rounds] for arms in ((OUT, IN), (IN, MEASURED)))
    both = [Took(*(a + b / every for a, b in zip(*pair, strict=True))) for pair in zip(hooks, more, strict=True)]
    return {
        "rounds": len(rounds),
        "steps_a_block": BLOCK,
        "step_us_without": statistics.median(one[OUT].step for one in rounds),
        "cpu_us_without": statistics.median(one[OUT].cpu for one in rounds),
        "measured_every": every,
        "a_step": parts(both),
        "hooks_of_it": parts(hooks),
        "a_measured_step_more": parts(more),
    }


def more_in(one: dict[str, Took], less: str, more: str) -> Took:
    """What one arm took more than another in a round. Where hooks are out, they take nothing."""
    own = one[more].own - (one[less].own if less != OUT else 0.0)
    return Took(one[more].step - one[less].step, one[more].cpu - one[less].cpu, own)


def parts(differences: list[Took]) -> dict[str, Any]:
    """Differences of arms, what hooks say of them, and the rest."""
    return {
        "difference_us": told([one.step for one in differences]),
        "cpu_difference_us": told([one.cpu for one in differences]),
        "own_us": told([one.own for one in differences]),
        "remainder_us": told([one.step - one.own for one in differences]),
    }


def told(values: list[float]) -> dict[str, Any]:
    return {
        "mean": mean(values),
        "mean_95": list(interval(values, mean)),
        "median": statistics.median(values),
        "median_95": list(interval(values, statistics.median)),
    }
