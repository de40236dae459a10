"""Jobs that stop: who is named when only one rank finished, when the job was killed, or when it saves."""

import tracemalloc
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.recordings import tables
from hindmost_collector.report.verdict_lines import clock, of_verdict
from hindmost_judge.detect.hang import steps_done, walk
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, VANISHED, Run, empty
from hindmost_judge.verdict.schema import Verdict, WhichOperation

from tests.runs import named, only, with_job, with_rows
from tests.scenarios.loads import Load, hang, make

FOUR = Load(ranks=4, steps=40)
SECOND = 10**9


def first(run: Run) -> Verdict:
    return judge(run).verdicts[0]


def also(run: Run, rank: int, op: str, seq: int) -> Run:
    """The run with one more finished collective of a rank, after all others."""
    more = only(run, collectives=[-1]).collectives
    more |= {"rank": np.array([rank], np.int32), "op": np.array([op]), "seq": np.array([seq])}
    more["start_ns"] = run.collectives["start_ns"].max(keepdims=True) + SECOND
    return with_rows(run, collectives=more)


def in_phase(run: Run, rank: int, name: str) -> Run:
    more = only(run, in_flight=[-1]).in_flight
    more |= {"rank": np.array([rank], np.int32), "kind": np.array(["phase"]), "name": np.array([name])}
    return with_rows(run, in_flight=more)


def test_an_operation_that_only_the_odd_rank_finished_is_a_divergence() -> None:
    """A broadcast's root leaves at once: the others wait in what it never entered."""
    verdict = first(also(hang(FOUR, [2]), 2, "broadcast", 40))
    assert (verdict.kind, verdict.ranks) == ("desync", (2,))
    assert verdict.evidence[0] == "rank 2 ran broadcast, the others are in all_reduce"


def test_what_all_have_run_is_no_divergence() -> None:
    """Numbers may count each operation separately: the same broadcast on all ranks is no mistake."""
    run = hang(FOUR, [2])
    for rank in range(4):
        run = also(run, rank, "broadcast", 3)
    assert (first(run).kind, first(run).ranks) == ("hang", (2,))


@pytest.mark.parametrize("run", [hang(FOUR, [2]), also(hang(FOUR, [2]), 2, "broadcast", 40)])
def test_a_report_marks_the_evidence_that_only_identifies_the_operation(run: Run) -> None:
    """A notice of one line leaves it out, of a hang and of a divergence."""
    (verdict,) = judge(run).to_dict()["verdicts"]
    (marked,) = (text for text in verdict["evidence"] if isinstance(text, WhichOperation))
    assert marked.startswith("that all_reduce is number 40 of communicator 0x")


def in_another_communicator(run: Run, rank: int, members: int) -> Run:
    """The run with the rank's open operation in a communicator of its own number, of so many members."""
    table = {name: column.copy() for name, column in run.in_flight.items()}
    table["comm"][table["rank"] == rank] = 8
    group = tables.table("communicators", comm=8, rank=[rank], rank_in=0, size=members, name="world")
    return with_job(replace(run, in_flight=table, communicators=group), world_size=4)


def test_who_waits_in_another_communicator_of_the_same_ranks_has_parted_from_them() -> None:
    """A rank's own broadcast and the others' gradients each wait for the rest: no rank is inside the same operation."""
    run = in_another_communicator(hang(FOUR, [2], op="ddp_sync", other="broadcast"), 2, members=4)
    verdict = first(run)
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (2,), (0, 1, 3))
    assert verdict.evidence[0] == "rank 2 is in broadcast, the others are in ddp_sync"


def test_groups_of_other_ranks_that_wait_for_each_other_name_no_rank() -> None:
    """Two groups entered in different order: each rank waits, and neither order is the wrong one."""
    run = in_another_communicator(hang(FOUR, [2], op="all_reduce", other="all_reduce"), 2, members=2)
    assert (first(run).kind, first(run).ranks) == ("desync", ())
    said = "rank 2 is in all_reduce of another communicator, ranks 0, 1 and 3 are in all_reduce"
    assert first(run).evidence[0] == said


