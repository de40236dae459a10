"""Checkpoints that one rank writes for all are planned: no rank is named for them, nothing hides in them."""

import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, select, table
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import uneven
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.overview import lengthened
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.schema import Report
from hindmost_judge.whatif.waste import aside

from tests.runs import blocks_of, named
from tests.scenarios import loads

STEPS, STEP_MS = 150, 100.0
NO_STEPS = table("steps", rank=[])


def _blocks(job: Scenario) -> Blocks:
    return blocks_of(simulate(job).run)


def _writing(ranks: int, written: dict[int, tuple[slice, float]]) -> Blocks:
    """A job in which each of these ranks writes in these steps, for so many steps' time, and is as late for that."""
    calm = _blocks(Scenario(ranks, STEPS + 3, 1, step_ms=STEP_MS))
    took = np.full_like(calm.delay, np.nan)
    for rank, (steps, size) in written.items():
        took[rank] = 0.0
        took[rank, steps] = size * calm.step_ns
    return replace(calm, delay=calm.delay + np.nan_to_num(took), parts=calm.parts | {"checkpoint": took})


def _late(blocks: Blocks, rank: int) -> float:
    """How late the rank is for checkpoints once planned ones are aside, at most, in steps."""
    took = np.nan_to_num(blocks.parts["checkpoint"][rank]) > 0
    return float(aside(blocks, NO_STEPS, DEFAULT)[0].delay[rank, took].max() / blocks.step_ns)


def _said(report: Report) -> str:
    """What limits the job, from a tenth of its time on; else the note."""
    bound = report.job.bound
    return bound.evidence if bound is not None and bound.by in ("checkpoint", "serial") else " ".join(report.notes)


def _share(text: str) -> float:
    """``0.13`` of ``... (13 %)``."""
    return float(text.rpartition("(")[2].split("%")[0]) / 100


def test_what_the_note_says_that_checkpoints_cost_is_so() -> None:
    """The others wait for three steps each time: 13 % of the job's time."""
    job = Scenario(8, STEPS, 3, step_ms=STEP_MS, checkpoint_every=20, warmup=0)
    reported = _said(judge(simulate(job).run))
    cost = simulate(job).truth.total_ns / simulate(replace(job, checkpoint_every=0)).truth.total_ns - 1
    assert _share(reported) == pytest.approx(cost / (1 + cost), rel=0.1)


def test_a_checkpoint_costs_as_much_where_a_barrier_follows_it() -> None:
    """The others wait where no other step has a collective."""
    run, each = simulate(Scenario(4, STEPS, 3, step_ms=STEP_MS)).run, int(4 * STEP_MS * 1e6)
    steps, calls = dict(run.steps), dict(run.collectives)
    held = steps["step"] % 20 == 10
    steps["start_ns"] = steps["start_ns"] + (steps["step"] - 11) // 20 * each + each
    calls["start_ns"] = calls["start_ns"] + (calls["step"] - 11) // 20 * each + each
    steps["duration_ns"] = steps["duration_ns"] + held * each
    steps["checkpoint_ns"] = np.where(held & (steps["rank"] == 0), each, -1)
    report = judge(replace(run, steps=steps, collectives=calls))
    bound, mean = report.job.bound, report.job.step_ms["mean"]
    assert bound is not None
    assert bound.by == "checkpoint"
    assert _share(bound.evidence) == pytest.approx(4 * STEP_MS / 20 / (mean or 0.0), rel=0.15)
    assert not [one for one in report.verdicts if one.ranks]


def test_files_that_all_ranks_write_are_a_note_where_cpus_limit_the_job() -> None:
    """Every 50 steps for 400 ms: a step takes 80 ms, and all wait for a CPU in it. No rank waits for another."""
    run = loads.make(loads.Load(ranks=2, steps=200, compute=20.0, transfer=50.0))
    calls, each = run.collectives, np.int64(400e6)
    start = calls["start_ns"] + (calls["seq"] + 1) // 50 * each
    writes = calls["seq"] % 50 == 49
    calls = calls | {"start_ns": start, "self_ns": calls["self_ns"] + each * writes}
    files = table(
        "intervals", rank=calls["rank"][writes], name="file_write", start_ns=start[writes] - each, duration_ns=each
    )
    queued = loads.counters("runqueue_seconds", {0: 0.9, 1: 0.9}, range(15))
    report = judge(replace(run, collectives=calls, intervals=files, metrics=loads.metrics(queued)))
    (note,) = report.notes
    assert (report.job.bound.by if report.job.bound else None, report.verdicts[0].ranks) == ("cpu", ())
    assert note.startswith("writing files: ranks 0 and 1 in 4 of ")
    assert _share(note) == pytest.approx(8 / 80, rel=0.1)


