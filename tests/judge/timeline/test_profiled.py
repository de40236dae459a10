"""Few steps are judged by less where a profiler recorded all of them: there will be no more."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.model import PROFILED
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline.steps import settings_of_few_profiled

from tests.runs import blocks_of


@pytest.mark.parametrize(
    ("marked", "kinds", "relaxed"),
    [
        (range(6), [PROFILED] * 6, True),
        (range(-3, 6), ["train"] * 3 + [PROFILED] * 6, True),
        (range(6), [PROFILED] * 5 + ["train"], False),
        (range(5), [PROFILED] * 5, False),  # of the last step nothing is known
        (range(100, 106), ["train"] * 6, False),
        (range(100, 106), [PROFILED] * 6, False),
        (range(0), [], False),
    ],
)
def test_thresholds_are_of_few_steps_where_each_was_profiled(marked: range, kinds: list[str], relaxed: bool) -> None:
    """Of steps that others do not mark nothing is known: that none is in the table does not say that all were."""
    blocks = blocks_of(simulate(Scenario(ranks=4, steps=30, seed=7)).run)
    found = settings_of_few_profiled(
        replace(blocks, steps=np.arange(6)), table("steps", step=list(marked), kind=kinds, rank=0), DEFAULT
    )
    assert (found != DEFAULT) is relaxed
