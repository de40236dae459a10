"""Events of a running job's verdicts, and what agents are asked when one opens."""

from typing import Any

import pytest
from hindmost_collector.ingest.clock import JobClock
from hindmost_collector.ingest.session import Outbox
from hindmost_collector.live.verdicts import VerdictLog, event_trace_request
from hindmost_judge.verdict.wording import OLDER
from hindmost_proto import telemetry_pb2 as wire


def verdict(kind: str = "straggler", **known: Any) -> dict[str, Any]:
    usual = {"ranks": [2], "cause": "compute", "since_step": 40, "until_step": None, "cost_ms_per_step": 4.0}
    return {"kind": kind, "evidence": [], **usual, **known}


def events_of(log: VerdictLog, *reports: list[dict[str, Any]]) -> list[list[tuple[str, int | None, int | None]]]:
    """Of each report the events with the interval that each gives."""
    return [
        [
            (event["event"], event["verdict"]["since_step"], event["verdict"]["until_step"])
            for event in log.update(report, now, last_step=100 + now)
        ]
        for now, report in enumerate(reports)
    ]


#: Of each truth the steps from which and until which each report says that the rank is slow, and the events of each.
EPISODES = {
    "what two reports leave out held until the first one's newest step": ("40- | 40- | | |", "+40- | | | -40-102 |"),
    "two reports that say until when close it, however long it is remembered": (
        "40- | 40-90 | 40-90 | 40-90 |",
        "+40- | | -40-90 | |",
    ),
    "what began and ended between two judgements is opened and closed at once": ("40-90 | 40-90", "+40-90 -40-90 |"),
    "a rank that is slow anew after its first episode is news": ("40- | | | 200-", "+40- | | -40-101 | +200-"),
    "what the window still has of the first episode is no news, a second one is": (
        "40-90 | 70-92 | 120-140 | 120-140",
        "+40-90 -40-90 | | +120-140 -120-140 |",
    ),
    "episodes of another cause open and close by themselves, and what holds throughout stays open": (
        "0- 120-:gc 40-60:gc | 120-:gc 0- | 120-140:gc 0- | 120-140:gc 0-",
        "+0- +40-60 -40-60 +120- | | | -120-140",
    ),
    "a slowdown that is reported in two parts, because it has grown, is one": ("40- | 40-90 92- | 40-", "+40- | |"),
    "what ended before another began does not end that one": ("80- | 10-60 80-", "+80- | +10-60 -10-60"),
    "what begins long after an end is another, though no report lies between": (
        "100- | 100-170 | 330- | 330-",
        "+100- | | +330- -100-170 |",
    ),
}


def episode(text: str) -> dict[str, Any]:
    """The verdict of ``SINCE-UNTIL:CAUSE``."""
    steps, _, cause = text.partition(":")
    since, until = (int(step) if step else None for step in steps.split("-"))
    return verdict(since_step=since, until_step=until, cause=cause or "compute")


@pytest.mark.parametrize("truth", EPISODES)
def test_each_episode_is_opened_and_closed_once(truth: str) -> None:
    """+ is opened, - closed; nothing is said while nothing changes."""
    reports, expected = ([part.split() for part in text.split("|")] for text in EPISODES[truth])
    found = events_of(VerdictLog(), *([episode(text) for text in report] for report in reports))
    signs = {"opened": "+", "closed": "-"}
    said = [[f"{signs[event]}{since}-{until or ''}" for event, since, until in events] for events in found]
    assert said == expected


@pytest.mark.parametrize("other", [[], [verdict(until_step=90)]])
def test_what_one_report_does_not_find_goes_on(other: list[dict[str, Any]]) -> None:
    """Few steps in which a slow rank looks well end nothing: no event is sent, and the page goes on to show it."""
    log = VerdictLog()
    assert events_of(log, [verdict()], other) == [[("opened", 40, None)], []]
    assert log.doubtful
    assert [(one["ranks"], one["until_step"]) for one in log.standing(other)] == [([2], None)]
    assert events_of(log, [verdict()], [verdict()]) == [[], []]
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


def test_uneven_work_is_closed_once_it_was_not_reported_for_some_steps() -> None:
    """Batches in turn make ranks late in turn: some windows show it and some do not, and it is one verdict."""
    uneven = verdict("uneven_workload", ranks=[], since_step=0)
    reports = [[uneven], *[[]] * 24, [uneven], *[[]] * 51]
    events = events_of(VerdictLog(), *reports)
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


