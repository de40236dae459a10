"""Every ``*.scenario`` in this folder, run: what a job did on the left, what the judge must say of it.

A scenario is a title line ``# …`` and lines of words:

    load KIND [name=value …]      make a job; KIND is mpi, halo (MPI, with messages to neighbours), torch, or of
                                  messages only: edges, stages, workers
    fault rank=N WHAT=+MS […]     WHAT is compute, runqueue, input or blocked; from=, until=, every= are steps
    fault rank=N peer=N wire=+MS […]          messages between two neighbours of a halo take longer
    simulate LAYOUT [name=value …]            or simulate one, with the names of ``simulate.Scenario``
    fault CAUSE ranks=N[,N] [name=value …]    and those of ``simulate.Fault``: size, onset, end, duty
    hang missing=N[,N] [op=NAME] [other=NAME] [waited=SECONDS]
    expect KIND [ranks=N[,N]] [cause=NAME] [since=STEP~TOLERANCE] [until=STEP~TOLERANCE] [cost=MS~TOLERANCE]
                                  until=-1: it held to the end
    [sure=SHARE~TOLERANCE]        is its confidence
    [says=WORDS] [do=WORDS]       are in its evidence, and in its advice; _ is a space
    [given=N[,N]]                 ranks fixed before: the cost is what is saved then; empty: none
    [saves=FAULT~SHARE]           in its steps it costs what is saved without this fault (1, 2 …), or without ``all``

``name=A|B`` is a scenario with A and one with B; all alternatives in it change together.
"""

import numpy as np
import pytest
from hindmost_collector.simulate import Truth
from hindmost_judge.verdict.schema import Verdict

from .scenario_files import report_of, scenarios, simulated_of, words


def assert_saves(verdict: Verdict, said: str, truth: Truth, steps: int) -> None:
    which, _, tolerance = said.partition("~")
    repaired = truth.repaired_ns if which == "all" else truth.repaired_each_ns[int(which) - 1]
    lasted = (steps if verdict.until_step is None else verdict.until_step) - (verdict.since_step or 0)
    saved_ms = (truth.total_ns - repaired) / 1e6
    assert (verdict.cost_ms_per_step or 0.0) * lasted == pytest.approx(saved_ms, rel=float(tolerance)), verdict


def assert_matches(verdict: Verdict, line: str) -> None:
    (_, kind), named = words(line)
    assert verdict.kind == kind, verdict
    if "ranks" in named:
        assert list(verdict.ranks) == [int(rank) for rank in named["ranks"].split(",") if rank], verdict
    if "given" in named:
        assert list(verdict.given) == [int(rank) for rank in named["given"].split(",") if rank], verdict
    for name, lines in (("says", verdict.evidence), ("do", verdict.advice)):
        assert named.get(name, "").replace("_", " ") in "; ".join(lines), verdict
    if "cause" in named:
        assert verdict.cause == named["cause"], verdict
    until = -1 if verdict.until_step is None else verdict.until_step
    for name, actual in (
        *(("since", verdict.since_step), ("until", until)),
        *(("cost", verdict.cost_ms_per_step), ("sure", verdict.confidence)),
    ):
        if name in named:
            expected, _, tolerance = named[name].partition("~")
            assert actual == pytest.approx(float(expected), abs=float(tolerance or 0)), verdict


@pytest.mark.parametrize("lines", list(scenarios()))
def test_scenario(lines: list[str]) -> None:
    """The judge says of a job exactly what its scenario expects, and nothing more."""
    report = report_of(*lines)
    expected = [line for line in lines if line.startswith("expect")]
    assert expected, "a scenario without an expectation proves nothing"
    assert len(report.verdicts) == len(expected), report.verdicts
    for verdict, line in zip(report.verdicts, expected, strict=True):
        assert_matches(verdict, line)
        if "saves" in words(line)[1]:
            simulated = simulated_of(lines)
            steps = len(np.unique(simulated.run.steps["step"]))
            assert_saves(verdict, words(line)[1]["saves"], simulated.truth, steps)
