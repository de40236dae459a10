"""Jobs on several nodes are judged by the time that all ranks have reported."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.live.window import REPORT_LAG_NS, reported_by_all
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

RANKS, ONSET, STEPS = 32, 60, 100
#: Ranks of the node whose agent sent its last batch a while ago.
BEHIND = range(8)
EVERYTHING = frozenset({"steps", "collectives"})


def simulated(layout: str) -> Run:
    """Four nodes; rank 5 becomes slow."""
    run = simulate(Scenario(RANKS, STEPS, seed=2, layout=layout, faults=(Fault("compute", (5,), 0.1, ONSET),))).run
    return replace(run, job=replace(run.job, source="hindmost", ended_ns=None, exit_code=None))


@pytest.fixture(scope="module")
def job() -> Run:
    """One whose ranks meet many times in a step."""
    return simulated("fsdp")


def began(run: Run, step: int) -> int:
    """When the first rank began a step."""
    return int(run.steps["start_ns"][run.steps["step"] == step].min())


def without(run: Run, ranks: range, *, since: int = STEPS, before: int = 0) -> Run:
    """The same, less what these ranks did since one step and before another."""
    first = began(run, before)
    last = began(run, since) if since < STEPS else np.iinfo(np.int64).max
    kept = {}
    for name, table in (("steps", run.steps), ("collectives", run.collectives)):
        start, ends = table["start_ns"], table["start_ns"] + table["duration_ns"]
        there = ~np.isin(table["rank"], ranks) | ((start >= first) & (ends <= last))
        kept[name] = {column: values[there] for column, values in table.items()}
    return replace(run, **kept)


def step_ns(run: Run) -> float:
    return float(np.median(run.steps["duration_ns"]))


def until(run: Run) -> list[int]:
    """The last step that each rank has begun."""
    return [int(run.steps["step"][run.steps["rank"] == rank].max()) for rank in range(RANKS)]


def test_who_waits_for_ranks_that_did_not_tell_yet_waits_for_no_network(job: Run) -> None:
    """The slow rank's newest steps are on their way: what the others wait is judged when these are there."""
    run = without(job, BEHIND, since=ONSET + 2)
    assert [verdict.kind for verdict in judge(reported_by_all(run, step_ns(job), set(), EVERYTHING)).verdicts] == [
        "balanced"
    ]
    run = without(job, BEHIND, since=ONSET + 20)
    (one,) = judge(reported_by_all(run, step_ns(job), set(), EVERYTHING)).verdicts
    assert (one.kind, one.ranks, one.since_step) == ("straggler", (5,), pytest.approx(ONSET, abs=2))


def test_steps_that_some_ranks_do_not_tell_of_make_nothing_cheaper(job: Run) -> None:
    """A window that has lost the first steps of some ranks, and not yet the last of others."""
    (whole,) = judge(job).verdicts
    run = without(without(job, BEHIND, since=STEPS - 15), range(8, 16), before=15)
    assert [verdict.cost_ms_per_step for verdict in judge(run).verdicts] != [
        pytest.approx(whole.cost_ms_per_step, rel=0.2)
    ]
    (one,) = judge(reported_by_all(run, step_ns(job), set(), set())).verdicts
    assert one.cost_ms_per_step == pytest.approx(whole.cost_ms_per_step, rel=0.05)


def test_ranks_that_are_gone_or_late_for_too_long_are_not_waited_for(job: Run) -> None:
    """What was let go of those that joined late, or have ended, is not missing."""
    run = without(job, BEHIND, since=80)
    assert max(until(reported_by_all(run, step_ns(job), set(), EVERYTHING))) <= 80
    assert max(until(reported_by_all(run, step_ns(job), set(BEHIND), EVERYTHING))) == STEPS - 1
    long_ago = next(step for step in range(STEPS) if began(job, STEPS - 1) - began(job, step) < REPORT_LAG_NS) - 3
    run = without(job, BEHIND, since=long_ago)
    assert max(until(reported_by_all(run, step_ns(job), set(), EVERYTHING))) == STEPS - 1


def test_too_short_a_window_stays_as_it_is(job: Run) -> None:
    """Fewer steps than a judgement needs say less than those that some ranks do not tell of."""
    run = without(without(job, BEHIND, since=88), range(RANKS), before=80)
    assert reported_by_all(run, step_ns(job), set(), set()).steps is run.steps


def test_collectives_that_all_ranks_told_of_too_few_steps_are_left_to_the_marks() -> None:
    """Of thousands of ranks a window holds some seconds of collectives, each rank's from another moment on."""
    job = simulated("dp")
    short = without(without(job, BEHIND, since=84), range(8, 16), before=78)
    short = without(short, range(RANKS), before=70)
    run = replace(job, collectives=short.collectives)
    assert not len(reported_by_all(run, step_ns(job), set(), {"steps"}).collectives["rank"])
    (one,) = judge(reported_by_all(run, step_ns(job), set(), {"steps"})).verdicts
    assert (one.kind, one.ranks, one.since_step) == ("straggler", (5,), pytest.approx(ONSET, abs=2))
    unmarked = replace(short, steps={name: column[:0] for name, column in job.steps.items()})
    assert len(reported_by_all(unmarked, step_ns(job), set(), set()).collectives["rank"])


def test_a_window_that_begins_with_its_job_is_not_cut_at_its_begin(job: Run) -> None:
    """Ranks' first reports are when they began."""
    run = without(job, BEHIND, before=5)
    assert reported_by_all(run, step_ns(job), set(), EVERYTHING).steps["step"].min() == 0
    assert reported_by_all(run, step_ns(job), set(), set()).steps["step"].min() >= 4