def test_uneven_work_gives_way_to_a_named_rank() -> None:
    """A rank that is slow explains what work in turn seemed to."""
    uneven = verdict("uneven_workload", ranks=[], since_step=0)
    assert events_of(VerdictLog(), [uneven], [verdict()])[1] == [("opened", 40, None), ("closed", 0, 100)]


def test_what_costs_more_for_some_steps_is_a_change_of_what_holds_all_along() -> None:
    """A slow rank that for the same cause is slower for a while: one verdict, which costs more meanwhile."""
    log, always, more = VerdictLog(), verdict(since_step=0), verdict(since_step=120, cost_ms_per_step=3.0)
    reports = [[always], [always, more], [{**more, "until_step": 140}, always], [{**more, "until_step": 140}, always]]
    found = [[*log.update(report, now, last_step=120 + now)] for now, report in enumerate(reports)]
    assert [[(event["event"], event["verdict"]["cost_ms_per_step"]) for event in events] for events in found] == [
        [("opened", 4.0)],
        [("changed", 7.0)],
        [("changed", 4.0)],
        [],
    ]
    assert found[1][0]["verdict"]["evidence"] == ["3.0 ms of it since step 120"]
    assert log.standing(reports[-1]) == [always]


def test_a_set_that_loses_or_gains_a_rank_is_the_same() -> None:
    """With the same cause, as long as most of its ranks are in both."""
    pair = verdict(ranks=[2, 3])
    assert [event[0][0] for event in events_of(VerdictLog(), [pair], [verdict(ranks=[2, 3, 4])], [pair])] == [
        "opened",
        "changed",
        "changed",
    ]
    assert events_of(VerdictLog(), [pair], [verdict(ranks=[4, 5])])[1] == [("opened", 40, None)]


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
    """A window's first problem may be older: the first such is kept until one is found near it. That is no news."""
    edge = f"{OLDER} 200 are looked at no more: it may be older"
    log = VerdictLog()
    [*log.update([verdict(since_step=200, evidence=[edge])], 0, 260, 200)]
    [*log.update([verdict(since_step=220, evidence=[edge.replace("200", "220")])], 1, 280, 220)]
    (one,) = log.standing([])
    assert (one["since_step"], one["evidence"]) == (200, [edge])
    assert not [*log.update([verdict(since_step=212)], 2, 270, 201)]
    (one,) = log.standing([])
    assert (one["since_step"], one["evidence"]) == (212, [])


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
    """A cause that becomes known, or stalls instead, is the same trouble; another rank is another."""
    log = VerdictLog()
    list(log.update([verdict()], 0))
    assert [event["event"] for event in log.update([verdict(**change)], 1)] == events


def test_a_hang_is_reported_again_when_the_stacks_are_there() -> None:
    """The culprit's source line comes after the verdict that asked for it; a report that lacks it is no news."""
    log, stop = VerdictLog(), verdict("hang", since_step=None, cost_ms_per_step=None)
    list(log.update([stop], 0))
    (event,) = log.update([{**stop, "evidence": ["rank 2's stack: read_batch (data.py:7)"]}], 1)
    assert event["event"] == "changed"
    assert not [*log.update([stop], 2)]


def test_another_cause_later_is_another_trouble() -> None:
    """Its input was slow until two reports no longer said so; what it computes longer since then began then."""
    log = VerdictLog()
    events_of(log, [verdict(cause="input")], [])
    assert events_of(log, [verdict(cause="gc", since_step=690)])[0][0] == ("opened", 690, None)


def test_a_set_is_not_as_old_as_one_that_was_in_it() -> None:
    """Rank 0, ranks 0 and 1, then rank 1 alone since step 400: rank 1 is not said to be slow since step 100."""
    log = VerdictLog()
    events_of(log, [verdict(ranks=[0], since_step=100)], [verdict(ranks=[0, 1], since_step=100)])
    assert events_of(log, [verdict(ranks=[1], since_step=400)]) == [[("opened", 400, None)]]


def test_an_onset_that_a_report_does_not_tell_is_still_known() -> None:
    """Nothing has changed: no event is sent, and the page shows the onset."""
    log = VerdictLog()
    assert events_of(log, [verdict()], [verdict(since_step=None)], [verdict()]) == [[("opened", 40, None)], [], []]
    assert events_of(log, [without := verdict(since_step=None)]) == [[]]
    assert [one["since_step"] for one in log.standing([without])] == [40]


