"""Looks at the newest steps of a window that costs much to judge, and when they have all of it judged."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import Chunk
from hindmost_collector.ingest.definitions import Definitions, Schema, Series
from hindmost_collector.ingest.row_builder import MetricRows, Words
from hindmost_collector.live.evaluation_schedule import (
    APART_S,
    EVERY_S,
    MANY_RANKS,
    Judging,
    Outcome,
    confirmed_claims,
    disputed_ranks,
    new_claims,
    outcome_of,
)
from hindmost_collector.live.window import (
    INCREMENTAL_ROWS,
    LEAST_INCREMENTAL_ROWS,
    Piece,
    Window,
    newest_steps,
    piece,
    ticks_to_skip,
)
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import usage
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.judge import judge
from hindmost_judge.model import RANKS, Job, Run
from hindmost_judge.verdict.schema import JobSummary, RankRow, Report, Verdict

from tests.collector.live.pacing import BEGAN, Paced

SLOW = ("straggler", (3,))
NOW_AND_THEN = ("intermittent", (5,))
NOTHING = Outcome({}, 100.0, 10.0)


def costs(**found: float) -> Outcome:
    """Steps in which these hold, by what they cost."""
    names = {"slow": SLOW, "stalls": NOW_AND_THEN}
    return Outcome({names[name]: cost for name, cost in found.items()}, 100.0, 10.0)


@pytest.mark.parametrize(
    ("held", "before", "now", "new"),
    [
        (NOTHING, NOTHING, NOTHING, False),
        (NOTHING, NOTHING, costs(slow=5.0), True),
        (costs(slow=5.0), NOTHING, costs(slow=5.0), False),
        (costs(slow=5.0), costs(slow=5.0), NOTHING, True),
        (NOTHING, costs(slow=5.0), NOTHING, False),
        (costs(slow=5.0), costs(slow=5.0), costs(slow=7.0), False),
        (costs(slow=5.0), costs(slow=5.0), costs(slow=9.0), True),
        (costs(stalls=5.0), costs(stalls=5.0), NOTHING, False),
        (NOTHING, NOTHING, costs(stalls=5.0), True),
        (NOTHING, NOTHING, Outcome({}, 115.0, 10.0), True),
        (NOTHING, NOTHING, Outcome({}, 103.0, 12.0), True),
        (Outcome({}, 100.0, 0.5), Outcome({}, 100.0, 0.5), Outcome({}, 100.0, 1.0), False),
        (NOTHING, NOTHING, Outcome({}, 100.0, None), False),
    ],
)
def test_news_is_who_begins_or_ends_and_what_grows(held: Outcome, before: Outcome, now: Outcome, new: bool) -> None:
    """Against the claims at the last full evaluation: a long window names ranks that few steps do not show."""
    assert bool(new_claims(held, before, now)) == new


def test_what_has_ended_is_not_seen() -> None:
    """Nor what is no trouble; steps and transfers are those of the typical step and rank."""
    verdicts = (
        Verdict("balanced"),
        Verdict("straggler", (3,), cost_ms_per_step=4.0),
        Verdict("straggler", (4,), until_step=9),
    )
    ranks = tuple(RankRow(rank, transfer_ms=ms) for rank, ms in enumerate((1.0, 2.0, 9.0, None)))
    report = Report(JobSummary("j", step_ms={"p50": 20.0}), verdicts, ranks)
    assert outcome_of(report) == Outcome({SLOW: 4.0}, 20.0, 2.0)


def test_who_is_slow_now_and_then_is_not_missed_in_few_steps() -> None:
    """Newest steps without a stall contradict no window with some; whom only one of the two names is asked about."""
    assert disputed_ranks(costs(slow=5.0, stalls=3.0), costs(slow=2.0)) == set()
    assert disputed_ranks(costs(slow=5.0), NOTHING) == disputed_ranks(NOTHING, costs(slow=5.0)) == {SLOW}


def test_claims_are_confirmed_by_changes_in_the_full_evaluation() -> None:
    """A rank is named there too, or is no longer; another length counts if any rank is."""
    said = new_claims(NOTHING, NOTHING, Outcome({SLOW: 5.0}, 120.0, 10.0))
    assert confirmed_claims(said, NOTHING, costs(slow=5.0)) == said
    assert confirmed_claims(said, NOTHING, NOTHING) == set()
    assert confirmed_claims(said, NOTHING, costs(stalls=5.0)) == said - {SLOW}
    dearer = new_claims(costs(slow=5.0), costs(slow=5.0), costs(slow=9.0))
    assert confirmed_claims(dearer, costs(slow=5.0), costs(slow=9.0)) == dearer
    assert confirmed_claims(dearer, costs(slow=5.0), costs(slow=5.0)) == set()


def test_an_incremental_evaluation_names_the_same_ranks_and_describes_a_few() -> None:
    """The same judge on the same steps, without what only a reader asks."""
    run = simulate(Scenario(100, 60, seed=5, faults=(Fault("compute", (3,), 0.2),))).run
    whole, look = judge(run), judge(replace(run, incremental=True))
    assert [(verdict.kind, verdict.ranks) for verdict in look.verdicts] == [("straggler", (3,))]
    assert outcome_of(look).costs == outcome_of(whole).costs
    assert outcome_of(look).step_ms == outcome_of(whole).step_ms
    assert outcome_of(look).transfer_ms == pytest.approx(outcome_of(whole).transfer_ms, rel=0.05)
    assert 32 < len(look.ranks) <= 64


def gaps(judged: list[tuple[float, str]], which: str) -> list[float]:
    """Seconds between two evaluations of one kind."""
    return np.diff([at for at, one in judged if one == which]).tolist()


def test_newest_steps_are_judged_each_period_and_the_full_window_within_its_share() -> None:
    """Incremental each 1.5 s; from a twentieth of a core a full one of 0.4 s each 8 s, each 20 s without news."""
    job = Paced()
    judged = job.until(120.0)
    assert max(gaps(judged, "newest")) <= 2.0
    assert gaps(judged, "whole")[1:] == [pytest.approx(20.0, abs=1.5)] * (len(gaps(judged, "whole")) - 1)
    job.names = {"whole": (3,), "newest": (3,)}
    soon = sorted(at for at, which in job.until(180.0) if which == "whole")
    assert soon[0] < 122.0
    assert soon[1] - soon[0] == pytest.approx(8.0, abs=1.5)


@pytest.mark.parametrize("whole_s", [2.5, 20.0])
def test_incremental_evaluations_come_each_period_whatever_full_ones_took(whole_s: float) -> None:
    """Two of 2.5 s are a hundred seconds of a twentieth of a core: that is theirs to wait for."""
    job = Paced(whole_s=whole_s)
    job.until(10.0)
    job.names["newest"] = (3,)
    judged = job.until(60.0)
    assert max(gaps(judged, "newest")) <= 2.0
    assert job.used < 0.02 / 1.5 * 60 + (0.05 * 60 + 4 * whole_s)


def test_a_slow_incremental_evaluation_reads_fewer_rows_and_more_again_later() -> None:
    """Down to its time limit, which is not the fewest rows; so evaluations come each period on a slow host too."""
    job = Paced(look_s=lambda rows: 0.01 + rows * 1e-5)
    judged = job.until(60.0)
    assert job.rows[0] == INCREMENTAL_ROWS
    assert 5_000 < job.rows[-1] < 20_000
    assert max(gaps(judged, "newest")) <= 2.0
    job.look_s = lambda rows: 0.02
    job.until(90.0)
    assert job.rows[-1] == INCREMENTAL_ROWS
    job.look_s = lambda rows: 0.15
    assert max(gaps(job.until(150.0), "newest")) <= 2.0
    assert job.rows[-1] == LEAST_INCREMENTAL_ROWS


@pytest.mark.parametrize(("ranks", "look_s", "apart_s"), [(1024, 0.1, 1.5), (8192, 0.02, 1.5), (8192, 0.06, 3.0)])
def test_jobs_of_thousands_of_ranks_are_looked_at_as_agents_report(ranks: int, look_s: float, apart_s: float) -> None:
    """For two hundredths of a core; a verdict on a thousand ranks is at most two seconds old whatever that takes."""
    job = Paced(look_s=lambda rows: look_s)
    report = Report(JobSummary("j"), (), ranks=tuple(map(RankRow, range(ranks))))
    job.judging.judge = lambda _: report
    job.until(20.0)
    apart = gaps(job.until(80.0), "newest")
    assert np.mean(apart) == pytest.approx(apart_s, abs=0.1)
    assert max(apart) <= (EVERY_S if ranks <= MANY_RANKS else APART_S)


@pytest.mark.parametrize("whole_s", [0.4, 3.0])
def test_without_a_step_time_full_evaluations_take_no_more_than_their_share(whole_s: float) -> None:
    """There are no newest steps to look at then."""
    job = Paced(whole_s=whole_s)
    for one in job.jobs.values():
        one.newest = lambda words, rows: None
    job.until(400.0)
    assert job.used <= 0.05 * 400 + 4 * whole_s


@pytest.mark.parametrize("inside", [True, False])
def test_news_during_a_full_evaluation_is_kept(*, inside: bool) -> None:
    """Steps that take twice as long now: the window that was taken before is not what tells so."""
    spent, now, step = [0.0], [0.0], [100.0]
    judging = Judging(share=0.05, clock=lambda: now[0], cpu=lambda: spent[0])
    judging.judge = lambda run: Report(JobSummary("j", step_ms={"p50": step[0]}), ())

    def taking(seconds: float) -> Run:
        spent[0] += seconds
        return Run(Job("j"))

    def changing() -> Run:
        if inside:
            step[0] = 200.0
            assert judging.evaluate_newest("j", lambda: taking(0.05))
            step[0] = 100.0
        return taking(3.0)

    judging.judged("j", lambda: taking(3.0))
    now[0] += 60.0
    judging.evaluate_newest("j", lambda: taking(0.05))
    judging.judged("j", changing, concurrent=True)
    step[0] = 200.0
    began = now[0]
    while not judging.full_due("j") and now[0] < began + 100:
        now[0] += 1.5
        judging.evaluate_newest("j", lambda: taking(0.05))
    assert now[0] - began <= 3.0


def test_slow_incremental_evaluations_stay_within_their_share_of_a_core() -> None:
    """Of 0.6 s each: one in four seconds, once what may be spent ahead is."""
    job = Paced(look_s=lambda rows: 0.6, whole_s=5.0)
    job.until(60.0)
    assert gaps(job.until(200.0), "newest") == [pytest.approx(4.0, abs=0.3)] * 34


@pytest.mark.parametrize("whole_s", [0.1, 0.4])
def test_of_many_jobs_all_are_judged_for_what_one_may_take(whole_s: float) -> None:
    """Also where a window takes no more than an incremental evaluation may: then their newest steps are evaluated."""
    job = Paced(jobs="jklmn", whole_s=whole_s, look_s=lambda rows: 0.01 + rows * 1e-6)
    judged = job.until(200.0)
    assert len([at for at, which in judged if which == "newest"]) >= 5 * 200 / 2
    assert job.used < 0.2 * 200 + 20.0 * 0.15 + 5 * 0.4


def test_a_cheap_window_is_judged_in_full() -> None:
    """Each period, and its newest steps are never looked at."""
    judged = Paced(whole_s=0.1).until(60.0)
    assert {which for _, which in judged} == {"whole"}
    assert max(gaps(judged, "whole")) <= 2.0


def test_news_triggers_a_full_evaluation_at_once() -> None:
    """And soon again if it does not confirm them yet, but less and less often as long as it does not."""
    job = Paced()
    assert job.until(40.0)
    job.names["newest"] = (3,)
    whole = [at for at, which in job.until(75.0) if which == "whole"]
    assert whole[0] - 40.0 <= 2.0
    assert [at - whole[0] for at in whole[1:4]] == [pytest.approx(at, abs=1.0) for at in (1.5, 4.5, 9.0)]


def test_claims_by_chance_trigger_full_evaluations_less_and_less_often() -> None:
    """Every second incremental evaluation names a rank that the full one never does; a real fault does not wait."""
    job = Paced()
    job.until(20.0)
    asked = 0
    for _ in range(40):
        for job.names["newest"] in ((), (3,)):
            asked += [which for _, which in job.until(job.now - BEGAN + 1.5)].count("whole")
    assert asked < 120 / 8 + 8
    job.names["newest"] = (4,)
    assert "whole" in [which for _, which in job.until(job.now - BEGAN + 1.75)]
    assert job.jobs["j"].judged["time_ns"] >= (job.now - 2.0) * 1e9


def test_claims_by_chance_leave_no_verdict_unconfirmed() -> None:
    """Where no more full evaluations fit the budget, unconfirmed claims keep no verdict from being held."""
    job = Paced(whole_s=3.0)
    job.until(10.0)
    ages = []
    for at in range(10, 200):
        job.names["newest"] = ((), (3,))[at % 13 < 6]
        job.until(float(at))
        ages.append(job.now - job.jobs["j"].judged["time_ns"] / 1e9)
    assert max(ages) <= 3.5
    assert max(ages[20:]) <= 2.0


def test_what_is_spent_ahead_has_an_end() -> None:
    """Looks that say something else each time have no more judged than the share, and three windows of it."""
    job = Paced()
    for second in range(300):
        job.names["newest"] = (second % 97,)
        job.until(float(second))
    assert job.used < (0.05 + 0.02 / 1.5) * 300 + 20.0 * 0.05 + 4 * 0.4


def test_an_answer_triggers_a_full_evaluation() -> None:
    """What was asked for may hold a verdict's cause, which looks do not ask for."""
    job = Paced()
    job.until(30.0)
    job.judging.again("j", 0.5)
    assert (pytest.approx(30.5, abs=0.3), "whole") in job.until(31.5)


