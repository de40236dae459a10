"""What the judge says: the dataclasses behind ``hindmost.report/1``. ``None`` is unmeasured; it never becomes zero."""

from __future__ import annotations

import math
from collections import UserDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hindmost_judge.model import Counted, Incarnation, Past
    from hindmost_judge.overview import Overview

SCHEMA = "hindmost.report/1"

KINDS = tuple(
    (
        "straggler intermittent hang desync slow_link input_bound host_bound uneven_workload oversubscribed "
        "balanced insufficient_data"
    ).split()
)
#: A verdict that names no rank and is no surer than this clears no rank either.
UNSURE = 0.5
#: Kinds of verdicts on ranks that are late.
LATE = ("straggler", "intermittent")
#: Kinds of a job that stopped, or whose ranks went apart.
STOPS = ("hang", "desync")
#: Kinds that are an answer but no trouble: they are on the page, not in the log of verdicts.
QUIET = frozenset({"balanced", "insufficient_data"})
CAUSES = tuple(
    (
        "compute input h2d gpu_contention gpu_throttle cpu_contention gc checkpoint network memory io stopped "
        "deadlock workload unknown"
    ).split()
)
#: What a job may be bound by; ``unknown``: by none of the others, as far as it was measured.
BOUNDS = (
    "input",
    "copies",
    "host",
    "cpu",
    "compute",
    "gpu_compute",
    "gpu_memory",
    "communication",
    "checkpoint",
    "serial",
    "unknown",
)


#: What a cost is that is not the replay's alone: taken from how much longer steps became, or the least that it can be.
COST_IS = ESTIMATE, AT_LEAST = "estimate", "at_least"


class WhichOperation(str):
    """Evidence that identifies an operation by its communicator: for who debugs, not for who is called."""

    __slots__ = ()


@dataclass(frozen=True)
class Verdict:
    """One thing that is so: who, why, since when, at what cost. Costs are of the what-if that repairs it."""

    kind: str
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    cause: str | None = None
    since_step: int | None = None
    since_time_s: float | None = None  # Unix time at which that step, or the first rank's wait, began; None: unknown
    until_step: int | None = None  # None: it still held when the recording ended
    waited_s: float | None = None  # of a job that stopped: the sum over victims, of a deadlock over its ranks, too
    cost_ms_per_step: float | None = None
    cost_ratio: float | None = None
    cost_is: str | None = None  # one of COST_IS; None: as the replay has it
    given: tuple[int, ...] = ()  # ranks of verdicts before, once which are repaired the cost is saved
    confidence: float | None = None
    explained: float | None = None  # fraction of the delay that the cause's measurement explains
    partial: str | None = None  # with cause unknown: what explains most; else: quota, small_reads
    causes: tuple[str, ...] = ()  # with cause unknown: two that explain it together
    evidence: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    on_host: bool = False  # it computes longer on its CPU, and not its GPU, to advise on; no part of a report
    past: Past | None = None  # for the judge's next evaluation of a running job; no part of a report
    shown_ms: float | None = None  # the visible part of the cost; None: all of it. No part of a report either


def insufficient(*evidence: str, advice: str) -> Verdict:
    """No rank is named and none cleared: what was seen, and how to see more."""
    return Verdict("insufficient_data", evidence=evidence, advice=(advice,))


def identity(verdict: Mapping[str, Any]) -> tuple[Any, ...]:
    """What makes two verdicts of reports the same trouble in any case; its cause may only be known later."""
    return verdict["kind"], tuple(verdict.get("ranks") or ())


def waiting(verdict: Mapping[str, Any]) -> set[int]:
    """The ranks whose waits ``waited_s`` adds up: the victims, and all ranks of a deadlock."""
    deadlocked = verdict["ranks"] if verdict.get("cause") == "deadlock" else ()
    return {*(verdict.get("victims") or ()), *deadlocked}


def unsure(verdict: Mapping[str, Any]) -> bool:
    """Whether a verdict of a report neither names a rank nor clears all."""
    sure = verdict.get("confidence")
    kind = verdict["kind"]
    return bool(kind == "insufficient_data" or (kind == "balanced" and sure is not None and sure <= UNSURE))


@dataclass(frozen=True)
class RankRow:
    """What a reader wants to see of one rank, per step where not said otherwise."""

    rank: int
    node: str | None = None
    gpu: str | None = None
    step_ms: float | None = None
    self_ms: float | None = None
    phases_ms: dict[str, float | None] = field(default_factory=dict)
    wait_ms: float | None = None
    transfer_ms: float | None = None
    caused_wait_ms: float | None = None
    share_last: float | None = None
    cpu_ratio: float | None = None  # CPUs in use by the process
    runqueue_ratio: float | None = None  # share of the time in which its main thread waited for a CPU
    rss_bytes: float | None = None
    calls_ratio: float | None = None  # share of the time in collectives and messages, where ``wait_ms`` is not all


@dataclass(frozen=True)
class WasteRow:
    """Of what, how many ms a mean step, and which share of it."""

    name: str
    ms_per_step: float
    ratio: float


