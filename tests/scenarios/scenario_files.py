"""What a ``*.scenario`` in this folder says, as a run; ``test_scenarios.py`` describes its lines."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from . import loads

if TYPE_CHECKING:
    from collections.abc import Iterator


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
