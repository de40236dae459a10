"""Stalls of a job that went on after them: what its report says of them."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.recordings import tables
from hindmost_collector.report import brief, text
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, NONBLOCKING, Run, empty
from hindmost_judge.types import UNREAD

from tests.runs import only, with_job, with_rows
from tests.scenarios.loads import Load, hang, held_up, make

SECOND = 10**9
STACK = 'Thread 1 (idle): "MainThread"\n    work (train.py:4)\n'


def stalled(seconds: float, at: tuple[int, ...] = (40,), ranks: int = 3, late: tuple[int, ...] = (1,)) -> Run:
    """A job of 10 ms steps in some of which rank 1 sleeps for so long; its state was not observed."""
    return stalls_of(ranks, *((rank, step, seconds) for step in at for rank in late))


def stalls_of(ranks: int, *stalls: tuple[int, int, float]) -> Run:
    """The same with who sleeps, in which step, and for how long."""
    return of_faults(
        ranks, *({"rank": rank, "blocked": s * 1e3, "from": step, "until": step + 1} for rank, step, s in stalls)
    )


def of_faults(ranks: int, *faults: dict[str, float]) -> Run:
    run = make(Load(ranks=ranks, steps=60, noise=0.0, compute=9.7, faults=list(faults)))
    began = int((run.collectives["start_ns"] - run.collectives["self_ns"]).min())
    return with_job(run, started_ns=began, ended_ns=int(run.collectives["start_ns"].max()) + SECOND)


def looked_at(run: Run, *looks: tuple[int, float, str]) -> Run:
    """The run with stacks of a rank, so many seconds after its start."""
    began = run.job.started_ns or 0
    return replace(run, stacks=from_rows("stacks", [(rank, began + int(s * SECOND), text) for rank, s, text in looks]))


def test_an_ended_stall_is_reported_with_its_rank_and_its_place() -> None:
    """The job is balanced, and yet a note says when it stalled, for which rank, and where that was."""
    report = judge(looked_at(stalled(25.0), (1, 3.0, STACK), (0, 5.0, STACK), (1, 5.0, STACK)))
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert [note.split("; ") for note in report.notes] == [
        [
            "stall 25.0 s without progress, from 0.4 s after the job's start",
            "2 ranks waited for rank 1 in all_reduce number 40",
            "rank 1 was at train.py:4, in work()",
        ]
    ]


def test_a_second_wait_changes_no_headline() -> None:
    """Whether a window holds one save or two is chance."""
    once, twice = (with_rendered(judge(stalled(4.5, at, 8, (0,))).to_dict())["rendered"] for at in [(40,), (20, 40)])
    assert [one["head"] for one in once] == [one["head"] for one in twice] != ["HUNG"]


@pytest.mark.parametrize(("at", "named"), [((20, 40), False), ((13, 22, 34, 47), False), ((13, 22, 34, 47, 53), True)])
def test_a_first_rank_that_stalls_again_and_again_is_named(at: tuple[int, ...], named: bool) -> None:
    """Up to four may be saves by the clock; of five the job's user wants to know who, and what they cost."""
    verdicts = judge(stalled(0.45, at, 8, (0,))).verdicts
    assert any(one.kind == "intermittent" and one.ranks == (0,) for one in verdicts) == named


@pytest.mark.parametrize("looks", [[], [(1, 0.1, STACK)], [(1, 60.0, STACK)]])
def test_stalls_without_an_observation_are_not_reported_if_they_recur(looks: list[tuple[int, float, str]]) -> None:
    """A rank that saves or evaluates for all does so again. Stacks taken while the job was at work are no sign."""
    assert judge(looked_at(stalled(25.0, (20, 40)), *looks)).notes == ()


def test_an_only_wait_without_an_observation_is_a_note_and_no_stall() -> None:
    """A window may hold one save of rank 0. A compiled program has no stacks, and may have lost 25 s."""
    report = judge(stalled(25.0, ranks=8, late=(0,)))
    assert report.job.stalls == ()
    (note,) = report.notes
    assert note.startswith(
        "once, cause unknown: 25.0 s without progress, from 0.4 s after the job's start; 7 ranks waited for rank 0"
    )


def test_a_stall_of_the_network_needs_no_observation() -> None:
    """While every rank is in the operation, none saves or evaluates: the report says how long nothing moved."""
    (note,) = judge(held_up(stalled(0.0), 25_000.0 * (np.arange(60) == 40))).notes
    assert note.startswith("stall 25.0 s without progress, from 0.4 s after the job's start; every rank was in")


