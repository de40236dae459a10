"""Verdicts of a running job: opened once, reported again when they change, closed with their interval."""

from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk, from_rows
from hindmost_collector.ingest.definitions import Definitions, Schema
from hindmost_collector.ingest.row_builder import MetricRows, Words
from hindmost_collector.live import evaluation_schedule
from hindmost_collector.live.evaluation_schedule import Judging, share_of
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.live.window import Window
from hindmost_judge.detect import hang
from hindmost_judge.model import FINISHED, RUNNING, STEPS, VANISHED, Job, Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.schema import JobSummary, Report

from tests.collector.live.pacing import Paced

SECOND = 1_000_000_000


def waiting(definitions: Definitions, life: int = RUNNING) -> Window:
    """Three ranks of four in an all-reduce since second 1, as their agent said in second 2."""
    window = Window()
    ranks = [(rank, 4, rank, "n0", 100 + rank, "", "torch", 0) for rank in range(4)]
    entered = [(rank, "collective", "all_reduce", 7, 50, -1, 0, SECOND, 2 * SECOND) for rank in range(3)]
    states = [(rank, 2 * SECOND, life if rank < 3 else RUNNING, 10, 0, -1, -1, "") for rank in range(4)]
    plain = {
        "ranks": from_rows("ranks", ranks),
        "communicators": from_rows("communicators", [(7, rank, rank, 4, "world") for rank in range(4)]),
        "in_flight": from_rows("in_flight", entered),
        "rank_states": from_rows("rank_states", states),
    }
    window.add(Chunk({}, plain, [], []), definitions)
    return window


def hang_in(window: Window, definitions: Definitions) -> hang.Hang | None:
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
    assert hang_in(window, definitions) is None
    heard(window, definitions, 4)
    assert hang_in(window, definitions) is None
    heard(window, definitions, 6)
    stop = hang_in(window, definitions)
    assert stop is not None
    assert (stop.ranks, stop.victims, stop.waited_ns) == ((3,), (0, 1, 2), 5 * SECOND)


def test_another_node_says_nothing_of_these_ranks(definitions: Definitions) -> None:
    """After lost contact with an agent the state of its ranks is unknown."""
    window = waiting(definitions)
    heard(window, definitions, 60, node="n1")
    assert hang_in(window, definitions) is None


def standing(definitions: Definitions) -> LiveJob:
    """The job of these ranks, judged while it went on; its last step of 20 ms began in second 1."""
    job = LiveJob("j", 0)
    job.window = waiting(definitions)
    job.window.newest_ns = SECOND
    job.report = {"job": {"step_ms": {"p50": 20.0, "p99": 20.0}}}
    return job


@pytest.mark.parametrize("evaluated", [True, False])
def test_stacks_of_who_is_missing_are_asked_for_before_the_hang(definitions: Definitions, evaluated: bool) -> None:
    """Once, at half of a hang's patience, and not for the waiting ranks: the first verdict has them."""
    job = standing(definitions)
    job.report = job.report if evaluated else None
    heard(job.window, definitions, 2)
    assert job.stall.question(job) is None
    heard(job.window, definitions, 3)
    question = job.stall.question(job)
    assert question is not None
    assert (question.job_id, list(question.ranks), question.stacks) == ("j", [3], True)
    heard(job.window, definitions, 5)
    assert job.stall.question(job) is None


def test_stacks_are_asked_for_once_it_is_known_who_is_waited_for(definitions: Definitions) -> None:
    """Agents may learn from NCCL's RAS what ranks wait in, seconds after these stopped."""
    job = standing(definitions)
    states = from_rows("rank_states", [(rank, 2 * SECOND, RUNNING, 10, 0, -1, -1, "") for rank in range(4)])
    job.window.add(Chunk({}, {"rank_states": states}, [], []), definitions)
    heard(job.window, definitions, 4)
    assert job.stall.question(job) is None
    entered = [(rank, "collective", "all_reduce", 7, 50, -1, 0, 4 * SECOND, 5 * SECOND) for rank in range(3)]
    states = from_rows("rank_states", [(rank, 5 * SECOND, RUNNING, 10, 0, -1, -1, "") for rank in range(4)])
    plain = {"in_flight": from_rows("in_flight", entered), "rank_states": states}
    job.window.add(Chunk({}, plain, [], []), definitions)
    question = job.stall.question(job)
    assert question is not None
    assert list(question.ranks) == [3]


def test_a_rank_that_writes_a_checkpoint_is_left_alone(definitions: Definitions) -> None:
    """The others wait for it as a matter of course, and where it stands is known."""
    job = standing(definitions)
    saving = from_rows("in_flight", [(3, "phase", "checkpoint", 0, 0, -1, 0, SECOND, 2 * SECOND)])
    states = from_rows("rank_states", [(3, 2 * SECOND, RUNNING, 10, 0, -1, -1, "")])
    job.window.add(Chunk({}, {"in_flight": saving, "rank_states": states}, [], []), definitions)
    heard(job.window, definitions, 5)
    assert job.stall.question(job) is None


@pytest.mark.parametrize(
    ("reported_ms", "received_ms", "judged"),
    [(20.0, None, 5), (4000.0, None, 12), (None, None, 5), (None, 4000, 12)],
    ids=["short steps", "slow steps", "before the first evaluation", "slow steps before it"],
)
def test_a_job_that_stands_still_is_judged_when_its_patience_ends(
    definitions: Definitions, reported_ms: float | None, received_ms: int | None, judged: int
) -> None:
    """Once each time that it stands still: after three of the slowest steps, less a second for the word."""
    job = standing(definitions)
    job.report = None if reported_ms is None else {"job": {"step_ms": {"p50": 20.0, "p99": reported_ms}}}
    if received_ms is not None:
        steps = {name: np.zeros(4, np.int64) for name in STEPS} | {"rank": np.arange(4)}
        steps |= {"start_ns": np.full(4, -3 * SECOND), "duration_ns": np.full(4, received_ms * 1_000_000)}
        job.window.add(Chunk({"steps": steps}, {}, [], []), definitions)
    found = []
    for second in range(2, 15):
        heard(job.window, definitions, second)
        found += [second] * job.stall.timed_out(job)
    assert found == [judged]


