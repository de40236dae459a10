"""How late a rank is, from collectives that overlap with its computing, at the places of the step that show it."""

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.stats.robust import peers_median
from hindmost_judge.timeline.overlap import overlapped_delay

from tests.runs import blocks_of

RANKS, STEPS, PLACES = 4, 60, 10
MS = 1e6


def _late(*faults: Fault) -> float:
    """Ns a step that rank 2 is late by from step 60 on."""
    blocks = blocks_of(simulate(Scenario(16, 120, seed=37, faults=faults)).run)
    return float(np.median(blocks.delay[2, blocks.steps >= 60]))


def test_what_made_a_rank_late_in_other_steps_adds_nothing_to_a_late_input() -> None:
    """A slow GPU becomes later from one collective to the next, but not in steps in which it is as fast as any."""
    late_input = Fault("input", (2,), 0.1, 60)
    assert _late(Fault("compute", (2,), 0.1, 20, 60), late_input) == pytest.approx(_late(late_input), rel=0.02)


def test_a_collective_that_few_steps_have_is_no_usual_place() -> None:
    """Two steps end with an evaluation's collective, for which one rank came late: in the others it is on time."""
    counts = np.full(STEPS, PLACES)
    counts[[20, 40]] += 1
    starts = np.append(0, np.cumsum(counts)[:-1])
    random = np.random.default_rng(4)
    duration = 0.3 * MS + random.normal(0, 0.01 * MS, (RANKS, counts.sum()))
    own = np.full_like(duration, MS)
    own[:, starts[1:] - 1] = 0.0  # the last of a step follows the one before at once
    extra = starts[[20, 40]] + PLACES
    own[:, extra] = 50 * MS
    duration[:3, extra] += 30 * MS
    found = overlapped_delay(peers_median(duration) - duration, own, starts)
    assert np.abs(np.median(found, axis=1)).max() < 0.1 * MS
