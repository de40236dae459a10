"""Verdicts of a running job: opened once, told again when they change, closed with their interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hindmost_collector.detectors import hang
from hindmost_collector.judgement.verdict import JobSummary, Report
from hindmost_collector.judgement.wording import OLDER
from hindmost_collector.model import FINISHED, RUNNING, VANISHED, Job, Run
from hindmost_collector.running.jobs import LiveJob
from hindmost_collector.running.judging import Judging, share_of
from hindmost_collector.running.live import VerdictLog
from hindmost_collector.running.window import Window
from hindmost_collector.settings import DEFAULT
from hindmost_collector.stream.chunk import Chunk, from_rows
from hindmost_collector.stream.columns import Words
from hindmost_collector.stream.definitions import Definitions, Schema
from hindmost_collector.stream.metric_rows import MetricRows

from tests.collector.pacing import Paced

SECOND = 1_000_000_000


def verdict(kind: str = "straggler", **known: Any) -> dict[str, Any]:
    usual = {"ranks": [2], "cause": "compute", "since_step": 40, "until_step": None, "cost_ms_per_step": 4.0}
    return {"kind": kind, "evidence": [], **usual, **known}


def told(log: VerdictLog, *reports: list[dict[str, Any]]) -> list[list[tuple[str, int | None, int | None]]]:
    """Of each report the events with the interval that each gives."""
    return [
        [
            (event["event"], event["verdict"]["since_step"], event["verdict"]["until_step"])
            for event in log.update(report, now, last_step=100 + now)
        ]
        for now, report in enumerate(reports)
    ]


def test_a_verdict_is_opened_once_and_closed_where_it_stopped() -> None:
    """It is silent while nothing changes; when two reports leave it out it held until the first one's newest step."""
    assert told(VerdictLog(), [verdict()], [verdict()], [], [], []) == [
        [("opened", 40, None)],
        [],
        [],
        [("closed", 40, 102)],
        [],
    ]


def test_a_verdict_with_an_end_is_closed_with_it() -> None:
    """Two reports that say until when close it, and it stays closed however long the window remembers it."""
    ended = verdict(until_step=90)
    assert told(VerdictLog(), [verdict()], [ended], [ended], [ended], []) == [
        [("opened", 40, None)],
        [],
        [("closed", 40, 90)],
        [],
        [],
    ]


@pytest.mark.parametrize("other", [[], [verdict(until_step=90)]])
def test_what_one_report_does_not_find_goes_on(other: list[dict[str, Any]]) -> None:
    """Few steps in which a slow rank looks well end nothing: nothing is told, and the page goes on to show it."""
    log = VerdictLog()
    assert told(log, [verdict()], other) == [[("opened", 40, None)], []]
    assert log.doubtful
    assert [(one["ranks"], one["until_step"]) for one in log.standing(other)] == [([2], None)]
    assert told(log, [verdict()], [verdict()]) == [[], []]
    assert not log.doubtful


def test_a_verdict_keeps_its_id_from_its_opening_to_its_end() -> None:
    """Whatever changes of it; another one has another."""
    log = VerdictLog()
    reports = [[verdict()], [verdict(cause="gc"), verdict(ranks=[5])], [verdict(kind="intermittent")], [], []]
    found = [event for now, report in enumerate(reports) for event in log.update(report, now, last_step=100 + now)]
    known = {tuple(event["verdict"]["ranks"]): event["id"] for event in found}
    assert len(set(known.values())) == 2
    assert [(event["event"], event["id"]) for event in found] == [
        ("opened", known[2,]),
        ("changed", known[2,]),
        ("opened", known[5,]),
        ("changed", known[2,]),
        ("closed", known[5,]),
        ("closed", known[2,]),
    ]


def test_what_had_passed_before_anybody_looked_is_told_once() -> None:
    """An episode that began and ended between two judgements is opened and closed at once."""
    ended = verdict(until_step=90)
    assert told(VerdictLog(), [ended], [ended]) == [[("opened", 40, 90), ("closed", 40, 90)], []]


def test_what_comes_back_is_opened_again() -> None:
    """A rank that is slow anew after its first episode is news."""
    again = verdict(since_step=200)
    assert told(VerdictLog(), [verdict()], [], [], [again])[2:] == [[("closed", 40, 101)], [("opened", 200, None)]]


