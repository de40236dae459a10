"""Where the wall-clock time of a job went, and how fast it trained."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.model import GPU_TIME, Run
from hindmost_judge.wall_clock import throughput, wall_clock

from tests.runs import made, with_job

S = 1_000_000_000
START = 1_700_000_000 * S


def steps(rank: int, *spans: tuple[float, float, str], **columns: Any) -> Any:
    """Steps of a rank: from when, how long (s) and of which kind each."""
    begin, long, kind = zip(*spans, strict=True)
    return table(
        "steps",
        rank=rank,
        step=range(len(spans)),
        kind=kind,
        start_ns=START + (np.array(begin) * S).astype(np.int64),
        duration_ns=(np.array(long) * S).astype(np.int64),
        **columns,
    )


def job(*tables: Any, **more: Any) -> Run:
    known = {"started_ns": START, "ended_ns": START + 100 * S} | more
    return made(len(tables), steps=tables, who={"start_ns": np.full(len(tables), START + 4 * S)}, **known)


def parts(run: Run, **more: Any) -> dict[str, list[float]]:
    found = wall_clock(run, **more)
    assert found is not None
    return {name: np.round(seconds, 6).tolist() for name, seconds in found.parts.items()}


def test_each_second_of_a_job_is_in_one_part() -> None:
    """Launch, set-up, warm-up, training, evaluation, a checkpoint in a step, a stall, pauses and the end."""
    spans = [(10, 2, "train"), (12, 20, "train"), (32, 5, "eval"), (40, 20, "train"), (60, 10, "train")]
    run = job(steps(0, *spans, checkpoint_ns=np.array([-1, -1, -1, -1, 3 * S])))
    found = parts(run, stalls=[(45.0, 52.0)], first=1)
    assert found == {
        "launch": [4.0],
        "set-up": [6.0],
        "warm-up steps": [2.0],
        "training": [40.0],
        "evaluation": [5.0],
        "checkpoints": [3.0],
        "stalls": [7.0],
        "between steps": [3.0],
        "tear-down": [30.0],
    }


@pytest.mark.parametrize("seed", range(5))
def test_parts_of_every_rank_add_up_to_the_job(seed: int) -> None:
    """Steps that overlap, pauses and stalls anywhere: nothing counts twice, and nothing is left."""
    draw = np.random.default_rng(seed)
    tables = []
    for rank in range(4):
        begin = np.sort(draw.uniform(8, 80, 12))
        spans = [
            (at, long, kind)
            for at, long, kind in zip(begin, draw.uniform(0, 12, 12), draw.choice(["train", "eval"], 12), strict=True)
        ]
        tables.append(steps(rank, *spans, checkpoint_ns=draw.integers(-1, 3 * S, 12)))
    found = wall_clock(job(*tables), [(20.0, 30.0), (81.0, 84.0)], 3)
    assert found is not None
    np.testing.assert_allclose(sum(found.parts.values()), found.seconds)
    assert all((seconds >= 0).all() for seconds in found.parts.values())


def test_a_checkpoint_between_two_steps_is_one() -> None:
    """Its interval counts as far as it is in no step."""
    run = job(steps(0, (10, 10, "train"), (30, 60, "train")))
    found = parts(replace(run, intervals=intervals(("checkpoint", 18, 8))))
    assert (found["checkpoints"], found["between steps"]) == ([6.0], [4.0])


def test_what_nobody_recorded_is_no_tear_down() -> None:
    """Of a job that was killed with hindmost, ranks' records end at different times."""
    run = job(steps(0, (10, 10, "train")), steps(1, (10, 30, "train")), ended_ns=None)
    found = parts(run)
    assert found["not recorded"] == [20.0, 0.0]
    assert "tear-down" not in found


def test_the_time_that_a_job_hung_is_no_tear_down() -> None:
    """It ended by a signal."""
    found = wall_clock(job(steps(0, (10, 10, "train"))), hung=True)
    assert found is not None
    assert "hang" in found.parts
    assert "tear-down" not in found.parts


def intervals(*spans: tuple[str, float, float]) -> Any:
    """Intervals of rank 0: name, from when and how long (s)."""
    names, begin, long = zip(*spans, strict=True)
    return table(
        "intervals",
        rank=0,
        name=names,
        start_ns=START + (np.array(begin) * S).astype(np.int64),
        duration_ns=(np.array(long) * S).astype(np.int64),
    )


def test_start_up_is_imports_communicators_set_up_and_first_batch() -> None:
    """A process imports until its last framework is there; what is before its first step, and neither, is set-up."""
    run = job(steps(0, (30, 20, "train"), (50, 50, "train"), input_ns=np.array([5 * S, S])))
    began = intervals(("import", 6, 4), ("init", 12, 3), ("import", 40, 1))
    found = parts(replace(run, intervals=began), first=1)
    assert found == {
        "launch": [4.0],
        "imports": [6.0],
        "communicators": [3.0],
        "set-up": [17.0],
        "first batch": [5.0],
        "warm-up steps": [15.0],
        "training": [50.0],
    }


def test_a_compiled_program_loads_libraries_until_it_sets_up_communicators() -> None:
    """MPI_Init is recorded, and nothing before it."""
    run = job(steps(0, (30, 70, "train")))
    found = parts(replace(run, intervals=intervals(("mpi_init", 9, 2))))
    assert (found["imports"], found["communicators"], found["set-up"]) == ([5.0], [2.0], [19.0])


def test_without_marks_it_is_from_the_end_of_the_first_collective_to_the_last() -> None:
    """Ranks wait in the first for one that is set up later. A GPU's clock says nothing of the job's."""
    calls = table(
        "collectives",
        rank=0,
        comm=1,
        seq=range(2),
        op="all_reduce",
        start_ns=START + np.array([20, 70]) * S,
        duration_ns=np.array([9, 1]) * S,
        flags=0,
    )
    run = made(1, collectives=[calls], started_ns=START, ended_ns=START + 100 * S)
    assert parts(run) == {"set-up": [29.0], "first to last communication": [42.0], "tear-down": [29.0]}
    assert wall_clock(replace(run, collectives=calls | {"flags": np.full(2, GPU_TIME)})) is None


def test_a_recording_that_does_not_say_when_the_job_began_has_no_start_up() -> None:
    """Its parts are of what was recorded, and it says so."""
    found = wall_clock(job(steps(0, (10, 10, "train"), (20, 10, "train")), started_ns=None, ended_ns=None))
    assert found is not None
    assert (found.whole, found.seconds, list(found.parts)) == (False, 20.0, ["training"])


def test_between_the_steps_of_an_excerpt_are_others() -> None:
    """A long recording is read in parts: what lies between two of them is no pause."""
    run = job(steps(0, (10, 1, "train"), (70, 1, "train")) | {"step": np.array([3, 60])})
    assert parts(with_job(run, steps=100))["training"] == [61.0]
    assert parts(run)["between steps"] == [59.0]


def test_throughput_is_of_the_steps_after_warm_up() -> None:
    """Work that was not counted is missing, and never 0."""
    run = job(
        *(steps(rank, *[(10 + at, 1, "train") for at in range(4)], work=np.array([8, 8, 8, 8])) for rank in range(2))
    )
    found = throughput(run, None)
    assert found is not None
    assert (found.steps.tolist(), found.work.tolist(), found.seconds.tolist()) == ([4, 4], [32.0, 32.0], [4.0, 4.0])
    bare = throughput(job(steps(0, (10, 1, "train"), work=np.array([0]))), None)
    assert bare is not None
    assert np.isnan(bare.work).all()
