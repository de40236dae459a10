"""Graphs of operations: what a slow worker costs, and that a heavier stage is no worker's fault."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.settings import Settings
from hindmost_judge.verdict.schema import Report

from tests.runs import made, ns

TABLES = ("rank", "node", "stage", "cause", "phase")


def report(work_ms: dict[tuple[int, int], float]) -> Report:
    """Two stages of two replicas, three steps of one micro-batch; ``work_ms`` is forward by (replica, stage)."""
    found: list[tuple[int, int, str, float, float, int, int]] = []
    for step in range(3):
        for dp in range(2):
            first, last = work_ms[dp, 0], work_ms[dp, 1]
            end = max(sum(work_ms[each, stage] for stage in range(2)) for each in range(2)) + 1
            rank = [dp, 2 + dp]
            found += [
                (rank[0], step, "forward-compute", 0, first, 0, dp),
                (rank[0], step, "forward-send", first, 1, 0, dp),
                (rank[1], step, "forward-recv", 0, first + 1, 1, dp),
                (rank[1], step, "forward-compute", first + 1, last, 1, dp),
                (rank[1], step, "grads-reduce-scatter", first + 1 + last, end + 1 - first - 1 - last, 1, dp),
            ]
    rank_, step_, op, start, duration, stage, replica = zip(*found, strict=True)
    where = {"rank": rank_, "step": step_, "op": op, "seq": 0, "stage": stage, "dp": replica}
    operations = table("operations", **where, start_ns=ns(start), duration_ns=ns(duration))
    return judge(made(4, more={"operations": operations}))


@pytest.mark.parametrize(
    ("work_ms", "kind", "ranks", "cost"),
    [
        # Longer than its replica of the same stage; the mean of all is 12.5 ms.
        ({(0, 0): 10, (1, 0): 20, (0, 1): 10, (1, 1): 10}, "straggler", (1,), pytest.approx(7.5)),
        # A stage that takes longer on every replica has more work, and is no rank's fault.
        ({(0, 0): 10, (1, 0): 10, (0, 1): 20, (1, 1): 20}, "uneven_workload", (), pytest.approx(5.0)),
        ({(0, 0): 10, (1, 0): 10, (0, 1): 10, (1, 1): 10}, "balanced", (), None),
    ],
)
def test_a_worker_is_slow_against_its_stage(
    work_ms: dict[tuple[int, int], float], kind: str, ranks: tuple[int, ...], cost: Any
) -> None:
    """It is named at what its repair saves, against the mean; a job of equal replicas loses nothing."""
    whole = report(work_ms)
    found = whole.verdicts[0]
    assert (found.kind, found.ranks, found.cost_ms_per_step) == (kind, ranks, cost)
    assert (whole.what_if.slowdown == pytest.approx(1.0)) == (kind != "straggler")


def test_a_slow_worker_s_waste_is_reported_by_worker_stage_cause_and_phase() -> None:
    """Forward that is longer on one worker of the first stage is that worker's and its stage's; no node is named."""
    whole = report({(0, 0): 10, (1, 0): 20, (0, 1): 10, (1, 1): 10})
    waste = whole.what_if.waste
    assert waste is not None
    assert waste.lost_ms == pytest.approx((whole.what_if.step_ms or 0) - (whole.what_if.ideal_step_ms or 0))
    reported = {name: {row.name: row.ms_per_step for row in getattr(waste, f"by_{name}")} for name in TABLES}
    assert reported["node"] == {}
    assert reported["rank"] == pytest.approx({"1": reported["phase"]["forward"]})
    assert reported["stage"] == pytest.approx({"0": reported["phase"]["forward"]})
    assert reported["cause"]["compute"] == pytest.approx(waste.lost_ms - waste.rest_ms)
    for shares in reported.values():
        assert sum(shares.values()) <= waste.lost_ms * (1 + 1e-9)


def test_no_threshold_names_workers_that_cost_nothing() -> None:
    """Where any saving is enough to name a worker, none is named that saves nothing."""
    run = trace(2, 2, 0.0, {}, each=0.0)
    assert [verdict.kind for verdict in judge(run, Settings(min_cost=0.0)).verdicts] == ["balanced"]


def trace(
    replicas: int, stages: int, swing: float, slow: dict[tuple[int, int], float], seed: int = 1, each: float = 0.01
) -> Run:
    """Thirty steps of eight micro-batches of uneven length; ``slow`` workers by (replica, stage) take longer by that.
    Healthy workers differ by ``each`` from operation to operation. All meet at the end of a step."""
    random = np.random.default_rng(seed)
    length = np.exp(random.normal(0, swing, (30, replicas, 1, 1, 8)))
    slower = np.ones((replicas, stages, 1, 1))
    for worker, factor in slow.items():
        slower[worker] += factor
    direction = np.array([[10.0], [20.0]])
    work = direction * length * slower * random.normal(1, each, (30, replicas, stages, 2, 8))
    ends = work.reshape(30, replicas, stages, 16).cumsum(axis=-1)
    met = ends[..., -1:]  # where all meet, 1 ms after the last has come
    start = np.concatenate([ends - work.reshape(ends.shape), met], axis=-1)
    took = np.concatenate([work.reshape(ends.shape), met.max(axis=(1, 2), keepdims=True) + 1 - met], axis=-1)
    step, dp, stage, place = (index.ravel() for index in np.indices(start.shape))
    names = np.array(["forward-compute", "backward-compute", "optimizer-clip-main-grad"])
    where = {"rank": stage * replicas + dp, "step": step, "stage": stage, "dp": dp}
    what = {"op": names[place // 8], "seq": place % 8, "micro_batch": place % 8}
    operations = table("operations", **where, **what, start_ns=ns(start.ravel()), duration_ns=ns(took.ravel()))
    return made(replicas * stages, more={"operations": operations})


@pytest.mark.parametrize(("replicas", "stages"), [(4, 2), (2, 4), (4, 4), (8, 4)])
def test_micro_batches_of_uneven_length_are_no_workers_fault(replicas: int, stages: int) -> None:
    """Of eight of them, in thirty steps, chance gives some replica a few per cent more to do: none is slow."""
    for seed in range(64 // (replicas * stages)):
        (verdict,) = judge(trace(replicas, stages, 0.4, {}, seed)).verdicts
        assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())
        assert "micro-batches differ" in verdict.evidence[0]


@pytest.mark.parametrize(("replicas", "stages"), [(4, 2), (2, 4), (8, 4)])
def test_a_slow_worker_is_found_among_micro_batches_of_uneven_length(replicas: int, stages: int) -> None:
    """Its micro-batches are longer in its stage than in the others."""
    report = judge(trace(replicas, stages, 0.4, {(1, 1): 0.08}))
    assert [verdict.ranks for verdict in report.verdicts if verdict.ranks] == [(replicas + 1,)]


def test_a_replica_that_is_slow_in_all_stages_is_named() -> None:
    """Its micro-batches are persistently longer: that is its host, and no chance of their lengths."""
    report = judge(trace(4, 2, 0.1, {(1, 0): 0.2, (1, 1): 0.2}))
    assert [verdict.ranks for verdict in report.verdicts if verdict.ranks] == [(1, 5)]


def test_workers_that_differ_as_all_do_are_not_named() -> None:
    """One is 2 % above the others of its stage, others as much below: chance, where steps differ by a tenth."""
    for replicas, stages in ((4, 1), (2, 2)):
        named = [judge(trace(replicas, stages, 0.1, {}, seed)).verdicts[0].ranks for seed in range(20)]
        assert named == [()] * 20