def test_stacks_that_a_verdict_asked_for_are_evaluated_when_they_come_once() -> None:
    """On full cores too, where its turn may be half a minute away; those of more nodes wait for that."""
    job = Paced(cores_are_full=lambda: True)
    job.names["whole"], job.why = (2,), {"since_step": 0, "cause": "unknown", "partial": "blocked"}
    job.until(40.0)
    idle = [at for at, _ in job.until(42.0)]
    job.jobs["j"].window.answered = True
    assert (idle, [which for _, which in job.until(44.0)]) == ([], ["whole"])
    job.jobs["j"].window.answered = True
    assert job.until(46.0) == []


def table(first: int, stop: int, ranks: int, step_ns: int, each: int = 1) -> Piece:
    """Rows of so many ranks, ``each`` in each of these steps."""
    return rows_of(first, stop, np.arange(ranks), step_ns, each)


def rows_of(first: int, stop: int, ranks: Any, step_ns: int, each: int = 1) -> Piece:
    start = np.repeat(np.arange(first, stop) * step_ns, len(ranks) * each)
    return piece({"start_ns": start, "rank": np.tile(np.repeat(ranks, each), stop - first)})


def steps_of(pieces: list[Piece], step_ns: int) -> int:
    return len(np.unique(np.concatenate([one.table["start_ns"] for one in pieces]))) if step_ns and pieces else 0


