"""Graphs of operations: what a slow worker costs, and that a heavier stage is nobody's fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.model import Job, Run

if TYPE_CHECKING:
    from hindmost_collector.verdict import Report


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
    table = {
        "rank": np.array(rank_, np.int32),
        "step": np.array(step_),
        "op": np.array(op),
        "start_ns": (np.array(start) * 1e6).astype(np.int64),
        "duration_ns": (np.array(duration) * 1e6).astype(np.int64),
        "seq": np.zeros(len(op), np.int64),
        "stage": np.array(stage, np.int32),
        "dp": np.array(replica, np.int32),
    }
    return judge(Run(Job("made", world_size=4), operations=table))


def test_a_slow_worker_is_named_at_what_its_repair_saves() -> None:
    """A worker that takes longer than its replica of the same stage is the straggler, costed against the mean."""
    verdict = report({(0, 0): 10, (1, 0): 20, (0, 1): 10, (1, 1): 10}).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(7.5)  # the mean of all is 12.5 ms


def test_a_heavier_stage_is_nobodys_fault() -> None:
    """A stage that takes longer on every replica has more work; no rank is named."""
    verdict = report({(0, 0): 10, (1, 0): 10, (0, 1): 20, (1, 1): 20}).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())


def test_a_job_of_equals_loses_nothing() -> None:
    """With all alike the replay is the ideal: slowdown 1."""
    whole = report({(0, 0): 10, (1, 0): 10, (0, 1): 10, (1, 1): 10})
    assert whole.what_if.slowdown == pytest.approx(1.0)
    assert [verdict.kind for verdict in whole.verdicts] == ["balanced"]
