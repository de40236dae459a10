"""Which calls of ranks are one operation, and what their times tell: classes, groups of one, peers, split calls."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.recordings.tables import concatenate, select, table
from hindmost_collector.report import text
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.encoding import distinct_integers, numbered
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, NONBLOCKING, UNMEASURED, Job, Run, Table, rows
from hindmost_judge.timeline import matching
from hindmost_judge.types import Floats

from tests.runs import made, named, only, rows_of, with_job, with_rows
from tests.scenarios.loads import Load, make

REDUCE, GATHER = 0, 1
Calls = list[tuple[tuple[int, ...], int, int, int]]


def calls(groups: Calls, steps: int = 10) -> dict[str, np.ndarray[Any, Any]]:
    """Rows of communicators, (members, operation, bytes, calls a step) each; the same members are one communicator."""
    names = list(dict.fromkeys(members for members, *_ in groups))
    rows, seq = [], [0] * len(names)
    for step in range(steps):
        for members, op, size, count in groups:
            comm = names.index(members)
            for _ in range(count):
                rows += [(comm, op, rank, size, seq[comm], step) for rank in members]
                seq[comm] += 1
    found = np.array(rows, np.int64).T
    return dict(zip(("comm", "op", "row", "bytes", "seq", "step"), found, strict=True))


def classes(groups: Calls) -> list[list[int]]:
    """The class of each communicator's ranks: one list a class, the communicator of each rank."""
    one = calls(groups)
    ranks = int(one["row"].max()) + 1
    _, group = matching.communicator_classes(one["comm"], one["op"], one["row"], one["bytes"], ranks)
    return sorted(group.T.tolist())


TENSOR: Calls = [((0, 3), REDUCE, 1000, 8), ((1, 2), REDUCE, 1000, 8)]
DATA: Calls = [((0, 1), REDUCE, 4000, 2), ((2, 3), REDUCE, 4000, 2)]


@pytest.mark.parametrize("groups", [TENSOR + DATA, DATA + TENSOR, [TENSOR[1], DATA[0], TENSOR[0], DATA[1]]])
def test_sisters_of_unlike_spacing_are_one_class(groups: Calls) -> None:
    """However ranks are laid out, each is in one tensor group and in one data group."""
    names = list(dict.fromkeys(members for members, *_ in groups))
    expected = [[names.index(each) for each in whose] for whose in _of_ranks()]
    assert classes(groups) == sorted(expected)


def _of_ranks() -> list[list[tuple[int, ...]]]:
    """The tensor groups and the data groups of ranks 0 to 3."""
    return [[(0, 3), (1, 2), (1, 2), (0, 3)], [(0, 1), (0, 1), (2, 3), (2, 3)]]


def test_a_group_that_does_more_than_its_sister_is_of_its_class() -> None:
    """One logs what it does once a step."""
    calls: Calls = [((0, 1), REDUCE, 1000, 8), ((0, 1), GATHER, 10, 1), ((2, 3), REDUCE, 1000, 8)]
    assert classes(calls) == [[0, 0, 1, 1]]


def test_an_extra_communicator_of_some_ranks_is_no_sister() -> None:
    """It does little, and the others have every rank without it."""
    assert len(classes([*TENSOR, *DATA, ((1, 3), REDUCE, 8, 1)])) == 3


def test_groups_that_leave_ranks_out_stay_apart() -> None:
    """Two sets of a job that does not make them for all ranks may be anything."""
    assert len(classes([((0, 1), REDUCE, 8, 1), ((2, 4), REDUCE, 8, 1), ((0, 1, 2, 3, 4), REDUCE, 8, 1)])) == 3


LOGS: Calls = [((0, 1), REDUCE, 1000, 8), ((0, 1), GATHER, 10, 1), ((2, 3), REDUCE, 1000, 8)]


