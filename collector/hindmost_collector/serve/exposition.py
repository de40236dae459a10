"""The ``/metrics`` page: names and labels are formatted once, numbers at each scrape."""

from collections.abc import Collection, Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from hindmost_proto.exposition import head, labelled
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector

from hindmost_collector.options import LEVELS

Array = np.ndarray[Any, Any]


class Metric(NamedTuple):
    """One metric, declared once: name with base unit, type, help, label names in order.

    docs/reference/collector-metrics.md is generated from these.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


def gauge(name: str, text: str, *labels: str) -> Metric:
    return Metric(name, "gauge", text, labels)


def counter(name: str, text: str, *labels: str) -> Metric:
    """Declare a metric that only grows; its name ends in ``_total``."""
    return Metric(name, "counter", text, labels)


INFO = gauge("hindmost_collector_info", "1, with the version of this collector or relay.", "version")
OPEN_PORTS = gauge(
    "hindmost_collector_insecure",
    "1 for each port that a network reaches without TLS and without a token, as `insecure` permits; 0 otherwise.",
    "port",
)
STORE_FAILING = gauge("hindmost_collector_store_failing", "1 while the store cannot be written.")


def of_process(*more: Any) -> CollectorRegistry:
    """What prometheus_client tells of this process, and these."""
    made = CollectorRegistry()
    for standard in (ProcessCollector, PlatformCollector, GCCollector):
        standard(registry=made)
    for one in more:
        made.register(one)
    return made


def number(value: float) -> str:
    """A sample's value, integers without a fraction. NaN is for the caller to leave out."""
    return f"{value:.0f}" if abs(value) < 1e15 and value == value // 1 else repr(value)


class Family:
    """The series of one metric name: prefixes are kept, so a scrape only formats numbers."""

    def __init__(self, name: str, kind: str, help_text: str) -> None:
        self.name = name
        self.head = head(name, kind, help_text)
        self.prefixes: list[str] = []

    def lines(self, values: Iterable[float]) -> str:
        """The family's text for values in the order of ``prefixes``; NaN is missing and left out."""
        shown = [
            f"{prefix}{number(value)}\n"
            for prefix, value in zip(self.prefixes, values, strict=False)
            if value == value  # noqa: PLR0124 - false for NaN only, and far cheaper than isnan
        ]
        return self.head + "".join(shown) if shown else ""


def family(metric: Metric, samples: Iterable[tuple[Sequence[object], float]]) -> str:
    """A family whose labels are not worth keeping, from label values in the metric's order and a value each."""
    made, values = Family(metric.name, metric.kind, metric.help), []
    for labels, value in samples:
        made.prefixes.append(labelled(metric.name, dict(zip(metric.labels, labels, strict=True))))
        values.append(float(value))
    return made.lines(values)


def open_ports(insecure: Collection[str]) -> str:
    """``OPEN_PORTS``, where these settings name the open ones."""
    return family(OPEN_PORTS, [([port], port in insecure) for port in ("listen", "http")])


#: Of jobs, verdicts, agents and the collector; of nodes and GPUs; of ranks and processes; of cores and threads.
JOB, NODE, RANK, CORE = range(len(LEVELS))

_OF_CORES = frozenset({"cpu", "threads"})


def level_of(labels: Collection[str]) -> int:
    """The level of an agent's series, by its labels."""
    if _OF_CORES.intersection(labels):
        return CORE
    return RANK if "rank" in labels else NODE


def fitting(level: int, counts: tuple[int, ...], most: int) -> int:
    """The finest level up to ``level`` with at most so many series, where each level adds ``counts`` of its own."""
    while level > JOB and sum(counts[: level + 1]) > most:
        level -= 1
    return level
