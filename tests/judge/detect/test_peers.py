"""How a rank's delay is set against the others', in a job of any size."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.blocks import Slowdown
from hindmost_judge.causes import backward
from hindmost_judge.detect import straggler
from hindmost_judge.verdict.whole_job import since
from hindmost_judge.whatif import savings

STEPS = 4_000


@pytest.mark.parametrize("ranks", [8, 64, 512])
def test_of_ranks_that_are_all_alike_each_is_last_in_one_step_of_eight(ranks: int) -> None:
    """In a large job, too, in which another rank is later by chance in nearly every step."""
    delay = np.random.default_rng(ranks).standard_normal((ranks, STEPS))
    assert straggler.share_last(delay[0], delay[1:]) == pytest.approx(1 / 8, rel=0.15)


@pytest.mark.parametrize(("first", "reported"), [(3, 0), (5, 0), (6, 6)])
def test_a_fault_in_the_first_judged_step_was_there_from_the_start(first: int, reported: int) -> None:
    """Warm-up of three steps hides it, and up to two whose collectives are unlike the rest's."""
    blocks: Any = SimpleNamespace(steps=np.arange(first, 60), warmup=3)
    assert since(blocks, 0) == reported


@pytest.mark.parametrize(("outside", "known"), [(24, True), (12, False)])
def test_what_a_rank_takes_when_it_is_not_late_is_known_of_twenty_steps(outside: int, known: bool) -> None:
    """Before a slowdown, after it, or both; with fewer, the report says that its backward may be longer than
    visible."""
    blocks: Any = SimpleNamespace(steps=np.arange(100), delay=np.zeros((4, 100)))
    slowdown = Slowdown(
        row=2,
        first=outside // 2,
        stop=100 - outside // 2,
        delay=9.0,
        z=9.0,
        consistency=1.0,
        spread_ratio=9.0,
        latest=1.0,
    )
    blocks.delay[2, slowdown.first : slowdown.stop] = 9.0
    assert (backward.healthy_steps(blocks, slowdown) is not None) == known


@pytest.mark.parametrize(("stalls", "longer"), [(5, 40.0), (4, None)])
def test_what_stalls_cost_is_seen_in_the_steps_of_five(stalls: int, longer: float | None) -> None:
    """Two of them may be something else; with fewer it is unknown which."""
    period = np.full(100, 10.0)
    stalled = np.arange(stalls) * 9 + 5
    period[stalled] += 40.0
    period[stalled[:2]] += 500.0
    blocks: Any = SimpleNamespace(steps=np.arange(100), period=period)
    found = savings.longer_when(blocks, stalled)
    assert (found and found[0]) == longer
