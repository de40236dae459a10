"""POP's efficiencies of runs made by hand, and steps with one thing made free."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import efficiency
from hindmost_judge.judge import judge
from hindmost_judge.overview import Overview

MS = 1e6


def seen(period: Any, *, on_gpu: bool = False, overlapped: bool = False, **planes: Any) -> Overview:
    """Ranks and steps with these planes, ms; ``own``, ``wait``, ``transfer`` and ``delay`` are NaN unless given."""
    period = np.asarray(period, float) * MS
    shape = np.shape(next(iter(planes.values())))
    blocks = {name: np.full(shape, np.nan) for name in ("self", "wait", "transfer", "caused", "last", "delay")}
    blocks |= {name: np.asarray(block, float) * MS for name, block in planes.items()}
    ranks, steps = np.arange(shape[0]), np.arange(shape[1])
    return Overview(
        ranks, steps, period, ranks * 0, blocks, on_gpu, False, np.zeros(len(steps), bool), None, None, overlapped
    )


def test_efficiencies_of_hosts_are_those_computed_by_hand() -> None:
    """Two ranks, two steps of 10 ms, 2 ms of transfer each. Useful: 8 and 4 ms, then 4 and 6. Means 6 and 5: load
    balance 5.5 / 6; without transfers a step takes 8 ms: serialisation 6 / 8."""
    own = [[8.0, 4.0], [4.0, 6.0]]
    run = seen([10.0, 10.0], self=own, transfer=np.full((2, 2), 2.0), wait=[[0.0, 4.0], [4.0, 2.0]])
    (found,) = efficiency.of(run)
    assert found.lane == "host"
    shares = (found.parallel, found.load_balance, found.communication, found.serialisation, found.transfer)
    assert shares == pytest.approx((0.55, 5.5 / 6, 0.6, 0.75, 0.8), rel=1e-3)
    assert found.parallel == pytest.approx((found.load_balance or 0) * (found.communication or 0))
    assert found.communication == pytest.approx((found.serialisation or 0) * (found.transfer or 0))


@pytest.mark.parametrize(("gpu", "least"), [(True, 0.5), (False, None)])
def test_communication_of_gpus_that_compute_meanwhile_has_a_bound(gpu: bool, least: float | None) -> None:
    """GPUs work 8 of 10 ms; the rank that comes last is in collectives for 4 ms, of which nothing may be hidden."""
    run = seen([10.0], on_gpu=gpu, overlapped=True, wait=[[0.0], [3.0]], transfer=[[4.0], [4.0]])
    assert efficiency.least_communication(run, 0.8) == least


def test_efficiency_of_gpus_has_what_they_idle_as_a_factor() -> None:
    """Steps of 10 ms: 6 ms of kernels on one GPU, 4 on the other, 1 ms of transfer, 1 and 3 of wait; then they idle."""
    run = seen(
        [10.0, 10.0],
        on_gpu=True,
        self=np.full((2, 2), 9.0),
        gpu_forward=[[3.0, 3.0], [2.0, 2.0]],
        gpu_backward=[[5.0, 5.0], [6.0, 6.0]],
        wait=[[1.0, 1.0], [3.0, 3.0]],
        transfer=np.full((2, 2), 1.0),
        delay=np.zeros((2, 2)),
    )
    (found,) = efficiency.of(run)
    assert (found.parallel, found.load_balance, found.orchestration) == pytest.approx((0.5, 5 / 6, 0.8), rel=1e-3)
    assert (found.serialisation, found.transfer) == pytest.approx((6 / 7, 7 / 8), rel=1e-3)


def test_of_gpus_that_compute_beside_collectives_balance_and_idling_are_known() -> None:
    """Kernels would show which transfers are hidden. GPUs are busy for 8 of 10 ms. One of four comes 2 ms later than
    the others at the end of every other step, 1 ms halfway: 8, 7, 7 and 7 ms of work."""
    phases = {"gpu_forward": np.full((4, 2), 4.0), "gpu_backward": np.full((4, 2), 4.0), "self": np.full((4, 2), 9.0)}
    delay = np.zeros((4, 2))
    delay[1, 1] = 1.0
    (found,) = efficiency.of(seen([10.0, 10.0], on_gpu=True, overlapped=True, delay=delay, **phases), 9.0 * MS)
    assert (found.lane, found.parallel, found.transfer) == ("GPU", None, None)
    assert (found.load_balance, found.orchestration) == pytest.approx((29 / 32, 0.8), rel=1e-3)


@pytest.mark.parametrize(("more", "ranks"), [(0.0, 4), (0.3, 4), (0.2, 8)])
def test_balance_of_overlapped_gpus_is_that_of_their_work(more: float, ranks: int) -> None:
    """One of the simulated ranks computes so much more."""
    faults = (Fault("gpu_contention", (1,), more),) if more else ()
    found = judge(simulate(Scenario(ranks, 60, faults=faults)).run)
    assert found.overview is not None
    (lane,) = efficiency.of(found.overview, (found.what_if.ideal_step_ms or 0.0) * MS)
    assert lane.load_balance == pytest.approx((ranks + more) / ranks / (1 + more), abs=0.01)


def test_one_process_with_a_gpu_has_no_efficiency_of_its_host() -> None:
    """Without collectives what is known of a step is the GPU's."""
    (found,) = efficiency.of(seen([10.0], self=[[4.0]], gpu_forward=[[2.0]], gpu_backward=[[5.0]]))
    assert (found.lane, found.orchestration) == ("GPU", pytest.approx(0.7))


