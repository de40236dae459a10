"""Small made runs for scenarios: arrays straight into a ``Run``, one random generator, no clock, no files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hindmost_judge.model import COLLECTIVES, IN_FLIGHT, METRICS, RANKS, STEPS, Job, Run, Table, empty

MS = 1e6


@dataclass
class Load:
    """A job to make: ``faults`` are dictionaries with rank and what is added, in ms, and from which step.

    ``scatter`` of one is a standard deviation, ms, by which computing is now longer and now shorter.
    """

    kind: str = "mpi"
    ranks: int = 4
    steps: int = 150
    compute: float = 8.0
    noise: float = 0.2
    transfer: float = 0.3
    seed: int = 1
    cpu: bool = True
    cpus: int = 0  # of the node, 0: unknown
    jostle: float = 0.0  # ms a step that the scheduler holds up some rank or other, in no counter
    shift: dict[int, float] = field(default_factory=dict)
    names: list[int] | None = None
    scale: float = 1.0
    faults: list[dict[str, Any]] = field(default_factory=list)


def own_times(load: Load) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """[R, S] ms of self time, and what of it is CPU, run queue, input and blocked."""
    shape = (load.ranks, load.steps)
    noise = np.stack(
        [np.random.default_rng([load.seed, r]).gamma(2.0, load.noise / 2, load.steps) for r in range(load.ranks)]
    )
    parts = {name: np.zeros(shape) for name in ("compute", "runqueue", "input", "blocked")}
    parts["compute"] += load.compute + noise
    if load.jostle:
        held_up = np.random.default_rng(load.seed).gamma(0.5, 2 * load.jostle, shape)
        parts["blocked"] += held_up + load.jostle * np.array([r % 2 for r in range(load.ranks)])[:, None]
    for fault in load.faults:
        held = np.arange(load.steps) >= fault.get("from", 0)
        held &= np.arange(load.steps) < fault.get("until", load.steps)
        if "every" in fault:
            held &= np.arange(load.steps) % fault["every"] == 3
        for name, block in parts.items():
            block[int(fault["rank"])] += fault.get(name, 0.0) * held
        if "scatter" in fault:
            draws = np.random.default_rng([load.seed, 99, fault["rank"]]).standard_normal(load.steps)
            parts["compute"][int(fault["rank"])] += fault["scatter"] * draws * held
    return np.sum(list(parts.values()), axis=0), parts


def make(load: Load) -> Run:
    """The run: every step ends in one all-reduce, which no rank leaves before the last has come."""
    own, parts = own_times(load)
    own, parts = own * load.scale, {name: block * load.scale for name, block in parts.items()}
    duration = own.max(axis=0) - own + load.transfer * load.scale
    period = own.max(axis=0) + load.transfer * load.scale
    begin = np.concatenate([[0.0], np.cumsum(period)[:-1]])
    shift = np.array([load.shift.get(r, 0.0) for r in range(load.ranks)])[:, None]
    start = begin + own + shift
    names = np.array(load.names if load.names is not None else range(load.ranks), dtype=np.int32)
    job = Job(id="made", world_size=load.ranks)
    if load.kind == "torch":
        return Run(
            job,
            ranks=_ranks(names),
            steps=_steps(names, begin + shift, period, parts),
            collectives=_sync(names, start, duration),
        )
    table = _collectives(names, start, duration, own, parts)
    return Run(
        job,
        ranks=_ranks(names),
        collectives=table,
        intervals=_reads(names, start - own, parts["input"]),
        metrics=metrics([("hindmost_node_cpus", "{}", 1000, float(load.cpus))]) if load.cpus else empty(METRICS),
    )


def _reads(names: Any, begin: Any, lasted: Any) -> Table:
    """Reads of a file at the beginning of each step; of ranks that never read, nothing."""
    row, step = np.nonzero(lasted)
    return {
        "rank": names[row],
        "name": np.full(len(row), "file_read"),
        "start_ns": _ns(begin[row, step]),
        "duration_ns": _ns(lasted[row, step]),
        "value": np.full(len(row), np.nan),
    }


def metrics(samples: list[tuple[str, str, int, float]]) -> Table:
    """What the agent of these ranks' node reads: name, labels, second and value each."""
    name, labels, second, value = zip(*samples, strict=True)
    return {
        "node": np.full(len(samples), "node0"),
        "name": np.array(name),
        "labels": np.array(labels),
        "time_ns": np.array(second) * 10**9,
        "value": np.array(value),
    }