@pytest.mark.parametrize(
    ("groups", "lacks", "seq"),
    [(LOGS, slice(0), 0), (TENSOR, slice(6), 0), (TENSOR, slice(-6, None), 0), (TENSOR, slice(0), 1)],
    ids=["one logs", "begins later", "ends sooner", "had a call before"],
)
def test_calls_belong_together_by_their_place_in_the_step(groups: Calls, lacks: slice, seq: int) -> None:
    """The third all-reduce of one group's second step is that of the other's, whatever the first ``lacks`` or adds."""
    one = calls(groups)
    one["seq"] += seq * (one["comm"] == 0)
    kept = {name: np.delete(values, np.flatnonzero(one["comm"] == 0)[lacks]) for name, values in one.items()}
    rows = table("collectives", rank=kept["row"], comm=kept["comm"], seq=kept["seq"], step=kept["step"])
    found = matching.call_numbers(rows, kept["comm"], kept["op"], np.zeros_like(kept["comm"]))
    whole = (kept["op"] == REDUCE) & (kept["step"] > 0) & (kept["step"] < 9)
    each = [found[whole & (kept["row"] == rank)].tolist() for rank in range(4)]
    assert each == [each[0]] * 4
    assert len(set(each[0])) == 64


def test_many_groups_of_unlike_spacing_are_one_class() -> None:
    """Groups of eight ranks each; without one of the ranks each may be anything."""
    ranks = np.random.default_rng(1).permutation(128 * 8).reshape(128, 8)
    scattered: Calls = [(tuple(sorted(members)), REDUCE, 1000, 1) for members in ranks.tolist()]
    assert len(classes(scattered)) == 1
    assert len(classes([*scattered, ((1024,), REDUCE, 8, 1)])) == 129


def test_looking_for_sisters_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random groups have every rank, and hardly any of them share none: all pairs would be 180,000."""
    compared: list[int] = []
    likeness = matching.CommunicatorClass.likeness
    monkeypatch.setattr(
        matching.CommunicatorClass, "likeness", lambda one, other: compared.append(1) or likeness(one, other)
    )
    random = np.random.default_rng(1)
    chosen = [random.choice(512, 8, replace=False) for _ in range(600)]
    classes([(tuple(sorted(members.tolist())), REDUCE, 8, 1) for members in chosen])
    assert 0 < len(compared) <= matching.MOST_PAIRS


def test_every_rank_runs_its_collectives_in_its_order() -> None:
    """Columns 0 and 2 are of all, 1 of the first two ranks only, who are ahead: by the medians it came last."""
    start = np.array([[0.0, 50, 60], [0, 50, 60], [0, np.nan, 10], [0, np.nan, 10], [0, np.nan, 10]])
    assert matching.in_run_order(start, np.nanmedian(start, axis=0)).tolist() == [0, 1, 2]


def test_ranks_that_contradict_each_other_are_put_in_order_by_time() -> None:
    """Parallel collectives begin in varying order."""
    start = np.array([[0.0, 1, 2], [0, 2, 1]])
    assert matching.in_run_order(start, np.array([0.0, 1.4, 1.5])).tolist() == [0, 1, 2]


def with_a_call_alone(run: Run, share: float) -> Run:
    """The run with a collective of each rank's own in the time before each of its collectives, after that share."""
    before = run.collectives["self_ns"] != UNMEASURED
    alone = only(run, collectives=before).collectives
    own = alone["self_ns"]
    first = (own * share).astype(np.int64)
    alone |= {
        "comm": (alone["rank"] + 1000).astype(np.uint64),
        "start_ns": alone["start_ns"] - own + first,
        "duration_ns": np.full_like(own, 5_000),
        "self_ns": first,
        "cpu_ns": np.full_like(own, UNMEASURED),
        "runqueue_ns": np.full_like(own, UNMEASURED),
    }
    alone["seq"] = np.arange(len(own))
    rest = run.collectives["self_ns"].copy()
    rest[before] -= first
    return in_order(with_rows(replace(run, collectives=run.collectives | {"self_ns": rest}), collectives=alone))


def in_order(run: Run) -> Run:
    """The run with each rank's collectives in the order of its time."""
    return only(run, collectives=np.lexsort((run.collectives["start_ns"], run.collectives["rank"])))


