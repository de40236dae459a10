"""Time in no phase is self time where waiting is recorded elsewhere, and of unknown owner where it may be waiting."""

import re
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.model import Run

from tests.runs import MS, made, only_verdict, rows_of

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


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_that_sleeps_in_no_phase_is_named(ranks: int) -> None:
    """Its cause was not measured, and the evidence says where the time goes."""
    found = only_verdict(job(ranks, {1: 10.0}))
    assert (found.kind, found.ranks, found.cause, found.partial) == ("straggler", (1,), "unknown", "blocked")
    assert found.cost_ms_per_step == pytest.approx(10.0, rel=0.05)
    assert found.advice[1].startswith('if that is loading input, mark it: `import hindmost` and `with hindmost.phase("')
    assert any(
        re.match(r"other \(in no phase: logging, metrics, .item\(\)\): rank \d 10.7 ms", one) for one in found.evidence
    )


def test_since_when_it_does() -> None:
    """The step of the onset, not of the job's beginning."""
    assert only_verdict(job(4, {1: 10.0}, from_step=60)).since_step == 60


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
    compiled = replace(run, ranks={**run.ranks, "framework": np.full(2, "mpi")}, job=replace(run.job, command="./a"))
    for one in (marked, compiled):
        assert not any("hindmost.phase" in line for line in only_verdict(one).advice)
