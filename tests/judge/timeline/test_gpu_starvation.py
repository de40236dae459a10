"""Which part of a pipeline's interval is work of its GPU, and which is waiting for the host's launches."""

from types import SimpleNamespace
from typing import Any

import numpy as np
from hindmost_judge.causes import launch_bound, table
from hindmost_judge.timeline.pipelined import gpu_starvation

RANKS, PLACES, STEPS = 2, 3, 20
MS = 1e6
#: How long the intervals of a step take a rank whose work is queued.
WORK = np.array([2.0, 4.0, 5.0])


def _idle(work: Any, queued: Any, cohort: tuple[int, int] = (0, 0)) -> Any:
    """[R, S] ms of these intervals [R, P, S], of which work was ``queued`` [R, P, S] when they ended."""
    waited = np.where(queued, 5.0, 0.0).reshape(-1, STEPS)
    start = np.cumsum(work.reshape(-1, STEPS), axis=1)
    row = np.repeat(np.arange(RANKS), PLACES)
    order: Any = SimpleNamespace(row=row, start=start * MS, enqueue=(start - waited) * MS)
    built: Any = SimpleNamespace(row=row, place=np.tile(np.arange(PLACES), RANKS), work=work.reshape(-1, STEPS) * MS)
    order.steps = built.steps = np.arange(STEPS)
    found = gpu_starvation(order, built, np.array(cohort), (RANKS, STEPS))
    assert found is not None
    return found / MS


def _usual() -> tuple[Any, Any]:
    work = np.broadcast_to(WORK[None, :, None], (RANKS, PLACES, STEPS)).copy()
    queued = np.ones(work.shape, bool)
    queued[:, 0] = False  # a step's first operation begins as it is launched
    return work, queued


def test_an_interval_with_queued_work_is_all_work() -> None:
    """Nothing idled, however long it is."""
    work, queued = _usual()
    work[1, 1:] += 1.0
    assert not _idle(work, queued).any()


def test_what_an_interval_is_longer_by_with_nothing_queued_is_idle() -> None:
    """Of a rank whose GPU had work in half of the steps: those say how long the work is."""
    work, queued = _usual()
    work[1, 2] += 1.0
    work[1, 2, ::2] += 3.0
    queued[1, 2, ::2] = False
    np.testing.assert_allclose(_idle(work, queued)[1], np.where(np.arange(STEPS) % 2, 0.0, 3.0))


def test_an_interval_never_seen_with_queued_work_is_as_long_as_its_replicas() -> None:
    """What it is longer by may all be its host's; a rank of another stage says nothing of it."""
    work, queued = _usual()
    work[1, 2] += 4.0
    queued[1, 2] = False
    np.testing.assert_allclose(_idle(work, queued)[1], 4.0)
    assert not _idle(work, queued, (0, 1)).any()


def test_a_stage_is_late_by_what_its_gpu_computes_longer_whatever_it_waits_for_its_host() -> None:
    """Of 10 ms beyond its replica 5 are waiting; the other 5 are its own, and of these no part is idle."""
    own = np.array([[20.0] * STEPS, [30.0] * STEPS]) * MS
    waited = np.array([[0.0] * STEPS, [5.0] * STEPS]) * MS
    cohort, delay = np.zeros(RANKS, np.int64), own - own[::-1]
    blocks: Any = SimpleNamespace(self_time=own, starvation=waited, cohort=cohort, delay=delay)
    np.testing.assert_allclose(launch_bound.computed_delay(blocks)[1], 5.0 * MS)
    every = np.arange(STEPS)
    assert table.gpu_idle(blocks, 1, every) == 5.0 * MS
    blocks.delay = blocks.delay / 2
    assert table.gpu_idle(blocks, 1, every) == 0.0
    assert table.taken_off(blocks, 1, every) == 5.0 * MS