def measured(run: Run) -> Run:
    """The run with self time as the MPI shim measures it: since the end of the rank's call before."""
    grid = matching.grid(run)
    assert grid is not None
    own = matching.self_time(grid)
    own_ns = np.where(np.isnan(own), UNMEASURED, own).astype(np.int64).reshape(-1)
    return replace(run, collectives=in_order(run).collectives | {"self_ns": own_ns})


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
    run.collectives["self_ns"][(run.collectives["comm"] == 1002) & (run.collectives["seq"] > 50)] = UNMEASURED
    grid = matching.grid(run)
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


@pytest.mark.parametrize(
    "column",
    [[3, 1, 3, 2], [-1, 5, -1, 0], [7], [0, 2**30, 3], []],
    ids=["close", "below zero", "one", "far apart", "none"],
)
@pytest.mark.parametrize("kind", [np.int32, np.int64])
def test_every_row_has_its_number(column: list[int], kind: type[np.signedinteger]) -> None:
    """Numbers come once and in order, as numpy's own, in the column's kind."""
    rows = np.array(column, kind)
    found, which = numbered(rows)
    assert found.dtype == kind
    assert found.tolist() == distinct_integers(rows).tolist() == sorted(set(column))
    assert found[which].tolist() == column


MS = 1_000_000


def _waited(transfers: list[tuple[str, int, int]]) -> Floats:
    """[2, 3] what both ranks waited; rank 0 is in these (operation, start, duration) before the last collective."""
    rows = [
        (rank, 7, seq, "all_reduce", start * MS, 2 * MS, 8, 0, -1, -1, -1, -1, -1, -1)
        for rank in (0, 1)
        for seq, start in enumerate((0, 20, 100))
    ]
    rows += [
        (0, 9, seq, op, start * MS, took * MS, 8, 0, 1, -1, -1, -1, -1, -1)
        for seq, (op, start, took) in enumerate(transfers)
    ]
    grid = matching.grid(Run(Job(id="made"), collectives=from_rows("collectives", rows)))
    assert grid is not None
    return grid.peer_wait / MS


@pytest.mark.parametrize(
    ("transfers", "waited"),
    [
        ([("send", 30, 10), ("recv", 50, 5)], 15),
        ([("send", 30, 10), ("recv", 30, 10)], 10),
        ([("send", 30, 10), ("recv", 35, 10)], 15),
        ([("send", 30, 30), ("recv", 35, 5), ("recv", 70, 1)], 31),
    ],
    ids=["one after the other", "one kernel", "overlapping", "one within the other"],
)
def test_transfers_that_overlap_are_waited_for_once(transfers: list[tuple[str, int, int]], waited: int) -> None:
    """A send and a receive that are one kernel (batch_isend_irecv) take its time, not twice that."""
    assert _waited(transfers)[0].tolist() == [0, 0, waited]
    assert np.all(_waited(transfers)[1] == 0)


RANKS, COUNT = 4, 400
TRANSFER, WAIT = 0.2, 0.5


def _operations(comm: int, ranks: Any, count: int, late: int | None) -> Table:
    ranks = np.asarray(ranks)[:, None]
    noise = np.random.default_rng(3).uniform(0, 0.02, (len(ranks), count))
    took = TRANSFER + np.where(ranks == late, 0.0, WAIT if late in ranks else 0.0) + noise
    call = {"comm": comm, "seq": np.arange(count), "step": -1, "op": "all_reduce", "bytes": 1 << 20, "flags": GPU_TIME}
    return rows_of("collectives", rank=ranks, duration_ns=took, **call)


def _run(*parts: Table) -> Run:
    return made(RANKS, collectives=parts, source="a trace", pace_ns=3e6)


@pytest.mark.parametrize("barriers", [0, 2])
def test_whom_all_others_wait_for_is_named(barriers: int) -> None:
    """A communicator that is met now and then only does not keep the ranks' own from telling."""
    everyone = np.arange(RANKS)
    parts = [_operations(7, everyone, COUNT, late=1)]
    parts += [_operations(9, everyone, barriers, late=None)] if barriers else []
    (verdict,) = judge(_run(*parts)).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "unknown")
    assert verdict.cost_ms_per_step == pytest.approx(WAIT, rel=0.05)


