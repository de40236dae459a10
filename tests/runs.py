"""Runs that tests make of arrays, and the blocks that the judge builds of a run."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from hindmost_collector.recordings.tables import concatenate, select, table
from hindmost_judge.blocks import Blocks
from hindmost_judge.judge import judge
from hindmost_judge.model import GPU_TIME, Job, Run, Table
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline.build_blocks import build
from hindmost_judge.verdict.schema import Verdict

MS = 1_000_000


def blocks_of(run: Run) -> Blocks:
    """What the judge makes of a run that has steps to compare, with its usual thresholds."""
    built = build(run, DEFAULT)
    assert built is not None
    return built


def only_verdict(run: Run) -> Verdict:
    (verdict,) = judge(run).verdicts
    return verdict


def named(run: Run) -> list[tuple[str, tuple[int, ...], str | None]]:
    return [(verdict.kind, verdict.ranks, verdict.cause) for verdict in judge(run).verdicts]


def with_job(run: Run, **known: Any) -> Run:
    """The run of which this is known of the job."""
    return replace(run, job=replace(run.job, **known))


def with_rows(run: Run, **more: Table) -> Run:
    """The run with these further rows of tables."""
    return replace(run, **{name: concatenate(name, [run.tables()[name], rows]) for name, rows in more.items()})


def only(run: Run, **kept: Any) -> Run:
    """The run with the rows of tables that these masks, or positions, keep."""
    return replace(run, **{name: select(run.tables()[name], rows) for name, rows in kept.items()})


def made(
    ranks: int,
    *,
    steps: Iterable[Table] = (),
    collectives: Iterable[Table] = (),
    who: Mapping[str, Any] | None = None,
    more: Mapping[str, Table] | None = None,
    **job: Any,
) -> Run:
    """A run of so many ranks with the rows of these and ``more`` tables; ``who`` and ``job`` are what else is known."""
    each = np.arange(ranks)
    return Run(
        Job(**{"id": "made", "world_size": ranks} | job),
        table("ranks", **{"rank": each, "world_size": ranks, "pid": each + 1} | dict(who or {})),
        steps=concatenate("steps", steps),
        collectives=concatenate("collectives", collectives),
        **(more or {}),
    )


def rows_of(name: str, /, **columns: Any) -> Table:
    """Rows of a table from columns that are [rank x step], or broadcast to that; durations and times are in ms."""
    shape = np.broadcast_shapes(*map(np.shape, columns.values()))
    rank, step = np.indices(shape)
    filled = {"rank": rank, "step": step} | {
        key: ns(one) if key.endswith("_ns") else one for key, one in columns.items()
    }
    return table(name, **{key: np.broadcast_to(one, shape).flatten() for key, one in filled.items()})


def call(op: str, seq: int, came: Any, left: Any, *, comm: Any = 7, size: int = 1 << 20) -> Table:
    """One collective of all ranks, timed by their GPUs: each came to it and left it [R] ms after the beginning."""
    count = len(came)
    return table(
        "collectives",
        rank=np.arange(count),
        comm=np.broadcast_to(np.asarray(comm, np.uint64), count),
        seq=np.full(count, seq),
        op=np.full(count, op),
        start_ns=ns(came) + 10 * MS,
        duration_ns=ns(np.asarray(left) - came),
        bytes=np.full(count, size),
        flags=np.full(count, GPU_TIME),
    )


def ns(ms: Any) -> Any:
    return (np.asarray(ms) * MS).astype(np.int64)
