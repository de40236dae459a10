"""Collectives of communicators that have one member: they are no meetings."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import UNMEASURED, Run, rows
from hindmost_judge.timeline import matching


def with_a_call_alone(run: Run, share: float) -> Run:
    """The run with a collective of each rank's own in the time before each of its collectives, after that share."""
    table = run.collectives
    before = table["self_ns"] != UNMEASURED
    alone = {name: np.array(column[before]) for name, column in table.items()}
    own = alone["self_ns"].astype(np.int64)
    first = (own * share).astype(np.int64)
    alone |= {
        "comm": (alone["rank"] + 1000).astype(np.uint64),
        "start_ns": alone["start_ns"] - own + first,
        "duration_ns": np.full_like(own, 5_000),
        "self_ns": first,
        "cpu_ns": np.full_like(own, UNMEASURED),
        "runqueue_ns": np.full_like(own, UNMEASURED),
    }
    alone["seq"] = np.arange(len(own), dtype=table["seq"].dtype)
    changed = {name: np.array(column) for name, column in table.items()}
    changed["self_ns"][before] -= first
    joined = {name: np.concatenate([changed[name], alone[name].astype(changed[name].dtype)]) for name in table}
    order = np.lexsort((joined["start_ns"], joined["rank"]))
    return replace(run, collectives={name: column[order] for name, column in joined.items()})


def measured(run: Run) -> Run:
    """The run with self time as the MPI shim measures it: since the end of the rank's call before."""
    grid = matching.grid(run)
    assert grid is not None
    own = matching.self_time(grid)
    table = {name: np.array(column) for name, column in run.collectives.items()}
    order = np.lexsort((table["start_ns"], table["rank"]))
    table = {name: column[order] for name, column in table.items()}
    table["self_ns"] = np.where(np.isnan(own), UNMEASURED, own).astype(table["self_ns"].dtype).reshape(-1)
    return replace(run, collectives=table)


def test_calls_alone_change_no_self_time() -> None:
    """A rank's computing before and after a call without other members is self time of its next meeting."""
    run = measured(simulate(Scenario(seed=5, ranks=4, steps=30)).run)
    both = [matching.grid(one) for one in (run, with_a_call_alone(run, 0.7))]
    assert both[0] is not None
    assert both[1] is not None
    assert both[0].columns == both[1].columns
    np.testing.assert_array_equal(both[0].self_time, both[1].self_time)


def test_what_was_not_measured_before_a_call_alone_is_not_measured() -> None:
    """A sum of which one part is unknown is unknown: never a smaller number."""
    run = with_a_call_alone(measured(simulate(Scenario(seed=5, ranks=4, steps=30)).run), 0.7)
    table = {name: np.array(column) for name, column in run.collectives.items()}
    table["self_ns"][(table["comm"] == 1002) & (table["seq"] > 50)] = UNMEASURED
    grid = matching.grid(replace(run, collectives=table))
    assert grid is not None
    late = np.isnan(grid.self_time[2]) & ~np.isnan(grid.self_time[1])
    assert late.sum() > 50


@pytest.mark.parametrize("cause", ["compute", "input"])
def test_a_tensor_group_of_one_hides_no_rank(cause: str) -> None:
    """A job that could split its tensors and does not is judged as what it is: data parallel."""
    scenario = Scenario(seed=5, ranks=16, layout="tp_dp", tensor=1, faults=(Fault(cause, (3,), 0.1),))
    found = simulate(scenario)
    report = judge(found.run)
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (3,), cause)
    saved = (found.truth.total_ns - found.truth.repaired_ns) / found.truth.total_ns
    assert verdict.cost_ratio == pytest.approx(saved, rel=0.2)
    assert not any("costs nothing" in note for note in report.notes)


def test_ranks_that_meet_no_other_are_left_as_they_are() -> None:
    """Where no communicator has several ranks, there is nothing to go by instead."""
    run = simulate(Scenario(seed=5, ranks=4, steps=20)).run
    table = run.collectives | {"comm": (run.collectives["rank"] + 1).astype(np.uint64)}
    grid = matching.grid(replace(run, collectives=table))
    assert grid is not None
    assert rows(table) == np.count_nonzero(~np.isnan(grid.duration))