def test_each_of_three_groups_that_parted_is_named_with_what_it_is_in() -> None:
    """Rank 2 gathers, rank 3 is in a barrier, the others broadcast: no rank is left out."""
    run = in_another_communicator(hang(FOUR, [2], op="broadcast", other="all_gather"), 2, members=4)
    table = {name: column.copy() for name, column in run.in_flight.items()}
    table["name"][table["rank"] == 3], table["comm"][table["rank"] == 3] = "barrier", 9
    group = run.communicators | {"comm": np.array([9], np.uint64)}
    verdict = first(with_rows(replace(run, in_flight=table), communicators=group))
    assert verdict.kind == "desync"
    assert verdict.evidence[0] == "rank 2 is in all_gather, rank 3 is in barrier, ranks 0 and 1 are in broadcast"
    assert verdict.advice == ("find the branch in the code that only some ranks took",)


@pytest.mark.parametrize(("waited", "kind"), [(30.0, "balanced"), (90.0, "hang")])
def test_a_rank_that_writes_a_checkpoint_has_a_minute(waited: float, kind: str) -> None:
    """The others wait for the rank that saves; only after a minute is that a stop."""
    assert first(in_phase(hang(FOUR, [1], waited=waited), 1, "checkpoint")).kind == kind


def test_a_job_that_ended_before_its_first_steps_hung() -> None:
    """No rank can come any more."""
    run = hang(Load(ranks=4, steps=2), [1])
    verdict = first(with_job(run, exit_code=143, ended_ns=int(run.in_flight["observed_ns"].max()) + SECOND))
    assert (verdict.kind, verdict.ranks) == ("hang", (1,))


def killed(run: Run, code: int, after_s: float) -> Run:
    ended = int((run.collectives["start_ns"] + run.collectives["duration_ns"]).max() + after_s * SECOND)
    return with_job(run, exit_code=code, ended_ns=ended)


@pytest.mark.parametrize(
    ("code", "after_s", "kind"),
    [(137, 60.0, "hang"), (-9, 60.0, "hang"), (137, 2.0, "balanced"), (1, 60.0, "balanced")],
)
def test_a_killed_job_hung_if_nothing_had_moved_before(code: int, after_s: float, kind: str) -> None:
    """A signal ends healthy jobs too: what counts is how long nothing had moved."""
    verdict = first(killed(make(FOUR), code, after_s))
    assert (verdict.kind, verdict.ranks) == (kind, ())


def test_being_killed_makes_no_hang_of_an_operation_just_entered() -> None:
    """Whatever was open when the signal came had been open for an instant."""
    run = hang(FOUR, [1], waited=0.5)
    over = with_job(run, exit_code=143, ended_ns=int(run.in_flight["observed_ns"].max()) + SECOND)
    assert first(over).kind == "balanced"


def test_what_was_open_until_the_job_was_killed_hung_until_then() -> None:
    """The last moment is not observed: the end of the job shows how long an operation was open."""
    run = hang(FOUR, [1], waited=1)
    verdict = first(with_job(run, exit_code=137, ended_ns=int(run.in_flight["start_ns"].max()) + 40 * SECOND))
    assert (verdict.kind, verdict.ranks) == ("hang", (1,))
    assert verdict.waited_s == pytest.approx(120.0)


def test_a_stack_that_could_not_be_read_is_no_place_in_the_code() -> None:
    """The report says why there is none, and does not point to a file without one."""
    why = "no stack of process 1209: Failed to find a python interpreter in the .data section\n"
    ended = with_job(replace(hang(FOUR, [3]), stacks=from_rows("stacks", [(3, 1, why)])), ended_ns=1)
    verdict = first(ended)
    unread = "rank 3 has no readable stack: Failed to find a python interpreter in the .data section"
    assert unread in verdict.evidence
    assert "stacks/3.txt" not in verdict.advice[0]
    compiled = first(with_job(ended, command="mpirun -np 4 ./solver"))
    assert not any("stack" in line for line in compiled.evidence)


def test_a_stack_that_needs_py_spy_says_how_to_get_it() -> None:
    why = "no stack of process 1209: py-spy is not installed: pip install py-spy\n"
    ended = with_job(replace(hang(FOUR, [3]), stacks=from_rows("stacks", [(3, 1, why)])), ended_ns=1)
    assert first(ended).advice[0] == "see what rank 3 printed last; its source line needs py-spy: `pip install py-spy`"


