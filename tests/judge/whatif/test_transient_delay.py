"""What fixing a rank saves among many that stall now and then, where the delay shows a part of a slow GPU."""

from dataclasses import replace

import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, empty

ONSET, STEPS = 20, 80


@pytest.mark.parametrize("collectives", [True, False], ids=["collectives", "phases"])
def test_stalls_and_noise_of_many_do_not_hide_what_one_costs(collectives: bool) -> None:
    """A slow GPU shows a part of its delay; other ranks' transient delays are no more than what shows."""
    noise = Noise(stall_probability=2e-3)
    job = Scenario(512, STEPS, 1, noise=noise, faults=(Fault("compute", (100,), 0.2, ONSET),))
    found = simulate(job, metrics=False)
    run = found.run if collectives else replace(found.run, collectives=empty(COLLECTIVES))
    (verdict,) = (one for one in judge(run).verdicts if one.ranks)
    truth = (found.truth.total_ns - found.truth.repaired_ns) / (STEPS - ONSET) / 1e6
    assert verdict.ranks == (100,)
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.04)
