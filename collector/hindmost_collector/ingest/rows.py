"""The rows of a job as they arrive: a growing table for each kind of block, and lists of what is rare."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from hindmost_judge.model import PHASES

from hindmost_collector.ingest.columns import Builder
from hindmost_collector.ingest.packed import signed, varints

if TYPE_CHECKING:
    from hindmost_collector.ingest.metric_rows import MetricRows

#: No job has more ranks; a number above it is garbage that would cost memory.
RANK_LIMIT = 1 << 20
#: Characters of a name: what is longer is cut. A ring's names have 63.
NAME_LIMIT = 128
TICK_NS = 10_000_000  # of /proc/PID/stat: USER_HZ is 100 on every Linux

_I64, _I32, _U64, _F64 = np.int64, np.int32, np.uint64, np.float64
_UNKNOWN = (_I64, -1)
PHASE_COLUMNS = {name: f"{name}_ns" for name in PHASES}


def _steps_table() -> Builder:
    return Builder(
        {"kind": _I32, "offset": _I64},
        {name: (name, *_UNKNOWN) for name in ("step", "start_ns", "duration_ns", "work")},
        extras=dict.fromkeys(PHASE_COLUMNS.values(), -1),
    )


def _collectives_table() -> Builder:
    unknown = ("seq", "start_ns", "duration_ns", "bytes", "self_ns", "cpu_ns", "runqueue_ns", "enqueue_ns")
    return Builder(
        {"offset": _I64},
        {"comm": ("comm", _U64, 0), **{name: (name, *_UNKNOWN) for name in unknown}},
        {"flags": ("flags", varints, _I64, 0), "peer": ("peer", signed, _I32, -1)},
        {"step": -1},
        coded=("op", "op"),
    )


def _intervals_table() -> Builder:
    return Builder(
        {"offset": _I64},
        {
            "start_ns": ("start_ns", *_UNKNOWN),
            "duration_ns": ("duration_ns", *_UNKNOWN),
            "value": ("value", _F64, float("nan")),
        },
        coded=("name", "name"),
    )


@dataclass
class JobRows:
    """What arrived for one job since it was last taken."""

    steps: Builder = field(default_factory=_steps_table)
    collectives: Builder = field(default_factory=_collectives_table)
    intervals: Builder = field(default_factory=_intervals_table)
    in_flight: list[tuple[int, str, str, int, int, int, int, int, int]] = field(default_factory=list)
    rank_states: list[tuple[int, int, int, int, int, int, int]] = field(default_factory=list)
    ranks: list[tuple[Any, ...]] = field(default_factory=list)
    communicators: list[tuple[int, int, int, int, str]] = field(default_factory=list)
    clocks: list[tuple[str, str, int, int, int, int, int]] = field(default_factory=list)
    metrics: list[MetricRows] = field(default_factory=list)
    metric_bytes: int = 0
    heard: dict[str, int] = field(default_factory=dict)  # node to the job time of its newest sample
    in_order: bool = True  # no sample is older than what its node sent before
    stacks: list[tuple[int, int, str]] = field(default_factory=list)
    attachments: list[tuple[str, bytes]] = field(default_factory=list)