def test_a_culprit_whose_process_is_gone_is_reported_as_gone() -> None:
    """The others wait for a process that ended: the evidence says so."""
    run = hang(FOUR, [3])
    gone = tables.table("rank_states", rank=[3], time_ns=int(run.in_flight["start_ns"].min()), life=VANISHED)
    assert any("rank 3 is gone" in line for line in first(replace(run, rank_states=gone)).evidence)


AT = 'Thread 1 (idle): "MainThread"\n    load (train.py:49)\n'


@pytest.mark.parametrize(
    ("over", "cut_off"),
    [
        ({"ended_ns": 1, "exit_code": 1}, False),
        ({"ended_ns": 1, "exit_code": 1, "interrupted_by": "SIGINT"}, False),
        ({"abandoned": True}, True),
        ({"source": "PyTorch Flight Recorder dumps"}, True),
    ],
)
def test_a_wait_is_as_long_as_the_job_let_it_be(over: dict[str, Any], cut_off: bool) -> None:
    """The end of a finished job bounds the wait, and the advice does not suggest attaching to it."""
    run = replace(hang(FOUR, [3]), stacks=from_rows("stacks", [(3, 1, AT)]))
    verdict = first(with_job(run, **over))
    assert verdict.evidence[0] == "3 ranks waited in all_reduce"
    assert verdict.waited_s == 90.0
    assert ("the wait is as long as the recording; a time-out may have ended it" in verdict.evidence) == cut_off
    assert not [line for line in verdict.advice if "attach" in line]
    assert verdict.advice[0].startswith("see what rank 3 on node0 waited for at train.py:49, in load()")


def waiting(*waits: float) -> Verdict:
    """The verdict on four ranks of which rank 1 stays away, and the others wait for so many seconds from 1000 s on."""
    run = hang(FOUR, [1])
    table = run.in_flight
    lasted = (np.array(waits) * SECOND).astype(np.int64)
    end = int(table["start_ns"].max() + lasted.max())
    run = replace(run, in_flight={**table, "start_ns": end - lasted, "observed_ns": np.full(3, end)})
    return first(with_job(run, started_ns=1))


def test_a_hang_costs_what_each_rank_has_waited_since_the_first_did() -> None:
    """Ranks come one after another, the others 29 min later: each waits from its own arrival on."""
    verdict = waiting(1800.0, 60.0, 60.0)
    assert (verdict.waited_s, verdict.since_time_s) == (1920.0, 1000.0)


def test_a_wait_that_one_rank_did_not_record_leaves_the_cost_unknown() -> None:
    """What is missing is no zero."""
    run = hang(FOUR, [1])
    seen = run.in_flight["observed_ns"].copy()
    seen[0] = -1
    assert first(replace(run, in_flight={**run.in_flight, "observed_ns": seen})).waited_s is None


@pytest.mark.parametrize(
    ("each", "cost"),
    [
        (30.0, "3 ranks waited 30.0 s on average"),
        (640.0, "3 ranks waited 10.7 min on average"),
        (7200.0, "3 ranks waited 2.0 h on average"),
        (1e6, "3 ranks waited 11.6 days on average"),
    ],
)
def test_cost_of_a_hang_is_how_long_its_ranks_waited(each: float, cost: str) -> None:
    """In units that can be read, with the clock time at which it began."""
    assert of_verdict(asdict(waiting(each, each, each))).cost == f"{cost}, since {clock(1000.0, ':%S')}"


def test_a_running_job_s_report_has_the_line_and_suggests_attach() -> None:
    """The line is in the report, without opening a file; the rest of the stack is one command away."""
    run = replace(hang(FOUR, [3]), stacks=from_rows("stacks", [(3, 1, AT)]))
    verdict = first(run)
    assert verdict.evidence[0].startswith("3 ranks wait in all_reduce")
    assert [line.partition(";")[0] for line in verdict.advice] == [
        "see what rank 3 on node0 waits for at train.py:49, in load()",
        "before you cancel the job: `hindmost attach --stacks --job made` on the node of rank 3",
    ]