def test_the_newest_steps_are_a_small_part_of_a_full_window() -> None:
    """Of few ranks those that fill some rows; of many as many as can be judged, of each table by its own clock."""
    of_hosts = [table(at, at + 5, 64, 10**8) for at in range(1000, 2000, 5)]
    of_gpus = [table(at, at + 5, 64, 10**8, 6) for at in range(0, 1000, 5)]
    kept = newest_steps({"steps": of_hosts, "collectives": of_gpus}, 1e8, 64)
    assert 130 <= steps_of(kept["collectives"], 10**8) <= 140
    assert 130 <= steps_of(kept["steps"], 10**8) <= 140
    large = [table(at, at + 2, 8192, 10**9) for at in range(0, 44, 2)]
    kept = newest_steps({"steps": large, "collectives": [table(38, 44, 8192, 10**9, 6)], "intervals": []}, 1e9, 8192)
    assert 12 <= steps_of(kept["steps"], 10**9) <= 14
    assert kept["collectives"] == kept["intervals"] == []


def test_each_rank_is_seen_in_as_many_steps_as_a_judgement_needs_though_agents_send_in_turn() -> None:
    """A quarter of the agents tells each second what the four before it brought: of the others nothing is newer."""
    turns = [
        rows_of(10 * (second - 3), 10 * (second + 1), np.arange(second % 4, 8192, 4), 10**8) for second in range(4, 16)
    ]
    kept = newest_steps({"steps": turns}, 1e8, 8192)["steps"]
    assert set(np.concatenate([one.table["rank"] for one in kept]).tolist()) == set(range(8192))
    assert len(kept) == 4
    gone = newest_steps({"steps": turns}, 1e8, 16_384)["steps"]
    assert 4 < len(gone) < len(turns)