def test_uneven_work_is_closed_once_it_was_not_told_for_some_steps() -> None:
    """Batches in turn make ranks late in turn: some windows show it and some do not, and it is one verdict."""
    uneven = verdict("uneven_workload", ranks=[], since_step=0)
    reports = [[uneven], *[[]] * 24, [uneven], *[[]] * 51]
    events = told(VerdictLog(), *reports)
    assert [(at, *one) for at, found in enumerate(events) for one in found] == [
        (0, "opened", 0, None),
        (75, "closed", 0, 125),
    ]


def test_uneven_work_of_a_job_that_stands_still_is_closed() -> None:
    """No step comes that would tell whether it is so still."""
    log, uneven = VerdictLog(), verdict("uneven_workload", ranks=[], since_step=0)
    [*log.update([uneven], 0, 100)]
    assert not [*log.update([], 299 * 10**9, 100)]
    assert [one["event"] for one in log.update([], 300 * 10**9, 100)] == ["closed"]


def test_uneven_work_gives_way_to_whoever_is_named() -> None:
    """A rank that is slow explains what work in turn seemed to."""
    uneven = verdict("uneven_workload", ranks=[], since_step=0)
    assert told(VerdictLog(), [uneven], [verdict()])[1] == [("opened", 40, None), ("closed", 0, 100)]


def test_a_second_episode_that_passed_unseen_is_told_too() -> None:
    """The same rank, slow again between two judgements; what the window still has of the first is no news."""
    first, later = verdict(until_step=90), verdict(since_step=120, until_step=140)
    rest = verdict(since_step=70, until_step=92)
    assert told(VerdictLog(), [first], [rest], [later], [later])[1:] == [
        [],
        [("opened", 120, 140), ("closed", 120, 140)],
        [],
    ]


def test_two_episodes_of_one_rank_are_told_each() -> None:
    """However many a report has at once: those of another cause open and close by themselves, and what holds throughout
    stays open."""
    always, first = verdict(since_step=0), verdict(since_step=40, until_step=60, cause="gc")
    later = verdict(since_step=120, cause="gc")
    ended = {**later, "until_step": 140}
    assert told(VerdictLog(), [always, later, first], [later, always], [ended, always], [ended, always]) == [
        [("opened", 0, None), ("opened", 40, 60), ("closed", 40, 60), ("opened", 120, None)],
        [],
        [],
        [("closed", 120, 140)],
    ]


def test_what_costs_more_for_some_steps_is_a_change_of_what_holds_all_along() -> None:
    """A slow rank that for the same cause is slower for a while: one verdict, which costs more meanwhile."""
    log, always, more = VerdictLog(), verdict(since_step=0), verdict(since_step=120, cost_ms_per_step=3.0)
    reports = [[always], [always, more], [{**more, "until_step": 140}, always], [{**more, "until_step": 140}, always]]
    found = [[*log.update(report, now, last_step=120 + now)] for now, report in enumerate(reports)]
    assert [[(one["event"], one["verdict"]["cost_ms_per_step"]) for one in events] for events in found] == [
        [("opened", 4.0)],
        [("changed", 7.0)],
        [("changed", 4.0)],
        [],
    ]
    assert found[1][0]["verdict"]["evidence"] == ["3.0 ms of it since step 120"]
    assert log.standing(reports[-1]) == [always]


def test_what_follows_at_once_is_the_same() -> None:
    """A habit that is told in two parts, because it has grown, is no second one."""
    parts = [verdict(until_step=90), verdict(since_step=92)]
    assert told(VerdictLog(), [verdict()], parts, [verdict()]) == [[("opened", 40, None)], [], []]


def test_an_episode_that_was_over_is_not_the_one_that_is_open() -> None:
    """What ended before another began does not end that one."""
    old = verdict(since_step=10, until_step=60)
    assert told(VerdictLog(), [verdict(since_step=80)], [old, verdict(since_step=80)])[1] == [
        ("opened", 10, 60),
        ("closed", 10, 60),
    ]