def test_ranks_that_are_all_gone_can_not_be_attached_to() -> None:
    """How the job ended is unknown, and no process of it is left."""
    run = hang(FOUR, [3])
    gone = tables.table("rank_states", rank=range(4), time_ns=1, life=VANISHED)
    verdict = first(replace(run, rank_states=gone))
    assert not [line for line in verdict.advice if "attach" in line]


def test_a_hang_is_in_the_step_after_the_last_that_its_culprit_finished() -> None:
    """Where steps were recorded, the headline tells in which the job stopped."""
    open_ops = hang(Load(ranks=4, steps=40, kind="torch"), [2])
    report = judge(open_ops).to_dict()
    assert report["verdicts"][0]["since_step"] == 40
    assert of_verdict(report["verdicts"][0]).sentence == "HUNG in step 40: rank 2 did not arrive"


@pytest.mark.parametrize(("enqueued", "step"), [(0, 40), (4, 40), (5, 41)])
def test_a_step_that_was_launched_whole_is_done_though_nothing_marks_its_end(enqueued: int, step: int) -> None:
    """Of five operations a step: a loop that writes a step down in the next one leaves no mark of its last."""
    begun = np.arange(40) * 1000
    steps = {"rank": np.zeros(40, int), "step": np.arange(40), "start_ns": begun, "duration_ns": np.full(40, 900)}
    within = (begun[:, None] + np.arange(5) * 100).ravel()
    times = np.append(within, 40_000 + np.arange(enqueued) * 100)
    operations = {"rank": np.zeros(len(times), int), "enqueue_ns": times}
    assert steps_done(steps, operations, 0) == step


def test_a_job_that_marks_no_steps_hangs_after_the_last_whole_pattern() -> None:
    """A step of one all-reduce each: 40 were whole."""
    assert first(hang(FOUR, [2])).since_step == 40
    run = hang(FOUR, [2])
    assert first(replace(run, collectives=empty(COLLECTIVES))).since_step is None


def test_a_step_that_was_begun_is_the_one_in_which_the_job_hangs() -> None:
    """Of two all-reduces a step the first of step 20 was over: it stopped in that, not after it."""
    run = hang(Load(ranks=4, steps=41), [2])
    sizes = np.where(run.collectives["seq"] % 2 == 0, 8, 4096)
    assert first(replace(run, collectives=run.collectives | {"bytes": sizes})).since_step == 20


def test_ranks_of_one_node_that_stop_together_share_that() -> None:
    """Its cause is not known, and the evidence says what to look at."""
    run = hang(FOUR, [2, 3])
    run = replace(run, ranks=run.ranks | {"node": np.array(["a", "a", "b", "b"])})
    assert "these are all ranks of b: suspect the node" in first(run).evidence
    one = replace(run, ranks=run.ranks | {"node": np.array(["a", "b", "b", "b"])})
    assert not [line for line in first(one).evidence if "suspect" in line]


def test_no_rank_is_inside_an_unobserved_operation() -> None:
    """A hang of which only the silence is known does not say that every rank was inside an operation."""
    report = judge(killed(make(FOUR), 137, 60.0)).to_dict()
    assert of_verdict(report["verdicts"][0]).sentence == "HUNG in step 40: no rank makes progress"


def heard_of(run: Run, *seconds: float) -> Run:
    """The run with each rank last observed so many seconds after the others began to wait, on separate nodes."""
    began = int(run.in_flight["start_ns"].max())
    ranks = np.arange(len(seconds), dtype=np.int32)
    seen = began + (np.array(seconds) * SECOND).astype(np.int64)
    states = tables.table("rank_states", rank=ranks, time_ns=seen, life=0, events_total=ranks + 1, events_lost_total=0)
    return replace(run, rank_states=states, ranks=run.ranks | {"node": np.array([f"n{rank}" for rank in ranks])})


def test_a_node_that_was_not_heard_of_since_is_unknown_and_not_missing() -> None:
    """Its ranks may have entered the operation after its agent's last word: who was seen not to come is the culprit."""
    run = heard_of(hang(Load(ranks=6, steps=40), [3, 4]), 9.0, 9.0, 9.0, -1.0, 9.0, 9.0)
    verdict = first(run)
    assert (verdict.kind, verdict.ranks) == ("hang", (4,))
    assert verdict.confidence == pytest.approx(0.99)


