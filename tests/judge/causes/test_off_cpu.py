"""Time off the CPU of all ranks at once, where only whole steps were measured."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.causes import cpu_wait
from hindmost_judge.types import Floats

STEPS = 40


def whole_steps(ranks: int) -> Any:
    """Blocks without measurements between collectives, one step of one rank unknown."""
    random = np.random.default_rng(7)
    cpu, queue, wait, transfer = (random.uniform(1e6, 9e6, (ranks, STEPS)) for _ in range(4))
    cpu[1, 3] = np.nan
    parts = {"cpu": cpu, "runqueue": queue}
    took = cpu + queue + wait / 2 + random.uniform(0, 4e6, (ranks, STEPS))
    return SimpleNamespace(
        ranks=np.arange(ranks), steps=np.arange(STEPS), parts=parts, took=took, wait=wait, transfer=transfer
    )


def test_of_all_ranks_it_is_what_it_is_of_each() -> None:
    """Each rank is compared with the others' usual values, without its own."""
    blocks = whole_steps(6)
    each = [cpu_wait.off_cpu_in_step(blocks, row, blocks.steps) for row in range(6)]
    np.testing.assert_array_equal(cpu_wait.off_cpu_in_whole_steps(blocks), np.stack(each))


def test_it_is_unknown_for_all_ranks_where_the_queue_was_not_measured() -> None:
    """No rank was seen off the CPU, and none on it."""
    blocks = whole_steps(6)
    del blocks.parts["runqueue"]
    assert np.isnan(cpu_wait.off_cpu_in_whole_steps(blocks)).all()


def test_twice_the_ranks_are_twice_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ranks share is looked through once, and not for each of them again."""
    seen: list[int] = []
    original = cpu_wait.median

    def counting(block: Floats, axis: int | None = None) -> Floats:
        seen.append(block.size)
        return original(block, axis)

    monkeypatch.setattr(cpu_wait, "median", counting)
    work = []
    for ranks in (64, 128):
        seen.clear()
        cpu_wait.off_cpu_in_whole_steps(whole_steps(ranks))
        work.append(sum(seen))
    assert work[1] == 2 * work[0]
