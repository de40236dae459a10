"""What an onset did to the step itself, compared with what the replay of delays accounts for."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.slow_ranks import of_slowdowns
from hindmost_judge.whatif import savings

from tests.runs import blocks_of
from tests.scenarios.loads import Load, make

_LONGER = "steps became"


@pytest.mark.parametrize(("of_all", "reported"), [(0.0, False), (4.0, True)])
def test_steps_that_grew_by_more_than_the_delay_say_so(of_all: float, reported: bool) -> None:
    """A rank that also slows the others costs its delay, and the rest of the change is not kept back."""
    faults = [{"rank": rank, "compute": of_all, "from": 75} for rank in range(4)]
    load = Load(steps=150, compute=10.0, faults=[*faults, {"rank": 1, "compute": 2.0, "from": 75}])
    (verdict,) = judge(make(load)).verdicts
    assert verdict.ranks == (1,)
    assert verdict.cost_ms_per_step == pytest.approx(2.0, abs=0.3)
    longer = [line for line in verdict.evidence if line.startswith(_LONGER)]
    assert [float(line.split()[2]) for line in longer] == ([pytest.approx(6.0, abs=0.3)] if reported else [])


def test_steps_of_which_only_the_mean_is_known_show_no_change() -> None:
    """That no step grew does not say that a rank that was slow for a while cost nothing."""
    blocks = blocks_of(simulate(Scenario(4, faults=(Fault("compute", (0,), 0.1, 20, 50),))).run)
    blocks = replace(blocks, period=np.full(len(blocks.steps), 48_813_815.52214547))
    assert savings.observed_change(blocks, slice(20, 50)) is None
    (verdict,), notes = of_slowdowns(straggler.find(blocks, DEFAULT), blocks, DEFAULT)
    assert (verdict.ranks, notes) == ((0,), [])


def test_steps_of_loaders_that_take_turns_show_a_change_of_their_mean() -> None:
    """Each second step waits for a batch by the same: of steps by 60 ms off their mean, 8 ms are seen all the same."""
    blocks = blocks_of(simulate(Scenario(4, steps=100)).run)
    period = np.tile([60e6, 180e6], len(blocks.steps))[: len(blocks.steps)]
    period[50:] += 8e6
    change = savings.observed_change(replace(blocks, period=period), slice(50, None))
    assert change is not None
    assert change.longer == pytest.approx(8e6, rel=0.2)