def test_measurements_of_a_node_alone_say_nothing_of_its_ranks() -> None:
    """No state of ranks 3 and 4 was seen: what was measured of their nodes ended early, and clears them of nothing."""
    run = heard_of(hang(Load(ranks=6, steps=40), [3, 4]), *[9.0] * 6)
    early = tables.table("metrics", node=["n3", "n4"], name="hindmost_node_cpus", labels="{}", time_ns=1, value=1.0)
    assert first(replace(only(run, rank_states=[0, 1, 2, 5]), metrics=early)).ranks == (3, 4)


def test_of_several_ranks_without_contact_none_is_named() -> None:
    """One agent is cut off: which of its ranks did not come, or whether any, is not known."""
    run = heard_of(hang(Load(ranks=6, steps=40), [3, 4]), 9.0, 9.0, 9.0, -1.0, -1.0, 9.0)
    verdict = first(run)
    assert (verdict.kind, verdict.ranks) == ("hang", ())
    assert "ranks 3 and 4 sent nothing since: which of them is late is not known" in verdict.evidence[0]
    assert verdict.advice[0].startswith("check the nodes of ranks 3 and 4")


def test_a_node_s_metrics_are_a_word_of_it() -> None:
    """An agent speaks of a rank when something changes: what it sends meanwhile shows that it looks at all of them."""
    run = heard_of(hang(Load(ranks=4, steps=40), [3]), 9.0, 9.0, 9.0, -1.0)
    later = int(run.in_flight["start_ns"].max()) + 8 * SECOND
    word = from_rows("metrics", [("n3", "hindmost_node_cpus", "{}", later, 4.0)])
    assert first(replace(run, metrics=word)).confidence == pytest.approx(0.99)
    assert first(run).confidence == pytest.approx(0.79)


def test_of_many_ranks_that_raised_the_first_are_quoted_and_the_rest_counted() -> None:
    """An exception that most ranks share does not fill the report with one line each."""
    run = hang(Load(ranks=24, steps=40), list(range(4, 24)))
    end = int(run.collectives["start_ns"].max())
    raised = [(rank, f"raised ValueError at job.py:{rank}", end + rank, 0, 0.0) for rank in range(4, 24)]
    evidence = first(replace(run, intervals=from_rows("intervals", raised))).evidence
    words = [line for line in evidence if "raised" in line]
    assert len(words) == 9
    assert words[0].startswith("rank 4 raised")
    assert words[-1] == "12 more ranks raised an exception or called MPI_Abort"


def test_ranks_that_stand_alike_are_one_sentence() -> None:
    """However many ranks are missing, where they are is read at once; of what differs, eight are listed."""
    at = {rank: "load" if rank < 500 else f"part{rank}" for rank in range(1, 512)}
    stacks = from_rows("stacks", [(rank, 1, f"{name} (job.py:7)") for rank, name in at.items()])
    lost = replace(hang(Load(ranks=512, steps=20), list(at)), stacks=stacks)
    stand = [line for line in first(lost).evidence if "job.py:7" in line or "not listed" in line]
    assert stand[0] == "ranks 1 to 499 are at job.py:7, in load()"
    assert stand[1] == "rank 500 is at job.py:7, in part500()"
    assert stand[7:] == ["rank 506 is at job.py:7, in part506()", "5 more ranks are not listed"]


@pytest.mark.parametrize(
    ("targets", "roots", "deadlock"),
    [
        pytest.param({0: {1}, 1: {0}, 2: {3}}, (3,), (0, 1), id="one is one, whatever else ranks wait for"),
        pytest.param({0: {-1}, 1: {-1}, -1: {2}, 2: {3}}, (3,), (), id="a collective waits for all that miss"),
        pytest.param({0: {-1}, -1: {1}, 1: {0}}, (), (0, 1), id="a circle through a collective names ranks only"),
        pytest.param({0: {1}, 1: set()}, (), (), id="who waits for an unknown is no root"),
        pytest.param({0: {1}, 1: {0, 2}, 2: {1}}, (), (0, 1), id="of several peers one may have answered"),
        pytest.param({0: {1}, 1: {0, 3}, 2: {1}}, (3,), (), id="of several peers one may still answer"),
    ],
)
def test_who_waits_for_whom_leads_to_who_holds_the_job(
    targets: dict[int, set[int]], roots: tuple[int, ...], deadlock: tuple[int, ...]
) -> None:
    """Numbers below 0 are collectives."""
    assert walk(targets, targets) == (roots, deadlock)


