"""From which of the first steps on a rank is late that is late from one of them."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge

LEVEL = 10.0


def late(before: list[float], level: float = LEVEL) -> np.ndarray:
    """40 steps of delay, these before it is at its level."""
    return np.array([*before, *(level + 0.5 * np.cos(np.arange(40 - len(before))))])


@pytest.mark.parametrize(
    ("before", "steps"),
    [
        ([], 0),
        ([0.0], 0),  # one step alone is chance
        ([0.0, 0.5], 2),
        ([0.3] * 9, 9),
        ([6.0, 0.1, 0.4], 3),  # the first is late as it warms up
        ([6.0, 7.0, 0.4], 0),  # nor two of three
        ([5.0, 4.0, 4.5], 0),  # half as late is not on time
    ],
)
def test_steps_on_time_come_before_those_that_are_late(before: list[float], steps: int) -> None:
    """As many as the first ones that together are on time."""
    assert straggler.steps_on_time(late(before), LEVEL, 1.0) == steps


def test_where_steps_scatter_it_takes_more_of_them() -> None:
    """Two steps may be on time by chance where a step's scatter is half of the delay, and eight may not."""
    assert straggler.steps_on_time(late([0.0] * 2), LEVEL, 5.0) == 0
    assert straggler.steps_on_time(late([0.0] * 8), LEVEL, 5.0) == 8


def test_a_short_burst_at_the_start_does_not_begin_in_a_stall_after_it() -> None:
    """Slow for nine steps, and once more eight steps on: the burst is reported with its own steps."""
    faults = (Fault("input", (3,), 1.0, 0, end=9), Fault("input", (3,), 1.0, 17, end=18))
    (verdict,) = judge(simulate(Scenario(8, 100, 5, faults=faults)).run).verdicts
    assert (verdict.ranks, verdict.since_step, verdict.until_step) == ((3,), 0, 9)