def test_a_set_that_loses_or_gains_a_rank_is_the_same() -> None:
    """With the same cause, as long as most of its ranks are in both."""
    pair = verdict(ranks=[2, 3])
    assert [found[0][0] for found in told(VerdictLog(), [pair], [verdict(ranks=[2, 3, 4])], [pair])] == [
        "opened",
        "changed",
        "changed",
    ]
    assert told(VerdictLog(), [pair], [verdict(ranks=[4, 5])])[1] == [("opened", 40, None)]


@pytest.mark.parametrize(
    ("windows", "onset"),
    [
        ([(194, 259, 244), (202, 267, 250), (230, 295, 240)], 250),  # most on both sides
        ([(194, 259, 244), (240, 305, 240)], 244),
        ([(190, 280, 250), (400, 465, 430)], 250),  # much later is no better onset
        ([(0, 100, 0), (0, 200, 12)], 0),
    ],
)
def test_an_onset_is_that_of_the_window_which_knew_it_best(windows: list[tuple[int, int, int]], onset: int) -> None:
    """Of windows from a first to a last step: each finds an onset, with some steps before it and some after it."""
    log = VerdictLog()
    for now, (first, last, found) in enumerate(windows):
        [*log.update([verdict(since_step=found)], now, last, first)]
    assert [one["since_step"] for one in log.standing([])] == [onset]


def test_an_onset_at_the_edge_is_at_or_before_it_until_one_is_found() -> None:
    """What a window begins with may be older: the first such is kept, with that said; a change seen near it is told."""
    edge = f"{OLDER} 200 are looked at no more: it may be older"
    log = VerdictLog()
    [*log.update([verdict(since_step=200, evidence=[edge])], 0, 260, 200)]
    [*log.update([verdict(since_step=220, evidence=[edge.replace("200", "220")])], 1, 280, 220)]
    (one,) = log.standing([])
    assert (one["since_step"], one["evidence"]) == (200, [edge])
    (event,) = log.update([verdict(since_step=212)], 2, 270, 201)
    assert (event["event"], event["verdict"]["since_step"], event["verdict"]["evidence"]) == ("changed", 212, [])


def test_of_what_is_over_no_more_is_remembered_than_so_much() -> None:
    """In a year of jobs whose ranks are late in turn."""
    log = VerdictLog()
    for at in range(3000):
        [*log.update([verdict(ranks=[at], since_step=at, until_step=at + 5)], at, at + 20)]
    assert sum(map(len, (vars(log)["_past"], vars(log)["_open"], vars(log)["_present"]))) < 1100


@pytest.mark.parametrize(
    ("change", "events"),
    [
        ({"cost_ms_per_step": 4.5}, []),
        ({"cost_ms_per_step": 6.0}, ["changed"]),
        ({"cause": "gpu_throttle"}, ["changed"]),
        ({"ranks": [3]}, ["opened"]),
        ({"kind": "intermittent"}, ["changed"]),
        ({"since_step": 42}, []),
        ({"since_step": 30}, []),
    ],
)
def test_what_counts_as_a_change(change: dict[str, Any], events: list[str]) -> None:
    """A cause that becomes known is the same trouble, as is a rank that now stalls in some steps; another rank is
    another."""
    log = VerdictLog()
    list(log.update([verdict()], 0))
    assert [event["event"] for event in log.update([verdict(**change)], 1)] == events


def test_a_hang_is_told_again_when_the_stacks_are_there() -> None:
    """The culprit's source line comes after the verdict that asked for it."""
    log, stop = VerdictLog(), verdict("hang", since_step=None, cost_ms_per_step=None)
    list(log.update([stop], 0))
    (event,) = log.update([{**stop, "evidence": ["rank 2's stack: read_batch (data.py:7)"]}], 1)
    assert event["event"] == "changed"


def waiting(definitions: Definitions, life: int = RUNNING) -> Window:
    """Three ranks of four in an all-reduce since second 1, as their agent said in second 2."""
    window = Window()
    ranks = [(rank, 4, rank, "n0", 100 + rank, "", "torch", 0) for rank in range(4)]
    entered = [(rank, "collective", "all_reduce", 7, 5, SECOND, 2 * SECOND) for rank in range(3)]
    states = [(rank, 2 * SECOND, life if rank < 3 else RUNNING, 10, 0) for rank in range(4)]
    plain = {
        "ranks": from_rows("ranks", ranks),
        "communicators": from_rows("communicators", [(7, rank, rank, 4, "world") for rank in range(4)]),
        "in_flight": from_rows("in_flight", entered),
        "rank_states": from_rows("rank_states", states),
    }
    window.add(Chunk({}, plain, [], []), definitions)
    return window


