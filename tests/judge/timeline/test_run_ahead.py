"""Steps of GPUs whose hosts run ahead: done with a step before the GPU is, a host waits for it once in a while."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.timeline.phases import busy

from tests.runs import made, rows_of

RANKS, STEPS, EVERY = 4, 80, 8


def _run() -> Run:
    """GPU steps of 32 ms, 3 ms more of them forward on rank 0; hosts wait for all that is queued in every eighth."""
    rank, step = np.indices((RANKS, STEPS))
    waits = step % EVERY == EVERY - 1
    # A rank that computes longer has less to wait for at the end: the host's step shows that with the other sign.
    host = np.where(waits, 158.0, 14.0) + np.where(rank == 0, np.where(waits, -3.0, 3.0 / (EVERY - 1)), 0.0)
    jitter = np.random.default_rng(5).normal(0, 0.02, step.shape)
    phases = {
        "gpu_forward_ns": np.where(rank == 0, 13.0, 10.0) + jitter,
        "gpu_backward_ns": np.where(rank == 0, 17.0, 20.0) - jitter,
        "gpu_optimizer_ns": 2.0,
    }
    return made(RANKS, steps=[rows_of("steps", kind="train", duration_ns=host, **phases)])


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
    _, ahead = busy(parts, np.array([[2.0, 8.0, 30.0]]))
    assert ahead is not None
    assert ahead.tolist() == [[10.0, 10.0, 10.0]]
    _, blocked = busy(parts, np.array([[10.0, 16.0, 16.0]]))
    assert blocked is not None
    assert blocked.tolist() == [[10.0, 16.0, 16.0]]


#: A GPU that stood idle is cooler, and quicker in backward by so many ms than those that waited for it.
COOLED = 1.0


def _slow_input(rank: int, ms: float) -> Run:
    """Rank 0 computes 3 ms longer; the input of ``rank`` takes ``ms``, hidden by the queue but in every eighth step."""
    host, gpu = np.zeros(RANKS), np.zeros(RANKS)
    forward = np.where(np.arange(RANKS) == 0, 13.0, 10.0)
    fetch = np.where(np.arange(RANKS) == rank, ms, 1.0)
    columns: dict[str, list[Any]] = {name: [] for name in ("start_ns", "duration_ns", "gpu_backward_ns")}
    for number in range(STEPS):
        start, begins = host.copy(), np.maximum(host + fetch, gpu)
        gpu = begins + forward
        done = (gpu + np.where(begins > begins.min() + 1, 20.0 - COOLED, 20.0)).max()
        backward, gpu = done - gpu, np.full(RANKS, done + 2.0)
        host = gpu.copy() if number % EVERY == EVERY - 1 else host + fetch + 12.0
        for name, values in zip(columns, (start, host - start, backward), strict=True):
            columns[name].append(values)
    phases = {"gpu_forward_ns": forward[:, None], "gpu_optimizer_ns": 2.0}
    measured = {name: np.transpose(values) for name, values in columns.items()}
    return made(RANKS, steps=[rows_of("steps", kind="train", input_ns=fetch[:, None], **phases, **measured)])


def test_a_stall_costs_what_steps_grew_by_and_not_how_late_a_rank_came() -> None:
    """10 ms of input make the rank 6 ms later than rank 0, and a step 5 ms longer: its own GPU catches up by 1 ms."""
    slow, stalls = judge(_slow_input(3, 10.0)).verdicts
    assert (slow.ranks, slow.cause) == ((0,), "compute")
    assert (stalls.kind, stalls.ranks, stalls.cause) == ("intermittent", (3,), "input")
    assert stalls.cost_ms_per_step == pytest.approx((6.0 - COOLED) * (STEPS // EVERY - 1) / (STEPS - 1), rel=0.02)


def test_a_stall_with_a_negligible_cost_is_a_note() -> None:
    """8 ms of input in every eighth step, which grows by 3 ms: the rank that computes longer is named, and no other."""
    report = judge(_slow_input(3, 8.0))
    assert [verdict.ranks for verdict in report.verdicts] == [(0,)]
    assert any("rank 3 waits 7.0 ms longer per step for input" in note for note in report.notes)
