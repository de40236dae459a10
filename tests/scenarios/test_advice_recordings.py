"""What is wrong with a real job, and what to set: recordings of jobs on two CPUs, each with one thing wrong.

Made by bench/advice; folders of commands and metrics of hosts that no rule reads were cut.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hindmost_collector.recordings.load import load
from hindmost_collector.report import section_rows
from hindmost_judge.judge import judge

from bench.advice.__main__ import CASES

if TYPE_CHECKING:
    from hindmost_judge.verdict.schema import Report

FOLDER = Path(__file__).resolve().parents[1] / "fixtures/advice"
RECORDED = ("reads", "ranks", "threads", "link")


@cache
def judged(name: str) -> tuple[Report, dict[str, Any]]:
    """The report on a recording, and its sections of limits and advice."""
    run = load(FOLDER / f"{name}.tar.xz")
    found = judge(run)
    return found, section_rows.of(run, found.to_dict(), found.overview, ("limits", "advice"))


@pytest.mark.parametrize("name", RECORDED)
def test_a_job_is_bound_by_what_is_wrong_with_it(name: str) -> None:
    """Its first verdict blames no rank for it."""
    found, sections = judged(name)
    (bound,) = sections["limits"]["bound"]
    assert bound["by"] in CASES[name].bounds
    assert found.verdicts[0].kind in CASES[name].verdicts


@pytest.mark.parametrize("name", RECORDED)
def test_the_first_setting_to_try_is_the_right_one(name: str) -> None:
    """With what was found, the threshold, and what to type."""
    rows = judged(name)[1]["advice"]["settings"]
    assert (rows[0]["name"] if rows else None) in CASES[name].settings
    assert all(row["found"] and row["threshold"] and row["set"] for row in rows)