def test_of_several_groups_no_rank_is_named_or_cleared() -> None:
    """Who is late for one may have waited in another before, and nothing says when."""
    pairs = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((7, (0, 1)), (8, (2, 3)))]
    across = [_operations(comm, np.array(pair), COUNT, late=1) for comm, pair in ((10, (0, 2)), (11, (1, 3)))]
    (verdict,) = judge(_run(*pairs, *across)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert "ranks meet in several groups" in verdict.evidence[0]


SLOW = Load(ranks=4, compute=8.0, faults=[{"rank": 2, "compute": 4.0}])


def split(run: Run, computed_ns: int = 0, polls: int | None = None, each: int = 1) -> Run:
    """The run with ``each`` collectives for every one, started 1 us apart so long before the waits for them. The rank
    ``polls`` polls for them unrecorded: that leaves no wait. What it computes meanwhile it had computed before."""
    calls = run.collectives
    unmeasured = np.full(len(calls["rank"]), -1)
    parts = []
    for number in range(each):
        own = {name: np.zeros_like(calls[name]) if number else calls[name] for name in ("self_ns", "cpu_ns")}
        named = {"seq": calls["seq"] * each + number}
        begun = {"start_ns": calls["start_ns"] - computed_ns + 1_000 * number, "duration_ns": unmeasured * 0 + 500}
        parts.append(calls | own | named | begun | {"flags": calls["flags"] | NONBLOCKING})
        took = calls["duration_ns"] if number == 0 else unmeasured * 0 + 200
        start = calls["start_ns"] + 1_000 * each + (calls["duration_ns"] if number else 0)
        waits = calls | named | {"op": np.full(len(took), "wait"), "start_ns": start, "duration_ns": took}
        waits |= dict.fromkeys(("self_ns", "cpu_ns", "runqueue_ns"), unmeasured)
        parts.append(select(waits, calls["rank"] != polls))
    return replace(run, collectives=concatenate("collectives", parts))


@pytest.mark.parametrize(
    "how",
    [{}, {"computed_ns": 3_000_000}, {"each": 2}],
    ids=["awaited at once", "computing comes between", "two a step"],
)
def test_a_late_start_is_named_as_a_late_call_is(how: dict[str, int]) -> None:
    """Started and awaited, collectives name whom they name where they block, with its cause and cost."""
    run = make(SLOW)
    assert named(run) == named(split(run, **how)) == [("straggler", (2,), "compute")]
    blocking, started = judge(run), judge(split(run, **how))
    assert started.verdicts[0].cost_ms_per_step == pytest.approx(blocking.verdicts[0].cost_ms_per_step, abs=0.1)
    assert started.job.steps == blocking.job.steps


def test_an_even_job_stays_balanced() -> None:
    """No rank is named where none starts late."""
    assert named(split(make(Load()))) == [("balanced", (), None)]


def test_polled_collectives_are_reported() -> None:
    """Where one rank polls it cannot be judged, and the report does not say that there was no collective."""
    report = judge(split(make(SLOW), polls=2))
    assert [verdict.kind for verdict in report.verdicts] == ["insufficient_data"]
    reported = " ".join(text.render(report.to_dict(), width=400).split())
    assert "600 nonblocking collective calls" in reported
    assert "no collective" not in reported
    assert "hindmost.step()" in reported


def test_polled_collectives_of_a_program_in_c_get_no_python() -> None:
    """What completes them is a call of MPI."""
    run = split(make(SLOW), polls=2)
    ranks = {**run.ranks, "framework": np.full(len(run.ranks["rank"]), "")}
    (verdict,) = judge(with_job(replace(run, ranks=ranks), command="mpirun -np 4 ./solver")).verdicts
    assert verdict.advice == ("complete them by MPI_Wait or MPI_Waitall, not MPI_Test",)
