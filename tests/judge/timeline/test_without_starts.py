"""Operations of which only durations are known: who is short in one of its group came late for it."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, Run, Table

from tests.runs import made, rows_of

RANKS, COUNT = 4, 400
TRANSFER, WAIT = 0.2, 0.5


def _operations(comm: int, ranks: Any, count: int, late: int | None) -> Table:
    ranks = np.asarray(ranks)[:, None]
    noise = np.random.default_rng(3).uniform(0, 0.02, (len(ranks), count))
    took = TRANSFER + np.where(ranks == late, 0.0, WAIT if late in ranks else 0.0) + noise
    call = {"comm": comm, "seq": np.arange(count), "step": -1, "op": "all_reduce", "bytes": 1 << 20, "flags": GPU_TIME}
    return rows_of("collectives", rank=ranks, duration_ns=took, **call)


def _run(*parts: Table) -> Run:
    return made(RANKS, collectives=parts, source="a trace", pace_ns=3e6)


@pytest.mark.parametrize("barriers", [0, 2])
def test_whom_all_others_wait_for_is_named(barriers: int) -> None:
    """A communicator that is met now and then only does not keep the ranks' own from telling."""
    everyone = np.arange(RANKS)
    parts = [_operations(7, everyone, COUNT, late=1)]
    parts += [_operations(9, everyone, barriers, late=None)] if barriers else []
    (verdict,) = judge(_run(*parts)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx(WAIT, rel=0.05)


def test_of_several_groups_no_rank_is_named_or_cleared() -> None:
    """Who is late for one may have waited in another before, and nothing says when."""
    pairs = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((7, (0, 1)), (8, (2, 3)))]
    across = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((10, (0, 2)), (11, (1, 3)))]
    (verdict,) = judge(_run(*pairs, *across)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert "ranks meet in several groups" in verdict.evidence[0]
