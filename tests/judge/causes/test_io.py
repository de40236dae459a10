"""Waiting for files: whose it is, and that it explains only what nothing else does."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.model import Run

from tests.runs import only_verdict

WAITED = "hindmost_node_pressure_waiting_seconds_total"
WRITTEN = "hindmost_process_written_bytes_total"


def recorded(*faults: Fault, gpus_per_node: int = 8) -> Run:
    """A job of 16 ranks on two nodes, or on one."""
    return simulate(Scenario(16, 80, seed=4, gpus_per_node=gpus_per_node, faults=faults)).run


def without(run: Run, name: str, holding: str = "") -> Run:
    """The same job, without samples of this metric."""
    keep = (run.metrics["name"] != name) | (np.char.find(run.metrics["labels"], holding) < 0)
    return replace(run, metrics={column: values[keep] for column, values in run.metrics.items()})


@pytest.mark.parametrize("gpus_per_node", [8, 16])
def test_a_rank_that_stands_still_for_files_is_named_with_its_cause(gpus_per_node: int) -> None:
    """Its node waits for files and disks beyond the others; on one node its own bytes show that it is the one."""
    verdict = only_verdict(recorded(Fault("io", (5,), 0.12), gpus_per_node=gpus_per_node))
    assert (verdict.ranks, verdict.cause) == ((5,), "io")
    assert any("file I/O" in sentence for sentence in verdict.evidence)


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


@pytest.mark.parametrize("cause", ["memory", "io"])
def test_what_a_node_stands_still_for_in_all_is_set_against_all_stalls(cause: str) -> None:
    """Samples span many steps: stalls in 15 % of these are not 15 % explained, but in full."""
    verdict = only_verdict(stalling(cause))
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (2,), cause)


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
