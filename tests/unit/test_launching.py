"""What the times of launches tell: GPUs fed from hand to mouth."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.explain import launching
from hindmost_collector.settings import DEFAULT

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
def test_a_gpu_is_fed_from_hand_to_mouth_where_it_takes_as_long_as_its_host(
    waited: float, forward: float, gpu: float, fed: bool
) -> None:
    """Not where forward takes the GPU longer, and not where what it runs was launched long before."""
    found = launching.hand_to_mouth(_blocks(_same(waited), _same(20.0), forward, gpu), DEFAULT)
    assert found is not None
    assert found.all() == fed
    assert found.any() == fed


def test_one_rank_is_told_alone_as_it_is_among_all() -> None:
    """Of a rank nothing but its own launches is looked at; one whose launches were not recorded is not known."""
    waited = _same(0.0)
    waited[2, ::2] = 30.0
    blocks = _blocks(waited, _same(20.0), 5.0, 5.0)
    blocks.joined.enqueue[3] = np.nan
    every = launching.hand_to_mouth(blocks, DEFAULT)
    assert every is not None
    for row in range(RANKS - 1):
        np.testing.assert_array_equal(launching.hand_to_mouth(blocks, DEFAULT, slice(row, row + 1)), every[row][None])
    assert not every[3].any()
    assert launching.hand_to_mouth(blocks, DEFAULT, slice(3, 4)) is None
