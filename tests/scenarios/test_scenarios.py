"""Every ``*.scenario`` in this folder, run: what a job did on the left, what the judge must say of it.

A scenario is a title line ``# …`` and lines of words:

    load KIND [name=value …]      make a job; KIND is mpi or torch
    fault rank=N WHAT=+MS […]     WHAT is compute, runqueue, input or blocked; from=, until=, every= are steps
    hang missing=N[,N] [op=NAME] [other=NAME] [waited=SECONDS]
    expect KIND [ranks=N[,N]] [cause=NAME] [since=STEP~TOLERANCE] [until=STEP~TOLERANCE] [cost=MS~TOLERANCE]
                                  until=-1: it held to the end
    [given=N[,N]]                 ranks fixed before: the cost is what is saved then; empty: none
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hindmost_judge.judge import judge

from . import loads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hindmost_judge.verdict.schema import Verdict


def scenarios() -> Iterator[Any]:
    for path in sorted(Path(__file__).parent.glob("*.scenario")):
        for block in path.read_text().split("\n\n"):
            lines = [line.strip() for line in block.splitlines() if line.strip()]
            if lines:
                yield pytest.param(lines[1:], id=f"{path.stem}: {lines[0].lstrip('# ')}")


def words(line: str) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in line.split() if "=" not in word]
    named = dict(word.split("=", 1) for word in line.split() if "=" in word)
    return plain, named


def number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and "." not in text else value


def run_of(lines: list[str]) -> Any:
    load, stop = loads.Load(), None
    for line in lines:
        (command, *kind), named = words(line)
        if command == "load":
            load = loads.Load(kind=kind[0], **{name: number(value) for name, value in named.items()})  # type: ignore[arg-type]
        elif command == "fault":
            load.faults.append({name: number(value) for name, value in named.items()})
        elif command == "hang":
            stop = named
    if stop is None:
        return loads.make(load)
    missing = [int(rank) for rank in stop.pop("missing").split(",") if rank]
    waited = float(stop.pop("waited", "30"))
    return loads.hang(load, missing, waited=waited, **stop)


def assert_matches(verdict: Verdict, line: str) -> None:
    (_, kind), named = words(line)
    assert verdict.kind == kind, verdict
    if "ranks" in named:
        assert list(verdict.ranks) == [int(rank) for rank in named["ranks"].split(",") if rank], verdict
    if "given" in named:
        assert list(verdict.given) == [int(rank) for rank in named["given"].split(",") if rank], verdict
    if "cause" in named:
        assert verdict.cause == named["cause"], verdict
    until = -1 if verdict.until_step is None else verdict.until_step
    for name, actual in (("since", verdict.since_step), ("until", until), ("cost", verdict.cost_ms_per_step)):
        if name in named:
            expected, _, tolerance = named[name].partition("~")
            assert actual == pytest.approx(float(expected), abs=float(tolerance or 0)), verdict


@pytest.mark.parametrize("lines", list(scenarios()))
def test_scenario(lines: list[str]) -> None:
    """The judge says of a job exactly what its scenario expects, and nothing more."""
    report = judge(run_of(lines))
    expected = [line for line in lines if line.startswith("expect")]
    assert expected, "a scenario without an expectation proves nothing"
    assert len(report.verdicts) == len(expected), report.verdicts
    for verdict, line in zip(report.verdicts, expected, strict=True):
        assert_matches(verdict, line)