def test_collectives_of_too_few_steps_are_left_to_the_marks_though_agents_send_in_turn() -> None:
    """Eight seconds of batches reach back twelve, into steps of which other ranks' rows were dropped."""
    turns = [rows_of(second - 3, second + 1, np.arange(second % 4, 8192, 4), 10**9, 6) for second in range(40, 49)]
    held = {"steps": [table(at, at + 2, 8192, 10**9) for at in range(4, 48, 2)], "collectives": turns}
    assert newest_steps(held, 1e9, 8192)["collectives"] == []
    assert newest_steps(held, 1e9, 8192, begun={"collectives"})["collectives"] == turns
    assert newest_steps({"collectives": turns}, 1e9, 8192)["collectives"] == turns


def test_a_few_ticks_of_metrics_are_enough() -> None:
    """The newest, as many as hold enough samples."""
    assert ticks_to_skip([9000] * 10) == 7
    assert ticks_to_skip([100, 100]) == 0


MODES = ("user", "idle")


def metrics_of_a_look(ranks: int) -> list[str]:
    """The names of the metrics that an incremental evaluation of a job reads."""
    definitions, window = Definitions(), Window()
    names = "hindmost_node_cpus", "hindmost_gpu_power_watts"
    definitions.schemas[1] = Schema(Series(name, False, "", "{}") for name in names)
    known = {name: np.zeros(ranks, dtype) for name, dtype in RANKS.items()} | {"rank": np.arange(ranks)}
    rows = MetricRows.of("n0", 1, np.array([5]), np.array([[8.0, 300.0]]))
    window.add(Chunk({}, {"ranks": known}, [rows], []), definitions)
    return sorted(window.snapshot("j", Words(), 1e8, newest=True)().metrics["name"].tolist())


