"""How late a rank is read from collectives beside its computing, at the places of the step that show it."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector import blocks as blocks_of
from hindmost_collector.settings import DEFAULT
from hindmost_collector.simulate import Fault, Scenario, simulate


def _late(*faults: Fault) -> float:
    """Ns a step that rank 2 is late by from step 60 on."""
    blocks = blocks_of.build(simulate(Scenario(16, 120, seed=37, faults=faults)).run, DEFAULT)
    assert blocks is not None
    return float(np.median(blocks.excess[2, blocks.steps >= 60]))


def test_what_made_a_rank_late_in_other_steps_adds_nothing_to_a_late_input() -> None:
    """A slow GPU becomes later from one collective to the next, but not in steps in which it is as fast as any."""
    late_input = Fault("input", (2,), 0.1, 60)
    assert _late(Fault("compute", (2,), 0.1, 20, 60), late_input) == pytest.approx(_late(late_input), rel=0.02)
