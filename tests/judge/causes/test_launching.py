"""What the times of launches show: launch-bound GPUs."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.causes import launch_bound

RANKS, STEPS = 4, 64
MS = 1e6


def _blocks(waited: Any, took: Any, forward: float, gpu: float) -> Any:
    """Kernels that waited [R, S] ms for their GPU, steps that took hosts [R, S] ms, of them ``forward`` to launch."""
    began = np.cumsum(took, axis=1) * MS - took * MS
    enqueue = began + forward * MS
    joined = SimpleNamespace(enqueue=enqueue, start=enqueue + waited * MS + 0.7 * MS, gpu_time=True)
    return SimpleNamespace(
        joined=joined,
        starts=np.arange(STEPS),
        took=took * MS,
        ended=began + took * MS,
        parts={"gpu_forward": np.full(took.shape, gpu * MS)},
        step_ns=20 * MS,
    )


def _same(value: float) -> Any:
    return np.full((RANKS, STEPS), value)


@pytest.mark.parametrize(
    ("waited", "forward", "gpu", "fed"),
    [(0.0, 5.0, 5.0, True), (0.0, 3.0, 8.0, False), (30.0, 12.0, 8.0, False)],
)
def test_a_gpu_as_slow_as_its_host_is_launch_bound(waited: float, forward: float, gpu: float, fed: bool) -> None:
    """Not where forward takes the GPU longer, and not where what it runs was launched long before."""
    found = launch_bound.launch_bound_steps(_blocks(_same(waited), _same(20.0), forward, gpu))
    assert found is not None
    assert found.all() == fed
    assert found.any() == fed


def test_one_rank_alone_gets_the_same_report_as_among_all() -> None:
    """Of a rank nothing but its own launches is looked at; one whose launches were not recorded is not known."""
    waited = _same(0.0)
    waited[2, ::2] = 30.0
    blocks = _blocks(waited, _same(20.0), 5.0, 5.0)
    blocks.joined.enqueue[3] = np.nan
    every = launch_bound.launch_bound_steps(blocks)
    assert every is not None
    for row in range(RANKS - 1):
        np.testing.assert_array_equal(launch_bound.launch_bound_steps(blocks, slice(row, row + 1)), every[row][None])
    assert not every[3].any()
    assert launch_bound.launch_bound_steps(blocks, slice(3, 4)) is None


#: Of a job's own marks: what a healthy GPU takes for forward and the optimizer before it, and from forward on to the
#: step's first collective; steps of 33 ms.
FORWARD, OPTIMIZER, THEN, STEP = 8.0, 3.0, 1.0, 33.0


def _marked(behind: Any, host: Any, longer: Any) -> Any:
    """Steps of ranks whose GPUs are ``behind`` [R, S] ms when the host is ready, whose hosts take ``host`` [R, S] ms to
    launch forward, and that compute ``longer`` [R, S] ms; every 16th step's forward is timed. Of a GPU that has caught
    up forward ends with its launching."""
    ready = np.arange(STEPS)[None, :] * STEP * MS + np.zeros((RANKS, 1))
    done = ready + (behind - OPTIMIZER) * MS
    began = np.maximum(ready, ready + behind * MS)
    ended = np.maximum(began + (FORWARD + longer) * MS, ready + host * MS)
    took = np.full((RANKS, STEPS), (STEP - 1) * MS)
    starts = np.stack([ended + THEN * MS, np.roll(done, -1, axis=1) - MS], axis=2).reshape(RANKS, -1)
    starts[:, -1] = starts[:, -2] + 20 * MS
    gpu = np.full((RANKS, STEPS), np.nan)
    gpu[:, ::16] = (ended - began)[:, ::16]
    joined = SimpleNamespace(
        enqueue=np.full(starts.shape, np.nan),
        start=starts,
        duration=np.full(starts.shape, MS),
        gpu_time=True,
        columns=2 * STEPS,
    )
    parts = {"forward": host * MS, "backward": took - host * MS, "gpu_forward": gpu}
    return Marked(
        joined, 2 * np.arange(STEPS), np.arange(STEPS), np.arange(RANKS), took, ready + took, parts, STEP * MS
    )


@dataclass(frozen=True)
class Marked:
    """What of a job's blocks is looked at."""

    joined: Any
    starts: Any
    steps: Any
    ranks: Any
    took: Any
    ended: Any
    parts: dict[str, Any]
    step_ns: float


