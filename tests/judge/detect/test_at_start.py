"""From which of the first steps on a rank is late that is late from one of them."""

import numpy as np
import pytest
from hindmost_judge.detect import straggler

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
