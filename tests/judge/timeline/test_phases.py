"""What phases of steps alone tell: who waits in forward, time in no phase, hosts that run ahead."""

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.timeline import phases
from hindmost_judge.timeline.phases import busy

from tests.runs import MS, made, only_verdict, rows_of, with_job

STEPS = 60


def meeting(late: Any, computes: Any, *, members: Any = None) -> Run:
    """Steps of ranks whose input is ``late`` [R] (ms) and who ``computes`` [R] in forward, all on the GPU. Those of one
    of ``members`` [R] meet at the beginning of forward (``None``: none does), all at backward's end."""
    late, computes = np.asarray(late, float), np.asarray(computes, float)
    ranks = len(computes)
    groups = np.arange(ranks) if members is None else np.asarray(members)
    generator = np.random.default_rng(5)
    done, rows = np.zeros(ranks), []
    for step in range(STEPS):
        began = done.copy()
        ready = began + late + generator.normal(0.5, 0.02, ranks)
        met = np.array([ready[groups == group].max() for group in groups])
        worked = met + computes + generator.normal(0.0, 0.02, ranks)
        done = np.full(ranks, (worked + 20.0).max())
        phases = {"input_ns": ready - began, "gpu_forward_ns": worked - ready, "gpu_backward_ns": done - worked}
        columns = {"start_ns": began + 1, "duration_ns": done - began, **phases}
        rows.append(rows_of("steps", step=step, **{name: one[:, None] for name, one in columns.items()}))
    return made(ranks, steps=rows)


@pytest.mark.parametrize("members", [[0, 0, 0, 0], [0, 0, 1, 1]])
def test_who_waits_in_forward_is_not_slow(members: list[int]) -> None:
    """The peers' forward is longer by what the GPU of the late rank idled: all of them, or its tensor group alone."""
    (found,) = judge(meeting([0.0, 8.0, 0.0, 0.0], [10.0] * 4, members=members)).verdicts
    assert (found.kind, found.ranks, found.cause) == ("straggler", (1,), "input")
    assert found.cost_ms_per_step == pytest.approx(8.0, rel=0.1)


def test_no_rank_waits_for_one_with_an_unmeasured_forward() -> None:
    """How much longer another's is than that one is unknown."""
    forward, idle = np.full((3, 9), 8.0), np.zeros((3, 9))
    forward[0], idle[0], idle[1], forward[2] = np.nan, 30.0, 4.0, 12.0
    found = phases.waited_in_forward(forward, idle, np.full(9, 40.0))
    np.testing.assert_array_equal(found[2], 4.0)
    np.testing.assert_array_equal(np.nan_to_num(found[:2]), 0.0)


def test_what_is_as_long_by_chance_in_some_steps_is_no_wait() -> None:
    """Who meets others in forward waits for most of what they come late by."""
    forward, idle = np.full((3, 9), 8.0), np.zeros((3, 9))
    idle[0], forward[2, :3] = 4.0, 12.0
    assert not phases.waited_in_forward(forward, idle, np.full(9, 40.0)).any()


def test_who_computes_longer_than_another_idles_is_slow() -> None:
    """Its forward is longer by something else than what that one's GPU waited for input."""
    (found,) = judge(meeting([0.0, 4.0, 0.0, 0.0], [16.0, 10.0, 10.0, 10.0])).verdicts[:1]
    assert (found.kind, found.ranks) == ("straggler", (0,))


STEPS_MADE = 120
OWN_MS = 5.5


def job(ranks: int, rest: dict[int, float], *, from_step: int = 0, ran: bool = False, usual: float = 0.6) -> Run:
    """Ranks that wait for the last in sync; ``rest`` is some ranks' ms in no phase, off the CPU unless they ``ran``."""
    noise = np.random.default_rng(1).gamma(2.0, 0.05, (ranks, STEPS_MADE))
    other = np.full((ranks, STEPS_MADE), usual) + noise
    for rank, more in rest.items():
        other[rank, from_step:] += more
    own = OWN_MS + other
    sync = own.max(axis=0) - own + 0.5
    cpu = OWN_MS + (other if ran else usual + noise)
    phases = {"forward": 4.0, "backward": 0.5, "optimizer": 1.0}
    whole = own + sync
    start = np.cumsum(whole, axis=1) - whole
    measured = {"start_ns": start, "duration_ns": whole, "sync_ns": sync, "cpu_ns": cpu}
    steps = rows_of("steps", kind="train", **measured, **{f"{name}_ns": ms for name, ms in phases.items()})
    return made(ranks, steps=[steps], who={"node": "n", "framework": "torch"}, ended_ns=10**12, exit_code=0)


