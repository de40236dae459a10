"""What a repair gives away again to the clocks of GPUs that are at their power limit."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge

if TYPE_CHECKING:
    from hindmost_judge.model import Run
    from hindmost_judge.verdict.schema import Verdict

LATE, PEERS = 1.80e9, 1.836e9


def limited(run: Run, reasons: float = 4) -> Run:
    """The run with rank 2's GPU at a lower clock than its peers', and all of them slow for these reasons."""
    name, labels, value = (run.metrics[column] for column in ("name", "labels", "value"))
    mine = np.char.find(labels, "GPU-00000002") >= 0
    value = np.where(name == "hindmost_gpu_sm_clock_hertz", np.where(mine, LATE, PEERS), value)
    value = np.where(name == "hindmost_gpu_clocks_event_reasons", reasons, value)
    return replace(run, metrics=run.metrics | {"value": value})


def the(run: Run) -> Verdict:
    (verdict,) = judge(run).verdicts
    assert verdict.ranks == (2,)
    return verdict


def cost(run: Run) -> float:
    return the(run).cost_ms_per_step or 0.0


@pytest.mark.parametrize("layout", ["dp", "tp_dp", "fsdp"])
def test_peers_that_wait_are_put_on_the_clock_of_who_does_not(layout: str) -> None:
    """They compute for 100 ms now; on a clock that is 2 % lower they take that much longer."""
    job = Scenario(8, 160, 5, layout, tensor=2 if layout == "tp_dp" else 1, faults=(Fault("compute", (2,), 0.3),))
    run = simulate(job).run
    usual, verdict = cost(run), the(limited(run))
    assert verdict.cause == "compute"
    assert usual - (verdict.cost_ms_per_step or 0.0) == pytest.approx(100 * (PEERS / LATE - 1), rel=0.15)
    assert any("power limit" in one for one in verdict.evidence)


@pytest.mark.parametrize(
    ("cause", "reasons", "onset", "steps"),
    [
        ("compute", 0, 0, 160),  # not at the power limit
        ("input", 4, 0, 160),  # nor working while the others wait
        ("compute", 4, 80, 160),  # the onset itself tells what it costs
        ("compute", 4, 0, 24),  # few samples
    ],
)
def test_a_cost_stands_where_clocks_do_not_tell(cause: str, reasons: float, onset: int, steps: int) -> None:
    """No sample of a lower clock takes anything off then."""
    run = simulate(Scenario(8, steps, 5, faults=(Fault(cause, (2,), 0.3, onset),))).run
    assert cost(limited(run, reasons)) == pytest.approx(cost(run), rel=0.01)


def test_no_more_is_taken_off_than_waiting_saves_power_for() -> None:
    """Waiting for 5 % of a step is no reason for a clock 2 % higher: that is the GPU's own."""
    run = simulate(Scenario(8, 160, 5, faults=(Fault("compute", (2,), 0.05),))).run
    assert 5 / 6 * cost(run) <= cost(limited(run)) < cost(run)