def hang(load: Load, missing: list[int], op: str = "all_reduce", other: str | None = None, waited: float = 30.0) -> Run:
    """The same, and then all but ``missing`` wait in the next all-reduce; with ``other`` they entered that."""
    run = make(load)
    inside = [(r, op) for r in range(load.ranks) if r not in missing] + [
        (r, other) for r in missing if other is not None
    ]
    table = empty(IN_FLIGHT) | {
        "rank": np.array([r for r, _ in inside], np.int32),
        "kind": np.array(["collective"] * len(inside)),
        "name": np.array([name for _, name in inside]),
        "comm": np.full(len(inside), 7, np.uint64),
        "seq": np.full(len(inside), load.steps),
        "peer": np.full(len(inside), -1, np.int32),
        "flags": np.zeros(len(inside), np.int32),
        "start_ns": np.full(len(inside), 10**12),
        "observed_ns": np.full(len(inside), 10**12 + int(waited * 1e9)),
    }
    return Run(**{**run.__dict__, "in_flight": table})


def _ranks(names: np.ndarray[Any, Any]) -> Table:
    filled = {name: np.zeros(len(names), dtype if dtype is not np.str_ else "U8") for name, dtype in RANKS.items()}
    return filled | {"rank": names, "node": np.full(len(names), "node0")}


def _blank(columns: Any, count: int) -> Table:
    return {
        name: np.full(
            count, "" if kind is np.str_ else 0 if name == "comm" else -1, dtype="U12" if kind is np.str_ else kind
        )
        for name, kind in columns.items()
    }


def _collectives(names: Any, start: Any, duration: Any, own: Any, parts: Any) -> Table:
    ranks, steps = start.shape
    return _blank(COLLECTIVES, start.size) | {
        "rank": np.repeat(names, steps),
        "comm": np.full(start.size, 7, np.uint64),
        "seq": np.tile(np.arange(steps), ranks),
        "op": np.full(start.size, "all_reduce"),
        "start_ns": _ns(start),
        "duration_ns": _ns(duration),
        "flags": np.zeros(start.size, np.int32),
        "self_ns": _ns(own),
        "cpu_ns": _ns(parts["compute"]),
        "runqueue_ns": _ns(parts["runqueue"]),
    }


def _sync(names: Any, start: Any, duration: Any) -> Table:
    ranks, steps = start.shape
    return _blank(COLLECTIVES, start.size) | {
        "rank": np.repeat(names, steps),
        "comm": np.full(start.size, 7, np.uint64),
        "seq": np.tile(np.arange(steps), ranks),
        "step": np.tile(np.arange(steps), ranks),
        "op": np.full(start.size, "ddp_sync"),
        "start_ns": _ns(start),
        "duration_ns": _ns(duration),
        "flags": np.zeros(start.size, np.int32),
    }


def _steps(names: Any, begin: Any, period: Any, parts: Any) -> Table:
    ranks, steps = begin.shape
    return _blank(STEPS, begin.size) | {
        "rank": np.repeat(names, steps),
        "step": np.tile(np.arange(steps), ranks),
        "kind": np.full(begin.size, "train"),
        "start_ns": _ns(begin),
        "duration_ns": np.tile((period * MS).astype(np.int64), ranks),
        "input_ns": _ns(parts["input"] + 0.1),
        "forward_ns": _ns(parts["compute"] / 3),
        "backward_ns": _ns(parts["compute"] * 2 / 3 + period[None, :] - (parts["compute"] + parts["input"])),
    }


def _ns(block: Any) -> np.ndarray[Any, Any]:
    return np.asarray((block * MS).ravel().astype(np.int64))
