"""Pipelines whose ranks only send to each other: without replicas there is no collective in which they meet."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, Simulated, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.timeline import pipelined
from hindmost_judge.timeline.messages import RECEIVE, SEND, Schedule, order_of_calls
from hindmost_judge.whatif import pipeline_replay

FOUR: dict[str, Any] = {"ranks": 4, "steps": 100, "layout": "pp_dp", "pipeline": 4}


def of(*faults: Fault, seed: int = 1) -> tuple[Simulated, Run]:
    """A job of four stages, and its recording with the messages alone; forward holds what a stage waits in it."""
    simulated = simulate(Scenario(**FOUR, seed=seed, faults=faults))
    run = simulated.run
    message = run.collectives["peer"] >= 0
    messages = {name: column[message] for name, column in run.collectives.items()}
    received = messages["op"] == "recv"
    waited = np.zeros_like(run.steps["gpu_forward_ns"])
    place = messages["rank"][received] * FOUR["steps"] + messages["step"][received]
    order = np.argsort(run.steps["rank"] * FOUR["steps"] + run.steps["step"])
    np.add.at(waited, order[place], messages["duration_ns"][received])
    forward = run.steps["gpu_forward_ns"] + waited
    return simulated, replace(run, collectives=messages, steps={**run.steps, "gpu_forward_ns": forward})


def truth_ms(simulated: Simulated) -> float:
    return (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / FOUR["steps"]


@pytest.mark.parametrize("seed", range(2))
def test_a_stage_that_waits_in_its_forward_is_not_slow(seed: int) -> None:
    """No rank is named where all stages keep pace, however long some wait for what they receive; nor is one cleared."""
    _, run = of(seed=seed)
    assert [verdict.kind for verdict in judge(run).verdicts] == ["insufficient_data"]


def test_unrecorded_waiting_of_the_last_stages_is_no_work() -> None:
    """Between two steps all meet in unrecorded collectives: the last of eight stages wait there longest."""
    simulated = simulate(Scenario(ranks=8, steps=40, seed=5, layout="pp_dp", pipeline=8))
    message = simulated.run.collectives["peer"] >= 0
    messages = {name: column[message] for name, column in simulated.run.collectives.items()}
    assert [verdict.kind for verdict in judge(replace(simulated.run, collectives=messages)).verdicts] == [
        "insufficient_data"
    ]


def test_a_slow_stage_is_reported_at_its_cost() -> None:
    """It may also hold more layers: its rank is reported, and not named."""
    simulated, run = of(Fault("compute", (2,), 0.3))
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())
    assert "stage 2 of 4 (rank 2)" in verdict.evidence[0]
    assert verdict.cost_ms_per_step == pytest.approx(truth_ms(simulated), rel=0.1)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_whose_input_is_late_is_named(rank: int) -> None:
    """Layers make no input longer, whatever stage holds them."""
    _, run = of(Fault("input", (rank,), 0.3))
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (rank,), "input")


def test_what_a_gpu_idles_for_its_host_is_no_work() -> None:
    """A kernel that begins as it is launched waited for that; the interval's usual length is known from others."""
    steps = np.arange(40)
    begin = steps * 100e6
    work = np.where(steps % 2 == 1, 30e6, 10e6)
    start = np.array([begin + work, begin])
    queued = np.where(steps % 2 == 1, 10e3, 5e6)
    order = Schedule(
        row=np.array([0, 1]),
        place=np.zeros(2, np.int64),
        kind=np.array([SEND, RECEIVE]),
        with_whom=np.array([1, 0]),
        overlapping=np.zeros(2, bool),
        start=start,
        end=np.array([start[0] + 1e6, start[0] + 1e6]),
        begin=np.array([begin, begin]),
        steps=steps,
        enqueue=np.array([start[0] - queued, start[1] - 1e6]) + 2e6,
    )
    built = pipeline_replay.build(order, np.array([0, 1]), len(steps))
    assert built is not None
    idle = pipelined.gpu_starvation(order, built, np.array([0, 1]), (2, len(steps)))
    assert idle is not None
    np.testing.assert_allclose(idle, [work - 10e6, np.zeros(len(steps))])


def test_messages_of_one_call_are_in_one_order_however_their_times_fall() -> None:
    """A send and a receive of one kernel begin within 2 us of each other, now this first and now that."""
    found = {
        "row": np.zeros(4, np.int64),
        "step": np.array([0, 0, 1, 1]),
        "kind": np.array([SEND, RECEIVE] * 2),
        "whom": np.ones(4, np.int64),
    }
    order = order_of_calls(found, np.array([100.0, 20.0, 5_000.0, 5_900.0]))
    assert found["kind"][order].tolist() == [SEND, RECEIVE] * 2
    apart = order_of_calls(found, np.array([9_000.0, 20.0, 5_000.0, 5_900.0]))
    assert found["kind"][apart].tolist() == [RECEIVE, SEND, SEND, RECEIVE]