@pytest.mark.parametrize(("ranks", "onset"), [(2, 0), (4, 0), (4, 60)])
def test_a_rank_that_sleeps_in_no_phase_is_named(ranks: int, onset: int) -> None:
    """Its cause was not measured, and the evidence says where the time goes; it began where it did."""
    found = only_verdict(job(ranks, {1: 10.0}, from_step=onset))
    assert (found.kind, found.ranks, found.cause, found.partial) == ("straggler", (1,), "unknown", "blocked")
    assert (found.since_step, found.cost_ms_per_step) == (onset, pytest.approx(10.0, rel=0.05))
    assert found.advice[1].startswith('if that is loading input, mark it: `import hindmost` and `with hindmost.phase("')
    assert any(
        re.match(r"other \(in no phase: logging, metrics, .item\(\)\): rank \d 10.\d ms", one) for one in found.evidence
    )


def test_a_rank_that_computes_in_no_phase_is_named_for_that() -> None:
    """Its CPU time is longer by as much."""
    found = only_verdict(job(4, {1: 10.0}, ran=True))
    assert (found.kind, found.ranks, found.cause) == ("straggler", (1,), "compute")
    assert any(one.startswith("other (in no phase") for one in found.evidence)


def test_without_cpu_time_the_cause_is_unknown() -> None:
    """Whether it slept or computed is unknown; the rank is known all the same."""
    run = job(2, {1: 10.0})
    found = only_verdict(replace(run, steps=run.steps | {"cpu_ns": np.full(2 * STEPS_MADE, -1)}))
    assert (found.kind, found.ranks, found.cause, found.partial) == ("straggler", (1,), "unknown", None)


@pytest.mark.parametrize("ranks", [2, 4])
def test_where_all_ranks_log_alike_no_rank_is_named(ranks: int) -> None:
    """However long it takes."""
    assert only_verdict(job(ranks, {}, usual=12.0)).kind == "balanced"


def test_where_it_may_be_waiting_no_rank_is_named_for_it() -> None:
    """On a GPU, item() of a loss waits for every rank that the GPU waits for; without sync, a step waits at an unknown
    place. No rank is cleared either, for most of the late one's step is in no phase."""
    run = job(2, {1: 10.0})
    on_gpus = replace(run, ranks=run.ranks | {"gpu_uuid": np.array(["GPU-0", "GPU-1"])})
    unseen = replace(run, steps=run.steps | {"sync_ns": np.full(2 * STEPS_MADE, -1)})
    assert [only_verdict(one).kind for one in (on_gpus, unseen)] == ["insufficient_data", "insufficient_data"]


@pytest.mark.parametrize("phase", ["checkpoint", "input", "gc"])
def test_what_has_a_phase_is_reported_as_that(phase: str) -> None:
    """A checkpoint, input or a collection is no time in no phase, however often."""
    run = job(4, {1: 10.0})
    mine = np.where(run.steps["rank"] == 1, 10 * MS, 0)
    found = only_verdict(replace(run, steps=run.steps | {f"{phase}_ns": mine}))
    assert (found.kind, found.ranks, found.cause) == ("straggler", (1,), phase)
    assert not any(one.startswith("other (in no phase") for one in found.evidence)


def test_an_evaluation_is_no_step_that_trains() -> None:
    """What rank 1 does in no phase of its evaluations holds up no training step."""
    run = job(4, {1: 10.0}, from_step=100)
    kind = np.where(run.steps["step"] >= 100, "eval", "train")
    assert only_verdict(replace(run, steps=run.steps | {"kind": kind})).kind == "balanced"


def test_input_is_not_to_be_marked_where_it_is_or_where_there_is_no_python() -> None:
    """A compiled program has no `with`, and a job that marks its input knows how."""
    run = job(2, {1: 10.0})
    marked = replace(run, intervals=table("intervals", rank=[0], name=["input"]))
    compiled = with_job(replace(run, ranks={**run.ranks, "framework": np.full(2, "mpi")}), command="./a")
    for one in (marked, compiled):
        assert not any("hindmost.phase" in line for line in only_verdict(one).advice)


RANKS = 4
AHEAD = 80
EVERY = 8


def _run() -> Run:
    """GPU steps of 32 ms, 3 ms more of them forward on rank 0; hosts wait for all that is queued in every eighth."""
    rank, step = np.indices((RANKS, AHEAD))
    waits = step % EVERY == EVERY - 1
    # A rank that computes longer has less to wait for at the end: the host's step shows that with the other sign.
    host = np.where(waits, 158.0, 14.0) + np.where(rank == 0, np.where(waits, -3.0, 3.0 / (EVERY - 1)), 0.0)
    jitter = np.random.default_rng(5).normal(0, 0.02, step.shape)
    phases = {
        "gpu_forward_ns": np.where(rank == 0, 13.0, 10.0) + jitter,
        "gpu_backward_ns": np.where(rank == 0, 17.0, 20.0) - jitter,
        "gpu_optimizer_ns": 2.0,
    }
    return made(RANKS, steps=[rows_of("steps", kind="train", duration_ns=host, **phases)])


