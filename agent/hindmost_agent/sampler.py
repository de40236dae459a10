"""What a sampler declares (metrics, period, source), what it reads from, and the registry of all samplers."""

from __future__ import annotations

import os
import re
import threading
from abc import ABC, abstractmethod
from array import array
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, TypeVar

from hindmost_agent.jobs.ranks import Ranks

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


@dataclass
class AgentCounts:
    """The agent's own counts. ``None`` and a missing key mean not measured."""

    duration_s: dict[str, float] = field(default_factory=dict)
    success: dict[str, int] = field(default_factory=dict)
    errors: Counter[str] = field(default_factory=Counter)
    #: What is delivered, and where to: not measured by an agent that has no collector.
    produced: int | None = None
    delivered: int | None = None
    dropped: dict[str, int] = field(default_factory=dict)
    spool_bytes: int | None = None
    spool_limit_bytes: int | None = None
    pending: int | None = None
    batches: int = 0
    connects: int | None = None
    connected: bool | None = None
    clock_offset_s: float | None = None
    clock_round_trip_s: float | None = None
    ring_events: int = 0
    ring_lost: int = 0
    rings: int = 0


NS = 1_000_000_000
LONG_AGO_NS, NEVER_NS = -(1 << 62), 1 << 62
NAN = float("nan")
#: Drivers that may keep who asks them for ever, while hardware is in trouble.
GPU, ADAPTER = DRIVERS = ("GPU", "adapter")


class Absent(Exception):  # noqa: N818 - it is an answer, not an error
    """What a sampler would read does not exist on this node. Raised by ``__init__`` or ``sample``."""


class GivenUp(Exception):  # noqa: N818 - it is an order, not an error
    """Raised in a thread whose GPU did not answer for so long that another has taken over."""


class Asking:
    """Which GPU is being read now, for the thread that waits for its answer."""

    def __init__(self) -> None:
        self.gpu = ""
        #: Threads that may not ask any more; not their numbers, which the next thread has as soon as one has ended.
        self.given_up: frozenset[threading.Thread] = frozenset()

    def of(self, gpu: str) -> None:
        """This GPU is asked next; empty: none. Raises ``GivenUp`` in a thread that may not."""
        if self.given_up and threading.current_thread() in self.given_up:
            raise GivenUp(gpu)
        self.gpu = gpu


@dataclass
class Host:
    """Where samplers look: kernel file roots, the job's processes, the agent's own counts. Tests hand in fakes."""

    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    cgroup: Path = Path("/sys/fs/cgroup")
    dev: Path = Path("/dev")
    #: ``os.statvfs`` or a stand-in.
    statvfs: Callable[[str], os.statvfs_result] = os.statvfs
    ranks: Ranks = field(default_factory=Ranks)
    counts: AgentCounts = field(default_factory=AgentCounts)
    #: The module ``pynvml`` or one that behaves like it; ``None`` imports it where a driver is loaded.
    nvml_library: Any = None
    #: The same of ``amdsmi``.
    amdsmi_library: Any = None
    #: What was opened of them, by name.
    gpu_libraries: dict[str, Any] = field(default_factory=dict)
    #: Grows when a GPU that did not answer before does, so that samplers take it on.
    gpu_generation: int = 0
    #: GPUs of which was said that they do not answer.
    silent_gpus: set[str] = field(default_factory=set)
    #: Which GPU is asked, and those that did not come back from it and must not be asked.
    asking: Asking = field(default_factory=Asking)
    hung: frozenset[str] = frozenset()
    #: The module ``psutil``, imported where something asks for it, or one that behaves like it.
    psutil: Any = None
    #: Which GPU a rank of this node computes on, by pid and start ticks, as far as the drivers say.
    gpu_of: dict[tuple[int, int], str] = field(default_factory=dict)
    #: Where a scheduler's prolog writes which jobs each GPU has; ``None``: it does not.
    gpu_jobs: Path | None = None

    def has_driver(self, of: str) -> bool:
        """Whether there is one of ``GPU`` or ``ADAPTER`` that could be asked."""
        if of == ADAPTER:
            return (self.sys / "class/infiniband").exists()
        if self.nvml_library is not None or self.amdsmi_library is not None:
            return True
        return (self.dev / "nvidiactl").exists() or (self.dev / "kfd").exists()


