"""Why a GPU is slow, on simulated runs whose metrics say so only while it is."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict


def slow(cause: str, **more: int) -> Run:
    return simulate(Scenario(seed=11, steps=120, faults=(Fault(cause, (3,), 0.12, **more),))).run


def the(run: Run) -> Verdict:
    (verdict,) = judge(run).verdicts
    assert verdict.ranks == (3,)
    return verdict


def changed(run: Run, name: str, value: float, every: bool = False) -> Run:
    """The run with samples of one metric set, of rank 3's GPU or of every GPU."""
    held = run.metrics["name"] == name
    if not every:
        held &= np.char.find(run.metrics["labels"], "GPU-00000003") >= 0
    assert held.any()
    return replace(run, metrics=run.metrics | {"value": np.where(held, value, run.metrics["value"])})


@pytest.mark.parametrize("cause", ["gpu_throttle", "gpu_contention"])
def test_a_cause_that_begins_late_is_found_where_it_acts(cause: str) -> None:
    """Over the whole run the metric is as the peers'; since the onset it is not."""
    verdict = the(slow(cause, onset=90))
    assert (verdict.cause, verdict.since_step) == (cause, 90)


def test_idle_gpus_before_and_after_training_say_nothing_of_it() -> None:
    """Most samples may be of GPUs that idle at their highest clock; the steps' own samples decide."""
    run = slow("gpu_throttle")
    outside = {name: np.tile(column, 9) for name, column in run.metrics.items()}
    idle = outside["name"] == "hindmost_gpu_sm_clock_hertz"
    outside["value"] = np.where(idle, 1.98e9, outside["value"])
    outside["time_ns"] = outside["time_ns"] - np.repeat(np.arange(9), len(run.metrics["name"])) * 10**12 - 10**12
    both = {name: np.concatenate([column, run.metrics[name]]) for name, column in outside.items()}
    assert the(replace(run, metrics=both)).cause == "gpu_throttle"


def test_a_lower_clock_for_the_same_reason_as_all_is_no_throttling() -> None:
    """A rank that computes more at a shared power limit clocks lower: the clock is not the cause."""
    run = changed(slow("compute"), "hindmost_gpu_sm_clock_hertz", 1.75e9)
    assert the(changed(run, "hindmost_gpu_clocks_event_reasons", 4, every=True)).cause == "compute"


def test_a_low_clock_with_a_reason_of_its_own_need_not_explain_all() -> None:
    """Ranks that wait cool down and clock higher; without the driver's word the rest would be something else."""
    run = changed(slow("compute"), "hindmost_gpu_sm_clock_hertz", 1.98e9, every=True)
    run = changed(run, "hindmost_gpu_sm_clock_hertz", 1.98e9 / 1.08)
    assert the(changed(run, "hindmost_gpu_clocks_event_reasons", 0x40)).cause == "gpu_throttle"
    assert the(changed(run, "hindmost_gpu_clocks_event_reasons", 0)).cause == "compute"


def test_a_clock_that_was_as_low_before_is_not_what_began() -> None:
    """What did not change at the onset did not cause it."""
    run = changed(slow("compute", onset=60), "hindmost_gpu_sm_clock_hertz", 1.75e9)
    assert the(changed(run, "hindmost_gpu_clocks_event_reasons", 0x20)).cause == "compute"


def test_memory_of_another_process_alone_is_no_contention() -> None:
    """A process that shares a GPU slows all that runs on it, so a longer forward alone is this rank's own."""
    run = slow("gpu_contention")
    assert the(run).cause == "gpu_contention"
    others = np.median(run.steps["gpu_optimizer_ns"][run.steps["rank"] == 1])
    optimizer = np.where(run.steps["rank"] == 3, others, run.steps["gpu_optimizer_ns"]).astype(np.int64)
    assert the(replace(run, steps=run.steps | {"gpu_optimizer_ns": optimizer})).cause in ("compute", "unknown")


def test_a_rank_that_does_not_know_its_gpu_was_seen_on_it() -> None:
    """The agent says which rank computes on which GPU, where the process itself does not."""
    run = slow("gpu_throttle")
    known = run.ranks["gpu_uuid"].tolist()
    unknown = run.ranks | {"gpu_uuid": np.full(len(known), "")}
    assert the(replace(run, ranks=unknown)).cause == "compute"
    seen = [f'{{"gpu_uuid": "{gpu}", "job": "simulated-11", "rank": "{rank}"}}' for rank, gpu in enumerate(known)]
    more = {"name": np.full(8, "hindmost_gpu_rank_info"), "labels": np.array(seen), "value": np.ones(8)}
    more |= {"node": np.full(8, "node0000"), "time_ns": run.metrics["time_ns"][:8]}
    metrics = {name: np.concatenate([column, more[name]]) for name, column in run.metrics.items()}
    assert the(replace(run, ranks=unknown, metrics=metrics)).cause == "gpu_throttle"


def test_a_gpu_that_is_slow_in_everything_may_be_shared_unnoticed() -> None:
    """Where the owners of a GPU's memory were not recorded, a rank's own code is not blamed for what slows all work
    there."""
    run = slow("gpu_contention")
    kept = np.char.find(run.metrics["name"], "memory") < 0
    verdict = the(replace(run, metrics={name: column[kept] for name, column in run.metrics.items()}))
    assert (verdict.cause, verdict.partial) == ("unknown", "compute")
