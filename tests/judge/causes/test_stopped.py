"""Ranks that were stopped by a signal or by a debugger: what the report says of them, and of a hang they cause."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.report.verdict_lines import of_verdict, with_rendered
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict

from tests.runs import only, with_job, with_rows
from tests.scenarios.loads import Load, hang, held_up, make, metrics, standing

SECOND = 10**9
#: When the others begin to wait in ``hang``, s.
WAIT = 1000
FOUR = Load(ranks=4, steps=40)


def sampled(run: Run, stopped: dict[int, Iterable[float]], times: Iterable[float]) -> Run:
    """The run with the state of every rank at these times, s of the job clock: who was stopped at which of them."""
    rows = [
        ("hindmost_process_stopped", f'{{"job": "made", "rank": "{rank}"}}', time, float(time in stopped.get(rank, ())))
        for rank in run.ranks["rank"].tolist()
        for time in times
    ]
    return with_rows(run, metrics=metrics(rows))


def hung(ranks: tuple[int, ...], seconds: range, missing: tuple[int, ...] = (2,), **job: Any) -> Verdict:
    """The verdict on a job that waits for 30 s, with ranks stopped at these samples."""
    run = hang(FOUR, list(missing))
    run = with_job(replace(run, ranks={**run.ranks, "pid": np.arange(100, 104)}), **job)
    return judge(sampled(run, dict.fromkeys(ranks, seconds), range(WAIT - 20, WAIT + 31))).verdicts[0]


def test_a_hang_names_the_rank_that_is_stopped_and_the_command() -> None:
    """The first line of evidence says for how long; the advice lets the process go on."""
    verdict = hung((2,), range(WAIT + 1, WAIT + 31))
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("hang", (2,), "stopped")
    assert verdict.evidence[0] == (
        "rank 2 was stopped (SIGSTOP, or a debugger) for at least 29.0 s; 3 ranks wait in all_reduce"
    )
    assert verdict.advice == ("`kill -CONT 102` on node0 lets rank 2 go on; if a debugger holds it, detach that",)
    assert of_verdict(verdict.__dict__).what.endswith("rank 2 was stopped by a signal or a debugger")


def test_a_rank_stopped_inside_the_operation_is_named() -> None:
    """All members entered it and none leaves: which of them is stopped says who is waited for."""
    verdict = hung((2,), range(WAIT + 1, WAIT + 31), missing=())
    assert (verdict.ranks, verdict.victims, verdict.cause) == ((2,), (0, 1, 3), "stopped")


def test_ranks_that_are_in_the_next_operation_wait_for_the_one_stopped_in_the_last() -> None:
    """It had sent its part of operation 40, and is alone in it: the others wait for it in number 41."""
    run = hang(FOUR, [])
    open_now = run.in_flight
    run = replace(run, in_flight={**open_now, "seq": np.where(open_now["rank"] == 2, 40, 41)})
    (verdict,) = judge(sampled(run, {2: range(WAIT + 1, WAIT + 31)}, range(WAIT - 20, WAIT + 31))).verdicts
    assert (verdict.ranks, verdict.victims) == ((2,), (0, 1, 3))
    assert verdict.evidence[0].endswith("; 3 ranks wait in all_reduce")


@pytest.mark.parametrize("seen", [True, False])
@pytest.mark.parametrize(
    ("ranks", "until", "named"),
    [((1,), 24, (1,)), ((1, 3), 24, (1, 3)), ((0, 1, 2, 3), 24, ()), ((1,), 14, None), ((1,), 8, None)],
)
def test_a_rank_stopped_to_the_end_is_what_the_job_waits_for(
    seen: bool, ranks: tuple[int, ...], until: int, named: tuple[int, ...] | None
) -> None:
    """Also where no operation was seen open, or begun; let go only to be ended. Not if it ran for long after it."""
    run = make(FOUR)
    run = only(run, collectives=np.full(len(run.collectives["rank"]), seen))
    run = with_job(run, started_ns=1, ended_ns=28 * SECOND, exit_code=1)
    verdict = judge(sampled(run, dict.fromkeys(ranks, range(3, until)), range(1, 28))).verdicts[0]
    assert (verdict.ranks if verdict.kind == "hang" else None) == named
    assert (verdict.cause == "stopped") == (named is not None)


@pytest.mark.parametrize("at_work", [True, False])
def test_ranks_that_wait_for_a_stopped_one_in_a_circle_are_no_deadlock(at_work: bool) -> None:
    """Rank 1 was stopped in a send to rank 0, which sends to it: it goes on once it may."""
    run = standing((0, "send", 1, True), (1, "send", 0, True), (2, "recv", 0, False), in_collective=(3,))
    began = int(run.in_flight["start_ns"][0]) / SECOND
    times = [began + second for second in range(-5, 31)]
    run = with_job(run, ended_ns=None if at_work else int(times[-1] * SECOND))
    (verdict, *_) = judge(sampled(run, {1: times[6:]}, times)).verdicts
    assert (verdict.kind, verdict.cause, verdict.ranks, verdict.victims) == ("hang", "stopped", (1,), (0, 2, 3))
    assert verdict.evidence[0].startswith(
        "rank 1 was stopped (SIGSTOP, or a debugger) for at least 29.0 s; 3 ranks wait"
    )
    assert "send before it receives" not in " ".join(verdict.advice)


def test_a_rank_that_waits_for_a_deadlock_does_not_end_it_by_going_on() -> None:
    """Of ranks that are stopped only those in the circle hold it up."""
    run = standing((0, "send", 1, True), (1, "send", 0, True), (2, "recv", 0, False), in_collective=(3,))
    times = [int(run.in_flight["start_ns"][0]) / SECOND + second for second in range(31)]
    verdict = judge(sampled(run, {2: times}, times)).verdicts[0]
    assert (verdict.cause, verdict.ranks) == ("deadlock", (0, 1))


def test_where_all_ranks_are_stopped_the_network_is_not_suspected() -> None:
    """As when a scheduler suspends a job: no rank waits for another."""
    verdict = hung((0, 1, 2, 3), range(WAIT + 1, WAIT + 31), missing=())
    assert of_verdict(verdict.__dict__).what.endswith("the job was stopped by a signal or a debugger")
    assert verdict.ranks == ()
    assert verdict.advice[0].startswith("`kill -CONT 100 101 102 103` on node0 lets ranks 0 to 3 go on")
    assert verdict.evidence[0].endswith("; ranks wait in all_reduce"), "their number is not 0"


def test_of_a_job_that_is_over_no_process_is_resumed() -> None:
    """Its advice is to find out what stopped the rank."""
    (advice,) = hung((2,), range(WAIT + 1, WAIT + 31), ended_ns=(WAIT + 30) * SECOND, exit_code=130).advice
    assert advice.startswith("find what stopped rank 2 on node0: ")
    assert "kill -CONT" not in advice


@pytest.mark.parametrize(
    "seconds",
    [
        pytest.param(range(WAIT - 10, WAIT), id="before the wait"),
        pytest.param(range(WAIT + 3, WAIT + 4), id="in a single sample"),
        pytest.param(range(WAIT + 1, WAIT + 6), id="for a small part of the wait"),
    ],
)
def test_a_stop_that_does_not_span_the_wait_is_not_its_cause(seconds: range) -> None:
    """A sample says nothing of the time after it."""
    verdict = hung((2,), seconds)
    assert verdict.cause == "unknown"
    assert "stopped" not in " ".join(verdict.evidence)


def test_another_rank_s_stop_is_evidence_beside_the_missing_rank() -> None:
    """Rank 2 is missing, rank 3 is stopped: both are said, and rank 2 is no stopped rank."""
    verdict = hung((3,), range(WAIT + 1, WAIT + 31))
    assert (verdict.ranks, verdict.cause) == ((2,), "unknown")
    assert "rank 3 was stopped (SIGSTOP, or a debugger) for at least 29.0 s" in verdict.evidence


def paused(stopped: bool, cpus: int = 0, at: Iterable[float] = range(21)) -> Run:
    """A job of 10 ms steps in which rank 1 is off the CPU for 20 s, once, and samples of its state ``at`` seconds."""
    fault = {"rank": 1, "blocked": 20_000.0, "from": 40, "until": 41}
    run = make(Load(ranks=3, steps=60, noise=0.0, compute=9.7, faults=[fault], cpus=cpus))
    began = int((run.collectives["start_ns"] - run.collectives["self_ns"]).min())
    ended = int(run.collectives["start_ns"].max())
    run = with_job(replace(run, ranks=run.ranks | {"pid": np.arange(3)}), started_ns=began, ended_ns=ended)
    stacks = from_rows("stacks", [(1, began + 5 * SECOND, "Thread 1\n    work (train.py:4)\n")])
    times = [began / SECOND + second for second in at]
    return sampled(replace(run, stacks=stacks), {1: times[1:-1] if stopped else ()}, times)


def test_a_stall_says_that_its_rank_was_stopped() -> None:
    """Head line, evidence, advice and note say it, in place of the line at which the rank happened to be."""
    report = judge(paused(stopped=True)).to_dict()
    (shown,) = with_rendered(report)["rendered"]
    assert shown["what"] == "for 20.0 s, then went on: rank 1 was stopped by a signal or a debugger"
    assert "20.0 s without progress" in shown["why"][0]
    assert "; rank 1 was stopped (SIGSTOP, or a debugger); 2 ranks waited for rank 1" in shown["why"][0]
    assert shown["do"][0].startswith("find what stopped rank 1 on node0: ")
    assert report["job"]["stalls"][0]["stopped_s"] == {"1": 18.0}


def test_on_full_cores_few_samples_show_a_stop() -> None:
    """Two of them stopped, a third of the wait apart, next to one that was read before the process stopped."""
    (stall,) = judge(paused(stopped=True, at=(0.6, 6, 12, 24))).to_dict()["job"]["stalls"]
    assert stall["stopped_s"] == {"1": 6.0}


def test_what_a_stop_explains_is_told_once_on_shared_cpus() -> None:
    """The wait for the stopped rank is no sign that it is late."""
    (verdict,) = judge(paused(stopped=True, cpus=2)).verdicts
    assert [line.partition(",")[0] for line in verdict.evidence] == ["20.0 s without progress"]


def test_a_stall_whose_rank_was_seen_running_is_not_called_a_stop() -> None:
    """Only the state at a sample shows one."""
    report = judge(paused(stopped=False)).to_dict()
    assert "SIGSTOP" not in str(report)
    assert report["job"]["stalls"][0]["stopped_s"] == {}


def test_short_stops_that_one_sample_each_shows_are_stalls() -> None:
    """No job is OK in which all ranks waited for seconds for one that was stopped, however few samples are taken."""
    faults = [{"rank": 1, "blocked": 2_500.0, "from": at, "until": at + 1} for at in (20, 40)]
    run = make(Load(ranks=3, steps=60, noise=0.0, compute=9.7, faults=faults))
    ends = run.collectives["start_ns"][(run.collectives["rank"] == 1) & (run.collectives["self_ns"] > SECOND)]
    middles = ((ends - 1.25 * SECOND) / SECOND).tolist()
    report = judge(sampled(run, {1: middles}, middles)).to_dict()
    (shown,) = with_rendered(report)["rendered"]
    assert shown["what"] == "for 5.0 s in 2 stalls, then went on: rank 1 was stopped by a signal or a debugger"


def test_of_a_first_rank_samples_show_that_it_did_not_save() -> None:
    """A few long stalls of rank 0 may be what it does for all: they name it where it was stopped in them."""
    faults = [{"rank": 0, "blocked": 160.0, "from": at, "until": at + 1} for at in (20, 61, 133)]
    run = make(Load(ranks=8, steps=150, faults=faults))
    ends = run.collectives["start_ns"][run.collectives["self_ns"] > 150e6]
    middles = ((ends - 80e6) / SECOND).tolist()
    for halts, named in (({0: middles}, (0,)), ({}, ())):
        assert judge(sampled(run, halts, middles)).verdicts[0].ranks == named


@pytest.mark.parametrize(("stopped", "notes"), [(12, 1), (1, 0)])
def test_a_stop_that_no_verdict_names_is_a_note(stopped: int, notes: int) -> None:
    """As of a job too short to tell a hang from a long step: that a rank was stopped is a fact still."""
    run = make(Load(ranks=4, steps=40))
    found = [note for note in judge(sampled(run, {1: range(stopped)}, range(20))).notes if "SIGSTOP" in note]
    assert found == ["rank 1 was stopped (SIGSTOP, or a debugger) for at least 11.0 s"] * notes


def cycled(stopped_share: float) -> Verdict:
    """Rank 1 is off the CPU for half of each second-long step; its state is T in this share of the samples."""
    run = make(Load(ranks=4, steps=100, compute=500.0, noise=5.0, faults=[{"rank": 1, "blocked": 500.0}]))
    began, ended = (int(edge) for edge in (run.collectives["start_ns"].min(), run.collectives["start_ns"].max()))
    times = np.arange(began, ended, SECOND) / SECOND
    every = times[np.arange(len(times)) % 10 < 10 * stopped_share].tolist()
    return judge(sampled(run, {1: every}, times.tolist())).verdicts[0]


def test_a_rank_that_is_stopped_now_and_then_is_late_for_that() -> None:
    """The samples replace the sentence that its cause was not measured."""
    verdict = cycled(0.5)
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (1,), "stopped")
    lasted, often = verdict.evidence[:2]
    assert lasted == "off CPU between collectives: rank 1 500 ms, others 0.0 ms"
    assert often.startswith("rank 1 was stopped (SIGSTOP, or a debugger) in ")
    assert not [line for line in verdict.evidence if "not measured" in line]
    assert verdict.advice[0].startswith("find what stopped rank 1")
    assert of_verdict(verdict.__dict__).what == "rank 1: stopped by a signal or a debugger, since step 0"


@pytest.mark.parametrize("share", [0.0, 0.1])
def test_too_few_stops_are_no_cause(share: float) -> None:
    """Late for half of the time and stopped at a tenth of the samples: the cause is another one."""
    verdict = cycled(share)
    assert verdict.cause == "unknown"
    assert [line for line in verdict.evidence if "not measured" in line]


@pytest.mark.parametrize(("step", "cause"), [(103, "stopped"), (110, "unknown"), (150, "unknown")])
def test_one_sample_in_a_stall_that_recurs_shows_a_stop(step: int, cause: str) -> None:
    """Rank 1 is off the CPU for 250 ms in every twentieth step, and once for 2 s, as a debugger holds a process."""
    faults = [{"rank": 1, "blocked": 250.0, "every": 20}, {"rank": 1, "blocked": 2000.0, "from": 150, "until": 151}]
    run = make(Load(ranks=2, steps=300, compute=90.0, noise=2.0, faults=faults))
    arrived = run.collectives["start_ns"][run.collectives["rank"] == 1] / SECOND
    times = [*arrived[::20].tolist(), float(arrived[step]) - 0.15]
    verdict = judge(sampled(run, {1: times[-1:]}, times)).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (1,), cause)


def test_stops_inside_a_collective_count_beside_those_before_one() -> None:
    """All ranks leave such a collective late and alike; with the rank's other stops, samples say whose it was."""
    before, inside = (40, 80, 120, 160), (60, 100)
    faults = [{"rank": 1, "blocked": 500.0, "from": at, "until": at + 1} for at in before]
    run = make(Load(ranks=2, steps=200, compute=20.0, faults=faults))
    run = held_up(run, 500.0 * np.isin(np.arange(200), inside))
    arrived = run.collectives["start_ns"][run.collectives["rank"] == 1] / SECOND
    middles = [*(arrived[[*before]] - 0.25).tolist(), *(arrived[[*inside]] + 0.25).tolist()]
    verdict = judge(sampled(run, {1: middles}, sorted([*middles, *arrived[::20].tolist()]))).verdicts[0]
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("intermittent", (1,), "stopped")
    assert "in 6 of " in verdict.evidence[0]


