"""Ranks that never meet, and a job that is started again with another number of ranks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, select
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import METRICS, Run, Table, empty
from hindmost_judge.timeline.separate_jobs import groups_that_never_meet, judged_incarnation

from tests.runs import named, only, with_job, with_rows

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
    joined = {name: concatenate(name, [run.tables()[name] for run in runs]) for name in runs[0].tables()}
    stated = joined["ranks"]
    last = {rank: at for at, rank in enumerate(stated["rank"].tolist())}
    return only(replace(runs[-1], **joined), ranks=[last[rank] for rank in sorted(last)]), stated


def test_the_last_start_is_judged_and_all_are_reported() -> None:
    """The slow rank of the three before is not the two's, the one that left has no row of zeros, and JSON has both."""
    run, stated = _together(_started(3, 60, slow=2), _started(2, 60, later=_LATER_NS, slow=1))
    assert named(judged_incarnation(run, stated)) == [("straggler", (1,), "compute")]
    report = judge(judged_incarnation(run, stated)).to_dict()
    assert [row["rank"] for row in report["ranks"]] == [0, 1]
    assert report["job"]["world_size"] == 2
    starts = [(one["world_size"], one["ranks"], one["judged"]) for one in report["job"]["incarnations"]]
    assert starts == [(3, [0, 1, 2], False), (2, [0, 1], True)]
    (note,) = [one for one in report["notes"] if "started" in one]
    assert note.startswith("the job was started 2 times: 3 ranks from ")
    assert note.endswith("; judged: the last; rank 2 left")


@pytest.mark.parametrize("steps", [0, 1])
def test_a_start_of_which_hardly_anything_was_recorded_is_not_what_is_judged(steps: int) -> None:
    """The one before it is, with its own number of ranks; no rank is said to have left that."""
    last = _started(2, 60, later=_LATER_NS)
    last = only(last, steps=slice(2 * steps), collectives=slice(2 * steps))
    run, stated = _together(_started(3, 60, slow=2), last)
    report = judge(judged_incarnation(run, stated))
    assert report.job.world_size == 3
    assert [verdict.ranks for verdict in report.verdicts] == [(2,)]
    assert any("judged: the one from " in note and "left" not in note for note in report.notes)


def test_processes_that_go_on_with_fewer_are_no_new_start() -> None:
    """Survivors that were given new numbers were started when all were: nothing is cut."""
    run = _started(3, 60)
    again = {**run.ranks, "world_size": np.full(3, 2, np.int32), "rank": np.array([-1, 0, 1], np.int32)}
    stated = with_rows(run, ranks=select(again, slice(1, None))).ranks
    assert judged_incarnation(run, stated) is run


SLOW = (Fault("compute", (1,), 0.1),)


def moved(run: Run, by: int, comm: int) -> dict[str, Any]:
    """The tables of a run with its ranks further on, in other communicators."""
    found: dict[str, Any] = {}
    for name in ("ranks", "steps", "collectives", "communicators"):
        table = dict(run.tables()[name])
        table["rank"] = table["rank"] + by
        if "comm" in table:
            table["comm"] = table["comm"] + np.uint64(comm)
        found[name] = table
    found["ranks"]["node"] = np.full(len(found["ranks"]["rank"]), f"n{by}")
    return found


def both(first: Run, second: Run, comm: int = 1) -> Run:
    """One job of eight ranks of which the first four and the others do work of their own."""
    parts = moved(first, 0, 0), moved(second, 4, comm)
    tables: dict[str, Any] = {name: concatenate(name, [part[name] for part in parts]) for name in parts[0]}
    return with_job(replace(first, metrics=empty(METRICS), **tables), world_size=8)


def group(seed: int, **known: Any) -> Run:
    return simulate(Scenario(4, 80, seed=seed, **known)).run


@pytest.mark.parametrize("layout", ["dp", "fsdp"])
@pytest.mark.parametrize("step_ms", [100.0, 130.0])
def test_a_group_that_does_other_work_is_not_slow(layout: str, step_ms: float) -> None:
    """Its steps are longer, and the other ranks do not wait for them; the report says that the two never meet."""
    report = judge(both(group(1, layout=layout), group(2, layout=layout, step_ms=step_ms)))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert "2 groups share no collective and are judged separately: ranks 0 to 3;" in str(report.notes)
    assert [row.rank for row in report.ranks] == list(range(8))


@pytest.mark.parametrize("step_ms", [100.0, 130.0])
def test_who_is_slow_in_its_group_is_named_at_what_it_costs_there(step_ms: float) -> None:
    """As if the other group were not there."""
    slow = group(1, faults=SLOW)
    (alone,) = judge(replace(slow, metrics=empty(METRICS))).verdicts
    (verdict,) = judge(both(slow, group(2, step_ms=step_ms))).verdicts
    assert (verdict.ranks, verdict.cause) == (alone.ranks, alone.cause)
    assert verdict.cost_ms_per_step == pytest.approx(alone.cost_ms_per_step)


def test_steps_alone_are_compared_within_a_group_too() -> None:
    """Where no collective was timed, the communicators still say who meets whom."""
    run = only(both(group(1), group(2, step_ms=130.0)), collectives=[])
    assert named(run) == [("insufficient_data", (), None)]  # slow in backward, who knows
    assert any("are judged separately" in note for note in judge(run).notes)


def test_one_communicator_that_joins_them_is_enough() -> None:
    """However rarely they meet, they may wait for each other."""
    run = both(group(1), group(2), comm=0)
    assert groups_that_never_meet(run) == []


def test_a_rank_in_no_communicator_has_unknown_partners() -> None:
    """Missing data separates no ranks."""
    run = both(group(1), group(2))
    assert groups_that_never_meet(only(run, communicators=run.communicators["rank"] != 6)) == []


def test_ranks_that_meet_through_others_are_one_job() -> None:
    """Tensor groups and replicas: no communicator has all ranks, and all are joined."""
    for layout, size in (("tp_dp", {"tensor": 2}), ("pp_dp", {"pipeline": 2})):
        run = simulate(Scenario(8, 20, layout=layout, **size)).run  # type: ignore[arg-type]
        assert groups_that_never_meet(run) == []


@pytest.mark.parametrize("onset", [0, 60])
def test_groups_that_never_meet_have_links_of_their_own(onset: int) -> None:
    """Of two that do the same work, one takes longer for the same transfers: its link is slow, and it is named."""
    scenario = Scenario(4, 140, seed=1, layout="fsdp", faults=(Fault("network", (0,), 0.2, onset),))
    slow = simulate(scenario)
    truth = (slow.truth.total_ns - slow.truth.repaired_ns) / 1e6 / (140 - onset)
    other = simulate(Scenario(4, 140, seed=2, layout="fsdp")).run
    (verdict,) = judge(both(slow.run, other)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.since_step) == ("slow_link", (0, 1, 2, 3), onset)
    assert verdict.cost_ms_per_step == pytest.approx(truth, rel=0.15)


def test_what_each_node_made_others_wait_counts_all_groups() -> None:
    """As it is of all ranks: a node's is the sum of its ranks'."""
    what_if = judge(both(group(1, faults=SLOW), group(2, step_ms=130.0))).what_if
    assert set(what_if.waste_by_node_ms) == {"n0", "n4"}
    assert sum(what_if.waste_by_node_ms.values()) == pytest.approx(sum(what_if.waste_by_rank_ms.values()))
