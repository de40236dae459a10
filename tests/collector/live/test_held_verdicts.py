"""Verdicts of a job watched for longer than its window: open as long as they hold, then closed, then over."""

import asyncio
import functools
import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.live.evaluation_loop import Watch
from hindmost_collector.live.evaluation_schedule import LEAST_SHARE, OF_LOOKS, WHOLES_AHEAD, Judging
from hindmost_collector.live.jobs import Contact, LiveJob
from hindmost_collector.live.verdicts import VerdictLog
from hindmost_collector.live.window import Window
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_collector.serve.job_metrics import JobPage
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.stream import Job
from hindmost_judge.judge import judge
from hindmost_judge.model import Counted, Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline.steps import numbered_as_before
from hindmost_judge.verdict.wording import OLDER

from tests.collector.live.pacing import collector, never_ends, turn

ONSET, END, STEPS = 60, 200, 280
#: A step takes about 0.11 s: the window holds some 70 of them.
WINDOW_NS = 8_000_000_000
SECOND = 1e9


#: CPU seconds of a full and of an incremental evaluation, where judging is made to cost much.
WHOLE_S, LOOK_S = 0.3, 0.02


def judged_live(
    scenario: Scenario, used: list[float] | None = None, *, marked: bool = True
) -> Iterator[tuple[float, dict[str, Any], list[dict[str, Any]]]]:
    """When, the report and its events, of each judgement of the job as its agents' batches come in. With a list,
    judging is made to cost much: what each full and incremental evaluation takes is added to it."""
    job = Job.of(scenario)
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, 10**18)
    for node in job.nodes:
        definitions.learn(packed(job.opening(node)[1].definitions), decoder.job, clock)
    now = [0.0]
    judging = Judging(period_s=1.5, clock=lambda: now[0], cpu=lambda: sum(used or ()))
    judging.judge = judge if used is None else functools.partial(at_a_cost, used)
    live, events = LiveJob(job.name, 0), list[dict[str, Any]]()
    live.window = Window(WINDOW_NS)
    if used is not None:  # few rows are few steps of a job that costs much
        live.newest = lambda words, _=0: LiveJob.newest(live, words, 0)  # type: ignore[method-assign]
    seen_by = collector({job.name: live}, lambda: now[0])
    seen_by.decoder = decoder
    writing: list[Any] = []
    seen_by.recorder.store = SimpleNamespace(append_line=lambda _job, _file, text: events.append(json.loads(text)))
    seen_by.shielded = SimpleNamespace(begin=writing.append)
    watch = Watch(seen_by, judging, never_ends)

    async def looked() -> None:
        await turn(watch)
        while writing:
            await writing.pop(0)

    for node, ends, message in job.batches():
        if not marked:
            message.batch.ClearField("steps")
        assert decoder.add(packed(message.batch), str(node), job.name, clock) == []
        live.add(finish(decoder.take()[job.name]), decoder.words, definitions, int(ends * SECOND))
        now[0] = ends
        before = live.report
        if node == job.nodes[-1]:
            asyncio.run(looked())
        if live.report is not before:
            report: Any = live.report
            yield ends, report, events.copy()
            events.clear()


def at_a_cost(used: list[float], run: Run) -> Any:
    """What judging a run says, at this cost."""
    used.append(LOOK_S if run.incremental else WHOLE_S)
    return judge(run)


@functools.cache
def watched(scenario: Scenario) -> tuple[tuple[float, dict[str, Any], list[dict[str, Any]]], ...]:
    """All judgements of a job, for several tests: read only."""
    return tuple(judged_live(scenario))


def live_events(
    scenario: Scenario, used: list[float] | None = None
) -> list[tuple[float, str, str, int | None, int | None]]:
    """When each verdict was opened or closed, its kind and its interval."""
    return [
        (at, event["event"], event["verdict"]["kind"], event["verdict"]["since_step"], event["verdict"]["until_step"])
        for at, _, found in (watched(scenario) if used is None else judged_live(scenario, used))
        for event in found
        if event["event"] != "changed"
    ]


def events(scenario: Scenario, kind: str) -> list[tuple[str, int | None, int | None]]:
    """Each time that a verdict of this kind was opened or closed, with its interval."""
    return [(what, since, until) for _, what, which, since, until in live_events(scenario) if which == kind]