def test_of_a_job_larger_than_any_node_only_the_number_of_cpus_is_read() -> None:
    """Ranks of a small one may share CPUs, and then metrics say which of them may be named."""
    assert metrics_of_a_look(8) == ["hindmost_gpu_power_watts", "hindmost_node_cpus"]
    assert metrics_of_a_look(1024) == ["hindmost_node_cpus"]


def test_the_window_has_who_uses_the_cpus() -> None:
    """A running job has the line that the report at its end has: its ranks use them, or other processes do."""
    definitions, window, labels = Definitions(), Window(), '{"job": "j", "rank": "0"}'
    node = [("hindmost_node_cpus", "{}"), *(("hindmost_node_cpu_seconds_total", f'{{"mode": "{m}"}}') for m in MODES)]
    series = [*node, ("hindmost_process_cpu_seconds_total", labels)]
    definitions.schemas[1] = Schema(Series(name, False, "", labels) for name, labels in series)
    known = {name: np.zeros(1, dtype) for name, dtype in RANKS.items()}
    for second in (0, 1, 2):
        values = np.array([[2.0, 1.9 * second, 0.1 * second, 0.4 * second]])
        rows = MetricRows.of("n0", 1, np.array([second * 10**9]), values)
        window.add(Chunk({}, {"ranks": known}, [rows], []), definitions)
    use = usage.cpu_use(Metrics.of(window.snapshot("j", Words(), 1e8)()))
    assert use["n0"] == pytest.approx((2.0, 0.4, 1.5))


def test_an_incremental_evaluation_may_read_fewer_rows_but_never_too_few_steps() -> None:
    """Of few ranks those that fill so many rows, then sixteen steps, and at last thirteen."""
    pieces = [table(at, at + 1, 64, 10**8, 6) for at in range(1000)]
    kept = [
        steps_of(newest_steps({"collectives": pieces}, 1e8, 64, least)["collectives"], 10**8)
        for least in (INCREMENTAL_ROWS, 10_000, 4_000, LEAST_INCREMENTAL_ROWS)
    ]
    assert kept == [131, 27, 17, 14]
