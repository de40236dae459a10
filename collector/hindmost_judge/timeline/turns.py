"""Jobs that wait for each of a loader's workers in turn: every so many steps for long, and not at all in between.

A worker loads one batch while the job trains on those of the others. So a wait in one step is for what was loaded since
the last such wait: it belongs to all steps of the turn. A loader that is slow in every batch would else look like a
rank that stalls now and then, and the typical step like one without any wait.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.encoding import columns_that_fill
from hindmost_judge.stats.robust import average, lower_median, median, peers_median
from hindmost_judge.timeline import phases

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.types import Floats

#: Most workers of a rank.
_MOST = 16
#: Steps resemble those a turn later: correlation at that lag, and by how much it exceeds that of neighbours.
_ALIKE, _MORE = 0.5, 0.3
#: Standard errors by which correlations at two lags differ by chance; one is a root of the steps' number (Bartlett).
_BY_CHANCE = 2.0
#: A rank that waits for fewer batches than this is not slow: each of them may be long by chance.
_OFTEN = 8
#: Workers of the rank that waits most are ahead in so many of the steps. A loop that loads without workers takes
#: its time in each.
_AHEAD = 0.1
#: Turns seen at least, and share of the steps' time that ranks wait for input on the mean.
_TURNS, _WAITS = 6, 0.02
#: A rank waits for a batch that takes this share of what a worker needs for it; less may be the fetch itself.
_WAITED = 0.1
#: A step counts for at most as much as this share of the steps do not exceed: stalls come in no turns.
_CLIPPED = 0.95


def by_turn(blocks: Blocks, run: Run) -> Blocks:
    """The blocks with loaders' work in place of delays, where ranks wait for workers in turn; else as they are.

    A worker that the loop waits for twice, a turn apart, worked all the time in between. Of a rank that does not wait,
    nothing is known but that its workers are faster: they are taken to be as those of the typical rank usually are.
    """
    turn = length(blocks)
    loads = _loads(blocks, run, turn) if turn > 1 else None
    if loads is None:
        return blocks
    fetched = blocks.parts["input"]
    known, often = (np.sum(~np.isnan(one), axis=1)[:, None] >= _OFTEN for one in loads)
    measured = known if known.sum() > 1 else np.ones_like(known)
    usual = lower_median(median(np.where(measured, loads[0], np.nan), axis=1), axis=0)
    lasted = mean_of_turn(np.where(often, loads[1], np.nan), turn)
    lasted = np.where(np.isnan(lasted), usual, lasted)
    waited = np.nan_to_num(mean_of_turn(fetched, turn))
    excess = np.minimum(lasted - peers_median(lasted), waited)
    return replace(
        blocks,
        turn=turn,
        period=mean_of_turn(blocks.period[None], turn)[0],
        own=mean_of_turn(blocks.own, turn),
        excess=excess,
        segments=excess,
        segment_step=np.arange(len(blocks.steps)),
        klass=np.zeros(len(blocks.steps), np.int64),
        overlapped=False,
        wait=mean_of_turn(blocks.wait, turn),
        caused=np.minimum(np.nan_to_num(mean_of_turn(blocks.caused, turn)), np.maximum(excess, 0.0)),
        took=mean_of_turn(blocks.took, turn) if blocks.took is not None else None,
        parts={**blocks.parts, "input": waited},
    )


def _loads(blocks: Blocks, run: Run, turn: int) -> tuple[Floats, Floats] | None:
    """[R, N] ns a step that each rank's loader takes, in all steps and in those of the blocks; NaN: unknown.

    ``None`` where it is known of one rank only: then nothing tells whether that is slow.
    """
    table = columns_that_fill(phases.training(run.steps), "step")
    numbers = np.union1d(table["step"], blocks.steps).astype(np.int64)
    times = phases.pivots(table, blocks.ranks, numbers, ("start_ns", "input_ns"))
    if len(times) < 2:
        return None
    waits = times["input_ns"] > _WAITED * turn * average(blocks.period)
    ready, loads = times["start_ns"] + times["input_ns"], np.full(waits.shape, np.nan)
    twice = waits[:, turn:] & waits[:, :-turn]
    loads[:, turn:] = np.where(twice, (ready[:, turn:] - ready[:, :-turn]) / turn, np.nan)
    since = ready[:, :turn] - times["start_ns"][:, :1]  # workers start all at once, with the first step
    started = np.maximum(median(since[:, 0] - turn * median(loads, axis=1)), 0.0)
    loads[:, :turn] = np.where(waits[:, :turn], (since - started) / turn, np.nan)
    several = np.sum(~np.isnan(loads).all(axis=1)) > 1
    return (loads, loads[:, np.searchsorted(numbers, blocks.steps)]) if several else None


def length(blocks: Blocks) -> int:
    """After how many steps waits for input come again; 1 where they do not come in turns."""
    inputs = blocks.parts.get("input")
    if inputs is None:
        return 1
    waited = np.nan_to_num(inputs).max(axis=0)
    waited = np.minimum(waited, np.quantile(waited, _CLIPPED))
    lags, step = np.arange(1, min(_MOST, len(waited) // _TURNS) + 1), average(blocks.period)
    most = inputs[int(np.argmax(np.nan_to_num(inputs).mean(axis=1)))]
    ahead = np.mean(most < _WAITED * step) >= _AHEAD
    if len(lags) < 2 or not waited.mean() >= _WAITS * step or not ahead:
        return 1
    differs = waited - waited.mean()
    alike = np.array([np.mean(differs[lag:] * differs[:-lag]) for lag in lags]) / max(float(np.mean(differs**2)), 1.0)
    found = int(np.argmax(alike >= alike.max() - _BY_CHANCE / np.sqrt(len(waited)))) + 1
    return found if found > 1 and alike[found - 1] >= max(_ALIKE, alike[0] + _MORE) else 1


def mean_of_turn(block: Floats, turn: int) -> Floats:
    """[R, S] means of the known values in as many steps around each; at the ends, of the first and last so many."""
    known = ~np.isnan(block)
    sums, counts = (np.cumsum(np.pad(one, ((0, 0), (1, 0))), axis=1) for one in (np.where(known, block, 0.0), known))
    count = counts[:, turn:] - counts[:, :-turn]
    means = np.where(count > 0, (sums[:, turn:] - sums[:, :-turn]) / np.maximum(count, 1), np.nan)
    return np.pad(means, ((0, 0), (turn // 2, turn - 1 - turn // 2)), mode="edge")