def found(window: Window, definitions: Definitions) -> hang.Hang | None:
    return hang.find(window.snapshot("j", Words())(), float("nan"), DEFAULT)


@pytest.fixture
def definitions() -> Definitions:
    known = Definitions()
    known.schemas[1] = Schema(())
    return known


def heard(window: Window, definitions: Definitions, second: int, node: str = "n0") -> None:
    """The node's agent has sent metrics, and said nothing of its ranks."""
    block = MetricRows.of(node, 1, np.array([second * SECOND]), np.empty((1, 0)))
    window.add(Chunk({}, {}, [block], [], {node: block.last_ns}), definitions)


def test_a_silent_wait_becomes_a_hang_as_soon_as_it_is_old_enough(definitions: Definitions) -> None:
    """An agent speaks of a rank only when something changes: as long as the agent is heard, the wait goes on."""
    window = waiting(definitions)
    assert found(window, definitions) is None
    heard(window, definitions, 4)
    assert found(window, definitions) is None
    heard(window, definitions, 6)
    stop = found(window, definitions)
    assert stop is not None
    assert (stop.ranks, stop.victims, stop.waited_ns) == ((3,), (0, 1, 2), 5 * SECOND)


def test_another_node_says_nothing_of_these_ranks(definitions: Definitions) -> None:
    """Where an agent has fallen silent nobody knows how its ranks are."""
    window = waiting(definitions)
    heard(window, definitions, 60, node="n1")
    assert found(window, definitions) is None


def standing(definitions: Definitions) -> LiveJob:
    """The job of these ranks, judged while it went on; its last step of 20 ms began in second 1."""
    job = LiveJob("j", 0)
    job.window = waiting(definitions)
    job.window.newest_ns = SECOND
    job.report = {"job": {"step_ms": {"p50": 20.0, "p99": 20.0}}}
    return job


def test_stacks_of_who_is_missing_are_asked_for_before_the_hang(definitions: Definitions) -> None:
    """Once, at half of a hang's patience, and of nobody who waits: the verdict has them when it is first told."""
    job = standing(definitions)
    heard(job.window, definitions, 2)
    assert job.stall.question(job) is None
    heard(job.window, definitions, 3)
    question = job.stall.question(job)
    assert question is not None
    assert (question.job_id, list(question.ranks), question.stacks) == ("j", [3], True)
    heard(job.window, definitions, 5)
    assert job.stall.question(job) is None


def test_a_rank_that_writes_a_checkpoint_is_left_alone(definitions: Definitions) -> None:
    """The others wait for it as a matter of course, and where it stands is known."""
    job = standing(definitions)
    saving = from_rows("in_flight", [(3, "phase", "checkpoint", 0, 0, SECOND, 2 * SECOND)])
    states = from_rows("rank_states", [(3, 2 * SECOND, RUNNING, 10, 0)])
    job.window.add(Chunk({}, {"in_flight": saving, "rank_states": states}, [], []), definitions)
    heard(job.window, definitions, 5)
    assert job.stall.question(job) is None


def test_a_job_that_stands_still_is_judged_when_its_patience_ends(definitions: Definitions) -> None:
    """Not at the next turn of judging, once for each time that it stands still, and never before it was judged."""
    job = standing(definitions)
    heard(job.window, definitions, 4)
    assert not job.stall.ripe(job)
    heard(job.window, definitions, 5)
    assert job.stall.ripe(job)
    assert found(job.window, definitions) is not None
    assert not job.stall.ripe(job)
    unjudged = standing(definitions)
    unjudged.report = None
    heard(unjudged.window, definitions, 60)
    assert not unjudged.stall.ripe(unjudged)


def test_slow_steps_make_patience_longer(definitions: Definitions) -> None:
    """Known after three of the slowest steps: of 4 s each, 12 s, less one that the word needs to arrive."""
    job = standing(definitions)
    job.report = {"job": {"step_ms": {"p50": 3000.0, "p99": 4000.0}}}
    heard(job.window, definitions, 11)
    assert not job.stall.ripe(job)
    heard(job.window, definitions, 12)
    assert job.stall.ripe(job)


