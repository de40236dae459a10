"""A test bed: jobs with known faults, recorded as hindmost would have recorded them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING

from hindmost_collector.simulate import engine
from hindmost_collector.simulate.engine import draw
from hindmost_collector.simulate.record import record
from hindmost_collector.simulate.scenario import Fault, Noise, Scenario, Truth

if TYPE_CHECKING:
    from hindmost_judge.model import Run

__all__ = ["Fault", "Noise", "Scenario", "Simulated", "Truth", "simulate"]


@dataclass(frozen=True)
class Simulated:
    """A recorded run, and apart from it what is true of it."""

    run: Run
    work_out: Callable[[], Truth] = field(repr=False)

    @cached_property
    def truth(self) -> Truth:
        """The ground truth: computed at first use, since that simulates the job once more for each fault."""
        return self.work_out()


def simulate(scenario: Scenario, metrics: bool = True) -> Simulated:
    """Record one job. The truth's costs come from the same job and noise without its faults."""
    draws = draw(scenario)
    timing = engine.run(scenario, draws, scenario.faults)
    return Simulated(record(timing, metrics), partial(_truth, timing))


def _truth(timing: engine.Timing) -> Truth:
    scenario, draws, faults = timing.scenario, timing.draws, timing.scenario.faults
    total = int(timing.finish[-1].max())
    active = engine.activity(scenario, draws, faults)

    def without(remaining: Sequence[Fault]) -> int:
        return int(engine.run(scenario, draws, remaining).finish[-1].max())

    each = [without([*faults[:i], *faults[i + 1 :]]) for i in range(len(faults))] if len(faults) > 1 else []
    repaired = without([]) if faults else total
    return Truth(
        faults=faults,
        total_ns=total,
        repaired_ns=repaired,
        repaired_each_ns=tuple(each) if each else (repaired,) * len(faults),
        active=tuple(tuple(row.nonzero()[0].tolist()) for row in active),
    )
