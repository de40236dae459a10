"""A part of a job, or its steps a second time, has the verdict of the whole."""

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.model import Run, Table

from tests.runs import named, only, with_rows

STEPS = 160
#: Columns that are moments.
MOMENTS = ("start_ns", "enqueue_ns", "time_ns")


def _later(table: Table, later: dict[str, int]) -> Table:
    """The rows of a table with these columns so much larger, where they are known."""
    return {
        name: np.where(column >= 0, column + later[name], column) if name in later else column
        for name, column in table.items()
    }


def cut(run: Run, first: int, last: int) -> Run:
    steps = {name: run.tables()[name]["step"] for name in ("steps", "collectives")}
    return only(run, **{name: (step >= first) & (step < last) for name, step in steps.items()})


def repeated(run: Run) -> Run:
    starts, lasts = run.steps["start_ns"], run.steps["duration_ns"]
    later = dict.fromkeys(MOMENTS, int((starts + lasts).max() - starts.min()))
    later |= {"step": int(np.ptp(run.steps["step"])) + 1, "seq": int(np.ptp(run.collectives["seq"])) + 1}
    return with_rows(run, **{name: _later(run.tables()[name], later) for name in ("steps", "collectives", "metrics")})


@pytest.mark.parametrize("form", ["until 70 %", "from 30 %", "twice"])
@pytest.mark.parametrize("faults", [(Fault("compute", (2,), 0.3),), (Fault("input", (1,), 0.4),), ()])
def test_a_cut_or_repeated_job_keeps_its_verdict(form: str, faults: tuple[Fault, ...]) -> None:
    """Kinds, ranks and causes."""
    run = simulate(Scenario(4, STEPS, 3, step_ms=50.0, faults=faults)).run
    parts = {"until 70 %": (0, STEPS * 7 // 10), "from 30 %": (STEPS * 3 // 10, STEPS)}
    other = repeated(run) if form == "twice" else cut(run, *parts[form])
    assert named(other) == named(run)
