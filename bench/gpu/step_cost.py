"""What hindmost takes of a GPU-bound step: with its hooks in and out by turns, while the GPU works on without a pause.

A GPU's clock follows its temperature and power, so the same step drifts by more than hooks could take. Blocks of a few
steps alternate, in fours whose order is in, out, out, in or the reverse (drawn at random), which cancels any drift that
is even over a four. Blocks begin and end with CUDA events in the stream of work: the host runs ahead as it would, and
nothing waits for the GPU. The first step after each turn belongs to no block.

The difference is the mean over fours, for what is done once in many steps counts too; the interval is the bootstrap's
(over fours, 95 %). The median and its interval say what most steps feel.
"""

from __future__ import annotations

import random
import statistics
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

BLOCK = 8
#: Steps of a four, those between blocks included.
STEPS_OF_FOUR = 4 * (BLOCK + 1)
DRAWS = 4000


class HostMark:
    """Stands in for a CUDA event where there is no GPU."""

    def __init__(self) -> None:
        self.ns = time.perf_counter_ns()

    def elapsed_time(self, other: HostMark) -> float:
        return (other.ns - self.ns) / 1e6


def cuda_mark(torch: Any) -> Any:
    """An event recorded on the current stream."""
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def compared(
    step: Callable[[], Any],
    put: Callable[[bool], Any],
    fours: int,
    mark: Callable[[], Any] = HostMark,
    settle: Callable[[], Any] = lambda: None,
    seed: int = 7,
) -> dict[str, Any]:
    """So many fours of blocks; ``put`` has hindmost in or out. Ranks of one job take the same turns: by ``seed``."""
    draw = random.Random(seed)  # noqa: S311 - an order
    marks: list[list[tuple[bool, Any, Any]]] = []
    for _ in range(fours):
        first = draw.random() < 0.5
        marks.append([])
        for inside in (first, not first, not first, first):
            put(inside)
            step()
            start = mark()
            for _ in range(BLOCK):
                step()
            marks[-1].append((inside, start, mark()))
    put(True)
    settle()
    blocks = [[(inside, start.elapsed_time(end) / BLOCK) for inside, start, end in four] for four in marks]
    return summary(blocks)


def summary(blocks: Sequence[Sequence[tuple[bool, float]]]) -> dict[str, Any]:
    """Of fours of blocks: whether hindmost was in, and ms a step."""
    differences = [1e3 * sum(took if inside else -took for inside, took in four) / 2 for four in blocks]
    without = 1e3 * statistics.median(took for four in blocks for inside, took in four if not inside)
    mean = statistics.fmean(differences)
    low, high = interval(differences, statistics.fmean)
    return {
        "pairs_of_blocks": 2 * len(blocks),
        "steps_a_block": BLOCK,
        "step_us_without": without,
        "difference_us": mean,
        "difference_us_95": [low, high],
        "difference_ratio": mean / without,
        "difference_ratio_95": [low / without, high / without],
        "median_difference_us": statistics.median(differences),
        "median_difference_us_95": list(interval(differences, statistics.median)),
    }


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """95 % bootstrap interval of a mean or median."""
    draw = random.Random(11)  # noqa: S311 - a bootstrap
    drawn = sorted(of(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]
