"""Steps of sharded layers, whose gaps between collectives are about as long anywhere in backward."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.timeline import matching
from hindmost_judge.timeline.steps import steps_of_collectives


@pytest.mark.parametrize("seed", range(3))
def test_steps_begin_where_they_are_marked_and_not_at_any_long_gap(seed: int) -> None:
    """Collectives that do not say their step, as those of a running job: each is of the step in which it was run."""
    run = simulate(Scenario(8, 60, seed=seed, layout="fsdp")).run
    grid = matching.grid(run)
    assert grid is not None
    unmarked = replace(grid, step=np.full_like(grid.step, -1))
    found = steps_of_collectives(unmarked, matching.self_time(unmarked), run.steps)
    assert (found == grid.step)[found >= 0].all()
    assert np.mean(found >= 0) > 0.9
