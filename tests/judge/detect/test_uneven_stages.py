"""A stage of a pipeline that is slow on every replica: no rank is behind its peers, and the job is slower for it."""

from typing import Any

import pytest
from hindmost_collector.simulate import Fault, Noise, Scenario, Simulated, simulate
from hindmost_judge.detect import uneven_stages
from hindmost_judge.judge import judge
from hindmost_judge.settings import DEFAULT

from tests.runs import blocks_of

SIXTEEN: dict[str, Any] = {"ranks": 16, "steps": 100, "seed": 41, "layout": "pp_dp", "pipeline": 4}


def of(*faults: Fault, **more: Any) -> Simulated:
    return simulate(Scenario(**(SIXTEEN | more), faults=faults))


def truth_ms(simulated: Simulated, steps: int) -> float:
    return (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / steps


@pytest.mark.parametrize(
    ("slow", "more", "cause"),
    [
        (tuple(range(4, 8)), {}, "compute"),
        (tuple(range(4, 8)), {}, "workload"),
        (tuple(range(12, 16)), {}, "compute"),
        (tuple(range(8, 16)), {"ranks": 32}, "workload"),
        ((8, 9), {"pipeline": 8}, "compute"),
    ],
)
def test_an_uneven_stage_is_reported_at_its_cost(slow: tuple[int, ...], more: dict[str, Any], cause: str) -> None:
    """No rank is named, the stage and its ranks are reported, and what_if counts the cost too."""
    simulated = of(Fault(cause, slow, 0.3), **more)
    report = judge(simulated.run)
    (verdict,) = report.verdicts
    truth = truth_ms(simulated, 100)
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.since_step) == ("uneven_workload", "workload", (), 0)
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.05)
    assert f"stage {slow[0] // len(slow)} of" in verdict.evidence[0]
    assert report.what_if.step_ms is not None
    assert report.what_if.ideal_step_ms is not None
    assert report.what_if.step_ms - report.what_if.ideal_step_ms == pytest.approx(truth, rel=0.1)


def test_a_stage_of_which_one_replica_is_quick_is_not_uneven() -> None:
    """Even if no rank in it is named, as where hosts launch late: the other replica does the same work in less time."""
    found = blocks_of(of(Fault("compute", (2,), 0.3), ranks=8).run)
    assert not uneven_stages.find(found, (), DEFAULT)


@pytest.mark.parametrize("seed", range(2))
def test_stages_of_one_pace_are_even(seed: int) -> None:
    """Whatever scatters."""
    noisy = of(seed=seed, noise=Noise(between_ranks=0.01, each_stretch=0.05, wandering=0.015))
    assert [verdict.kind for verdict in judge(noisy.run).verdicts] == ["balanced"]


def test_input_of_a_whole_stage_is_not_said_to_cost_nothing() -> None:
    """Its ranks wait alike long, which hides nothing: all others wait for the first stage."""
    report = judge(of(Fault("input", (0, 1, 2, 3), 0.2)).run)
    assert not any("costs nothing" in note for note in report.notes)


def test_checkpoints_of_two_of_three_replicas_in_turn_are_no_uneven_work() -> None:
    """A host's extra time is taken off its rank's self time, in the same steps: no stage has less work."""
    shape: dict[str, Any] = {"ranks": 6, "steps": 150, "seed": 9008, "pipeline": 2, "step_ms": 2000}
    checkpoints = Fault("checkpoint", (3, 4), 1.0, 127, duty=0.6)
    verdicts = judge(of(checkpoints, **shape, noise=Noise(each_stretch=0.03, wandering=0.009)).run).verdicts
    assert "uneven_workload" not in {verdict.kind for verdict in verdicts}


def test_a_hidden_pause_of_one_host_makes_no_other_stage_uneven() -> None:
    """Its GPU worked on meanwhile: taken off what it worked, its stage seemed to have less to do than the other."""
    fault = Fault("gc", (1,), 0.2)
    run = simulate(Scenario(4, 100, 229, "pp_dp", pipeline=2, microbatches=4, run_ahead=1, faults=(fault,))).run
    assert "uneven_workload" not in [verdict.kind for verdict in judge(run).verdicts]
