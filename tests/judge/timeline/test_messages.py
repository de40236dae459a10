"""Ranks that meet in messages: halo exchanges, gathering to one rank and its broadcast, pipelines."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hindmost_collector.recordings.tables import concatenate, table
from hindmost_collector.report import text
from hindmost_collector.simulate import Fault, Scenario, Simulated, simulate
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import NONBLOCKING, UNMEASURED, Run, Table
from hindmost_judge.timeline.exchanges import with_exchanges_joined
from hindmost_judge.timeline.messages import RECEIVE, SEND, Schedule, order_of_calls, with_gathers_joined
from hindmost_judge.whatif import pipeline_replay

from tests.runs import MS, made, named, only, with_rows
from tests.scenarios.loads import Load, handed_on, handed_out, make, own_times, with_both_neighbours

#: What a call itself takes, ns.
CALL = 10_000


class Call(NamedTuple):
    """A call of a rank; ns."""

    rank: int
    op: str
    peer: int
    start_ns: float
    self_ns: float = 0.0
    duration_ns: float = CALL
    flags: int = 0


def run_of(calls: list[Call]) -> Run:
    """A job whose ranks made these."""
    columns = dict(zip(Call._fields, map(np.array, zip(*calls, strict=True)), strict=True))
    whole = {name: column.astype(np.int64) if name.endswith("_ns") else column for name, column in columns.items()}
    fixed = {"comm": np.full(len(calls), 7), "bytes": np.full(len(calls), 8000)}
    return made(len(set(columns["rank"].tolist())), collectives=[table("collectives", **whole, **fixed)])


def exchanging(own: np.ndarray[Any, Any], often: int = 0) -> Run:
    """Ranks in a row compute for ``own`` [R, S] ns, send to and receive from neighbours, and wait for both; in each of
    ``often`` steps they send more."""
    calls: list[Call] = []
    left = np.zeros(len(own))
    for number, work in enumerate(own.T):
        came = left + work
        for rank, at in enumerate(came):
            peers = [peer for peer in (rank - 1, rank + 1) if 0 <= peer < len(own)]
            words = [(op, peer) for peer in peers for op in ("send", "recv")]
            words += [("send", peers[0])] if often and number % often == often - 1 else []
            calls += [
                Call(rank, op, peer, at + place * CALL, 0 if place else work[rank], flags=NONBLOCKING)
                for place, (op, peer) in enumerate(words)
            ]
            at_wait = at + len(words) * CALL
            left[rank] = max(at_wait, came[[rank, *peers]].max() + 5 * CALL)
            calls.append(Call(rank, "wait", -1, at_wait, duration_ns=left[rank] - at_wait))
    return run_of(calls)


def works(ranks: int = 4, steps: int = 300) -> np.ndarray[Any, Any]:
    """[R, S] ns: 10 ms, and noise."""
    return np.asarray(np.random.default_rng(1).normal(10 * MS, 0.2 * MS, (ranks, steps)))


@pytest.mark.parametrize("ranks", [2, 4, 9])
@pytest.mark.parametrize("often", [0, 50])
def test_who_keeps_its_neighbours_waiting_is_named(ranks: int, often: int) -> None:
    """Since when, and at what cost, as in a job of collectives; also where other messages come between."""
    own = works(ranks)
    own[1, 150:] += 3 * MS
    first = judge(exchanging(own, often)).verdicts[0]
    assert (first.kind, first.ranks) == ("straggler", (1,))
    assert first.since_step == pytest.approx(150, abs=3)
    assert first.cost_ms_per_step == pytest.approx(2.9, rel=0.15)
    assert first.evidence[0].startswith("self time between exchanges: rank 1")


@pytest.mark.parametrize(("step", "kind"), [(0, "start-up: "), (1, "stall "), (3, "stall ")])
def test_a_stall_in_warm_up_of_exchanges_is_a_stall(step: int, kind: str) -> None:
    """Their steps are of many calls: how many rows a rank has tells no time."""
    own = np.full((3, 60), 10 * MS)
    own[:, :5] *= 4
    own[1, step] += 10_000 * MS
    run = exchanging(own)
    look = {"rank": np.array([1]), "time_ns": np.array([(run.job.started_ns or 0) + 5_000 * MS])}
    report = judge(replace(run, stacks=table("stacks", **look, text='Thread 1 (idle): "MainThread"\n')))
    assert [stall.ranks for stall in report.job.stalls] == [(1,)] * (kind == "stall ")
    assert report.notes[0].startswith(f"{kind}10.0 s without progress")


def test_the_table_says_exchanges_where_ranks_meet_in_no_collective() -> None:
    """No line of the report speaks of collectives."""
    own = works()
    own[1] += 3 * MS
    shown = text.render(judge(exchanging(own)).to_dict(), explain=True)
    assert "collective" not in shown
    assert "in exchanges, for later ranks" in " ".join(shown.split())


def with_meetings(run: Run, every: int) -> Run:
    """The same with a reduction after every so many steps, which takes no time of its own."""
    calls = run.collectives
    waits = np.flatnonzero(calls["op"] == "wait")
    number = np.concatenate([np.arange(np.sum(calls["rank"][waits] == rank)) for rank in run.ranks["rank"]])
    waits = waits[np.argsort(calls["rank"][waits], kind="stable")]
    last = waits[number % every == every - 1]
    met = only(run, collectives=last).collectives
    met |= {"op": np.full(len(last), "all_reduce"), "start_ns": met["start_ns"] + met["duration_ns"]}
    met |= {"comm": np.full(len(last), 9, np.uint64), "seq": number[number % every == every - 1] // every}
    met |= {"duration_ns": np.full(len(last), CALL // 2), "self_ns": np.full(len(last), 10 * every * MS)}
    return with_rows(run, collectives=met)


def test_exchanges_tell_steps_where_ranks_meet_only_now_and_then() -> None:
    """Of 300 steps with a reduction after every 20th a slowdown of the last 120 begins within three steps."""
    own = works()
    own[1, 180:] += 3 * MS
    first = judge(with_meetings(exchanging(own), 20)).verdicts[0]
    assert (first.kind, first.ranks) == ("straggler", (1,))
    assert first.since_step == pytest.approx(180, abs=3)


@pytest.mark.parametrize("sources", [True, False], ids=["all known", "any source"])
def test_far_ranks_do_not_wait_for_each_others_noise(sources: bool) -> None:
    """Of 16 ranks in a row whose steps vary by a fifth a slow one costs what it works longer: others catch up. Who
    receives of any source waits for those that send to it."""
    noise = np.random.default_rng(3).gamma(1.0, 2 * MS, (16, 300))
    own = 10 * MS + noise
    slow = own.copy()
    slow[7] += 4 * MS
    tables = [exchanging(one).collectives for one in (own, slow)]
    ends = [(calls["start_ns"] + calls["duration_ns"]).max() for calls in tables]
    run = exchanging(slow)
    if not sources:
        run.collectives["peer"][run.collectives["op"] == "recv"] = -1
    first = judge(run).verdicts[0]
    assert (first.kind, first.ranks) == ("straggler", (7,))
    assert first.cost_ms_per_step == pytest.approx((ends[1] - ends[0]) / 300 / MS, rel=0.2)


def with_gather(run: Run, of: int, self_ns: int) -> Run:
    """The same with a message of each rank but one to that one, after all else."""
    end = int((run.collectives["start_ns"] + run.collectives["duration_ns"]).max())
    others = [rank for rank in run.ranks["rank"].tolist() if rank != of]
    last = run_of(
        [Call(rank, "send", of, end + CALL, self_ns) for rank in others]
        + [Call(of, "recv", rank, end + place * CALL, self_ns) for place, rank in enumerate(others, 1)]
    ).collectives
    return with_rows(run, collectives=last)


@pytest.mark.parametrize("sent", [handed_on, handed_out])
@pytest.mark.parametrize("ranks", [2, 4])
def test_a_step_may_have_several_exchanges(ranks: int, sent: Callable[[np.ndarray[Any, Any]], list[Table]]) -> None:
    """As of a molecular dynamics program, which sends positions and forces: a step is both."""
    own = np.random.default_rng(0).normal(3.0, 0.05, (ranks, 120)) * np.tile([1.0, 0.1], 60)
    own[0] *= 3
    report = judge(made(ranks, collectives=sent(own)))
    assert report.job.steps == 60
    assert {rank for verdict in report.verdicts for rank in verdict.ranks} <= {0}


def test_messages_after_the_steps_make_no_neighbours() -> None:
    """Results gathered at the end are waited for once, not in each step."""
    run = exchanging(works(8, 60))
    joined, gathered = (with_exchanges_joined(one) for one in (run, with_gather(run, 3, 0)))
    assert joined is not None
    assert gathered is not None
    assert gathered[1].tolist() == joined[1].tolist()


def test_a_rank_without_steps_is_no_neighbour() -> None:
    """The last rank only receives results: it does not meet the others in their steps."""
    own = works(8)
    own[1] += 3 * MS
    whole = with_gather(exchanging(own), 8, UNMEASURED)
    assert judge(replace(whole, ranks=made(9).ranks)).verdicts[0].ranks == (1,)


def test_an_even_job_is_balanced() -> None:
    first = judge(exchanging(works())).verdicts[0]
    assert (first.kind, first.ranks) == ("balanced", ())


def handed_out() -> Iterator[Call]:
    """Who is done gets the next piece of work: rank 2 does half as many as rank 1."""
    for rank, piece in ((1, 10 * MS), (2, 20 * MS)):
        for end in range(piece, 3000 * MS, piece):
            yield from (Call(rank, "send", 0, end - 2 * CALL, piece - 2 * CALL), Call(rank, "recv", 0, end - CALL))
            yield from (Call(0, "recv", rank, end - 2 * CALL), Call(0, "send", rank, end - CALL))


def in_turn(*own: int) -> Iterator[Call]:
    """A message goes round: each rank computes for its ``own`` ms when it has it, and passes it on."""
    for start in range(0, 200 * sum(own), sum(own)):
        at = start
        for rank, work in enumerate(own):
            yield Call(rank, "send", (rank + 1) % len(own), (at + work) * MS, work * MS)
            rest = (sum(own) - work) * MS - CALL
            yield Call(rank, "recv", (rank - 1) % len(own), (at + work) * MS + CALL, duration_ns=rest)
            at += work


def subcycled() -> Iterator[Call]:
    """Rank 0 makes two short steps for each of rank 2, and rank 1 meets both."""
    for start in range(0, 2000 * MS, 10 * MS):
        for half in (start + 5 * MS, start + 10 * MS):
            yield from (Call(0, "send", 1, half, 5 * MS - CALL), Call(0, "recv", 1, half + CALL))
            yield from (Call(1, "send", 0, half, 5 * MS - CALL), Call(1, "recv", 0, half + CALL))
        yield from (Call(1, "send", 2, half + 2 * CALL), Call(1, "recv", 2, half + 3 * CALL))
        yield from (Call(2, "send", 1, half, 10 * MS - CALL), Call(2, "recv", 1, half + 3 * CALL))


def apart() -> Iterator[Call]:
    """Two pairs that do not wait for each other."""
    for start in range(0, 2000 * MS, 10 * MS):
        for rank in range(4):
            yield Call(rank, "sendrecv", rank ^ 1, start, 10 * MS - CALL)


def unmeasured() -> Iterator[Call]:
    """Nothing tells how long ranks computed before."""
    return (one._replace(self_ns=UNMEASURED) for one in apart() if one.rank < 2)


@pytest.mark.parametrize(
    "calls",
    [handed_out(), subcycled(), apart(), unmeasured()],
)
def test_ranks_that_do_not_wait_for_each_other_alike_are_left(calls: Iterator[Call]) -> None:
    assert with_exchanges_joined(run_of(list(calls))) is None


@pytest.mark.parametrize("calls", [in_turn(2, 20), in_turn(3, 8, 3, 8), in_turn(2, 3, 5, 10)])
def test_ranks_that_work_in_turn_are_compared_with_no_other(calls: Iterator[Call]) -> None:
    joined = with_exchanges_joined(run_of(list(calls)))
    assert joined is not None
    assert len(set(joined.cohort.tolist())) == len(joined.cohort)


def test_steps_that_a_recording_lacks_of_one_rank_move_no_others() -> None:
    """As the beginning of a window does: its steps are those that others made at the time."""
    own = works(3)
    own[1, 150:] += 3 * MS
    run = exchanging(own)
    kept = (run.collectives["rank"] != 2) | (run.collectives["start_ns"] > 200 * MS)
    joined = with_exchanges_joined(replace(run, collectives=chosen(run.collectives, kept)))
    assert joined is not None
    seq, start, rank = (joined[0].collectives[name] for name in ("seq", "start_ns", "rank"))
    others, late = (dict(zip(seq[rank == one].tolist(), start[rank == one].tolist(), strict=True)) for one in (0, 2))
    assert len(late) < len(others) - 10
    assert max(abs(late[step] - others[step]) for step in late) < 10 * MS


SLOW = Load(ranks=4, compute=8.0, faults=[{"rank": 2, "compute": 4.0}])
#: What each rank does before the broadcast, mpi4py's way: 3 and 2 by 2, 2 and 1 by 0; "r" receives, "s" sends.
TREE = {0: ["r1", "r2"], 1: ["s0"], 2: ["r3", "s0"], 3: ["s2"]}
#: The root has not heard of rank 1 when it broadcasts.
PARTLY = {0: ["r2"], 1: ["s3"], 2: ["s0"], 3: ["r1"]}
REDUCED = {rank: ["g0"] for rank in range(4)}
OPERATIONS = {"r": "recv", "s": "send", "g": "reduce"}


def instead(run: Run, calls: dict[int, list[str]], root: int = 0, between: float = 0.0) -> Run:
    """The run with these calls and a broadcast for each of its all-reduces. ``between`` of a rank's self time is after
    the first of them."""
    met = run.collectives
    steps = int(met["seq"].max()) + 1
    came = met["start_ns"].reshape(4, steps)
    left = (met["start_ns"] + met["duration_ns"]).reshape(4, steps)
    parts: list[dict[str, Any]] = []
    for rank, words in calls.items():
        mine = {name: column.reshape(4, steps)[rank] for name, column in met.items()}
        own, at = mine["self_ns"], came[rank] - (between * mine["self_ns"]).astype(np.int64)
        for number, word in enumerate(words):
            peer = int(word[1:])
            last = np.maximum(
                at, came.max(axis=0) if word[0] == "g" and rank == 0 else came[peer] if word[0] == "r" else 0
            )
            before = own - (between * own).astype(np.int64) if number == 0 else np.full(steps, 300)
            measured = {"op": np.full(steps, OPERATIONS[word[0]]), "peer": np.full(steps, peer), "seq": np.zeros(steps)}
            if word[0] == "g":
                measured |= {"seq": 2 * np.arange(steps)}
            else:
                measured |= {"cpu_ns": np.full(steps, UNMEASURED), "runqueue_ns": np.full(steps, UNMEASURED)}
            parts.append(mine | {"start_ns": at, "duration_ns": last - at + 1_000, "self_ns": before} | measured)
            at = last + 1_000 + 300
        at = np.maximum(at, came[rank])
        rest = {"self_ns": np.full(steps, 300), "cpu_ns": np.full(steps, UNMEASURED)} if words[0][0] == "g" else {}
        spread = {"op": np.full(steps, "broadcast"), "peer": np.full(steps, root), "seq": 2 * np.arange(steps) + 1}
        parts.append(mine | spread | rest | {"start_ns": at, "duration_ns": np.maximum(left[rank] - at, 500)})
    return replace(run, collectives=concatenate("collectives", parts))


@pytest.mark.parametrize("calls", [TREE, REDUCED], ids=["messages", "reduce"])
def test_who_is_late_for_a_gathering_is_named(calls: dict[int, list[str]]) -> None:
    """Sent to one rank and broadcast by it, results are waited for as those of an all-reduce: same cause and cost."""
    run = make(SLOW)
    assert named(run) == [("straggler", (2,), "compute")]
    report = judge(instead(run, calls))
    assert named(instead(run, calls)) == named(run)
    assert report.verdicts[0].cost_ms_per_step == pytest.approx(judge(run).verdicts[0].cost_ms_per_step, rel=0.05)
    assert report.job.steps == judge(run).job.steps


@pytest.mark.parametrize("calls", [TREE, REDUCED], ids=["messages", "reduce"])
def test_an_even_job_that_gathers_is_balanced(calls: dict[int, list[str]]) -> None:
    """No rank is named where none is late."""
    assert named(instead(make(Load()), calls))[0][:2] == ("balanced", ())


def test_a_broadcast_whose_root_has_not_heard_of_all_is_no_meeting() -> None:
    """Its members may leave it before the last has come."""
    run = instead(make(SLOW), PARTLY)
    assert with_gathers_joined(run) is run


def test_stages_that_compute_in_turn_are_left() -> None:
    """Each receives, computes and sends: the late rank did not wait for what the last one broadcasts."""
    chain = {0: ["s1"], 1: ["r0", "s2"], 2: ["r1", "s3"], 3: ["r2"]}
    run = instead(make(SLOW), chain, root=3, between=0.9)
    assert with_gathers_joined(run) is run
    passed_on = instead(make(SLOW), chain, root=3)
    assert (with_gathers_joined(passed_on).collectives["op"] == "all_reduce").all()


FOUR: dict[str, Any] = {"ranks": 4, "steps": 100, "layout": "pp_dp", "pipeline": 4}


def of(*faults: Fault, seed: int = 1) -> tuple[Simulated, Run]:
    """A job of four stages, and its recording with the messages alone; forward holds what a stage waits in it."""
    simulated = simulate(Scenario(**FOUR, seed=seed, faults=faults))
    run = of_messages(simulated.run)
    messages = run.collectives
    received = messages["op"] == "recv"
    waited = np.zeros_like(run.steps["gpu_forward_ns"])
    place = messages["rank"][received] * FOUR["steps"] + messages["step"][received]
    order = np.argsort(run.steps["rank"] * FOUR["steps"] + run.steps["step"])
    np.add.at(waited, order[place], messages["duration_ns"][received])
    forward = run.steps["gpu_forward_ns"] + waited
    return simulated, replace(run, steps={**run.steps, "gpu_forward_ns": forward})


def of_messages(run: Run) -> Run:
    return only(run, collectives=run.collectives["peer"] >= 0)


def truth_ms(simulated: Simulated) -> float:
    return (simulated.truth.total_ns - simulated.truth.repaired_ns) / 1e6 / FOUR["steps"]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("numbered", [True, False])
def test_a_stage_that_waits_in_its_forward_is_not_slow(seed: int, numbered: bool) -> None:
    """No rank is named where all stages keep pace, however long some wait for what they receive; nor is one cleared.
    So it is where nothing tells of which step a message is."""
    _, run = of(seed=seed)
    if not numbered:
        run.collectives["step"][:] = UNMEASURED
    assert [verdict.kind for verdict in judge(run).verdicts] == ["insufficient_data"]


def test_unrecorded_waiting_of_the_last_stages_is_no_work() -> None:
    """Between two steps all meet in unrecorded collectives: the last of eight stages wait there longest."""
    run = simulate(Scenario(ranks=8, steps=40, seed=5, layout="pp_dp", pipeline=8)).run
    assert [verdict.kind for verdict in judge(of_messages(run)).verdicts] == ["insufficient_data"]


def test_a_slow_stage_is_reported_at_its_cost() -> None:
    """It may also hold more layers: its rank is reported, and not named."""
    simulated, run = of(Fault("compute", (2,), 0.3))
    (verdict,) = judge(run).verdicts
    assert (verdict.kind, verdict.ranks) == ("uneven_workload", ())
    assert "stage 2 of 4 (rank 2)" in verdict.evidence[0]
    assert verdict.cost_ms_per_step == pytest.approx(truth_ms(simulated), rel=0.1)


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_whose_input_is_late_is_named(rank: int) -> None:
    """Layers make no input longer, whatever stage holds them."""
    assert named(of(Fault("input", (rank,), 0.3))[1]) == [("straggler", (rank,), "input")]


def test_a_message_without_a_step_is_of_the_one_in_which_its_host_launched_it() -> None:
    """A probe records launches, and marks steps apart from them."""
    _, run = of(Fault("input", (2,), 0.3))
    messages = run.collectives
    launched = {"enqueue_ns": messages["start_ns"] - 1000, "step": np.full_like(messages["step"], UNMEASURED)}
    assert named(replace(run, collectives={**messages, **launched})) == [("straggler", (2,), "input")]


def test_a_late_receive_takes_what_it_takes() -> None:
    """Though its message was sent long before, the rank goes on only when it has that."""
    begin, began = np.full((2, 40), np.arange(40) * 100.0 * MS), np.array([[1.0], [5.0]]) * MS
    order = Schedule(
        row=np.array([0, 1]),
        place=np.zeros(2, np.int64),
        kind=np.array([SEND, RECEIVE]),
        with_whom=np.array([1, 0]),
        overlapping=np.zeros(2, bool),
        start=begin + began,
        end=begin + began + MS,
        begin=begin,
        steps=np.arange(40),
    )
    built = pipeline_replay.build(order, np.array([0, 1]), 40)
    assert built is not None
    np.testing.assert_allclose(built.lasted, 6 * MS)


def test_steps_of_exchanges_begin_with_the_first_call() -> None:
    """Nothing is known of the time before it, and it belongs to the first step all the same."""
    run = exchanging(np.full((3, 60), 2.0 * MS))
    own, first = run.collectives["self_ns"].copy(), np.unique(run.collectives["rank"], return_index=True)[1]
    own[first] = UNMEASURED
    assert judge(replace(run, collectives={**run.collectives, "self_ns": own})).job.steps == 60


def test_messages_of_one_call_are_in_one_order_however_their_times_fall() -> None:
    """A send and a receive of one kernel begin within 2 us of each other, now this first and now that."""
    found = {
        "row": np.zeros(4, np.int64),
        "step": np.array([0, 0, 1, 1]),
        "kind": np.array([SEND, RECEIVE] * 2),
        "whom": np.ones(4, np.int64),
    }
    order = order_of_calls(found, np.array([100.0, 20.0, 5_000.0, 5_900.0]))
    assert found["kind"][order].tolist() == [SEND, RECEIVE] * 2
    apart = order_of_calls(found, np.array([9_000.0, 20.0, 5_000.0, 5_900.0]))
    assert found["kind"][apart].tolist() == [RECEIVE, SEND, SEND, RECEIVE]


@pytest.mark.parametrize("every", [10, 50])
def test_a_test_for_convergence_every_few_iterations_makes_no_longer_step(every: int) -> None:
    """Neighbours exchange in each of 150 iterations, and all ranks reduce now and then."""
    load = Load(ranks=3, steps=150)
    calls = with_both_neighbours(load, own_times(load)[0])
    wait = chosen(calls[-1], np.arange(450) % every == every - 1)
    reduced = wait | {"op": np.full(len(wait["seq"]), "broadcast"), "peer": np.zeros_like(wait["peer"])}
    reduced |= {"start_ns": wait["start_ns"] + wait["duration_ns"], "duration_ns": np.full_like(wait["seq"], 10)}
    assert judge(made(3, collectives=[*calls, reduced])).job.steps == pytest.approx(150, abs=2)
