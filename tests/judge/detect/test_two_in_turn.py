"""Two ranks that are slow in turn, for 80 steps each."""

from dataclasses import replace

import numpy as np
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.detect import straggler
from hindmost_judge.settings import DEFAULT

from tests.runs import blocks_of


def test_each_turn_of_both_is_reported_whatever_a_host_did_at_the_start() -> None:
    """The one whose turns are a little shorter is no healthy one's chance, and a start of 19 steps is no turn."""
    built = blocks_of(simulate(Scenario(ranks=2, steps=600, seed=3)).run)
    steps = len(built.steps)
    later = 0.001 * np.random.default_rng(1).standard_normal(steps)
    later[:19] += 0.1
    for turn, first in enumerate(range(182, steps, 80)):
        later[first : first + 80] += -0.227 if turn % 2 == 0 else 0.225
    late = built.step_ns * np.stack([-later, later])
    found = straggler.find(replace(built, delay=late), DEFAULT)
    turns = sorted((one.first, one.row) for one in found if one.first >= 182)
    assert turns == [(first, turn % 2) for turn, first in enumerate(range(182, steps, 80))]