@pytest.mark.parametrize("seed", [2, 5])
def test_a_fault_among_checkpoints_is_named_as_without_them(seed: int) -> None:
    """Of another rank, and of the one that writes."""
    for rank in (0, 5):
        job = Scenario(8, STEPS, seed, varying_lengths=0.1, faults=(Fault("input", (rank,), 0.2),))
        alone, beside = (named(simulate(made).run) for made in (job, replace(job, checkpoint_every=20)))
        assert [[found for found in one if found[1]] for one in (alone, beside)] == [
            [("straggler", (rank,), "input")]
        ] * 2


def _evaluating(job: Scenario) -> Run:
    """The run with what rank 0 writes as evaluations of its own, each a step of that kind before the one that waits."""
    run = simulate(job).run
    took = np.maximum(run.steps["checkpoint_ns"], 0)
    held = np.flatnonzero(took)
    training = run.steps | {
        "start_ns": run.steps["start_ns"] + took,
        "duration_ns": run.steps["duration_ns"] - took,
        "checkpoint_ns": np.full(len(took), -1),
    }
    begun = {name: run.steps[name][held] for name in ("rank", "step", "start_ns")}
    evaluations = table("steps", **begun, duration_ns=took[held], kind="eval")
    return replace(run, steps=concatenate("steps", [training, evaluations]))


@pytest.mark.parametrize("layout", ["dp", "fsdp", "tp_dp", "pp_dp"])
@pytest.mark.parametrize("lengths", [0.0, 0.1])
@pytest.mark.parametrize(
    ("recorded", "note"),
    [
        (lambda job: simulate(job).run, "rank 0 (writes checkpoints )?in 7 of "),
        (_evaluating, ".*rank 0 evaluates longer than its peers in 7 of "),
    ],
)
def test_no_rank_is_named_for_what_one_does_for_all(
    recorded: Callable[[Scenario], Run], note: str, layout: str, lengths: float
) -> None:
    """Rank 0 writes, or evaluates, every twentieth step for three steps' time; a note reports the cost."""
    shape = {"tp_dp": {"tensor": 2}, "pp_dp": {"pipeline": 2}}.get(layout, {})
    job = Scenario(8, STEPS, 3, layout, checkpoint_every=20, varying_lengths=lengths, **shape)
    report = judge(recorded(job))
    assert not [verdict for verdict in report.verdicts if verdict.ranks]
    assert re.match(note, _said(report))


def test_evaluations_that_differ_by_little_are_no_reason_to_be_late() -> None:
    """All evaluate before the same steps, some for a few per cent of a step longer: a rank late then stays as late."""
    run = _evaluating(Scenario(8, STEPS, 3, step_ms=STEP_MS, checkpoint_every=20))
    first, random = select(run.steps, run.steps["kind"] == "eval"), np.random.default_rng(1)
    others = []
    for rank in range(1, 8):
        more = random.normal(0, 0.02 * STEP_MS * 1e6, len(first["rank"])).astype(np.int64)
        others.append(first | {"rank": np.full(len(more), rank), "duration_ns": first["duration_ns"] + more})
    found = blocks_of(run)
    after, planned = aside(found, concatenate("steps", [run.steps, *others]), DEFAULT)
    assert (after.delay.tolist(), planned) == (found.delay.tolist(), [])


def test_who_writes_after_a_steps_collectives_holds_up_the_next() -> None:
    """The time in the checkpoint is the one step's, and the others wait in the next."""
    made = _writing(8, {0: (slice(10, None, 25), 3.0)})
    after = replace(made, parts={"checkpoint": np.roll(made.parts["checkpoint"], -1, axis=1)})
    left = aside(after, NO_STEPS, DEFAULT)[0].delay[0]
    assert float(left.max() / after.step_ns) < 0.1


EVERY = slice(10, None, 25)


@pytest.mark.parametrize(
    ("ranks", "written", "late"),
    [
        # Of six in a job of sixteen that write at once one takes three times as long: two thirds of that are its own.
        (16, {rank: (EVERY, 3.0 if rank == 2 else 1.0) for rank in range(6)}, {2: 2.0, 3: 0.0}),
        # Where most write they are compared with each other: who takes longer over what all do is late.
        (8, {rank: (EVERY, 3.0 if rank == 2 else 1.0) for rank in range(8)}, {2: 3.0}),
        # One of two may write for both; of two that both write the slower is late, also by one of the next step.
        (2, {0: (EVERY, 3.0)}, {0: 0.0}),
        (2, {0: (EVERY, 1.0), 1: (EVERY, 3.0)}, {1: 3.0}),
        (2, {0: (EVERY, 1.0), 1: (slice(11, None, 25), 3.0)}, {1: 3.0}),
    ],
)
def test_only_the_usual_time_of_who_writes_for_others_is_planned(
    ranks: int, written: dict[int, tuple[slice, float]], late: dict[int, float]
) -> None:
    made = _writing(ranks, written)
    assert {rank: _late(made, rank) for rank in late} == pytest.approx(late, abs=0.1)


