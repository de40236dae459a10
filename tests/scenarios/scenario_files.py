"""What a ``*.scenario`` in this folder says, as a run; ``test_scenarios.py`` describes its lines."""

import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hindmost_collector.simulate import Fault, Scenario, Simulated, simulate
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Report

from tests.recordings import judged_once

from . import loads


def scenarios() -> Iterator[Any]:
    """The lines of each scenario, once for each of its alternatives."""
    for path in sorted(Path(__file__).parent.glob("*.scenario")):
        for block in path.read_text().split("\n\n"):
            title, *lines = [line.strip() for line in block.splitlines() if line.strip()] or [""]
            count = max((word.count("|") + 1 for line in lines for word in line.split()), default=0)
            for number in range(count):
                yield pytest.param([_chosen(line, number) for line in lines], id=f"{path.stem}: {title.lstrip('# ')}")


def _chosen(line: str, number: int) -> str:
    """The line with one of the alternatives of each value that has some."""
    cut = (word.rpartition("=") for word in line.split())
    return " ".join(f"{name}{sign}{(value.split('|') * (number + 1))[number]}" for name, sign, value in cut)


def words(line: str) -> tuple[list[str], dict[str, str]]:
    plain = [word for word in line.split() if "=" not in word]
    named = dict(word.split("=", 1) for word in line.split() if "=" in word)
    return plain, named


def number(text: str) -> float | int:
    value = float(text)
    return int(value) if value.is_integer() and "." not in text else value


@cache
def report_of(*lines: str) -> Report:
    """The report on a scenario, which several tests may read."""
    return judged_once(hashlib.sha256("\n".join(lines).encode()).hexdigest(), lambda: job_of(list(lines)))


def simulated_of(lines: list[str]) -> Simulated:
    (_, layout), shape = words(lines[0])
    faults = tuple(_fault(line) for line in lines if line.startswith("fault"))
    known: dict[str, Any] = {name: number(value) for name, value in shape.items()}
    return simulate(Scenario(layout=layout, faults=faults, **known))


def job_of(lines: list[str]) -> Run:
    if lines[0].startswith("simulate"):
        return simulated_of(lines).run
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


def _fault(line: str) -> Fault:
    (_, cause), named = words(line)
    ranks = tuple(int(rank) for rank in named.pop("ranks").split(","))
    known: dict[str, Any] = {name: number(value) for name, value in named.items()}
    return Fault(cause, ranks, **known)