def test_a_step_is_as_long_as_on_the_gpu() -> None:
    """And a rank that computes longer costs that in every step, also where its host waits less at the end."""
    report = judge(_run())
    (verdict,) = report.verdicts
    assert verdict.ranks == (0,)
    assert report.job.step_ms is not None
    assert report.job.step_ms["p50"] == pytest.approx(32.0, abs=0.2)
    assert report.job.step_ms["p99"] == pytest.approx(32.0, abs=0.2)
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.05)
    assert verdict.cost_ratio == pytest.approx(3.0 / 32.0, rel=0.05)


def test_a_gpu_idles_where_its_host_has_nothing_queued() -> None:
    """The input of a step delays the GPU once it is done with the step before, and not while it still works."""
    parts = {"gpu_forward": np.array([[10.0, 10.0, 10.0]]), "input": np.array([[0.0, 6.0, 6.0]])}
    _, ahead = busy(parts, np.array([[2.0, 8.0, 30.0]]))
    assert ahead is not None
    assert ahead.tolist() == [[10.0, 10.0, 10.0]]
    _, blocked = busy(parts, np.array([[10.0, 16.0, 16.0]]))
    assert blocked is not None
    assert blocked.tolist() == [[10.0, 16.0, 16.0]]


#: A GPU that stood idle is cooler, and quicker in backward by so many ms than those that waited for it.
COOLED = 1.0


def _slow_input(rank: int, ms: float) -> Run:
    """Rank 0 computes 3 ms longer; the input of ``rank`` takes ``ms``, hidden by the queue but in every eighth step."""
    host, gpu = np.zeros(RANKS), np.zeros(RANKS)
    forward = np.where(np.arange(RANKS) == 0, 13.0, 10.0)
    fetch = np.where(np.arange(RANKS) == rank, ms, 1.0)
    columns: dict[str, list[Any]] = {name: [] for name in ("start_ns", "duration_ns", "gpu_backward_ns")}
    for number in range(AHEAD):
        start, begins = host.copy(), np.maximum(host + fetch, gpu)
        gpu = begins + forward
        done = (gpu + np.where(begins > begins.min() + 1, 20.0 - COOLED, 20.0)).max()
        backward, gpu = done - gpu, np.full(RANKS, done + 2.0)
        host = gpu.copy() if number % EVERY == EVERY - 1 else host + fetch + 12.0
        for name, values in zip(columns, (start, host - start, backward), strict=True):
            columns[name].append(values)
    phases = {"gpu_forward_ns": forward[:, None], "gpu_optimizer_ns": 2.0}
    measured = {name: np.transpose(values) for name, values in columns.items()}
    return made(RANKS, steps=[rows_of("steps", kind="train", input_ns=fetch[:, None], **phases, **measured)])


def test_a_stall_costs_what_steps_grew_by_and_not_how_late_a_rank_came() -> None:
    """10 ms of input make the rank 6 ms later than rank 0, and a step 5 ms longer: its own GPU catches up by 1 ms."""
    slow, stalls = judge(_slow_input(3, 10.0)).verdicts
    assert (slow.ranks, slow.cause) == ((0,), "compute")
    assert (stalls.kind, stalls.ranks, stalls.cause) == ("intermittent", (3,), "input")
    assert stalls.cost_ms_per_step == pytest.approx((6.0 - COOLED) * (AHEAD // EVERY - 1) / (AHEAD - 1), rel=0.02)


def test_a_stall_with_a_negligible_cost_is_a_note() -> None:
    """8 ms of input in every eighth step, which grows by 3 ms: the rank that computes longer is named, and no other."""
    report = judge(_slow_input(3, 8.0))
    assert [verdict.ranks for verdict in report.verdicts] == [(0,)]
    assert any("rank 3 waits 7.0 ms longer per step for input" in note for note in report.notes)


def test_steps_of_which_only_the_garbage_collector_was_seen_are_bare() -> None:
    """It is recorded of any Python process; the rest of such a step is no wait."""
    steps = rows_of(
        "steps", rank=np.zeros((1, STEPS)), start_ns=10.0 * np.arange(STEPS) + 1, duration_ns=10.0, gc_ns=0.0
    )
    (row,) = judge(made(1, steps=[steps])).ranks
    assert row.self_ms == pytest.approx(10.0)


@pytest.mark.parametrize(("first", "counted"), [(90.0, 5.0), (20.0, 0.0), (float("nan"), 0.0)])
def test_files_are_of_a_first_step_as_long_as_it_was(first: float, counted: float) -> None:
    """What was written 60 ms before it ended is of a step of 90 ms, though the others take 10."""
    written = table("intervals", rank=[0], name="file_write", start_ns=[40 * MS], duration_ns=[5 * MS])
    ends = np.array([[100.0, 110.0, 120.0]]) * MS
    found = phases.intervals_by_step(written, np.array([0]), ends, first * MS)
    assert found["file_write"].tolist() == [[counted * MS, 0.0, 0.0]]
