"""Which measurement explains a delay: a slow or idle GPU, files, memory."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.causes.table import with_gpu_idle
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict

from tests.runs import made, only, only_verdict, rows_of, with_rows
from tests.scenarios.loads import counters, metrics


def slow(cause: str, **more: int) -> Run:
    return simulate(Scenario(seed=11, steps=120, faults=(Fault(cause, (3,), 0.12, **more),))).run


def the(run: Run) -> Verdict:
    (verdict,) = judge(run).verdicts
    assert verdict.ranks == (3,)
    return verdict


def changed(run: Run, name: str, value: float, every: bool = False, gpu: int = 3) -> Run:
    """The run with samples of one metric set, of one rank's GPU or of every GPU."""
    held = run.metrics["name"] == name
    if not every:
        held &= np.char.find(run.metrics["labels"], f"GPU-0000000{gpu}") >= 0
    assert held.any()
    return replace(run, metrics=run.metrics | {"value": np.where(held, value, run.metrics["value"])})


def test_idle_gpus_before_and_after_training_say_nothing_of_it() -> None:
    """Most samples may be of GPUs that idle at their highest clock; the steps' own samples decide."""
    run = slow("gpu_throttle")
    outside = {name: np.tile(column, 9) for name, column in run.metrics.items()}
    idle = outside["name"] == "hindmost_gpu_sm_clock_hertz"
    outside["value"] = np.where(idle, 1.98e9, outside["value"])
    outside["time_ns"] = outside["time_ns"] - np.repeat(np.arange(9), len(run.metrics["name"])) * 10**12 - 10**12
    assert the(with_rows(run, metrics=outside)).cause == "gpu_throttle"


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
    when = run.metrics["time_ns"][:8]
    more = table("metrics", node="node0000", name="hindmost_gpu_rank_info", labels=seen, time_ns=when, value=1.0)
    assert the(with_rows(replace(run, ranks=unknown), metrics=more)).cause == "gpu_throttle"


def test_a_gpu_that_is_slow_in_everything_may_be_shared_unnoticed() -> None:
    """Where owners of a GPU's memory were not recorded, no rank's code is blamed for what slows all work."""
    run = slow("gpu_contention")
    kept = np.char.find(run.metrics["name"], "memory") < 0
    verdict = the(only(run, metrics=kept))
    assert (verdict.cause, verdict.partial) == ("unknown", "compute")


BUSY = "hindmost_gpu_utilization_ratio"
WRITTEN = "hindmost_process_written_bytes_total"
WAITED = "hindmost_node_pressure_waiting_seconds_total"


def late_in_forward(busy: float) -> Run:
    """A job in which rank 1's forward on the GPU is 40 % of a step longer, that GPU being ``busy`` of the time."""
    run = simulate(Scenario(ranks=4, steps=100, seed=3, faults=(Fault("compute", (1,), 0.4),))).run
    return changed(changed(run, BUSY, 1.0, every=True), BUSY, busy, gpu=1)


@pytest.mark.parametrize(("busy", "cause"), [(1.0, "compute"), (0.65, "unknown")])
def test_what_an_idle_gpu_waits_for_is_its_host_s(busy: float, cause: str) -> None:
    """Idle, it computes nothing longer."""
    (verdict,) = judge(late_in_forward(busy)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), cause)


def test_a_host_that_is_late_for_an_unknown_reason_is_said_to_be() -> None:
    """The evidence says that the GPU had nothing to do, and that the reason was not measured."""
    (verdict,) = judge(late_in_forward(0.65)).verdicts
    assert any("its CPU launched work late" in sentence for sentence in verdict.evidence)


@pytest.mark.parametrize(
    ("shares", "idle", "delay", "found"),
    [
        ({"input": 15.0, "compute": 12.0}, 20.0, 30.0, {"input": 15.0, "compute": 10.0, "idle": 5.0}),
        # What a driver samples does not tell the tenth of what input leaves.
        ({"input": 15.0, "compute": 12.0}, 24.0, 25.0, {"input": 15.0, "compute": 0.0, "idle": 10.0}),
        # Backward hides half of the computing: a tenth of the delay was idling, and so nine tenths of all is computing.
        ({"compute": 8e6}, 0.4e6, 4e6, {"idle": 0.4e6, "compute": 7.2e6}),
        ({"compute": 3e6}, 0.4e6, 4e6, {"idle": 0.4e6, "compute": 3e6}),
    ],
)
def test_what_the_host_did_and_the_gpu_computed_is_not_idling_too(
    shares: dict[str, float], idle: float, delay: float, found: dict[str, float]
) -> None:
    assert with_gpu_idle(shares, idle, delay) == pytest.approx(found)