def _late_from_20_to_40(longer: float, otherwise: float = 0.0) -> Any:
    found = _same(otherwise)
    found[1, 20:40] = longer
    return found


def test_a_gpu_that_follows_its_host_shows_in_the_host_s_marks() -> None:
    """Without times of launches: rank 1 launches forward in 14 ms on an idle GPU, of the others work is queued."""
    behind, host = _late_from_20_to_40(-2.0, 30.0), _late_from_20_to_40(14.0, 8.0)
    blocks = _marked(behind, host, _same(0.0))
    found = launch_bound.launch_bound_steps(blocks)
    assert found is not None
    assert np.argwhere(found).tolist() == [[1, 32]]  # the step of these that was timed
    late = np.arange(20, 40)
    assert launch_bound.idled(blocks, 1, late) == pytest.approx(MS * (14.0 + 2.0 - FORWARD + OPTIMIZER - OPTIMIZER))
    assert launch_bound.idled(blocks, 0, late) <= 0


def test_a_gpu_that_computes_longer_with_work_queued_does_not_follow_its_host() -> None:
    """A full queue makes its host wait, too, so that launching takes as long as computing."""
    blocks = _marked(_same(30.0), _late_from_20_to_40(16.0, 8.0), _late_from_20_to_40(8.0))
    found = launch_bound.launch_bound_steps(blocks)
    assert found is not None
    assert not found.any()
    assert launch_bound.idled(blocks, 1, np.arange(20, 40)) == 0


def test_forward_of_untimed_steps_is_known_of_a_gpu_that_never_runs_dry() -> None:
    """Stalls between the timed steps are of computing where the GPU had work queued all along."""
    stalls = np.array([23, 30, 37])
    longer = _same(0.0)
    longer[1, stalls] = 32.0
    blocks = launch_bound.timed(_marked(_same(30.0), _same(8.0), longer), 1, stalls)
    np.testing.assert_allclose(blocks.parts["gpu_forward"][1, stalls], (FORWARD + 32.0) * MS)
    np.testing.assert_allclose(blocks.parts["gpu_forward"][0, stalls], FORWARD * MS)


@pytest.mark.parametrize("behind", [-2.0, 5.0])
def test_forward_of_untimed_steps_is_unknown_of_a_gpu_that_may_have_idled(behind: float) -> None:
    """It had nothing queued, or less than its host needed to launch the rest."""
    stalls = np.array([23, 30, 37])
    host = _same(8.0)
    host[1, stalls] = 40.0
    blocks = launch_bound.timed(_marked(_same(behind), host, _same(0.0)), 1, stalls)
    assert np.isnan(blocks.parts["gpu_forward"][1, stalls]).all()


@pytest.mark.parametrize(("longer", "known"), [(9.0, True), (3.0, False)])
def test_longer_copies_may_be_what_a_gpu_that_never_runs_dry_takes_longer(longer: float, known: bool) -> None:
    """Copies of half a millisecond were timed where forward was: no link makes them 18 times as long, but 6 times."""
    stalls = np.array([23, 30, 37])
    more = _same(0.0)
    more[1, stalls] = longer
    blocks = _marked(_same(30.0), _same(8.0), more)
    blocks.parts["h2d"] = np.where(np.isnan(blocks.parts["gpu_forward"]), np.nan, 0.5 * MS)
    forward = launch_bound.timed(blocks, 1, stalls).parts["gpu_forward"][1, stalls]
    assert (~np.isnan(forward)).all() == known


def test_copies_that_were_timed_are_no_forward() -> None:
    """Every step's copy is known, and what it is longer by is not the forward's."""
    stalls = np.array([23, 30, 37])
    more = _same(0.0)
    more[1, stalls] = 32.0
    blocks = _marked(_same(60.0), _same(8.0), more)
    blocks.parts["h2d"] = more * MS
    forward = launch_bound.timed(blocks, 1, stalls).parts["gpu_forward"][1, stalls]
    np.testing.assert_allclose(forward, FORWARD * MS)


def test_a_kernel_that_waits_for_a_part_of_a_step_was_queued() -> None:
    """Within a twentieth of a step of the shortest wait it ran as it was launched; beyond, others ran before it."""
    waited = np.array([[0.5, 1.4, 1.6, 3.9]]) * MS
    blocks: Any = SimpleNamespace(step_ns=20 * MS)
    assert launch_bound.caught_up(waited, blocks).tolist() == [[True, True, False, False]]