def differing(ranks: list[int], first: int, source: str = "hindmost") -> Run:
    """A healthy job in which these ranks run a broadcast at every tenth number from ``first`` on."""
    run = make(Load(ranks=4, steps=80))
    c = run.collectives
    odd = np.isin(c["rank"], ranks) & (c["seq"] >= first) & ((c["seq"] - first) % 10 == 0)
    return with_job(replace(run, collectives=c | {"op": np.where(odd, "broadcast", c["op"])}), source=source)


def test_a_rank_that_runs_another_operation_than_the_rest_is_named() -> None:
    """NCCL pairs up what it is given: there is no hang, and the results are wrong."""
    (verdict,) = judge(differing([1], 40)).verdicts
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))
    assert "rank 1 ran broadcast as operation 40" in verdict.evidence[0]
    assert "at 4 places" in verdict.evidence[1]


def test_a_rank_that_was_slow_before_is_not_named_next_to_it() -> None:
    """Another rank was late in the first steps: that is over, and what the job computes is wrong."""
    run = make(Load(ranks=4, steps=80, faults=[{"rank": 2, "compute": 4.0, "until": 30}]))
    parted = replace(run, collectives=run.collectives | {"op": differing([1], 40).collectives["op"]})
    assert [found[:2] for one in (run, parted) for found in named(one)] == [("straggler", (2,)), ("desync", (1,))]


def test_where_it_is_unknown_who_is_wrong_no_rank_is_named() -> None:
    """Two against two; numbers that never agreed; a recorder whose numbers may count something else."""
    for run in (differing([1, 2], 40), differing([1], 5), differing([1], 40, source="elsewhere")):
        assert all(kind != "desync" for kind, *_ in named(run))


def stopped(run: Run) -> Run:
    """The job as it is when its first two ranks have waited for 20 s in different numbers of that communicator."""
    c = run.collectives
    end = int((c["start_ns"] + c["duration_ns"]).max())
    last = {rank: int(c["seq"][c["rank"] == rank].max()) for rank in (0, 1)}
    rows = [
        (rank, "collective", "all_reduce", c["comm"][0], last[rank] + 1 + rank, -1, 0, end, end + 20 * SECOND)
        for rank in (0, 1)
    ]
    return replace(run, in_flight=from_rows("in_flight", rows))


def two_parted() -> Run:
    """Two ranks that stopped after rank 1 ran an extra broadcast."""
    run = differing([1], 40)
    two = {name: run.tables()[name]["rank"] < 2 for name in ("ranks", "steps", "collectives")}
    return stopped(with_job(only(run, **two), world_size=2, started_ns=1))


def test_of_two_ranks_that_parted_and_stopped_neither_is_named_but_what_each_ran_is() -> None:
    """All-reduces after an extra broadcast pair up until none are left: the stop's reason is where they parted."""
    run = two_parted()
    verdict = judge(run).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.victims) == ("desync", (), (0, 1))
    assert any("rank 1 ran broadcast as operation 40, rank 0 all_reduce" in line for line in verdict.evidence)
    since = run.in_flight["start_ns"][0] / 1e9  # both wait for 20 s
    assert (verdict.waited_s, verdict.since_time_s) == (40.0, since)


def test_of_four_ranks_that_stopped_the_one_that_parted_is_named() -> None:
    """The last rank to wait says little about which rank took the wrong branch before."""
    verdict = judge(stopped(differing([1], 40))).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("desync", (1,))


def test_a_deadlock_of_many_ranks_is_found_in_little_memory() -> None:
    """A running job that stands still is judged again and again; the chain to each rank would take 8 MB."""
    ring = {rank: {(rank + 1) % 1500} for rank in range(1500)}
    tracemalloc.start()
    found = walk(ring, ring)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert found == ((), tuple(range(1500)))
    assert most < 2 << 20