FAULTS = {
    "slow_link": Fault("network", tuple(range(8)), 0.2, ONSET, END),
    "straggler": Fault("compute", (3,), 0.2, ONSET, END),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_verdict_is_open_as_long_as_it_holds_and_is_closed_with_its_interval(kind: str) -> None:
    """Once opened, though the steps before it have long left the window; once closed, some steps after its end."""
    opened, closed = events(Scenario(8, STEPS, seed=3, faults=(FAULTS[kind],)), kind)
    assert opened == ("opened", pytest.approx(ONSET, abs=2), None)
    assert closed == ("closed", opened[1], pytest.approx(END, abs=2))


@pytest.mark.parametrize("kind", FAULTS)
def test_what_costs_much_to_judge_is_reported_as_soon(kind: str) -> None:
    """An incremental evaluation later, with the same interval; full evaluations run for news, within the budget."""
    scenario, used = Scenario(8, STEPS, seed=3, faults=(FAULTS[kind],)), list[float]()
    cheap, costly = live_events(scenario), live_events(scenario, used)
    assert [one[1:] for one in costly] == [one[1:] for one in cheap]
    assert [at for at, *_ in costly] == pytest.approx([at for at, *_ in cheap], abs=3.0)  # ends are borne out
    assert used.count(WHOLE_S) < 15
    assert used.count(LOOK_S) > 15
    assert sum(used) < (LEAST_SHARE + OF_LOOKS) * STEPS * 0.12 + WHOLES_AHEAD * WHOLE_S


def test_a_job_that_marks_no_steps_has_verdicts_with_an_end_too() -> None:
    """When a report leaves one out, it held until the last of the steps that the report counts."""
    scenario = Scenario(8, 80, seed=3, faults=(Fault("compute", (3,), 0.2, 30),))
    *_, (_, report, _) = judged_live(scenario, marked=False)
    assert [(verdict["kind"], verdict["until_step"]) for verdict in report["verdicts"]] == [("straggler", None)]
    job = LiveJob("j", 0)
    log = VerdictLog()
    list(log.update(report["verdicts"], 1, job.last_step(report)))
    assert [*log.update([], 2, job.last_step(report))] == []
    (closed,) = log.update([], 3, job.last_step(report))
    interval = (closed["verdict"]["since_step"], closed["verdict"]["until_step"])
    assert (closed["event"], *interval) == ("closed", pytest.approx(30, abs=2), report["job"]["steps"] - 1)


def test_the_page_has_the_verdict_at_each_evaluation_while_it_holds() -> None:
    """With the step since which, and a cost as it is, however far behind its beginning is."""
    scenario = Scenario(8, STEPS, seed=3, faults=(FAULTS["slow_link"],))
    looks = [(at, report["verdicts"][0]) for at, report, _ in watched(scenario)]
    first = next(at for at, verdict in looks if verdict["kind"] == "slow_link")
    held = [verdict for at, verdict in looks if first <= at < END * 0.12]
    assert len(held) > 5
    assert {verdict["kind"] for verdict in held} == {"slow_link"}
    assert [verdict["since_step"] for verdict in held] == [pytest.approx(ONSET, abs=2)] * len(held)
    costs = [verdict["cost_ms_per_step"] for verdict in held]
    assert max(costs) < 1.3 * min(costs)


def test_what_was_seen_to_begin_is_never_said_to_be_older() -> None:
    """Though the window begins after it later."""
    held = [
        verdict
        for _, report, _ in watched(Scenario(8, STEPS, seed=3, faults=(FAULTS["straggler"],)))
        for verdict in report["verdicts"]
        if verdict["kind"] == "straggler" and verdict["until_step"] is None
    ]
    assert len(held) > 8
    assert not [line for one in held for line in one["evidence"] if line.startswith(OLDER)]


LAYOUTS: dict[str, dict[str, int]] = {"dp": {}, "pp_dp": {"pipeline": 2}}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_unmarked_steps_keep_their_numbers_as_the_window_goes_on(layout: Any) -> None:
    """An onset stays as found though the window loses it; newest step and end are counted as the onset is."""
    scenario = Scenario(8, STEPS, seed=3, layout=layout, faults=(FAULTS["straggler"],), **LAYOUTS[layout])
    found = list(judged_live(scenario, marked=False))
    onsets = [verdict["since_step"] for _, report, _ in found for verdict in report["verdicts"] if verdict["ranks"]]
    assert onsets[0] == pytest.approx(ONSET, abs=2)
    assert min(onsets) == onsets[0]
    closed = [event["verdict"] for _, _, events in found for event in events if event["event"] == "closed"]
    assert [(one["since_step"], one["until_step"]) for one in closed] == [(onsets[0], pytest.approx(END, abs=3))]
    assert found[-1][1]["job"]["steps"] == pytest.approx(STEPS, abs=30)


def test_numbers_go_on_where_windows_share_no_step() -> None:
    """As many as have passed at the typical pace; where the steps' begins are unknown they are counted from 0."""
    starts = np.arange(40.0)[None, :] * 1e8
    joined = SimpleNamespace(start=np.concatenate([starts + 5e6, starts]))
    number = np.where(np.arange(40) % 2, -1, np.arange(40) // 2)
    assert numbered_as_before(number, joined, None).tolist() == number.tolist()
    assert numbered_as_before(number, joined, Counted(17, 4.1e8)).max() == 17 + 17
    assert numbered_as_before(number, joined, Counted(17, -10e8)).max() == 17 + 5 + 19
    unseen = SimpleNamespace(start=np.full((2, 40), np.nan))
    assert numbered_as_before(number, unseen, Counted(17, 0.0)).tolist() == number.tolist()


def test_what_begins_with_the_window_may_be_older() -> None:
    """A collector that sees the job's later steps only: the first of them is no onset, and the evidence says so."""
    run = simulate(Scenario(8, 200, seed=3, faults=(Fault("compute", (3,), 0.2, 60),))).run
    late = int(run.steps["start_ns"][run.steps["step"] == 120].min())
    seen = {
        name: {column: values[table["start_ns"] >= late] for column, values in table.items()}
        for name, table in (("steps", run.steps), ("collectives", run.collectives), ("intervals", run.intervals))
    }
    job = replace(run.job, source="hindmost", ended_ns=None, exit_code=None)
    (one,) = judge(replace(run, job=job, **seen)).verdicts
    assert one.since_step == pytest.approx(122, abs=3)
    assert [line for line in one.evidence if line.startswith(OLDER)]
    (finished,) = judge(run).verdicts
    assert not [line for line in finished.evidence if line.startswith(OLDER)]


def test_a_slow_network_that_never_was_fast_is_none() -> None:
    """What transfers always took is how the job is: nothing is carried from one window to the next."""
    scenario = Scenario(8, 200, seed=3, transfer_share=0.4)
    assert {verdict["kind"] for _, report, _ in judged_live(scenario) for verdict in report["verdicts"]} <= {
        "balanced",
        "insufficient_data",
    }


SLOW_FROM, SLOW_UNTIL, ALL_STEPS = 40, 100, 160


@pytest.fixture(scope="module")
def over() -> dict[str, Any]:
    """The report on 4 ranks of which rank 2 was slow for a while."""
    fault = Fault("compute", (2,), 0.15, onset=SLOW_FROM, end=SLOW_UNTIL)
    return judge(simulate(Scenario(4, ALL_STEPS, faults=(fault,))).run).to_dict()


def live(report: dict[str, Any], last_step: int) -> LiveJob:
    """A job of this report, whose ranks have come so far."""
    job = LiveJob("a", 0)
    job.report, job.window = report, WindowOfSteps(last_step)
    return job


class WindowOfSteps(Window):
    """A window of which the newest step is known, and nothing else."""

    def __init__(self, last_step: int) -> None:
        super().__init__()
        self._last_step = last_step

    @property
    def last_step(self) -> int:
        return self._last_step


def test_a_job_that_is_well_again_is_served_as_balanced(over: dict[str, Any]) -> None:
    """An alert tells "well again" from "gone": one series says balanced, since the step at which the verdict ended."""
    assert [verdict["kind"] for verdict in over["verdicts"]] == ["straggler"]
    until = over["verdicts"][0]["until_step"]
    text = JobPage().text([live(over, ALL_STEPS - 1)], Contact([], 0))
    (line,) = [splitline for splitline in text.splitlines() if splitline.startswith("hindmost_verdict_info{")]
    assert 'kind="balanced"' in line
    assert f'since_step="{until}"' in line
    assert "hindmost_verdict_cost_ratio{" not in text  # what is not measured is left out


def test_of_too_few_steps_since_nothing_is_said(over: dict[str, Any]) -> None:
    """With fewer steps than a judgement needs, how they are is unknown."""
    until = over["verdicts"][0]["until_step"]
    assert live(over, until + DEFAULT.min_steps - 1).verdicts() == []
    assert [verdict["kind"] for verdict in live(over, until + DEFAULT.min_steps).verdicts()] == ["balanced"]


def test_a_verdict_that_holds_is_served_alone(over: dict[str, Any]) -> None:
    """If one has ended, the one that holds is the only current one."""
    held = {**over["verdicts"][0], "ranks": [1], "until_step": None}
    report = {**over, "verdicts": [*over["verdicts"], held]}
    assert live(report, ALL_STEPS - 1).verdicts() == [held]
    assert [one["kind"] for one in with_rendered(report)["rendered"]] == ["straggler", "straggler"]


def test_the_page_does_not_begin_with_what_is_over(over: dict[str, Any]) -> None:
    """It says first that nothing holds any more; what was so follows, with its steps."""
    first, second = with_rendered(over)["rendered"]
    until = over["verdicts"][0]["until_step"]
    assert (first["head"], first["what"]) == ("OK", f"no rank is slow since step {until}")
    assert second["what"].endswith(f"to {until}")
