"""Over which steps a cost is a mean: those from the verdict's first to before its last, struck or not."""

from __future__ import annotations

import pytest
from hindmost_collector.judge import judge
from hindmost_collector.simulate import Fault, Scenario, simulate

FAULTS = [
    Fault("input", (3,), 0.2),
    Fault("h2d", (3,), 0.2, onset=120),
    Fault("compute", (3,), 0.2, onset=60, end=130),
    Fault("gc", (3,), 0.5, duty=0.1),
    Fault("cpu_contention", (3,), 0.4, onset=100, duty=0.2),
]


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.cause}@{fault.onset}")
def test_a_cost_times_its_steps_is_what_the_repair_saves(fault: Fault, layout: str) -> None:
    """Of a fault that lasts, of one that ends and of stalls alike."""
    job = Scenario(16, 200, 5, layout, faults=(fault,))
    simulated = simulate(job)
    (verdict,) = judge(simulated.run).verdicts
    assert verdict.ranks == (3,)
    assert verdict.cost_ms_per_step is not None
    assert verdict.since_step is not None
    stop = job.steps if verdict.until_step is None else verdict.until_step
    saved = (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6
    assert verdict.cost_ms_per_step * (stop - verdict.since_step) == pytest.approx(saved, rel=0.1)