def test_an_onset_does_not_drift() -> None:
    """However often larger windows say later: no later than so many steps after it was first reported."""
    log = VerdictLog()
    for now, onset in enumerate(range(100, 400, 18)):
        list(log.update([one := verdict(since_step=onset)], now, last_step=1000 + 50 * now, first_step=0))
    assert [one["since_step"] for one in log.standing([one])] == [118]


def test_a_job_that_begins_anew_has_no_trouble_of_before() -> None:
    """Steps are counted from 0 again: what held since step 5,000 is closed, what holds since step 10 is opened."""
    log = VerdictLog()
    list(log.update([verdict(since_step=5000)], 0, last_step=5200))
    events = list(log.update([verdict(since_step=10)], 1, last_step=60))
    assert [(event["event"], event["verdict"]["since_step"]) for event in events] == [("closed", 5000), ("opened", 10)]


def test_what_is_in_doubt_stands_last() -> None:
    """A verdict that the newest report leaves out is below what it says."""
    log = VerdictLog()
    hang = verdict("hang", ranks=[1])
    events_of(log, [verdict()], [hang])
    assert [one["kind"] for one in log.standing([hang])] == ["hang", "straggler"]


def opened(**verdict):
    return {"event": "opened", "verdict": {"kind": "straggler", "ranks": [3], "since_step": 40, **verdict}}


AROUND = {"ranks": [3], "first_step": 35, "last_step": 45}


@pytest.mark.parametrize(
    ("event", "asked"),
    [
        (opened(), AROUND),
        (opened(since_step=2), AROUND | {"first_step": 0, "last_step": 7}),
        (opened(ranks=list(range(40))), AROUND | {"ranks": list(range(16))}),
        (opened(cause="unknown", partial="blocked"), AROUND | {"stacks": True}),
        (opened(cause="unknown", partial=None), AROUND),
        (opened(kind="hang", since_step=None), {"stacks": True}),
        (opened(kind="desync", since_step=None), {"stacks": True}),
        (opened() | {"event": "closed"}, None),
        (opened() | {"event": "updated"}, None),
        (opened(since_step=None), None),
        (opened(ranks=[]), None),
    ],
)
def test_raw_events_are_asked_for_where_there_is_something_to_see(event: Any, asked: dict[str, Any] | None) -> None:
    """Around the step since which a verdict holds, of sixteen ranks at most. Stacks show the line of a rank that is
    off the CPU for an unknown reason. Where a job stopped all are asked for: the awaited rank may not be named."""
    expected = None if asked is None else wire.EventTraceRequest(job_id="j", **asked)
    assert event_trace_request("j", event) == expected


async def test_a_question_reaches_the_agents_of_the_job_and_of_whole_nodes(collecting, fake_agent):
    """Those of another job are left in peace."""
    question = wire.EventTraceRequest(job_id="j", stacks=True)
    async with collecting() as collector:
        jobs = {"own": "j", "node": "", "other": "k"}
        agents = {name: fake_agent(collector.addresses["grpc"], name, job=job) for name, job in jobs.items()}
        for agent in agents.values():
            await agent.connect(define=False)
        collector.ingest.ask("j", wire.EventTraceRequest(job_id="j", stacks=True))
        asked = []
        for name, agent in agents.items():
            for _ in range(2):  # what waited is sent with the first answer or before the second
                await agent.round_trip()
            asked += [
                (name, message.event_trace_request)
                for message in agent.messages
                if message.HasField("event_trace_request")
            ]
            await agent.close()
        assert asked == [("own", question), ("node", question)]


async def test_of_too_many_questions_the_oldest_give_way():
    """An agent that reads slowly is asked what is asked last, in order."""
    sent = []

    async def write(message):
        sent.append(message.event_trace_request.first_step)

    outbox = Outbox(JobClock())
    for step in range(20):
        outbox.request(wire.EventTraceRequest(job_id="j", first_step=step))
    outbox.close()
    await outbox.pump(write)
    assert sent == list(range(4, 20))


def test_a_hang_is_over_with_the_first_report_that_finds_none() -> None:
    """A job that goes on shows that it has not stopped: no second report is needed, as of a rank that looks well."""
    stop = verdict("hang", since_step=100, cost_ms_per_step=None)
    assert events_of(VerdictLog(), [stop], []) == [[("opened", 100, None)], [("closed", 100, 101)]]
