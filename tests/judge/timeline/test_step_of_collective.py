"""Collectives are put into marked steps where evaluation breaks their pattern."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, table
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, UNMEASURED, Run, Table

from tests.runs import MS, made

SLOW, STEPS, EVERY = 20, 120, 12


def run(slow: int, ahead: int = 0) -> Run:
    """Two ranks over gloo: a gather of lengths and a synchronisation a step, eight gathers after every twelfth. Rank 1
    computes ``slow`` ms longer before the synchronisation, and its clock is ``ahead`` by so many ns."""
    random = np.random.default_rng(3)
    calls: list[Table] = []
    marks: list[Table] = []
    now, gathers, syncs = 1_000 * MS, 0, 0
    for step in range(STEPS):
        work = 60 * MS + (random.normal(0, 0.5, 2) * MS).astype(np.int64) + np.array([0, slow * MS])
        met = now + 3 * MS + int(work.max()) + 2 * MS
        for rank in range(2):
            clock, ready = rank * ahead, now + 3 * MS + int(work[rank])
            calls.append(_call(rank, 1, "all_gather", gathers, now + MS + clock, 2 * MS, MS))
            calls.append(_call(rank, 2, "ddp_sync", syncs, ready + clock, met - ready, int(work[rank])))
            sync, forward = met - ready, ready - now
            row = {"start_ns": now + clock, "duration_ns": met + MS - now, "sync_ns": sync, "forward_ns": forward}
            marks.append(table("steps", rank=[rank], step=step, kind="train", **row))
        gathers, syncs, now = gathers + 1, syncs + 1, met + MS
        for _ in range(8 if step % EVERY == EVERY - 1 else 0):
            calls += [_call(rank, 1, "all_gather", gathers, now + MS + rank * ahead, 2 * MS, MS) for rank in range(2)]
            gathers, now = gathers + 1, now + 4 * MS
    return made(2, steps=marks, collectives=calls, who={"node": "here", "framework": "torch"})


def _call(rank: int, comm: int, op: str, seq: int, start: int, took: int, own: int) -> Table:
    row = {"comm": comm, "op": op, "seq": seq, "bytes": 64, "self_ns": own}
    return table("collectives", rank=[rank], start_ns=start, duration_ns=took, **row)


@pytest.mark.parametrize("ahead", [0, 10**13])
def test_a_slow_rank_is_named_where_evaluation_breaks_the_pattern(ahead: int) -> None:
    """One collective in ten is of no training step: its waits still tell who holds the job back, on any clocks."""
    (verdict,) = judge(run(SLOW, ahead)).verdicts
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    assert verdict.cost_ms_per_step == pytest.approx(SLOW, rel=0.1)


def test_equals_are_balanced_by_their_collectives() -> None:
    """No rank is late for the synchronisation."""
    report = judge(run(0))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert report.ranks[0].wait_ms is not None


def test_what_repeats_within_the_first_step_is_no_step() -> None:
    """A job that has just begun has two marks and forty equal buckets: half a second shows no pattern."""
    calls = [
        _call(rank, 2, "all_reduce", number, 1_000 * MS + number * 2 * MS + rank * MS // 2, 2 * MS - rank * MS // 2, MS)
        for number in range(40)
        for rank in range(2)
    ]
    marks = [
        table("steps", rank=[rank], step=step, kind="train", start_ns=600 * MS + step * 400 * MS, duration_ns=400 * MS)
        for step in range(2)
        for rank in range(2)
    ]
    together = concatenate("collectives", calls)
    together["flags"] = np.full_like(together["flags"], GPU_TIME)
    together["self_ns"] = np.full_like(together["self_ns"], UNMEASURED)
    begun = replace(run(0), steps=concatenate("steps", marks), collectives=together)
    assert [(verdict.kind, verdict.ranks) for verdict in judge(begun).verdicts] == [("insufficient_data", ())]
