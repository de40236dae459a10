"""Recordings of real training without some files are judged rightly by the rest, or reported as not enough."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hindmost_collector.recordings.load import load
from hindmost_judge.judge import judge
from hindmost_judge.model import UNMEASURED

from tests.recordings import unpacked


def _no_steps(name: str) -> bool:
    return not name.startswith("steps.")


@pytest.mark.parametrize("name", ["fsdp-host-bound", "pp2-dp2-host-bound"])
def test_of_hosts_that_only_launch_none_is_named_without_marks(name: str, tmp_path: Path) -> None:
    """The report says whose GPU waits for its host, and that the host's speed is unknown; no rank is cleared."""
    (verdict,) = judge(load(unpacked(name, tmp_path, _no_steps))).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert re.match(r"rank \d", verdict.evidence[0])


@pytest.mark.parametrize(
    ("name", "rank", "cost_ms"),
    [("ddp-host-bound-slow-input-rank1", 1, 3.0), ("pp2-dp2-slow-input-rank0", 0, 37.6)],
)
def test_a_slow_host_costs_what_it_is_slower_by(name: str, rank: int, cost_ms: float, tmp_path: Path) -> None:
    """It is late by what it takes longer between two launches than the others need, not by all that they are ahead."""
    verdicts = judge(load(unpacked(name, tmp_path, _no_steps))).verdicts
    assert {verdict.ranks for verdict in verdicts} == {(rank,)}
    assert verdicts[0].cost_ms_per_step == pytest.approx(cost_ms, rel=0.4)


def _without_csv_of(name: str, rank: int, to: Path) -> Path:
    """A recording without one rank's collectives: process ids are in the ranks' order."""
    unpacked(name, to)
    sorted(to.rglob("prof.*.csv"), key=lambda path: int(path.name.split(".")[1]))[rank].unlink()
    return to


@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_slow_backward_is_seen_where_another_rank_has_no_collectives(rank: int, tmp_path: Path) -> None:
    """The log of the steps does not show it; the collectives of the ranks that have them do."""
    (verdict,) = judge(load(_without_csv_of("ddp-slow-backward-rank2", rank, tmp_path))).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (2,), "compute")
    assert verdict.cost_ms_per_step == pytest.approx(3.6, rel=0.2)


def test_a_slow_backward_of_a_rank_without_collectives_clears_no_rank(tmp_path: Path) -> None:
    """Its steps do not show it, and whether the others wait for it nothing tells."""
    (verdict,) = judge(load(_without_csv_of("ddp-slow-backward-rank2", 2, tmp_path))).verdicts
    assert verdict.kind == "insufficient_data"


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_where_hosts_launch_all_the_time_one_without_collectives_is_not_named(rank: int, tmp_path: Path) -> None:
    """Events around its forward time its host's launching."""
    verdicts = judge(load(_without_csv_of("fsdp-host-bound", rank, tmp_path))).verdicts
    assert not [verdict.ranks for verdict in verdicts if verdict.ranks]
    assert "balanced" not in {verdict.kind for verdict in verdicts}


@pytest.mark.parametrize("rank", [0, 3])
@pytest.mark.parametrize("name", ["fsdp-host-bound", "pp2-dp2-host-bound"])
def test_of_hosts_that_only_launch_one_without_enqueue_times_is_not_named(name: str, rank: int, tmp_path: Path) -> None:
    """When it launched is unknown: since others' GPUs wait for their hosts, its own may, too."""
    run = load(unpacked(name, tmp_path))
    mine = run.collectives["rank"] == rank
    blind = run.collectives | {"enqueue_ns": np.where(mine, UNMEASURED, run.collectives["enqueue_ns"])}
    assert [verdict.ranks for verdict in judge(replace(run, collectives=blind)).verdicts if verdict.ranks] == []


def _steps_alone(name: str) -> bool:
    return name.startswith("steps.")


@pytest.mark.parametrize("name", ["ddp-slow-backward-rank2", "fsdp-host-bound", "pp2-dp2-host-bound"])
def test_a_log_of_the_steps_alone_clears_no_rank_and_names_no_stage(name: str, tmp_path: Path) -> None:
    """Who is slow in backward is in no forward; where hosts are waited for, a forward times the host's launching."""
    (verdict,) = judge(load(unpacked(name, tmp_path, _steps_alone))).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())


def test_a_slow_input_is_seen_in_a_log_of_the_steps_alone(tmp_path: Path) -> None:
    """No rank waits for others there; the other replica's stage is not named for its longer forward."""
    (verdict,) = judge(load(unpacked("pp2-dp2-slow-input-rank0", tmp_path, _steps_alone))).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (0,), "input")


def _without_steps_of(name: str, rank: int, to: Path) -> Path:
    return unpacked(name, to, lambda one: one != f"steps.{rank}.jsonl")


@pytest.mark.parametrize("rank", [0, 1, 2, 3])
@pytest.mark.parametrize("name", ["fsdp-host-bound", "pp2-dp2-host-bound"])
def test_where_hosts_launch_all_the_time_one_without_a_log_is_not_named(name: str, rank: int, tmp_path: Path) -> None:
    """How long its host takes its operations tell: all that its GPU idles is the lead of the others'."""
    verdicts = judge(load(_without_steps_of(name, rank, tmp_path))).verdicts
    assert [verdict.ranks for verdict in verdicts if verdict.ranks] == []


@pytest.mark.parametrize(("name", "rank"), [("ddp-host-bound-slow-input-rank1", 1), ("pp2-dp2-slow-input-rank0", 0)])
def test_a_slow_host_without_a_log_is_named_by_its_operations(name: str, rank: int, tmp_path: Path) -> None:
    """Between two of them it takes longer than the others' hosts do at their fastest."""
    verdicts = judge(load(_without_steps_of(name, rank, tmp_path))).verdicts
    assert {verdict.ranks for verdict in verdicts if verdict.ranks} == {(rank,)}