def test_each_stop_inside_an_operation_is_a_stall_of_the_stopped_rank() -> None:
    """However many there are: every rank is in the operation, and samples show whom the others waited for."""
    run = held_up(stalled(0.0), 9_000.0 * (np.arange(60) % 10 == 5))
    began, long = run.job.started_ns or 0, run.collectives["duration_ns"] > 8 * SECOND
    times = np.arange(began, int(run.collectives["start_ns"].max()), SECOND // 2)
    begins = run.collectives["start_ns"][long & (run.collectives["rank"] == 1)]
    inside = ((times >= begins[:, None]) & (times < begins[:, None] + 9 * SECOND)).any(axis=0)
    labels = '{"job": "made", "rank": "1"}'
    states = [
        ("node0", "hindmost_process_stopped", labels, *one) for one in zip(times.tolist(), inside * 1.0, strict=True)
    ]
    stalls = judge(with_rows(run, metrics=from_rows("metrics", states))).job.stalls
    assert [(stall.ranks, stall.waiting, bool(stall.stopped_s)) for stall in stalls] == [((1,), 2, True)] * 6


def test_a_pause_shorter_than_a_hang_is_not_reported() -> None:
    """Stacks are fetched at half of a hang's patience, and the job may go on then."""
    assert judge(looked_at(stalled(3.0), (1, 2.5, STACK))).notes == ()


def test_the_headline_says_that_the_job_stalled_and_for_which_rank() -> None:
    """The report does not say that there is nothing to act on next to a note on 25 lost seconds."""
    report = judge(looked_at(stalled(25.0), (1, 5.0, STACK))).to_dict()
    (shown,) = with_rendered(report)["rendered"]
    for explain in (False, True):
        page = text.render(report, explain=explain)
        assert page.count("without progress") == 1
        assert "is suspected" not in page  # the stall again
    assert (shown["head"], shown["what"]) == ("HUNG", "for 25.0 s, then went on: rank 1 did not arrive")
    assert shown["kind"] == "stalled"
    assert shown["why"][0].startswith("25.0 s without progress")
    assert shown["do"] == ("find out what rank 1 waited for at train.py:4, in work()",)
    assert report["job"]["stalls"][0]["ranks"] == [1]
    (found,) = brief.of(report)["verdicts"]  # for a program: not that it is balanced, and how sure that is
    assert (found["kind"], found["ranks"], found["confidence"]) == ("stalled", [1], None)
    assert found["cost"].startswith("25.0 ")


def test_the_headline_adds_up_several_stalls() -> None:
    """Two of 10 s are 20 s."""
    report = judge(looked_at(stalled(10.0, (20, 40)), (1, 5.0, STACK), (1, 15.0, STACK))).to_dict()
    (shown,) = with_rendered(report)["rendered"]
    assert shown["what"] == "for 20.0 s in 2 stalls, then went on: rank 1 did not arrive"
    assert [line.partition(",")[0] for line in shown["why"]] == ["10.0 s without progress"] * 2
    for explain, lines in ((False, 1), (True, 2)):  # of evidence
        assert text.render(report, explain=explain).partition("\nDO ")[0].count("without progress") == lines


def test_a_stall_of_all_ranks_of_a_node_is_reported_as_the_node_s() -> None:
    """What they share is the node; nothing is said about why it stalled."""
    run = looked_at(stalled(25.0, ranks=5, late=(1, 2)), (1, 5.0, STACK))
    run = replace(run, ranks=run.ranks | {"node": np.array(["a", "b", "b", "a", "a"])})
    report = judge(run).to_dict()
    (shown,) = with_rendered(report)["rendered"]
    assert shown["what"] == "for 25.0 s, then went on: ranks 1 and 2 did not arrive (all ranks of b)"
    assert "these are all ranks of b: suspect the node" in report["notes"][0]
    assert shown["do"] == ("check b: network, disks, kernel log (`dmesg -T`)",)


def test_of_many_stalls_the_longest_three_are_reported_in_their_order() -> None:
    """What to do is about the longest, whenever it was."""
    run = stalls_of(3, (1, 10, 10.0), (1, 20, 10.0), (1, 30, 10.0), (2, 40, 20.0), (1, 50, 10.0))
    looks = [(1, 5.0, STACK), (1, 15.0, STACK), (1, 25.0, STACK), (2, 40.0, STACK), (1, 55.0, STACK)]
    report = judge(looked_at(run, *looks))
    (verdict,) = report.verdicts
    assert [line.partition(" s ")[0] for line in verdict.evidence] == ["10.0", "10.0", "20.0"]
    assert [note.partition(" s ")[0] for note in report.notes] == [*["stall 10.0"] * 2, "stall 20.0", "2 more stalls"]
    assert verdict.advice == ("find out what rank 2 waited for at train.py:4, in work()",)


def test_a_stack_that_could_not_be_read_is_no_place() -> None:
    """Nothing is said about where a rank was if that could not be observed."""
    (note,) = judge(looked_at(stalled(25.0), (1, 5.0, f"{UNREAD}: no permission"))).notes
    assert note.endswith("2 ranks waited for rank 1 in all_reduce number 40")


def test_who_only_waits_for_another_group_is_not_waited_for() -> None:
    """A rank that has not come because it is itself inside another operation is a victim."""
    run = stalled(25.0)
    table = run.collectives
    late = (table["rank"] == 2) & (table["seq"] == 40)
    since = int(table["start_ns"][late][0])
    pair = only(run, collectives=late).collectives
    pair |= {"comm": np.array([8], np.uint64), "seq": np.array([0]), "op": np.array(["send"])}
    ended = int(table["start_ns"][late][0] + table["duration_ns"][late][0])
    table["start_ns"][late], table["duration_ns"][late] = ended - 100_000, 100_000
    other = pair | {"rank": [1], "start_ns": pair["start_ns"] + 25 * SECOND, "duration_ns": np.array([1000])}
    run = with_rows(with_rows(run, collectives=pair), collectives=other)
    (note,) = judge(looked_at(run, (1, (since - (run.job.started_ns or 0)) / 1e9 + 5, STACK))).notes
    assert "waited for rank 1 in" in note


def test_operations_without_waiting_name_no_rank() -> None:
    """A nonblocking operation may be open while its rank computes: only the stall itself is reported."""
    run = stalled(25.0)
    flags = np.where(run.collectives["seq"] == 40, NONBLOCKING, 0)
    run = looked_at(replace(run, collectives=run.collectives | {"flags": flags.astype(np.int32)}), (0, 5.0, STACK))
    (note,) = judge(run).notes
    assert "waited for" not in note


def test_a_job_that_hangs_has_its_verdict_and_no_note() -> None:
    """What has not ended is a hang; what was open is in its evidence."""
    run = replace(hang(Load(ranks=3, steps=60), [1]), stacks=from_rows("stacks", [(1, 10**12 + 5 * SECOND, STACK)]))
    assert judge(run).verdicts[0].kind == "hang"
    assert judge(run).notes == ()


def test_a_recording_without_collectives_has_no_stalls() -> None:
    """Where nothing was recorded there is no stall."""
    run = looked_at(stalled(25.0), (1, 5.0, STACK))
    assert judge(replace(run, collectives=empty(COLLECTIVES))).notes == ()


@pytest.mark.parametrize(("step", "kind"), [(0, "start-up: "), (1, "stall "), (3, "stall ")])
def test_a_stall_in_warm_up_is_a_stall(step: int, kind: str) -> None:
    """The job has begun to train: that no rank is judged by its first, slow steps makes them no start-up."""
    slow = [{"rank": rank, "blocked": 30.0, "until": 5} for rank in range(3)]
    stall = {"rank": 1, "blocked": 10_000.0, "from": step, "until": step + 1}
    report = judge(looked_at(of_faults(3, *slow, stall), (1, 5.0, STACK)))
    assert [stall.ranks for stall in report.job.stalls] == [(1,)] * (kind == "stall ")
    assert report.notes[0].startswith(f"{kind}10.0 s without progress")


@pytest.mark.parametrize("marked", [False, True])
def test_a_wait_before_the_first_step_is_start_up(marked: bool) -> None:
    """Ranks that load for different times meet late once: the headline does not call it a hang, a note has it."""
    run = looked_at(stalled(10.0, (0,)), (1, 5.0, STACK))
    table = run.collectives
    if marked:
        held = table["seq"] > 0
        marks = {name: table[name][held] for name in ("rank", "start_ns")}
        steps = tables.table("steps", step=table["seq"][held] - 1, duration_ns=np.full(held.sum(), 10**7), **marks)
        run = replace(run, steps=steps)
    report = judge(run)
    assert report.job.stalls == ()
    assert report.notes[0].startswith("start-up: 10.0 s without progress")
    assert "2 ranks waited for rank 1 in all_reduce number 0; rank 1 was at train.py:4" in report.notes[0]
    assert with_rendered(report.to_dict())["rendered"][0]["head"] == "OK"
    advice = {"settings": [{"set": "a", "found": "b", "share": 0.1}]}
    pace = {"throughput": {"job": [{"steps_per_s": 2.0}]}, "advice": advice}
    shown = text.render(report.to_dict() | {"sections": pace}, width=300)
    assert "2.0 steps/s\n       start-up: 10.0 s" in shown  # below the pace, no note, and not below a setting
