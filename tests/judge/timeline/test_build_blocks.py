"""Blocks of [rank x step]: which steps and rows are in them, and how few are enough."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.encoding import chosen, columns_that_fill
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, PROFILED, Job, Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline import matching, phases
from hindmost_judge.timeline.steps import settings_of_few_profiled

from tests.runs import blocks_of, made

RANKS = 256
STEPS_NOW = 40
SLOW = 3
BEHIND = 7
STEP_NS = 50_000_000
MS = 1_000_000


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
    """Of a block that would be mostly empty the fullest columns are kept, and of those alike the later."""
    rank = np.concatenate([np.arange(2000), np.zeros(2000, np.int64)])
    step = np.concatenate([np.full(2000, 5000), np.arange(2000)])
    kept = columns_that_fill({"rank": rank, "step": step}, "step")["step"]
    assert (kept == 5000).sum() == 2000
    assert sorted(set(kept.tolist())) == [*range(2000 - (1 << 20) // 2000 + 1, 2000), 5000]
    small = {"rank": rank[:2100], "step": step[:2100]}
    assert columns_that_fill(small, "step") is small


@pytest.mark.parametrize(
    ("marked", "kinds", "relaxed"),
    [
        (range(6), [PROFILED] * 6, True),
        (range(-3, 6), ["train"] * 3 + [PROFILED] * 6, True),
        (range(6), [PROFILED] * 5 + ["train"], False),
        (range(5), [PROFILED] * 5, False),  # of the last step nothing is known
        (range(100, 106), ["train"] * 6, False),
        (range(100, 106), [PROFILED] * 6, False),
        (range(0), [], False),
    ],
)
def test_thresholds_are_of_few_steps_where_each_was_profiled(marked: range, kinds: list[str], relaxed: bool) -> None:
    """Of steps that others do not mark nothing is known: that none is in the table does not say that all were."""
    blocks = blocks_of(simulate(Scenario(ranks=4, steps=30, seed=7)).run)
    found = settings_of_few_profiled(
        replace(blocks, steps=np.arange(6)), table("steps", step=list(marked), kind=kinds, rank=0), DEFAULT
    )
    assert (found != DEFAULT) is relaxed


def _of_the_last(run: Run, steps: int) -> Run:
    """The same, as we record it, with the collectives of the last steps only."""
    marks, calls = run.steps, run.collectives
    since = marks["start_ns"][marks["step"] == marks["step"].max() - steps + 1].max()
    return replace(run, job=replace(run.job, source=Job.source), collectives=chosen(calls, calls["start_ns"] >= since))


@pytest.mark.parametrize(("steps", "joined"), [(8, False), (20, True)])
def test_collectives_not_judged_are_not_joined(monkeypatch: pytest.MonkeyPatch, steps: int, joined: bool) -> None:
    """Those of eight steps are not looked at; whom the marks name is named either way."""
    made = simulate(Scenario(8, 60, seed=3, gpu_bound="compute", faults=(Fault("compute", (5,), 0.2),)))
    run, asked = _of_the_last(made.run, steps), []
    monkeypatch.setattr(matching, "grid", lambda run, grid=matching.grid: asked.append(run) or grid(run))
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks, bool(asked)) == ("straggler", (5,), joined)


def test_a_step_that_was_recorded_twice_counts_as_it_was_measured_last() -> None:
    """Of the rows of one rank's step the last that measured a column has it; the others keep what they have."""
    table = {
        "rank": np.array([0, 1, 1, 1]),
        "step": np.array([4, 4, 4, 5]),
        "input_ns": np.array([1, 2, 3, 7]),
        "gc_ns": np.array([-1, 6, -1, -1]),
    }
    ranks, numbers = np.array([0, 1]), np.array([4, 5])
    found = phases.pivots(table, ranks, numbers)
    np.testing.assert_array_equal(found["input"], [[1, np.nan], [3, 7]])
    np.testing.assert_array_equal(found["gc"], [[np.nan, np.nan], [6, np.nan]])
    once = {name: column[[0, 1, 3]] for name, column in table.items()}
    np.testing.assert_array_equal(phases.pivots(once, ranks, numbers)["input"], [[1, np.nan], [2, 7]])


@pytest.mark.parametrize(("ahead", "lasts"), [(0, 20), (3, 20), (0, 2)])
def test_alike_collectives_of_a_gpu_are_of_the_step_that_launched_them(ahead: int, lasts: int) -> None:
    """Layers of a tensor-parallel model reduce the same bytes at one pace: only launches tell where a step begins.

    A host may be steps ahead of its GPU. What it launches in an evaluation is of no step. What it launches after a mark
    of ``lasts`` ms is of that step.
    """
    ranks, steps, each, evaluated = np.arange(4), np.arange(40), 4, 20
    began = 1_000 * MS + 20 * MS * steps + 5 * MS * (steps >= evaluated)
    rank, step, place = (one.ravel() for one in np.meshgrid(ranks, steps, np.arange(each), indexing="ij"))
    mark = {"rank": np.repeat(ranks, 40), "step": np.tile(steps, 4), "start_ns": np.tile(began, 4)}
    before = began[evaluated] - 5 * MS
    marks = [
        table("steps", **mark, kind="train", duration_ns=lasts * MS),
        table("steps", rank=ranks, step=7, kind="eval", start_ns=before, duration_ns=5 * MS),
    ]
    call = {"op": "all_reduce", "comm": 9, "bytes": 1 << 20, "flags": GPU_TIME, "duration_ns": MS}
    launched, seq = began[step] + place * MS, step * each + place + (step >= evaluated)
    calls = [
        table(
            "collectives",
            rank=rank,
            seq=seq,
            start_ns=launched + MS * (20 * ahead + 4 * place),
            enqueue_ns=launched,
            **call,
        ),
        table(
            "collectives",
            rank=ranks,
            seq=evaluated * each,
            start_ns=before + 20 * MS * ahead,
            enqueue_ns=before,
            **call,
        ),
    ]
    found = blocks_of(made(4, steps=marks, collectives=calls, source="hindmost"))
    assert found.steps.tolist() == steps[1:].tolist()
    assert found.collectives == 39 * each
    assert found.step_ns == 20 * MS


@pytest.mark.parametrize(
    ("first", "kind", "of"),
    [
        (0, "train", [0, 0, 0, 1, 1, 1, -1, 2, 2, 2, 3, 3, 3, 4, 4, 4, -1]),
        (0, "eval", [0, 0, 0, -1, -1, -1, -1, 2, 2, 2, 3, 3, 3, 4, 4, 4, -1]),
        (2, "train", [-1] * 17),
    ],
)
def test_launches_are_of_the_mark_before_them_up_to_the_usual_number(first: int, kind: str, of: list[int]) -> None:
    """More are an evaluation without a mark. Where marks begin late they tell none of the steps."""
    step = np.arange(first, 5)
    kinds = np.where(step == 1, kind, "train")
    launched = np.array([0, 4, 8, 20, 24, 28, 32, 40, 44, 48, 60, 64, 68, 80, 84, 88, 92])
    run = made(
        1,
        steps=[table("steps", rank=0, step=step, start_ns=20 * step, duration_ns=5, kind=kinds)],
        collectives=[table("collectives", rank=0, op="all_reduce", flags=GPU_TIME, enqueue_ns=launched, step=-1)],
    )
    once = phases.with_steps_of_launches(run)
    assert once.collectives["step"].tolist() == of
    assert phases.with_steps_of_launches(once).collectives["step"].tolist() == of
