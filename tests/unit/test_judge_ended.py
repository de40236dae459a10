"""A job that failed before it could be judged is told as that, with what was recorded of it."""

from __future__ import annotations

import dataclasses

from hindmost_collector.judge import judge

from tests.scenarios import loads


def test_a_job_that_was_killed_at_its_third_step_is_told_as_that() -> None:
    """The exit code and what was recorded come first, and nobody is told to mark steps in a job that died."""
    run = loads.make(loads.Load(ranks=4, steps=3))
    killed = dataclasses.replace(run, job=dataclasses.replace(run.job, exit_code=137))
    (verdict,) = judge(killed).verdicts
    assert verdict.kind == "insufficient_data"
    assert verdict.evidence[0] == (
        "the job ended with exit code 137; 0 steps and 12 collectives of all ranks were recorded until then"
    )
    assert verdict.advice == ("read what the job itself said before it ended",)