@pytest.mark.parametrize("seen", [True, False])
def test_stops_for_which_others_wait_between_collectives_are_stops_if_samples_are_in_them(seen: bool) -> None:
    """Others may wait in calls that no probe records. They may save as well: stops elsewhere say nothing of that."""
    alone, with_others = (60, 140), (40, 80, 100, 160, 180)
    faults = [{"rank": 1, "blocked": 500.0, "from": at, "until": at + 1} for at in (*alone, *with_others)]
    faults += [{"rank": 0, "blocked": 500.0, "from": at, "until": at + 1} for at in with_others]
    run = make(Load(ranks=2, steps=200, compute=20.0, faults=faults))
    arrived = run.collectives["start_ns"][run.collectives["rank"] == 1] / SECOND
    stops = (arrived[[*alone, *with_others]] - 0.25 if seen else arrived[[10, 110, 130]] - 0.01).tolist()
    found = judge(sampled(run, {1: stops}, sorted([*stops, *arrived[5::20].tolist()]))).verdicts
    assert [(one.ranks, one.cause) for one in found if one.ranks] == [((1,), "stopped")] * seen


def late_beside_stops(late_from: int, *stopped: int) -> Verdict:
    """The straggler, rank 1, late by 20 ms from this step on; its state is read every third step, stopped at these."""
    fault = {"rank": 1, "blocked": 20.0, "from": late_from}
    often = {"rank": 1, "blocked": 60.0, "every": 15, "until": late_from - 60}
    run = make(Load(ranks=4, steps=400, compute=400.0, noise=5.0, faults=[fault] + [often] * (late_from > 60)))
    arrived = run.collectives["start_ns"][run.collectives["rank"] == 1] / SECOND
    read = [*range(0, late_from - 20, 3), *range(late_from, 400, 30)] if late_from else [*range(0, 300, 3)]
    verdict = judge(sampled(run, {1: arrived[list(stopped)].tolist()}, arrived[read].tolist())).verdicts[0]
    assert (verdict.kind, verdict.ranks) == ("straggler", (1,))
    return verdict


def test_a_stop_before_a_rank_is_late_is_not_its_cause() -> None:
    """Samples of the steps in which it is late count, and no others."""
    assert late_beside_stops(260, 3).cause == "unknown"


def test_two_stops_do_not_explain_what_other_waits_do() -> None:
    """Seen stopped for less than half of the time by which it is late, and off the CPU in each step."""
    verdict = late_beside_stops(0, 150, 153)
    assert (verdict.cause, verdict.partial) == ("unknown", "blocked")
