"""Blocks of [rank x step] take memory for known values only, however late a rank comes."""

import tracemalloc

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.encoding import columns_that_fill
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from tests.runs import made

RANKS, STEPS_NOW, SLOW, BEHIND = 256, 40, 3, 7
STEP_NS, MS = 50_000_000, 1_000_000


def job(backlog: int, *, collectives: bool) -> Run:
    """Steps of which one rank's forward is longer; and so many much earlier ones of another rank, sent late."""
    rank = np.concatenate([np.repeat(np.arange(RANKS), STEPS_NOW), np.full(backlog, BEHIND)])
    step = np.concatenate([np.tile(np.arange(STEPS_NOW) + 100_000, RANKS), 100_000 - backlog + np.arange(backlog)])
    late = np.where(rank == SLOW, 8 * MS, np.random.default_rng(1).integers(0, MS // 5, len(rank)))
    began = step * STEP_NS
    where = {"rank": rank, "step": step}
    if not collectives:
        phases = {"forward_ns": 20 * MS + late, "optimizer_ns": MS}
        steps = table("steps", **where, kind="train", start_ns=began, duration_ns=STEP_NS, **phases)
        return made(RANKS, steps=[steps], source="hindmost")
    call = {"op": "all_reduce", "comm": 9, "seq": step, "bytes": 1024}
    calls = table("collectives", **where, **call, start_ns=began + late, duration_ns=9 * MS - late)
    return made(RANKS, collectives=[calls], source="hindmost")


@pytest.mark.parametrize("collectives", [True, False])
def test_a_backlog_of_one_rank_makes_no_block_of_all(collectives: bool) -> None:
    """Minutes of one rank, which no other rank's rows are left of, change no verdict and take little memory."""
    alone = judge(job(0, collectives=collectives)).verdicts
    tracemalloc.start()
    beside = judge(job(30_000, collectives=collectives)).verdicts
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert [(one.kind, one.ranks, one.since_step) for one in beside] == [
        (one.kind, one.ranks, one.since_step) for one in alone
    ]
    assert alone[0].ranks == (SLOW,)
    assert peak < 200 << 20  # each of a dozen blocks of all those steps would be 61 MB


def test_what_ranks_have_in_common_stays() -> None:
    """Of a block that would be mostly empty the fullest columns are kept, and of those alike the later; no row of a
    block that would not be."""
    rank = np.concatenate([np.arange(2000), np.zeros(2000, np.int64)])
    step = np.concatenate([np.full(2000, 5000), np.arange(2000)])
    kept = columns_that_fill({"rank": rank, "step": step}, "step")["step"]
    assert (kept == 5000).sum() == 2000
    assert sorted(set(kept.tolist())) == [*range(2000 - (1 << 20) // 2000 + 1, 2000), 5000]
    small = {"rank": rank[:2100], "step": step[:2100]}
    assert columns_that_fill(small, "step") is small