def recorded(*faults: Fault, gpus_per_node: int = 8) -> Run:
    """A job of 16 ranks on two nodes, or on one."""
    return simulate(Scenario(16, 80, seed=4, gpus_per_node=gpus_per_node, faults=faults)).run


def without(run: Run, name: str, holding: str = "") -> Run:
    """The same job, without samples of this metric."""
    keep = (run.metrics["name"] != name) | (np.char.find(run.metrics["labels"], holding) < 0)
    return only(run, metrics=keep)


def test_without_the_kernel_s_count_files_are_not_named() -> None:
    """Bytes alone are no waiting: the rank is named, its cause unknown."""
    verdict = only_verdict(without(recorded(Fault("io", (5,), 0.12)), WAITED, '"io"'))
    assert (verdict.ranks, verdict.cause) == ((5,), "unknown")


def test_on_one_node_a_rank_s_bytes_must_show_whose_files_they_are() -> None:
    """All ranks see the node's waiting alike: without bytes it may be any rank's."""
    verdict = only_verdict(without(recorded(Fault("io", (5,), 0.12), gpus_per_node=16), WRITTEN))
    assert (verdict.ranks, verdict.cause) == ((5,), "unknown")


def test_a_node_s_waiting_for_files_is_not_of_a_rank_that_hardly_reads_or_writes() -> None:
    """Another program waits there: a rank that collects garbage meanwhile is late for that."""
    run = recorded(Fault("io", (5,), 0.12), Fault("gc", (5,), 0.12))
    still = run.metrics["name"] == WRITTEN
    quiet = replace(run, metrics={**run.metrics, "value": np.where(still, 0.0, run.metrics["value"])})
    verdict = only_verdict(quiet)
    assert (verdict.ranks, verdict.cause) == ((5,), "unknown")
    assert not any("files" in sentence for sentence in verdict.evidence)


def test_a_slow_input_is_called_input_though_its_node_waits_for_its_files() -> None:
    """The phase says what the file was read for: files explain only what no phase does."""
    run = recorded(Fault("input", (5,), 0.12))
    files = np.char.find(run.metrics["labels"], '"io"') >= 0
    waits = (run.metrics["name"] == WAITED) & (run.metrics["node"] == "node0000") & files
    reads = run.metrics["name"] == WRITTEN
    seconds = (run.metrics["time_ns"] - run.metrics["time_ns"].min()) / 1e9
    value = np.where(waits, seconds * 0.5, np.where(reads, seconds * 1e8, run.metrics["value"]))
    verdict = only_verdict(replace(run, metrics={**run.metrics, "value": value}))
    assert (verdict.ranks, verdict.cause) == ((5,), "input")


def stalling(cause: str, duty: float = 0.15) -> Run:
    """A job of 16 ranks on two nodes, one of which stalls in some of 100 steps."""
    return simulate(Scenario(16, 100, seed=31, faults=(Fault(cause, (2,), 0.4, duty=duty),))).run


def test_waiting_for_memory_that_is_there_all_the_time_is_not_what_stalls() -> None:
    """The node stands still for as long as all stalls take, but in samples without a stall as in those with."""
    run = stalling("io")
    memory = np.char.find(run.metrics["labels"], '"memory"') >= 0
    waits = (run.metrics["name"] == WAITED) & (run.metrics["node"] == "node0000")
    seconds = (run.metrics["time_ns"] - run.metrics["time_ns"].min()) / 1e9
    value = np.where(waits, np.where(memory, seconds * 0.06, 0.0), run.metrics["value"])
    verdict = only_verdict(replace(run, metrics={**run.metrics, "value": value}))
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (2,), "unknown")
    assert not any("memory" in sentence for sentence in verdict.evidence)


