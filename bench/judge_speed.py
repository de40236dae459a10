"""How long judging takes: the detection kernel on a window of arrays, and a whole recording from its table.

    python bench/judge_speed.py [--ranks 16384] [--steps 100] [--rounds 7] [--rows 10000000]

The kernel takes [rank x step] durations of one synchronising collective a step, as a live window holds them, and finds
who is late (delay, block medians, candidates, change points, criteria). The recording goes through ``judge`` whole:
joining, steps, detectors, causes, costs and a row for each rank. One process; prints median and range over the rounds,
and the median of its CPU time, which other work on the machine lengthens less.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import numpy as np
from hindmost_judge.blocks import Blocks
from hindmost_judge.detect import straggler
from hindmost_judge.judge import judge
from hindmost_judge.model import COLLECTIVES, RANKS, Job, Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.stats.robust import peers_median

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


def durations(ranks: int, steps: int) -> np.ndarray[Any, Any]:
    """[R, S] ns that an all-reduce took, with one rank 5 % late on steps of 100 ms."""
    arrival = np.random.default_rng(1).normal(100e6, 1e6, (ranks, steps))
    arrival[ranks // 3] += 5e6
    return np.asarray(arrival.max(axis=0) - arrival + 2e6)


def kernel(duration: np.ndarray[Any, Any]) -> list[int]:
    """Rows of the late ranks."""
    excess = peers_median(duration) - duration
    ranks, steps = duration.shape
    nothing = np.empty((0, 0))
    blocks = Blocks(
        ranks=np.arange(ranks), steps=np.arange(steps), period=np.full(steps, 105e6), own=nothing, excess=excess,
        segments=excess, segment_step=np.arange(steps), wait=nothing, transfer=nothing, caused=nothing, last=nothing,
        collectives=steps, starts=np.arange(steps), warmup=0, group=np.zeros((ranks, 1), np.int64),
        klass=np.zeros(steps, np.int64), beside=np.zeros(steps, bool), role=np.zeros(ranks, np.int64),
    )  # fmt: skip
    return [habit.row for habit in straggler.find(blocks, DEFAULT)]


def recording(rows: int, ranks: int) -> Run:
    """A run of about so many collective rows."""
    steps = rows // ranks
    duration = durations(ranks, steps).astype(np.int64).ravel()
    count = ranks * steps
    table = {
        name: np.full(count, -1 if kind is not np.uint64 else 7, kind)
        for name, kind in COLLECTIVES.items()
        if kind is not np.str_
    }
    table["rank"] = np.repeat(np.arange(ranks, dtype=np.int32), steps)
    table["seq"] = np.tile(np.arange(steps), ranks)
    table["start_ns"] = table["seq"] * 107_000_000 + (107_000_000 - duration)
    table["duration_ns"], table["flags"] = duration, np.zeros(count, np.int32)
    who = {name: np.full(ranks, "" if kind is np.str_ else 0, kind) for name, kind in RANKS.items()}
    who["rank"] = np.arange(ranks, dtype=np.int32)
    return Run(Job("bench", world_size=ranks), ranks=who, collectives=table | {"op": np.full(count, "all_reduce")})


def timed(what: str, work: Callable[[], object], rounds: int) -> None:
    """Print the median and the range of so many rounds, and the median of their CPU time."""
    took, used = [], []
    for _ in range(rounds):
        begin, before = time.perf_counter(), time.process_time()
        work()
        took.append(time.perf_counter() - begin)
        used.append(time.process_time() - before)
    spread = f"{min(took) * 1e3:,.0f} to {max(took) * 1e3:,.0f} ms"
    print(f"{what}: median {np.median(took) * 1e3:,.0f} ms, {spread}; {np.median(used) * 1e3:,.0f} ms of CPU")


def main() -> None:
    """Measure both."""
    parser = argparse.ArgumentParser(description="how long judging takes")
    for name, usual in (("ranks", 16_384), ("steps", 100), ("rounds", 7), ("rows", 10_000_000)):
        parser.add_argument(f"--{name}", type=int, default=usual)
    args = parser.parse_args()
    window = durations(args.ranks, args.steps)
    assert kernel(window) == [args.ranks // 3]
    timed(f"kernel, {args.ranks:,} ranks x {args.steps} steps", lambda: kernel(window), args.rounds)
    if args.rows:
        run = recording(args.rows, 512)
        assert judge(run).verdicts[0].ranks == (512 // 3,)
        timed(f"recording of {args.rows:,} rows, 512 ranks", lambda: judge(run), 1)


if __name__ == "__main__":
    main()
