"""Jobs of so many ranks, or collectives, that a window holds too few steps of all of them."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_collector.live.jobs import LiveJob
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.stream import Job
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report

RANKS, STEPS = 128, 120
#: Rows of a window: of ten collectives of all ranks these are eight steps.
ROWS = 10_000
FSDP = Scenario(RANKS, STEPS, layout="fsdp", stretches=10, seed=4)
#: No rank that a sample has.
SLOW = 85


def reports(scenario: Scenario, limit: int = ROWS) -> Iterator[tuple[Run, Report]]:
    """What a collector judges, and says, after each ten seconds of a job, and at last of its newest steps only."""
    job, definitions = Job.of(scenario), Definitions()
    decoder, clock, live = Decoder(definitions), NodeClock(0, 10**18), LiveJob(job.name, 0)
    live.window.bound(limit)
    for node in job.nodes:
        definitions.learn(packed(job.opening(node)[1].definitions), decoder.job, clock)
    batches = list(job.batches())
    for number, (node, ends, message) in enumerate(batches, 1):
        decoder.add(packed(message.batch), f"node{node:04d}", job.name, clock)
        if node == job.nodes[-1]:
            live.add(finish(decoder.take()[job.name]), decoder.words, definitions, int(ends * 1e9))
        if number % (5 * len(job.nodes)) == 0 or number == len(batches):
            run = live.reported_snapshot(decoder.words)()
            report = judge(run)
            live.report = report.to_dict()
            yield run, report
    seen = live.newest(decoder.words)
    assert seen is not None
    yield seen(), judge(seen())


@pytest.fixture(scope="module")
def healthy() -> tuple[Run, Report]:
    """The last window of a healthy job, and the report on it."""
    *_, last, _ = reports(FSDP)
    return last


def test_a_rank_that_becomes_slow_is_named_though_few_ranks_are_judged_by_collectives() -> None:
    """It waits less than the others do, and so becomes one of those few: in the window and in the newest steps."""
    slow = replace(FSDP, faults=(Fault("compute", (SLOW,), 0.05, 20),))
    *_, window, newest = reports(slow)
    for run, report in (window, newest):
        assert run.witnesses is not None
        assert len(run.witnesses) < RANKS / 2
        assert [(verdict.kind, verdict.ranks) for verdict in report.verdicts] == [("straggler", (SLOW,))]
    assert len(window[1].ranks) == RANKS


def test_what_a_slow_rank_costs_is_about_what_all_collectives_tell() -> None:
    """Its peers in the sample are as its peers in the job."""
    slow = replace(FSDP, faults=(Fault("compute", (SLOW,), 0.1),))
    *_, (_, report), _ = reports(slow)
    whole = judge(simulate(slow).run)
    assert report.verdicts[0].cost_ms_per_step == pytest.approx(whole.verdicts[0].cost_ms_per_step, rel=0.15)


def test_a_healthy_job_of_which_a_sample_is_judged_is_balanced(healthy: tuple[Run, Report]) -> None:
    """All ranks' waits were summed, and none waits less than ranks do by chance."""
    run, report = healthy
    assert [verdict.kind for verdict in report.verdicts] == ["balanced"]
    assert run.witnesses is not None
    assert SLOW not in run.witnesses
    assert any(f"{len(run.witnesses)} of {RANKS} ranks" in note for note in report.notes)


def test_a_window_has_enough_steps_of_its_witnesses_and_bounded_rows(healthy: tuple[Run, Report]) -> None:
    """However many rows a step has."""
    run, _ = healthy
    start = run.collectives["start_ns"]
    assert np.ptp(start) >= 16 * np.median(run.steps["duration_ns"])
    assert len(start) <= ROWS


def test_a_job_of_parts_with_too_few_steps_of_collectives_is_unsure() -> None:
    """Who waits for whom within a part is not known of a sample: no rank is cleared by its phases alone."""
    parts = Scenario(RANKS, STEPS, layout="tp_dp", tensor=8, stretches=10, seed=4)
    *_, (run, report), _ = reports(parts, ROWS // 4)
    assert run.witnesses is None
    (one,) = report.verdicts
    assert one.kind == "insufficient_data"
    assert "too few steps" in one.evidence[0]
