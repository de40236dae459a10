"""A job that reduces its gradients during backward, bucket by bucket, with delays anywhere in it."""

from typing import Any

import numpy as np
from hindmost_collector.recordings.tables import table
from hindmost_judge.model import GPU_TIME, Run, Table

from tests.runs import MS, made, rows_of

RANKS, STEPS, BUCKETS = 4, 120, 12
FORWARD, BUCKET, TRANSFER = 10e6, 1e6, 0.2e6


def run(
    delays: Any,
    *,
    starts: bool = True,
    timed: bool = False,
    transfer: float = TRANSFER,
    beside: float = 0.0,
    in_forward: bool = False,
    gathers: float = 0.0,
) -> tuple[Run, float]:
    """The job whose ranks are delayed by ``delays`` [R, S, P] ns before the buckets of each step, and its length in ns.
    Its collectives tell their ``starts`` or not; its GPUs' forward is ``timed`` or not. What delays the first bucket is
    ``in_forward``, or after it. While a bucket waits for other ranks, the GPU computes slower by the share ``beside``
    of that time. Parameters that are gathered ahead, in so many ns, queue behind each bucket."""
    steps = delays.shape[1]
    computing = np.full(delays.shape, BUCKET)
    computing[:, :, 0] += FORWARD
    computing *= np.random.default_rng(2).normal(1.0, 0.005, computing.shape)
    computing += delays
    ready, end = np.zeros(RANKS), np.zeros(RANKS)
    start, took = np.empty(computing.shape), np.empty(computing.shape)
    for step in range(steps):
        for place in range(BUCKETS):
            ready = ready + computing[:, step, place]
            start[:, step, place] = np.maximum(ready, end)
            end = np.full(RANKS, start[:, step, place].max() + transfer)
            took[:, step, place] = end - start[:, step, place]
            ready += beside * (took[:, step, place] - transfer)
            end = end + gathers
        ready = end.copy()
    kinds = ["all_reduce", "all_gather"] if gathers else ["all_reduce"]
    begins = np.stack([start, start + took][: len(kinds)], axis=-1)
    lasted = np.stack([took, np.full_like(took, gathers)][: len(kinds)], axis=-1)
    rank, step, place, kind = (axis.ravel() for axis in np.indices(begins.shape))
    collectives = table(
        "collectives",
        rank=rank,
        comm=7,
        seq=(step * BUCKETS + place) * len(kinds) + kind,
        op=np.array(kinds)[kind],
        start_ns=(begins.ravel() + 1e9).astype(np.int64) if starts else -1,
        duration_ns=lasted.ravel().astype(np.int64),
        bytes=1 << 20 | place << 4 | kind,
        flags=GPU_TIME,
    )
    pace = None if starts else float(end[0]) / (steps * BUCKETS * len(kinds))
    forward = computing[:, :, 0] - (0.0 if in_forward else delays[:, :, 0])
    marks = [_steps(start[:, :, 0], took[:, :, 0], forward)] if timed else []
    return made(RANKS, steps=marks, collectives=[collectives], source="a trace", pace_ns=pace), float(end[0])


def with_cost(delays: Any, *, transfer: float = TRANSFER, gathers: float = 0.0, **how: Any) -> tuple[Run, float]:
    """The job with these delays, and what they cost of each of its steps, ms."""
    job, took = run(delays, transfer=transfer, gathers=gathers, **how)
    calm = run(np.zeros_like(delays), transfer=transfer, gathers=gathers)[1]
    return job, (took - calm) / delays.shape[1] / MS


def _steps(start: Any, took: Any, forward: Any) -> Table:
    """Steps of hosts one step ahead of their GPUs: each as long as from one first bucket's end to the next's."""
    end = start + took
    length = np.diff(end, axis=1, append=end[:, -1:] + float(np.median(np.diff(end))))
    ms = {"start_ns": (end - length) / MS + 1000, "duration_ns": length / MS, "gpu_forward_ns": forward / MS}
    return rows_of("steps", **ms)