class Sampler(ABC):
    """A source of metrics.

    ``series`` names what ``sample`` returns, value by value, and may be assigned at each reading. A value that cannot
    be read is ``NAN``, never 0. Errors are raised: the runner owns them, and the timing.
    """

    name: ClassVar[str]
    #: Seconds between two readings at least; 0 means every tick.
    period: ClassVar[float] = 0.0
    #: Whether it is read at once, due or not, when the collector asks to see a rank closer: a cause is read from it.
    tells_why: ClassVar[bool] = False
    #: Which driver it asks that may never answer, ``GPU`` or ``ADAPTER``: it is then read outside the tick, in a thread
    #: of that driver's own.
    asks_driver: ClassVar[str] = ""
    #: What is read, for the documentation.
    source: ClassVar[str]
    metrics: ClassVar[tuple[Metric, ...]]

    def __init__(self, host: Host) -> None:
        self.host = host
        self.series: tuple[Series, ...] = tuple(series(metric) for metric in self.metrics if not metric.labels)

    @abstractmethod
    def sample(self) -> list[float]:
        """One value for each of ``series``. Raises ``Absent``, ``OSError``, ``ValueError``."""


class TableSampler(Sampler):
    """Base of samplers whose series come and go: ``table`` has those of one reading, with their values."""

    @abstractmethod
    def table(self) -> Mapping[Series, float]:
        """Raises as ``sample`` does."""

    def sample(self) -> list[float]:
        found = self.table()
        if (named := tuple(found)) != self.series:  # readers know their plans by the tuple itself
            self.series = named
        return list(found.values())


class RowSampler(Sampler):
    """Base of samplers that have all their metrics of each of some things, such as disks, which come and go."""

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        self._labels: tuple[tuple[str, ...], ...] = ()

    @abstractmethod
    def rows(self) -> Mapping[tuple[str, ...], Sequence[float]]:
        """By labels, values of all ``metrics`` in their order. Raises as ``sample`` does."""

    def sample(self) -> list[float]:
        found = self.rows()
        if (labels := tuple(found)) != self._labels:
            self._labels = labels
            self.series = tuple(series(metric, *each) for each in labels for metric in self.metrics)
        return list(chain.from_iterable(found.values()))


REGISTRY: dict[str, type[Sampler]] = {}

SamplerType = TypeVar("SamplerType", bound=type[Sampler])


def register(sampler: SamplerType) -> SamplerType:
    """Class decorator that makes a sampler known under its ``name``."""
    if sampler.name in REGISTRY:
        raise ValueError(f"two samplers are called {sampler.name}")
    REGISTRY[sampler.name] = sampler
    return sampler


class Reading(NamedTuple):
    """What one sampler read at one time (ns, CLOCK_MONOTONIC); ``series`` is the same object until it changes."""

    sampler: str
    time_ns: int
    series: tuple[Series, ...]
    values: list[float]


class Outcome(NamedTuple):
    """What became of one sampler's reading, and how long it took."""

    slot: Slot
    reading: Reading | None
    error: Exception | None
    duration_s: float


class Slot:
    """One sampler, made when first due and made again after it was missing or failed to start."""

    def __init__(self, kind: type[Sampler], interval_ns: int, place: int = 0) -> None:
        self.name = kind.name
        self.kind = kind
        self.place = place
        self._interval_ns = interval_ns
        #: Ticks are at least half an interval apart: what has no longer period is due at each.
        self.period_ns = int(kind.period * NS) if kind.period * NS > interval_ns else interval_ns // 2
        self.due_ns = LONG_AGO_NS
        self.sampler: Sampler | None = None
        self._series: tuple[Series, ...] = ()
        #: What it had when it last did not fail.
        self.before: Reading | None = None
        self.said: set[str] = set()

    def anew(self) -> Slot:
        """The same with a sampler yet to be made, due at once."""
        made = Slot(self.kind, self._interval_ns, self.place)
        made.before, made.said = self.before, self.said
        return made

    def run(self, host: Host, now_ns: int) -> Reading | None:
        """Read once. Raises whatever the sampler raises."""
        if self.sampler is None:
            self.sampler = self.kind(host)
        values, found = self.sampler.sample(), self.sampler.series
        if found is not self._series and found != self._series:  # a new tuple is a new definition to send
            self._series = found
        if len(values) != len(self._series):
            raise ValueError(f"{len(values)} values for {len(self._series)} series")
        array("d", values)  # a number beyond every counter, as a torn file may hold, must not reach the batch
        return Reading(self.name, now_ns, self._series, values) if values else None