def test_what_else_makes_one_of_two_late_stays() -> None:
    """That it writes for both is no rank's fault."""
    slow = _writing(2, {0: (EVERY, 1.0)})
    slow.delay[0, EVERY] += 2 * slow.step_ns
    assert _late(slow, 0) == pytest.approx(2.0, abs=0.1)


def test_one_of_two_may_evaluate_for_both() -> None:
    """All of it is for both, and none is left as a fault of its own."""
    run = _evaluating(Scenario(2, STEPS, 3, checkpoint_every=20))
    found = blocks_of(run)
    after, (planned,) = aside(found, run.steps, DEFAULT)
    assert found.delay[0].max() > found.step_ns
    assert after.delay[0].max() < 0.2 * found.step_ns
    assert planned.note.startswith("rank 0 evaluates longer")


def _pausing(at: list[int]) -> Blocks:
    """A job of eight whose first rank pauses for three steps' time after each of these, and is late in the next."""
    calm = _blocks(Scenario(8, STEPS + 3, 1, step_ms=STEP_MS))
    pause = np.zeros_like(calm.delay)
    pause[0, at] = 3 * calm.step_ns
    issued = np.full_like(calm.delay, 0.9 * calm.step_ns)
    made = replace(calm, delay=calm.delay + np.roll(pause, 1, axis=1), took=issued + pause + 0.1 * calm.step_ns)
    return replace(made, parts={"issue": issued})


@pytest.mark.parametrize(
    ("at", "planned_for"),
    [([19, 39, 59, 79, 99], True), ([19, 39, 59, 79, 98], False), ([19, 39, 59], False), (list(range(9, 99)), False)],
)
def test_only_pauses_that_are_counted_out_are_planned(at: list[int], planned_for: bool) -> None:
    """Every twentieth step, between two steps, one rank does something: the script counts, and no fault does."""
    made = _pausing(at)
    after, *_ = aside(made, NO_STEPS, DEFAULT)
    left = float(after.delay[0, np.array(at) + 1].max() / made.step_ns)
    assert left == pytest.approx(0.0 if planned_for else 3.0, abs=0.1)


def test_a_few_long_stalls_do_not_hide_that_work_explains_who_is_late() -> None:
    """Four stalls of three steps each are most of the variance, and nothing of what makes ranks late otherwise."""
    job = Scenario(16, 200, 1, varying_lengths=0.1)
    found = _blocks(job)
    more = uneven.more_work(found.work if found.work is not None else np.empty(0))
    late = found.delay.copy()
    late[0, 20::50] += 3 * found.step_ns
    assert uneven.explained(late, more) == pytest.approx(uneven.explained(found.delay, more), abs=0.05)
    assert uneven.levelled(replace(found, delay=late), DEFAULT, None) is not found


@pytest.mark.parametrize(
    ("then", "always", "said"), [(40e6, 0.0, "writes 40 MB each time, at"), (0.0, 40e6, "pauses (at regular")]
)
def test_what_rank_0_writes_for_all_is_known_where_no_mark_is(then: float, always: float, said: str) -> None:
    """By the bytes that its process, and no other, sent to storage then; a log says nothing."""
    run = loads.make(loads.Load(steps=640, faults=[{"rank": 0, "blocked": 200.0, "every": 80}]))
    start = run.collectives["start_ns"]
    seconds = np.linspace(start.min(), start.max(), 97) / 1e9
    over = start[(run.collectives["rank"] == 0) & (run.collectives["seq"] % 80 == 3)] / 1e9
    wrote = then * np.searchsorted(over - 0.1, seconds) + always * seconds
    samples = [
        ("hindmost_process_written_bytes_total", f'{{"rank": "{rank}"}}', second, value if rank == 0 else 0.0)
        for rank in range(4)
        for second, value in zip(seconds, wrote, strict=True)
    ]
    report = judge(replace(run, metrics=loads.metrics(samples)))
    assert said in _said(report)
    assert not report.verdicts[0].ranks


def test_what_checkpoints_cost_is_known_only_beside_steps_without_any() -> None:
    """Of a job that saves in most of its steps the typical step has a checkpoint, too."""
    saves = np.where(np.arange(200) % 100 < 51, 10.0, 0.0)
    assert lengthened(saves[None], 10.0 + saves).mean() == pytest.approx(5.1)
    assert np.isnan(lengthened(np.full((1, 200), 10.0), np.full(200, 20.0))).all()
