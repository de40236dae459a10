"""A metric is declared once, with its unit in its name and its help; its documentation is generated from here."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

NAME = re.compile(r"hindmost_(node|process|gpu|agent)(_[a-z0-9]+)+$")
LABEL = re.compile(r"[a-z][a-z0-9_]*$")


class Kind(IntEnum):
    """What a metric's value means; the numbers are those of ``Series.Kind`` on the wire."""

    GAUGE = 0
    COUNTER = 1


class Metric(NamedTuple):
    """One metric: Prometheus name with base unit, kind, one sentence of help, label names in order."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


class Series(NamedTuple):
    """One time series of a metric; ``values`` are the label values, in the metric's order."""

    metric: Metric
    values: tuple[str, ...] = ()


def gauge(name: str, text: str, *labels: str) -> Metric:
    """Declare a metric that goes up and down."""
    return _declared(Metric(name, Kind.GAUGE, text, labels))


def counter(name: str, text: str, *labels: str) -> Metric:
    """Declare a metric that only grows; its name ends in ``_total``."""
    return _declared(Metric(name, Kind.COUNTER, text, labels))


@lru_cache(maxsize=2048)  # many samplers name theirs anew at each reading
def series(metric: Metric, *values: str) -> Series:
    """The series of ``metric`` with these label values."""
    if len(values) != len(metric.labels):
        raise ValueError(f"{metric.name} has labels {metric.labels}, not {len(values)} of them")
    return Series(metric, tuple([value if value.isprintable() else _printable(value) for value in values]))


def _printable(value: str) -> str:
    """A thread or a mount may have any name: what would break a line of a page, or a terminal, becomes a blank."""
    return "".join(character if character.isprintable() else " " for character in value)


def _declared(metric: Metric) -> Metric:
    if not NAME.match(metric.name):
        raise ValueError(f"{metric.name}: a name is hindmost_ + node, process, gpu or agent + what it measures")
    if (metric.kind is Kind.COUNTER) != metric.name.endswith("_total"):
        raise ValueError(f"{metric.name}: counters, and only they, end in _total")
    if not metric.help.endswith("."):
        raise ValueError(f"{metric.name}: help is a sentence")
    if not all(LABEL.match(label) for label in metric.labels) or "node" in metric.labels:
        raise ValueError(f"{metric.name}: labels {metric.labels}; node is added by who exposes it")
    return metric
