"""Steps of GPUs whose hosts run ahead: done with a step before the GPU is, a host waits for it once in a while."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.model import UNMEASURED, Job, Run
from hindmost_collector.phases import gpu_idle
from hindmost_collector.sources.columns import table

RANKS, STEPS, EVERY = 4, 80, 8
MS = 1_000_000


def _run() -> Run:
    """GPU steps of 32 ms, 3 ms more of them forward on rank 0; hosts wait for all that is queued in every eighth."""
    step = np.tile(np.arange(STEPS), RANKS)
    rank = np.repeat(np.arange(RANKS), STEPS)
    waits = step % EVERY == EVERY - 1
    # Whoever computes longer has less to wait for at the end: the host's step shows that with the other sign.
    host = np.where(waits, 158.0, 14.0) + np.where(rank == 0, np.where(waits, -3.0, 3.0 / (EVERY - 1)), 0.0)
    jitter = np.random.default_rng(5).normal(0, 0.02, len(step))
    return Run(
        job=Job(id="ahead", world_size=RANKS),
        ranks=table("ranks", rank=np.arange(RANKS), world_size=RANKS),
        steps=table(
            "steps",
            rank=rank,
            step=step,
            kind="train",
            start_ns=UNMEASURED,
            duration_ns=np.rint(host * MS).astype(np.int64),
            gpu_forward_ns=np.rint((np.where(rank == 0, 13.0, 10.0) + jitter) * MS).astype(np.int64),
            gpu_backward_ns=np.rint((np.where(rank == 0, 17.0, 20.0) - jitter) * MS).astype(np.int64),
            gpu_optimizer_ns=2 * MS,
        ),
    )


def test_a_step_is_as_long_as_on_the_gpu() -> None:
    """And a rank that computes longer costs that in every step, also where its host waits less at the end."""
    report = judge(_run())
    (verdict,) = report.verdicts
    assert verdict.ranks == (0,)
    assert report.job.step_ms is not None
    assert report.job.step_ms["p50"] == pytest.approx(32.0, abs=0.2)
    assert report.job.step_ms["p99"] == pytest.approx(32.0, abs=0.2)
    assert verdict.cost_ms_per_step == pytest.approx(3.0, rel=0.05)
    assert verdict.cost_ratio == pytest.approx(3.0 / 32.0, rel=0.05)


def test_a_gpu_idles_where_its_host_has_nothing_queued() -> None:
    """The input of a step delays the GPU once it is done with the step before, and not while it still works."""
    parts = {"gpu_forward": np.array([[10.0, 10.0, 10.0]]), "input": np.array([[0.0, 6.0, 6.0]])}
    ahead = gpu_idle(parts, np.array([[2.0, 8.0, 30.0]]))
    assert ahead is not None
    assert ahead.tolist() == [[0.0, 0.0, 0.0]]
    blocked = gpu_idle(parts, np.array([[10.0, 16.0, 16.0]]))
    assert blocked is not None
    assert blocked.tolist() == [[0.0, 6.0, 6.0]]
