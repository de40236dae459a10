"""A run as columns: what sources produce, the store keeps, and detectors read.

Every table is a mapping from column name to a numpy array; all columns of a table have one length. Times are ns of the
job clock (Unix time as the collector keeps it) unless ``flags`` says that a row is of a GPU's clock; durations are
integer ns. A duration of -1, a NaN and an empty string mean *not measured*.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

UNMEASURED = -1

#: Phases that have a column of their own in ``steps``.
PHASES = tuple(
    (
        "input h2d forward backward sync optimizer checkpoint gc cpu runqueue gpu_forward gpu_backward "
        "gpu_optimizer negotiation device_wait device_copy"
    ).split()
)
#: The rest of a step that is known by its phases.
OTHER = "other"
#: Phases that are no share of a step's time but a property of it, or a part of another phase.
AMOUNTS = frozenset({"cpu", "runqueue", "negotiation"})

#: ``kind`` of the training steps that a profiler recorded, began or wrote its trace in: it slows them.
PROFILED = "profiled"

GPU_TIME = 1
NONBLOCKING = 2
ERROR = 4
#: Of an operation in flight: it waits until the peer receives, not until it sends.
SENDS = 32
#: A peer: whichever rank sends.
ANY_PEER = -2

RANKS: Mapping[str, Any] = {
    "rank": np.int32,
    "world_size": np.int32,
    "local_rank": np.int32,
    "node": np.str_,
    "pid": np.int64,
    "gpu_uuid": np.str_,
    "framework": np.str_,
    "start_ns": np.int64,
}

STEPS: Mapping[str, Any] = {
    "rank": np.int32,
    "step": np.int64,
    "kind": np.str_,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "work": np.int64,
    **{f"{phase}_ns": np.int64 for phase in PHASES},
}

COLLECTIVES: Mapping[str, Any] = {
    "rank": np.int32,
    "comm": np.uint64,
    "seq": np.int64,
    "op": np.str_,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "bytes": np.int64,
    "flags": np.int32,
    "peer": np.int32,
    "self_ns": np.int64,
    "cpu_ns": np.int64,
    "runqueue_ns": np.int64,
    "enqueue_ns": np.int64,  # the host's clock; -1 where no GPU runs it, or the source cannot say
    "step": np.int64,  # in which the operation was enqueued; -1 where the source cannot say
}

COMMUNICATORS: Mapping[str, Any] = {
    "comm": np.uint64,
    "rank": np.int32,
    "rank_in": np.int32,
    "size": np.int32,
    "name": np.str_,
}

INTERVALS: Mapping[str, Any] = {
    "rank": np.int32,
    "name": np.str_,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "value": np.float64,
}

#: A row an operation that was entered and not left when last looked at, or one for each ``peer`` that it waits for (a
#: rank in its communicator): what locates a hang. ``flags``: ``SENDS``, or -1.
IN_FLIGHT: Mapping[str, Any] = {
    "rank": np.int32,
    "kind": np.str_,
    "name": np.str_,
    "comm": np.uint64,
    "seq": np.int64,
    "peer": np.int32,
    "flags": np.int32,
    "start_ns": np.int64,
    "observed_ns": np.int64,
}

#: Node and process metrics, long: one row a sample. ``labels`` is canonical JSON.
METRICS: Mapping[str, Any] = {
    "node": np.str_,
    "name": np.str_,
    "labels": np.str_,
    "time_ns": np.int64,
    "value": np.float64,
}

#: Where a rank was when it was looked at: what a hang's verdict quotes.
STACKS: Mapping[str, Any] = {
    "rank": np.int32,
    "time_ns": np.int64,
    "text": np.str_,
}

RUNNING, FINISHED, VANISHED = 0, 1, 2
#: What a shell and most launchers add to the number of the signal that ended a process.
OF_A_SIGNAL = 128

#: The last known state of each rank. ``life``: running, finished (it closed its ring), or vanished (the process is gone
#: without having closed it). The store keeps every observation, a run the last one of each rank. ``ended_ns`` and
#: ``exit_status`` (as waitpid has it) are the kernel's; -1: not known. ``last_words``: the exception that it ends by.
RANK_STATES: Mapping[str, Any] = {
    "rank": np.int32,
    "time_ns": np.int64,
    "life": np.int32,
    "events_total": np.int64,
    "events_lost_total": np.int64,
    "ended_ns": np.int64,
    "exit_status": np.int64,
    "last_words": np.str_,
}

#: The operations of a recorded step as a graph needs them: compute and communication of each (dp, stage, tp) worker.
OPERATIONS: Mapping[str, Any] = {
    "rank": np.int32,
    "step": np.int64,
    "op": np.str_,
    "start_ns": np.int64,
    "duration_ns": np.int64,
    "seq": np.int64,
    "micro_batch": np.int32,
    "chunk": np.int32,
    "stage": np.int32,
    "dp": np.int32,
    "tp": np.int32,
}

TABLES: Mapping[str, Mapping[str, Any]] = {
    "ranks": RANKS,
    "steps": STEPS,
    "collectives": COLLECTIVES,
    "communicators": COMMUNICATORS,
    "intervals": INTERVALS,
    "in_flight": IN_FLIGHT,
    "metrics": METRICS,
    "stacks": STACKS,
    "operations": OPERATIONS,
    "rank_states": RANK_STATES,
}

Table = dict[str, np.ndarray[Any, Any]]


def empty(columns: Mapping[str, Any]) -> Table:
    """A table of no rows with these columns."""
    return {name: np.empty(0, dtype=dtype) for name, dtype in columns.items()}


def world_size(ranks: Table) -> int | None:
    """How many ranks there are, as the one says that started last: an elastic job's number changes. None before any."""
    if not rows(ranks):
        return None
    latest = ranks["start_ns"] == ranks["start_ns"].max()
    return int(ranks["world_size"][latest].max())


