"""Several faults of one job: each verdict's cost is what its repair saves once those before it are repaired."""

from __future__ import annotations

import pytest
from hindmost_collector.judge import judge
from hindmost_collector.simulate import Fault, Scenario, simulate


def test_a_late_input_does_not_lend_its_saving_to_a_slow_gpu() -> None:
    """A GPU that shows half of its lateness is weighed against a late input by all of it, and costs what is true."""
    faults = (Fault("compute", (2,), 0.2), Fault("input", (5,), 0.1))
    made = simulate(Scenario(8, 120, faults=faults))
    slow, late = judge(made.run).verdicts
    alone = (made.truth.total_ns - made.truth.repaired_each_ns[0]) / made.truth.total_ns
    both = (made.truth.total_ns - made.truth.repaired_ns) / made.truth.total_ns
    assert (slow.ranks, slow.cause, slow.given) == ((2,), "compute", ())
    assert (late.ranks, late.cause, late.given) == ((5,), "input", (2,))
    assert slow.cost_ratio == pytest.approx(alone, abs=0.01)
    assert late.cost_ratio == pytest.approx(both - alone, abs=0.01)
