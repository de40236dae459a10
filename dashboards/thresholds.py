"""The thresholds of boards and alerts, from ``thresholds.toml``."""

from pathlib import Path
from typing import Any, NamedTuple

import tomllib

_SET: dict[str, dict[str, Any]] = tomllib.loads(Path(__file__).with_name("thresholds.toml").read_text(encoding="utf-8"))


class Limits(NamedTuple):
    """From ``warn`` on a value is orange, from ``bad`` on red."""

    warn: float
    bad: float


def limits(name: str) -> Limits:
    """The colours of a value."""
    return Limits(_SET[name]["warn"], _SET[name]["bad"])


def alert(name: str) -> str:
    """Beyond which value an alert fires."""
    return f"{_SET[name]['alert']:g}"


def lasting(name: str) -> str:
    """For how long, before an alert fires."""
    return str(_SET[name]["for"])


def minutes(name: str) -> int:
    """A time, minutes."""
    return int(_SET[name]["minutes"])


def runbook(name: str) -> str:
    """Where the page of an alert is."""
    return f"{_SET['runbooks']['url']}#{name.lower()}"