def computes(rank_1: Any, *samples: tuple[str, float], read: bool = True) -> Run:
    """Two ranks compute 4 ms of each step, rank 1 this many of its own; ``samples`` are what rank 1 has a second.

    CPU time of rank 0 may not be ``read``."""
    steps, own = np.arange(300), np.array([np.full(300, 4.0), np.full(300, rank_1)])
    period = own.max(axis=0) + 0.1
    begin = np.cumsum(period) - period
    cpu = np.where((np.arange(2) == 1)[:, None] | read, own, -1e-6)
    times = {"start_ns": begin + own, "duration_ns": period - own, "self_ns": own, "cpu_ns": cpu}
    calls = rows_of(
        "collectives", op="all_reduce", step=-1, rank=np.arange(2)[:, None], comm=7, seq=steps, size=8, **times
    )
    seconds = range(int(begin[-1] / 1e3) + 2)
    each = [row for name, rate in samples for row in counters(name, {0: 0.0, 1: rate}, seconds)]
    more = {"metrics": metrics(each)} if each else {}
    return made(2, collectives=[calls], who={"rank": np.arange(2), "node": "node0"}, more=more)


def test_a_rank_computes_by_its_own_clock() -> None:
    """What its peer's CPU time was is not known: no more than that peer's self time."""
    (verdict,) = judge(computes(9.0, read=False)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), "compute")
    assert verdict.explained == pytest.approx(1.0)


def test_parts_of_a_peer_that_were_not_read_add_up_to_its_self_time() -> None:
    """Rank 1 computes 6 ms and queues 14, as both do all the time; rank 0 works 4 ms, in parts unknown."""
    run = computes(20.0, read=False)
    late = run.collectives["rank"] == 1
    parts = {f"{name}_ns": np.where(late, ms * 1_000_000, -1) for name, ms in (("cpu", 6), ("runqueue", 14))}
    queue = metrics(counters("runqueue_seconds", {0: 0.7, 1: 0.7}, range(8)))
    (verdict,) = judge(replace(run, collectives={**run.collectives, **parts}, metrics=queue)).verdicts
    assert verdict.cause == "compute"
    assert verdict.evidence[0] == (
        "16.0 ms delay per step, all of it computing (2.0 ms more CPU time; the rest is queueing)"
    )


@pytest.mark.parametrize(("queued", "cause"), [(0.5, "cpu_contention"), (0.1, "unknown")])
def test_a_rank_waits_for_a_cpu_by_its_samples_where_none_is_read_at_calls(queued: float, cause: str) -> None:
    """It is late for 5 ms of 9.1. Its process waits for a CPU for half of the time, or for a tenth."""
    run = computes(9.0, ("runqueue_seconds", queued))
    (verdict,) = judge(replace(run, collectives={**run.collectives, "cpu_ns": np.full(600, -1)})).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), cause)


@pytest.mark.parametrize(
    ("kernel", "reads", "size", "children", "cause"),
    [
        pytest.param(0.4, 30e3, 4e3, 0, "io", id="small files"),
        pytest.param(0.1, 30e3, 4e3, 0, "compute", id="most of it is the program's"),
        pytest.param(0.4, 500, 4e3, 0, "compute", id="few reads"),
        pytest.param(0.4, 5e3, 4e3, 0, "compute", id="no read takes 80 us of CPU time"),
        pytest.param(0.4, 30e3, 1e6, 0, "compute", id="large reads"),
        pytest.param(0.4, 30e3, 0, 0, "compute", id="nothing was read"),
        pytest.param(0.4, 30e3, 4e3, 2, "compute", id="another process may make them"),
    ],
)
def test_longer_computing_may_be_many_small_reads(
    kernel: float, reads: float, size: float, children: int, cause: str
) -> None:
    """Their time is the kernel's: CPU time of the rank, and no time in which it is blocked."""
    samples = ("system_seconds", kernel), ("read_calls", reads), ("read_characters", reads * size)
    run = computes(9.0, *samples)
    gauge = metrics([("hindmost_process_children", '{"rank": "1"}', second, children) for second in range(4)])
    (verdict,) = judge(with_rows(run, metrics=gauge)).verdicts
    assert (verdict.ranks, verdict.cause) == ((1,), cause)
    assert (verdict.partial == "small_reads") == (cause == "io") == ("small files" in verdict.advice[0])