def stack(job: LiveJob, definitions: Definitions, rank: int, second: float) -> None:
    rows = from_rows("stacks", [(rank, int(second * SECOND), "wait (data.py:7)")])
    job.window.add(Chunk({}, {"stacks": rows}, [], []), definitions)


def test_stacks_that_come_late_are_judged_when_they_come(definitions: Definitions) -> None:
    """The verdict's source line does not wait for the next turn of judging; one from an earlier stop is none."""
    job = standing(definitions)
    stack(job, definitions, 3, 0.5)
    heard(job.window, definitions, 3)
    assert job.stall.question(job) is not None
    heard(job.window, definitions, 5)
    assert job.stall.ripe(job)
    heard(job.window, definitions, 6)
    assert not job.stall.ripe(job)
    stack(job, definitions, 3, 6.5)
    assert job.stall.ripe(job)
    assert not job.stall.ripe(job)


def test_what_is_said_of_a_job_that_may_hang_is_looked_at_with_haste(definitions: Definitions) -> None:
    """From well before the question until a while after the verdict, and not for as long as it stands."""
    job = standing(definitions)
    hasty = []
    for second in (2, 5, 8, 9, 60):
        heard(job.window, definitions, second)
        hasty.append(job.stall.in_haste(job))
    assert hasty == [True, True, True, False, False]


def test_a_rank_that_is_said_to_wait_still_is_heard_of(definitions: Definitions) -> None:
    """Its agent speaks between two samples of its node's metrics, too."""
    job = standing(definitions)
    again = from_rows("in_flight", [(0, "collective", "all_reduce", 7, 5, SECOND, 5 * SECOND)])
    states = from_rows("rank_states", [(0, 5 * SECOND, RUNNING, 10, 0)])
    job.window.add(Chunk({}, {"in_flight": again, "rank_states": states}, [], []), definitions)
    assert job.stall.ripe(job)


@pytest.mark.parametrize("life", [FINISHED, VANISHED])
def test_ranks_that_are_gone_wait_for_nothing(definitions: Definitions, life: int) -> None:
    """What a process had entered when it ended is no hang of a running job."""
    window = waiting(definitions, life)
    heard(window, definitions, 60)
    assert found(window, definitions) is None
    assert not window.waiting


def paced(cpu_s: float, elapsed_s: float = 0.0) -> tuple[Judging, list[float]]:
    """A job that has been judged once, at this cost, and the clock of it."""
    now, used = [100.0], [0.0]
    judging = Judging(period_s=2.0, share=0.05, clock=lambda: now[0], cpu=lambda: used[0])

    def judge(_: Any) -> Any:
        now[0] += elapsed_s
        used[0] += cpu_s
        return Report(JobSummary("j"), ())

    judging.judge = judge
    judging.judged("j", lambda: Run(Job("j")))
    return judging, now


def test_a_busy_host_does_not_make_verdicts_seldom() -> None:
    """Pacing counts the CPU time that judging took, not how long the host let it wait for a CPU."""
    judging, now = paced(cpu_s=0.02, elapsed_s=1.5)
    assert not judging.due("j")
    now[0] += 0.5
    assert judging.due("j")


def test_what_was_asked_for_is_judged_sooner_than_the_next_turn() -> None:
    """The answer to a verdict's question may hold its cause."""
    judging, now = paced(cpu_s=0.04)
    judging.again("j", 0.5)
    due = []
    for _ in range(3):
        now[0] += 0.2
        due.append(judging.due("j"))
    assert due == [False, False, True]


def test_many_cores_let_whole_windows_be_judged_more_often() -> None:
    """A twentieth of one where there are few; what a large job's judgement takes buys no long quiet on many."""
    assert [share_of(cores) for cores in (1, 2, 4, 8, 16, 192)] == [0.05, 0.05, 0.05, 0.1, 0.2, 0.2]
    judged = Paced(share=share_of(16)).until(60.0)
    assert max(np.diff([at for at, which in judged if which == "whole"])) <= 3.0