def test_a_step_without_its_input_ends_when_the_next_latest_rank_does() -> None:
    """Rank 1 loads for 5 of its 9 ms: without that rank 0, which loads for 1 of 6, is as late as 5 ms."""
    run = seen([10.0], self=[[6.0], [9.0]], input=[[1.0], [5.0]], transfer=[[1.0], [1.0]])
    found = efficiency.free(run)
    assert found == {"input": pytest.approx(6.0), "communication": pytest.approx(9.0)}


def test_input_that_a_gpu_hides_costs_nothing() -> None:
    """Its kernels fill the step; where they do not, only what they leave counts."""
    planes: dict[str, Any] = {"input": [[6.0]], "gpu_forward": [[4.0]], "gpu_backward": [[6.0]], "self": [[9.0]]}
    assert efficiency.free(seen([10.0], on_gpu=True, **planes))["input"] == pytest.approx(10.0)
    planes["gpu_backward"] = [[3.0]]
    assert efficiency.free(seen([10.0], on_gpu=True, **planes))["input"] == pytest.approx(7.0)


def test_input_costs_what_it_takes_though_gpus_wait_for_others_meanwhile() -> None:
    """Rank 1 comes last; rank 0's forward holds 5 ms of waiting for it. Each fetches for 6 ms, and computes for 4."""
    planes: dict[str, Any] = {"input": [[6.0], [6.0]], "gpu_forward": [[9.0], [4.0]], "wait": [[5.0], [0.0]]}
    run = seen([10.0], on_gpu=True, delay=[[0.0], [0.5]], **planes)
    assert efficiency.free(run)["input"] == pytest.approx(4.0)


def test_what_was_not_measured_is_left_out() -> None:
    """Missing is no claim that it is free already; steps of which few were timed on a GPU count by these."""
    assert efficiency.free(seen([10.0], self=[[6.0]])) == {}
    assert efficiency.free(seen([10.0], overlapped=True, self=[[6.0]], transfer=[[2.0]])) == {}
    steps_of_two = seen([10.0, 10.0], on_gpu=True, self=[[9.0, 9.0]], input=[[6.0, 6.0]], gpu_forward=[[10.0, np.nan]])
    assert efficiency.free(steps_of_two)["input"] == pytest.approx(10.0)