def rows(table: Table) -> int:
    """How many rows a table has."""
    return len(next(iter(table.values()))) if table else 0


def has_launches(collectives: Table) -> bool:
    """Whether any operation of the table says when its host enqueued it."""
    enqueued = collectives.get("enqueue_ns")
    return enqueued is not None and bool((enqueued >= 0).any())


@dataclass(frozen=True)
class Job:
    """What is known of a job as a whole; ``None`` is unknown."""

    id: str
    command: str | None = None
    world_size: int | None = None
    nodes: int | None = None
    started_ns: int | None = None
    ended_ns: int | None = None
    exit_code: int | None = None
    #: The signal with which the user or launcher asked the job to end, such as ``SIGINT``.
    interrupted_by: str | None = None
    #: Whether recording stopped long ago without saying how the job ended.
    abandoned: bool = False
    #: Nodes known not to be lost: their agents said goodbye, or a collector on them wrote the job's end.
    left: tuple[str, ...] = ()
    #: Why no rank on the node of ``hindmost run`` could make its ring, where that was so.
    no_ring: str | None = None
    #: Whether the probe got into a process on the node of ``hindmost run`` that no launcher named a rank.
    entered: bool = False
    source: str = "hindmost"
    #: Mean time from one collective of a rank to its next, where rows have no start to tell it from.
    pace_ns: float | None = None
    #: Recorded steps and the shortest left-out period, if the run holds an excerpt only.
    steps: int | None = None
    skipped_ns: int | None = None
    #: Thresholds that were set when it was recorded: name and value each.
    thresholds: tuple[tuple[str, float], ...] = ()
    #: What the job was started with: the launcher, hindmost's version, and variables of the environment that tune.
    settings: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Past:
    """A slow network as it was found while its beginning could still be seen.

    The step since which, what transfers took before it and how long a step was, ns, how much longer transfers became
    (a share), and operations of a step.
    """

    since_step: int
    usual: float
    period: float
    longer: float
    operations: float


@dataclass(frozen=True)
class Counted:
    """A step of a job that marks none, as a window of it was counted: its number, and when it began, ns."""

    step: int
    start_ns: float


