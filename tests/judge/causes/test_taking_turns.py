"""A GPU that another process uses in turn, seen by when its rank's collectives began."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.causes import backward
from hindmost_judge.judge import judge

from tests.judge.buckets import BUCKETS, RANKS, STEPS, run

SLICE = 1.3e6


def _turns(rank: int, often: float) -> Any:
    """[R, S, P] ns: one rank waits for a slice before this share of its buckets, another in each step."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[rank] = SLICE * (np.random.default_rng(5).random((STEPS, BUCKETS)) < often)
    slow[rank, :, 0] += often * 10 * SLICE  # in forward as often as there are buckets' times in it
    return slow


@pytest.mark.parametrize("beside", [0.0, 0.2])
def test_a_shared_gpu_shows_in_its_turns(beside: float) -> None:
    """At no place of the step it shows in most steps, yet in all steps: the cost is that of all of them."""
    calm = run(np.zeros((RANKS, STEPS, BUCKETS)), timed=True, beside=beside)[1]
    job, took = run(_turns(2, 0.2), timed=True, beside=beside, in_forward=True)
    (verdict,) = judge(job).verdicts
    assert (verdict.kind, verdict.ranks, verdict.cause) == ("straggler", (2,), "gpu_contention")
    assert any("pauses for 1.3 ms at changing places" in line for line in verdict.evidence)
    assert verdict.cost_ms_per_step == pytest.approx((took - calm) / STEPS / 1e6, rel=0.15)


def test_what_is_slower_everywhere_takes_no_turns() -> None:
    """Longer kernels are longer at each place, in every step."""
    slow = np.zeros((RANKS, STEPS, BUCKETS))
    slow[2] += 0.2e6
    slow[2, :, 0] += 2e6
    (verdict,) = judge(run(slow, timed=True, in_forward=True)[0]).verdicts
    assert (verdict.ranks, verdict.cause) == ((2,), "compute")


def _took() -> Any:
    return np.random.default_rng(3).normal(1e6, 1e4, (100, BUCKETS))


def _slice(took: Any) -> float:
    found = backward.find_turns(np.median(took, axis=0), took)
    return found.slice if found is not None else 0.0


def test_what_is_slow_at_one_place_now_and_then_takes_no_turns() -> None:
    """A slice comes anywhere: code that is slow in some steps is so where it is."""
    took = _took()
    assert _slice(took) == 0.0
    took[::3, 4:6] += 8e6
    assert _slice(took) == 0.0


def test_one_pause_a_step_is_no_turn() -> None:
    """Wherever it comes: who shares a GPU waits for several slices in each step."""
    now = np.zeros((100, BUCKETS))
    now[np.arange(100), np.random.default_rng(7).integers(0, BUCKETS, 100)] = 1.0
    assert _slice(_took() + SLICE * now) == 0.0


def test_slices_are_of_one_length_and_noise_is_of_any() -> None:
    """As often, and as long on the average."""
    random = np.random.default_rng(4)
    now = random.random((100, BUCKETS)) < 0.3
    assert _slice(_took() + SLICE * now) == pytest.approx(SLICE, rel=0.05)
    assert _slice(_took() + random.exponential(SLICE, now.shape) * now) == 0.0


def test_long_intervals_have_a_slice_in_every_other_step() -> None:
    """Where it is in more than half of them, the median is with it."""
    now = np.random.default_rng(6).random((100, BUCKETS)) < np.where(np.arange(BUCKETS) % 2, 0.6, 0.2)
    assert _slice(_took() + SLICE * now) == pytest.approx(SLICE, rel=0.05)


def test_a_gpu_without_foreign_memory_is_not_shared() -> None:
    """Where that was measured it says more than turns do."""
    job, _ = run(_turns(2, 0.2), timed=True, in_forward=True)
    names = ["hindmost_gpu_memory_used_bytes", "hindmost_gpu_process_memory_used_bytes"]
    rows = [(name, f'{{"gpu_uuid": "GPU-{rank}"}}') for name in names for rank in range(RANKS)]
    metrics = table(
        "metrics",
        node="",
        name=[name for name, _ in rows],
        labels=[labels for _, labels in rows],
        time_ns=int(job.steps["start_ns"].max() // 2),
        value=4e10,
    )
    ranks = table("ranks", rank=list(range(RANKS)), world_size=RANKS, gpu_uuid=[f"GPU-{rank}" for rank in range(RANKS)])
    (verdict,) = judge(replace(job, ranks=ranks, metrics=metrics)).verdicts
    assert verdict.cause == "compute"