@dataclass(frozen=True)
class Waste:
    """What ranks lose to each other: ``lost_ms`` of a mean step, of which ``rest_ms`` have no cause.

    Each of the tables is of the same time; none adds up to more than ``lost_ms``. The tables by cause and phase hold
    what verdicts cost, and checkpoints that a few write for all; for a graph of operations, the one by phase holds
    all that is lost.
    """

    lost_ms: float
    rest_ms: float
    by_rank: tuple[WasteRow, ...] = ()
    by_node: tuple[WasteRow, ...] = ()
    by_stage: tuple[WasteRow, ...] = ()  # of a pipeline
    by_cause: tuple[WasteRow, ...] = ()
    by_phase: tuple[WasteRow, ...] = ()


@dataclass(frozen=True)
class WhatIf:
    """How much faster the job could be: ``slowdown`` is time over the time with all alike."""

    slowdown: float | None = None
    wasted_ratio: float | None = None
    step_ms: float | None = None
    ideal_step_ms: float | None = None
    waste_by_rank_ms: dict[str, float] = field(default_factory=dict)
    waste_by_node_ms: dict[str, float] = field(default_factory=dict)
    waste: Waste | None = None


@dataclass(frozen=True)
class StepLimit:
    """What the typical step is bound ``by``, one of :data:`BOUNDS`; what shows it; and its part of the mean step."""

    by: str
    evidence: str
    cost_ratio: float | None = None


@dataclass(frozen=True)
class Stall:
    """A time in which nothing moved, though the job went on after it: when, in seconds since the job's start, who was
    waited for by how many in which operation, where the stacks show one of these, and the node that is all of these.
    ``stopped_s``: rank to the seconds, at least, in which its process was stopped, by SIGSTOP or by a debugger.
    """

    since_s: float
    until_s: float
    ranks: tuple[int, ...] = ()
    waiting: int = 0
    operation: str | None = None
    line: str | None = None
    node: str | None = None
    stopped_s: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Slowed:
    """All ranks' steps longer since a step, by no one's doing: how long, how long outside of these steps, which phases
    of every rank by how much, and by which share a step's work grew, where that accounts for it.
    """

    since_step: int
    until_step: int | None  # None: to the end
    step_ms: float
    was_ms: float
    phases_ms: dict[str, float] = field(default_factory=dict)
    more_work: float | None = None


@dataclass(frozen=True)
class JobSummary:
    """The job as a whole."""

    id: str
    command: str | None = None
    world_size: int | None = None
    nodes: int | None = None
    steps: int | None = None
    step_ms: dict[str, float | None] = field(default_factory=dict)
    duration_s: float | None = None
    exit_code: int | None = None
    interrupted_by: str | None = None  # the signal by which it was asked to end, such as SIGINT after Ctrl-C
    bound: StepLimit | None = None
    stalls: tuple[Stall, ...] = ()
    slowed: Slowed | None = None
    ended: str | None = None  # how it failed and who died first; None: it did not, as far as is known
    to_do: str | None = None  # what to look at after that
    source: str | None = None
    exchanges: bool = False  # ranks meet in exchanges of messages, not in collectives
    incarnations: tuple[Incarnation, ...] = ()  # where it was started again with another number of ranks


@dataclass(frozen=True)
class Report:
    """Everything one judgement says; ``verdicts`` most costly first, never empty."""

    job: JobSummary
    verdicts: tuple[Verdict, ...]
    ranks: Sequence[RankRow] = ()
    what_if: WhatIf = WhatIf()
    notes: tuple[str, ...] = ()
    counted: Counted | None = None  # for the judge's next evaluation of a running job; no part of a report
    overview: Overview | None = field(default=None, compare=False, repr=False)  # for the page; no part of a report

    def to_dict(self) -> dict[str, Any]:
        """The JSON contract, ``hindmost.report/1``: plain types only, NaN and infinities as ``None``."""
        found: dict[str, Any] = plain(replace(self, ranks=(), overview=None))
        found["ranks"] = _rows(self.ranks)
        del found["counted"], found["overview"]
        for verdict in found["verdicts"]:
            del verdict["past"], verdict["shown_ms"], verdict["on_host"]
        return {"schema": SCHEMA, **found}


class LiveReport(UserDict[str, Any]):
    """``to_dict`` of a running job, whose rows of ranks are made when they are first read: they take 2 KB each."""

    def __init__(self, report: Report) -> None:
        super().__init__(replace(report, ranks=()).to_dict())
        self._unread: Sequence[RankRow] | None = report.ranks

    def __getitem__(self, name: str) -> Any:
        unread = self._unread
        if name == "ranks" and unread is not None:
            self.data[name] = _rows(unread)
            self._unread = None  # only now: until then other threads make the rows, too
        return self.data[name]


def _rows(ranks: Sequence[RankRow]) -> Any:
    return ranks.plain() if hasattr(ranks, "plain") else plain(ranks)  # some are held as columns


def plain(value: Any) -> Any:
    """A value as JSON has it; what is no finite number is ``None``.

    A report of a large job has a hundred thousand fields, and is made every few seconds: the common types first.
    """
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else None
    if kind in _SIMPLE:
        return value
    if is_dataclass(value):
        return {name: plain(item) for name, item in vars(value).items()}
    if isinstance(value, dict):
        known = {type(item) for item in value.values()} <= _NUMBER and all(map(math.isfinite, value.values()))
        return {str(key): item if known else plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return plain(value.item()) if hasattr(value, "item") else value


_NUMBER = {float}
_SIMPLE = frozenset({str, int, bool, type(None)})