def test_ranks_wait_on_between_two_reports_on_a_hang(definitions: Definitions) -> None:
    """A job that stands still is judged less and less often; what its ranks have waited is as new as its agents."""
    job = standing(definitions)
    heard(job.window, definitions, 6)
    hang = {"kind": "hang", "ranks": [3], "victims": [0, 1, 2], "until_step": None, "waited_s": 15.0}
    job.report, job.judged_quiet_ns = {"verdicts": [hang]}, job.window.quiet_ns
    heard(job.window, definitions, 10)
    report = job.report_until_now()
    assert report is not None
    assert [one["waited_s"] for one in report["verdicts"]] == [15.0 + 3 * 4.0]


def test_a_job_that_is_said_to_hang_is_judged_when_it_goes_on(definitions: Definitions) -> None:
    """Full cores put the next one off by a minute. Where the report stays so, it is judged after twice the time."""
    job = standing(definitions)
    heard(job.window, definitions, 5)
    assert job.stall.timed_out(job)
    hung = {**(job.report or {}), "verdicts": [{"kind": "hang", "ranks": [3]}]}
    found = []
    for second in (9, 10, 16, 17, 18):
        job.report, job.window.newest_ns = hung, second * SECOND
        heard(job.window, definitions, second)
        found.append(job.stall.timed_out(job))
    assert found == [True, False, False, False, True]
    job.report = {**hung, "verdicts": []}
    job.window.newest_ns = 90 * SECOND
    assert not job.stall.timed_out(job)


def test_a_job_that_stops_in_its_first_operation_stands_since_then(definitions: Definitions) -> None:
    """Nothing has ended: neither a step nor a collective. NCCL's RAS knows no more of ranks without a probe."""
    job = LiveJob("j", 0)
    job.window = waiting(definitions)
    heard(job.window, definitions, 4)
    assert job.window.quiet_ns == job.window.still_ns == 3 * SECOND
    assert not job.stall.timed_out(job)
    heard(job.window, definitions, 5)
    assert job.stall.timed_out(job)


def test_the_judge_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before any job is judged: on full cores that takes seconds, for which ranks, and a hang's first verdict, wait."""
    loaded = []
    monkeypatch.setattr(evaluation_schedule, "load_judge", lambda _: loaded.append(1) or (lambda run: run))
    judging = Judging()
    for _ in range(2):
        judging.load()
    assert judging.at_the_end(lambda: "run") == ("run", "run")  # type: ignore[arg-type,return-value]
    assert loaded == [1]


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
    assert job.stall.timed_out(job)
    heard(job.window, definitions, 6)
    assert not job.stall.timed_out(job)
    stack(job, definitions, 3, 6.5)
    assert job.stall.timed_out(job)
    assert not job.stall.timed_out(job)


def test_a_job_whose_ranks_all_compute_does_not_stand_still(definitions: Definitions) -> None:
    """On full cores it is judged less often then: only a rank that waits for something can be in a hang."""
    waits, computes = waiting(definitions), LiveJob("j", 0).window
    for window in (waits, computes):
        window.newest_ns = SECOND
        heard(window, definitions, 9)
    assert waits.still_ns == waits.quiet_ns > 0
    assert computes.quiet_ns > 0 == computes.still_ns


def test_what_is_said_of_a_job_that_may_hang_is_looked_at_with_haste(definitions: Definitions) -> None:
    """From well before the question until a while after the verdict, and not for as long as it stands."""
    job = standing(definitions)
    hasty = []
    for second in (2, 5, 8, 9, 60):
        heard(job.window, definitions, second)
        hasty.append(job.stall.urgent(job))
    assert hasty == [True, True, True, False, False]


def test_a_rank_that_is_said_to_wait_still_is_heard_of(definitions: Definitions) -> None:
    """Its agent speaks between two samples of its node's metrics, too."""
    job = standing(definitions)
    again = from_rows("in_flight", [(0, "collective", "all_reduce", 7, 50, -1, 0, SECOND, 5 * SECOND)])
    states = from_rows("rank_states", [(0, 5 * SECOND, RUNNING, 10, 0, -1, -1, "")])
    job.window.add(Chunk({}, {"in_flight": again, "rank_states": states}, [], []), definitions)
    assert job.stall.timed_out(job)


@pytest.mark.parametrize("life", [FINISHED, VANISHED])
def test_ranks_that_are_gone_wait_for_nothing(definitions: Definitions, life: int) -> None:
    """What a process had entered when it ended is no hang of a running job."""
    window = waiting(definitions, life)
    heard(window, definitions, 60)
    assert hang_in(window, definitions) is None
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


def test_a_busy_host_does_not_make_verdicts_rare() -> None:
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


def test_many_cores_allow_more_full_evaluations() -> None:
    """A twentieth of one where there are few; what a large job's judgement takes buys no long quiet on many."""
    assert [share_of(cores) for cores in (1, 2, 4, 8, 16, 192)] == [0.05, 0.05, 0.05, 0.1, 0.2, 0.2]
    job, judged = Paced(share=share_of(16)), []
    for second in range(1, 61):
        job.names["whole"] = (second % 2,)
        judged += [at for at, which in job.until(float(second)) if which == "whole"]
    assert max(np.diff(judged)) <= 3.0
