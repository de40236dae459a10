"""Operations of which only durations are known: who is short in one of its group came late for it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hindmost_collector.formats.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, Run

from tests.runs import made

RANKS, COUNT = 4, 400
TRANSFER, WAIT = 0.2e6, 0.5e6


def _operations(comm: Any, ranks: Any, count: int, late: int | None) -> dict[str, Any]:
    rank = np.repeat(ranks, count)
    noise = np.random.default_rng(3).uniform(0, 0.02e6, rank.size)
    took = TRANSFER + np.where(rank == late, 0.0, WAIT if late in ranks else 0.0) + noise
    return {"rank": rank, "comm": np.full(rank.size, comm), "seq": np.tile(np.arange(count), len(ranks)), "took": took}


def _run(*parts: dict[str, Any]) -> Run:
    joined = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    collectives = table(
        "collectives",
        rank=joined["rank"],
        comm=joined["comm"],
        seq=joined["seq"],
        op=["all_reduce"] * len(joined["rank"]),
        start_ns=-1,
        duration_ns=joined["took"].astype(np.int64),
        bytes=1 << 20,
        flags=GPU_TIME,
        peer=-1,
    )
    return made(RANKS, collectives=[collectives], source="a trace", pace_ns=3e6)


@pytest.mark.parametrize("barriers", [0, 2])
def test_whom_all_others_wait_for_is_named(barriers: int) -> None:
    """A communicator that is met now and then only does not keep the ranks' own from telling."""
    everyone = np.arange(RANKS)
    parts = [_operations(7, everyone, COUNT, late=1)]
    parts += [_operations(9, everyone, barriers, late=None)] if barriers else []
    (verdict,) = judge(_run(*parts)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx(WAIT / 1e6, rel=0.05)


def test_of_several_groups_no_rank_is_named_or_cleared() -> None:
    """Who is late for one may have waited in another before, and nothing says when."""
    pairs = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((7, (0, 1)), (8, (2, 3)))]
    across = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((10, (0, 2)), (11, (1, 3)))]
    (verdict,) = judge(_run(*pairs, *across)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert "ranks meet in several groups" in verdict.evidence[0]
