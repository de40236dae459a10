"""Operations that differ at one place of a communicator, in a job that goes on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from hindmost_collector.judge import judge

from tests.scenarios.loads import Load, make

if TYPE_CHECKING:
    from hindmost_collector.model import Run


def differing(ranks: list[int], first: int, source: str = "hindmost") -> Run:
    """A healthy job in which these ranks run a broadcast at every tenth number from ``first`` on."""
    run = make(Load(ranks=4, steps=80))
    c = run.collectives
    odd = np.isin(c["rank"], ranks) & (c["seq"] >= first) & ((c["seq"] - first) % 10 == 0)
    op = np.where(odd, "broadcast", c["op"])
    return replace(run, job=replace(run.job, source=source), collectives=c | {"op": op})


def kinds(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(verdict.kind, verdict.ranks) for verdict in judge(run).verdicts]


def test_whoever_runs_another_operation_than_the_rest_is_named() -> None:
    """NCCL pairs up what it is given: nobody hangs, and the results are wrong."""
    (verdict,) = judge(differing([1], 40)).verdicts
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
    assert "rank 1 ran broadcast as number 40" in verdict.evidence[0]
    assert "at 4 places" in verdict.evidence[1]


def test_where_nobody_can_tell_who_is_wrong_nobody_is_named() -> None:
    """Two against two; numbers that never agreed; a recorder whose numbers may count something else."""
    for run in (differing([1, 2], 40), differing([1], 5), differing([1], 40, source="elsewhere")):
        assert ("desync", (1,)) not in kinds(run)
        assert all(kind != "desync" for kind, _ in kinds(run))
