"""A part of a job, or its steps a second time, has the verdict of the whole."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run, Table

STEPS = 160
#: Columns that are moments.
MOMENTS = ("start_ns", "enqueue_ns", "time_ns")


def _within(table: Table, first: int, last: int) -> Table:
    inside = (table["step"] >= first) & (table["step"] < last)
    return {name: column[inside] for name, column in table.items()}


def _after(table: Table, later: dict[str, int]) -> Table:
    """The rows of a table, and the same with these columns so much larger, where they are known."""
    again = {
        name: np.where(column >= 0, column + later.get(name, 0), column) if name in later else column
        for name, column in table.items()
    }
    return {name: np.concatenate([column, again[name]]) for name, column in table.items()}


def cut(run: Run, first: int, last: int) -> Run:
    return replace(run, steps=_within(run.steps, first, last), collectives=_within(run.collectives, first, last))


def repeated(run: Run) -> Run:
    starts, lasts = run.steps["start_ns"], run.steps["duration_ns"]
    later = dict.fromkeys(MOMENTS, int((starts + lasts).max() - starts.min()))
    later |= {"step": int(np.ptp(run.steps["step"])) + 1, "seq": int(np.ptp(run.collectives["seq"])) + 1}
    tables = {name: _after(getattr(run, name), later) for name in ("steps", "collectives", "metrics")}
    return replace(run, **tables)


@pytest.mark.parametrize("form", ["until 70 %", "from 30 %", "twice"])
@pytest.mark.parametrize("faults", [(Fault("compute", (2,), 0.3),), (Fault("input", (1,), 0.4),), ()])
def test_a_cut_or_repeated_job_keeps_its_verdict(form: str, faults: tuple[Fault, ...]) -> None:
    """Kinds, ranks and causes."""
    run = simulate(Scenario(4, STEPS, 3, step_ms=50.0, faults=faults)).run
    parts = {"until 70 %": (0, STEPS * 7 // 10), "from 30 %": (STEPS * 3 // 10, STEPS)}
    other = repeated(run) if form == "twice" else cut(run, *parts[form])
    whole, found = ([(one.kind, one.ranks, one.cause) for one in judge(of).verdicts] for of in (run, other))
    assert found == whole
