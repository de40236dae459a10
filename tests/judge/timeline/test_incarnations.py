"""A job that is restarted with another number of ranks is judged as it is now, and both starts are reported."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run, Table
from hindmost_judge.timeline.separate_jobs import judged_incarnation

_LATER_NS = 600 * 10**9


def _started(ranks: int, steps: int, *, later: int = 0, slow: int | None = None) -> Run:
    """A start with so many ranks, with its own processes and communicators."""
    faults = () if slow is None else (Fault("compute", ranks=(slow,)),)
    run = simulate(Scenario(ranks=ranks, steps=steps, faults=faults)).run
    first = int(run.collectives["start_ns"].min())
    moved = {name: {**one} for name, one in run.tables().items()}
    for one in moved.values():
        if "start_ns" in one:
            one["start_ns"] = one["start_ns"] + later
    count = len(run.ranks["rank"])
    moved["ranks"] |= {
        "start_ns": np.full(count, first + later - 10**9),
        "pid": np.arange(count) + 100 * (1 + later),
        "world_size": np.full(count, ranks, np.int32),
    }
    for name in ("collectives", "communicators"):
        moved[name]["comm"] = moved[name]["comm"] + np.uint64(later)
    return replace(run, **moved)


def _together(*runs: Run) -> tuple[Run, Table]:
    """What one recording of several starts holds, as it is read back: the last statement of each rank."""
    tables = [run.tables() for run in runs]
    joined = {
        name: {column: np.concatenate([table[name][column] for table in tables]) for column in held}
        for name, held in tables[0].items()
    }
    stated = joined["ranks"]
    last = {rank: at for at, rank in enumerate(stated["rank"].tolist())}
    joined["ranks"] = {name: column[[last[rank] for rank in sorted(last)]] for name, column in stated.items()}
    return replace(runs[-1], **joined), stated


def test_the_last_start_is_judged_and_all_are_reported() -> None:
    """The slow rank of the three before is not the two's, the one that left has no row of zeros, and JSON has both."""
    run, stated = _together(_started(3, 60, slow=2), _started(2, 60, later=_LATER_NS, slow=1))
    report = judge(judged_incarnation(run, stated)).to_dict()
    assert [(verdict["kind"], verdict["ranks"]) for verdict in report["verdicts"]] == [("straggler", [1])]
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert report["job"]["world_size"] == 2
    assert [
        (incarnation["world_size"], incarnation["ranks"], incarnation["judged"])
        for incarnation in report["job"]["incarnations"]
    ] == [
        (3, [0, 1, 2], False),
        (2, [0, 1], True),
    ]
    (note,) = [one for one in report["notes"] if "started" in one]
    assert note.startswith("the job was started 2 times: 3 ranks from ")
    assert note.endswith("; judged: the last; rank 2 left")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_start_of_which_hardly_anything_was_recorded_is_not_what_is_judged(steps: int) -> None:
    """The one before it is, with its own number of ranks; no rank is said to have left that."""
    last = _started(2, 60, later=_LATER_NS)
    for name in ("steps", "collectives"):
        held = last.tables()[name]
        last = replace(last, **{name: {column: one[: 2 * steps] for column, one in held.items()}})
    run, stated = _together(_started(3, 60, slow=2), last)
    report = judge(judged_incarnation(run, stated))
    assert report.job.world_size == 3
    assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (2,))]
    assert any("judged: the one from " in note and "left" not in note for note in report.notes)


def test_processes_that_go_on_with_fewer_are_no_new_start() -> None:
    """Survivors that were given new numbers were started when all were: nothing is cut."""
    run = _started(3, 60)
    again = {**run.ranks, "world_size": np.full(3, 2, np.int32), "rank": np.array([-1, 0, 1], np.int32)}
    stated = {name: np.concatenate([run.ranks[name], again[name][1:]]) for name in run.ranks}
    assert judged_incarnation(run, stated) is run