@dataclass(frozen=True)
class Unrecorded:
    """Ranks without the data that the recording has of others: their work is unknown.

    ``together``: the share of the time in which all recorded ranks waited at once, in collectives of which these ranks
    are members; ``None`` if unknown.
    ``apart``: the recorded ranks do not all meet in the same collectives, so a rank that seems late may have waited for
    one of these.
    ``by_steps``: a log of the steps has these ranks, so that the steps can be judged nevertheless.
    ``judged``: the share of the job that the files of all ranks cover, where some are cut; not computed, and 1, where a
    rank is missing.
    """

    ranks: tuple[int, ...]
    together: float | None = None
    apart: bool = False
    by_steps: bool = False
    judged: float = 1.0


@dataclass(frozen=True)
class Incarnation:
    """A start of the job with another number of ranks than the one before it, and whether it is what is judged."""

    world_size: int
    since_ns: int
    ranks: tuple[int, ...]
    judged: bool


@dataclass(frozen=True)
class Run:
    """One job's recorded behaviour, whole or a window of it; what every detector takes.

    ``notes`` are sentences for the reader of a report: what the source cannot tell, what was lost or torn.
    """

    job: Job
    ranks: Table = field(default_factory=lambda: empty(RANKS))
    steps: Table = field(default_factory=lambda: empty(STEPS))
    collectives: Table = field(default_factory=lambda: empty(COLLECTIVES))
    communicators: Table = field(default_factory=lambda: empty(COMMUNICATORS))
    intervals: Table = field(default_factory=lambda: empty(INTERVALS))
    in_flight: Table = field(default_factory=lambda: empty(IN_FLIGHT))
    metrics: Table = field(default_factory=lambda: empty(METRICS))
    stacks: Table = field(default_factory=lambda: empty(STACKS))
    operations: Table = field(default_factory=lambda: empty(OPERATIONS))
    rank_states: Table = field(default_factory=lambda: empty(RANK_STATES))
    notes: tuple[str, ...] = ()
    #: What of a window that is over still tells of this one; None where nothing does.
    past: Past | None = None
    #: A step as the window before this one counted it; None where there was none, or steps are marked.
    counted: Counted | None = None
    #: Whether only the named ranks are wanted: then the report describes a few ranks, and no causes.
    incremental: bool = False
    #: Ranks that the recording lacks, in whole or in part; None where it has all that are known.
    unrecorded: Unrecorded | None = None
    #: [W] the ranks whose collectives are judged, of more than are affordable: a sample, and whom the others wait for.
    #: None where these are all.
    witnesses: np.ndarray[Any, Any] | None = None
    #: Whether collectives were recorded and are left out, because they are of too few steps to judge by.
    few_collectives: bool = False
    #: Starts of a job that was started again with another number of ranks; the tables are of the one that is judged.
    incarnations: tuple[Incarnation, ...] = ()

    def tables(self) -> dict[str, Table]:
        """Every table by its name in ``TABLES``."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name in TABLES}

    @property
    def at_work(self) -> bool:
        """Whether its processes may still be there to be looked at."""
        job, life = self.job, self.rank_states["life"]
        over = job.ended_ns is not None or job.exit_code is not None or job.abandoned
        return job.source == Job.source and not over and (not len(life) or bool((life == RUNNING).any()))

    @property
    def killed_by(self) -> int | None:
        """The signal that ended the command (-N), or one of its processes (exit code 128 + N).

        A launcher has exit codes of its own above 128: Open MPI 4 has 131 to 135 for what it cannot start. So the
        second is a signal only where ranks were seen, and not all of them finished.
        """
        code, life = self.job.exit_code, self.rank_states["life"]
        if code is None or 0 <= code <= OF_A_SIGNAL:
            return None
        if code < 0:
            return -code
        finished = len(life) > 0 and bool((life == FINISHED).all())
        return code - OF_A_SIGNAL if rows(self.ranks) > 0 and not finished else None


def without_waits(run: Run, aside: np.ndarray[Any, Any] | bool = True) -> Run:
    """The run with these operations [N] in it, or all, but not as such whose duration tells who waits for whom."""
    flags = np.where(aside, run.collectives["flags"] | NONBLOCKING, run.collectives["flags"])
    return replace(run, collectives={**run.collectives, "flags": flags})
