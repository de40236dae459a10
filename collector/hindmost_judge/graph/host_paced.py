"""Jobs whose hosts or loaders set the pace: the lanes of hosts and GPUs, and blocks by work in place of delays.

A loader's worker loads one batch while the job trains on those of the others. So a wait in one step is for what was
loaded since the last such wait: it belongs to all steps of the turn. A loader that is slow in every batch would else
look like a rank that stalls now and then, and the typical step like one without any wait.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.encoding import columns_that_fill
from hindmost_judge.graph.self_time import build_lanes, pace_of_peers, paced_by_hosts, with_unmarked_work
from hindmost_judge.model import OTHER, Run
from hindmost_judge.stats import segmentation
from hindmost_judge.stats.robust import FEW_RANKS, average, lower_median, median, or_zero, peers_median, quantile
from hindmost_judge.timeline import phases
from hindmost_judge.timeline.overlap import ahead_of_host
from hindmost_judge.types import Bools, Floats, Lanes, Timeline
from hindmost_judge.whatif import savings

#: Marks of a host and of its GPU may be so many ns apart: clocks differ by 0.5 to 3 ms, and collectives are launched
#: before the phase ends in which they are.
_CLOCKS_NS = 4e6
#: The phase in which a step's last collective is launched.
_LAUNCHING = "backward"
#: What hosts do in a step, in the order of a usual loop; GPUs are waited for mostly at its end, as by ``.item()``.
_IN_ORDER = ("input", "device_copy", "forward", "backward", "sync", "optimizer", "checkpoint", "device_wait")
#: The time from one step to the next.
BETWEEN = "between"
#: Steps by which the begin of a step's collectives may be numbered too late or too early.
_MISCOUNTED = 2
#: Steps of which fewer say nothing of how a host and its GPU keep pace.
_FEWEST = 8


def by_work(blocks: Blocks) -> Blocks:
    """The blocks with hosts' own work in place of delays, where hosts set the pace; else as they are."""
    timeline = of(blocks)
    if timeline is None:
        return blocks
    built = build_lanes(timeline)
    if not paced_by_hosts(timeline, built):
        return blocks
    built = with_unmarked_work(timeline, built)
    own = built.host.sum(axis=0)
    delay = own - built.peer_pace
    parts = {name: block for name, block in blocks.parts.items() if not name.startswith("gpu_") and name != "h2d"}
    parts |= {name: built.host[at] for at, name in enumerate(built.phases) if name != BETWEEN}
    return blocks.by_delay(
        delay,
        self_time=own,
        took=own - built.host[-1],
        overlapped=False,
        parts=parts,
        caused=_caused(blocks, built, delay),
        lanes=built,
    )


#: Most ranks of which the cost of being late is replayed: who comes last in most collectives is among the first.
_ASKED = 16
#: Less of the waits than this share of the most is no rank's doing.
_LITTLE = 0.05


def _caused(blocks: Blocks, built: Lanes, delay: Floats) -> Floats:
    """[R, S] ns by which the others' steps are longer for each rank: its share of their waits that a replay bears out.

    A host may come a whole step late and cost nothing, where the others are a step ahead.
    """
    waits = or_zero(blocks.caused).mean(axis=1)
    found = np.zeros_like(blocks.caused)
    as_it_was = savings.step_delay_of_lanes(built, delay)
    for row in np.argsort(-waits, kind="stable")[:_ASKED].tolist():
        longer = np.maximum(segmentation.levels(delay[row]), 0.0)
        if longer.any() and waits[row] > _LITTLE * waits.max():
            less = delay.copy()
            less[row] -= longer
            saved = float((as_it_was - savings.step_delay_of_lanes(built, less)).mean())
            found[row] = blocks.caused[row] * min(max(saved, 0.0) / waits[row], 1.0)
    return found


def of_phase(blocks: Blocks, phase: str) -> Blocks:
    """The blocks with what hosts work longer in one phase in place of all that they do."""
    assert blocks.lanes is not None  # noqa: S101 - slowdowns of a phase come from these
    own = blocks.lanes.host[blocks.lanes.phases.index(phase)]
    beyond = own - pace_of_peers(own, blocks.cohort)
    left_out = {*blocks.lanes.phases} - {phase}
    parts = {name: block for name, block in blocks.parts.items() if name not in left_out}
    return replace(blocks, self_time=own, delay=beyond, parts=parts)


def of(blocks: Blocks) -> Timeline | None:
    """When hosts and GPUs were where; ``None`` where hosts did not say, or not all ranks meet at once."""
    grid = blocks.joined
    if grid is None or not grid.gpu_time or blocks.ended is None or blocks.took is None or "input" not in blocks.parts:
        return None
    if len(blocks.steps) < _FEWEST or grid.group.shape[1] > 1 or len(np.unique(grid.group)) > 1:
        return None
    if np.isnan(grid.start).all() or np.isnan(blocks.ended).all(axis=1).any() or blocks.pipeline is not None:
        return None
    if not blocks.overlapped and not grid.gathers.any():  # hosts that wait for each collective are never ahead
        return None
    began = blocks.ended - blocks.took
    last = np.append(blocks.starts[1:], grid.columns) - 1
    start, enqueued, queued = grid.start, None, None
    if np.isnan(grid.enqueue).all():
        if blocks.step_ns <= 2 * _CLOCKS_NS:  # a mark of one clock may be in any of several steps of the other
            return None
    else:
        start, enqueued = grid.start - ahead_of_host(grid), grid.enqueue[:, last]
        queued = (start - grid.enqueue)[:, blocks.starts]
    arrived, left = start[:, last], (start + grid.duration)[:, last]
    phases, spent = _phases(blocks, began)
    launched = phases.index(_LAUNCHING) if _LAUNCHING in phases else len(phases) - 2
    shift = _shift(began + spent[: launched + 1].sum(axis=0), arrived)
    return Timeline(
        phases=tuple(phases),
        began=began,
        spent=spent,
        launched=launched,
        enqueued=_moved(enqueued, shift) if enqueued is not None else None,
        queued=_moved(queued, shift) if queued is not None else None,
        arrived=_moved(arrived, shift),
        left=_moved(left, shift),
        waited=_moved(blocks.wait, shift),
        between=_moved(blocks.self_time, shift),
        cohort=blocks.cohort,
        clock=_CLOCKS_NS,
        gathers=bool(grid.gathers.any()),
    )


def _phases(blocks: Blocks, began: Floats) -> tuple[list[str], Floats]:
    """Names [P] of what hosts do in a step, in order, and [P, R, S] how long each takes; NaN of unlogged steps.

    Where they mark no more than their input, launches of the step's first and last collective part the rest.
    """
    assert blocks.took is not None  # noqa: S101 - of() has looked
    assert blocks.ended is not None  # noqa: S101
    between = np.zeros_like(began)
    between[:, :-1] = began[:, 1:] - blocks.ended[:, :-1]
    between[:, -1] = median(between[:, :-1], axis=1)
    if _LAUNCHING not in blocks.parts and blocks.joined is not None and not np.isnan(blocks.joined.enqueue).all():
        first, last = _launches(blocks.joined.enqueue, began)
        marks = [began, began + or_zero(blocks.parts["input"]), first, last, blocks.ended]
        spent = np.diff(np.maximum.accumulate(np.stack(marks), axis=0), axis=0)
        return ["input", "forward", _LAUNCHING, OTHER, BETWEEN], np.stack([*spent, between])
    names = [name for name in _IN_ORDER if name in blocks.parts]
    parts = [or_zero(blocks.parts[name]) for name in names]
    rest = np.maximum(blocks.took - np.sum(parts, axis=0), 0.0)
    spent = np.stack([*parts, rest, between])
    spent[:, np.isnan(blocks.took)] = np.nan
    return [*names, OTHER, BETWEEN], spent


def _launches(enqueue: Floats, began: Floats) -> Floats:
    """[2, R, S] when each host launched the first and last collective of a step; NaN of steps in which it did not."""
    found = np.full((2, *began.shape), np.nan)
    for row, (launched, begins) in enumerate(zip(enqueue, began, strict=True)):
        times = np.sort(launched[launched > 0])
        bounds = np.searchsorted(times, np.append(begins, np.inf))
        there = np.flatnonzero(np.diff(bounds) > 0)
        found[:, row, there] = times[bounds[there]], times[bounds[there + 1] - 1]
    return found


def _shift(launched: Floats, arrived: Floats) -> int:
    """By how many steps collectives are numbered too low: none begins before it is launched."""
    for shift in range(-_MISCOUNTED, _MISCOUNTED + 1):
        lead = _moved(arrived, shift) - launched
        if (quantile(lead, 0.02) >= -_CLOCKS_NS).all():
            return shift
    return 0


def _moved(block: Floats, shift: int) -> Floats:
    """[R, S] of the step so many later; NaN beyond the ends."""
    found = np.full_like(block, np.nan)
    steps = block.shape[1]
    found[:, max(-shift, 0) : steps - max(shift, 0)] = block[:, max(shift, 0) : steps + min(shift, 0)]
    return found


#: Most workers of a rank.
_MOST_WORKERS = 16
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
#: Deviations by which a healthy worker differs, and by which ranks do from healthy ones that they cannot be.
_OUTLIES, _UNLIKE = 3.0, 2.0
#: Processes of a rank at the usual sample from which on it has workers.
_SEEN = 0.5
#: A step counts for at most as much as this share of the steps do not exceed: stalls come in no turns.
_CLIPPED = 0.95


def by_turn(blocks: Blocks, run: Run) -> Blocks:
    """The blocks with loaders' work in place of delays, where ranks wait for workers in turn; else as they are.

    A worker that the loop waits for twice, a turn apart, worked all the time in between. Of a rank that does not wait,
    nothing is known but that its workers are faster: they are taken to be as healthy ones at the start, slower by one
    standard error. If only one rank waits, it is late by that. A repair saves what is beyond the pace of healthy
    loaders, where known.
    """
    turn = length(blocks)
    loads = _loads(blocks, run, turn) if turn > 1 else None
    if loads is None:
        return blocks
    known, usual, pace, alone = loads
    often = np.sum(~np.isnan(known), axis=1)[:, None] >= _OFTEN
    lasted = mean_of_turn(np.where(often, known, np.nan), turn)
    period = mean_of_turn(blocks.period[None], turn)[0]
    typical = np.where(np.isnan(lasted), usual, lasted)
    waited = or_zero(mean_of_turn(blocks.parts["input"], turn))
    delay = waited - peers_median(waited) if alone is not None else np.minimum(typical - peers_median(typical), waited)
    by_delay = blocks.by_delay(
        delay,
        turn=turn,
        period=period,
        self_time=mean_of_turn(blocks.self_time, turn),
        overlapped=False,
        wait=mean_of_turn(blocks.wait, turn),
        caused=np.minimum(or_zero(mean_of_turn(blocks.caused, turn)), np.maximum(delay, 0.0)),
        took=mean_of_turn(blocks.took, turn) if blocks.took is not None else None,
        parts={**blocks.parts, "input": waited},
    )
    if np.isnan(pace):
        return by_delay
    pace = min(pace, segmentation.levels(period[turn // 2 :: turn]).min())  # healthy loaders slow no job
    turns = [segmentation.levels(row) for row in or_zero(lasted - pace)[:, turn // 2 :: turn]]
    beyond = np.pad(np.repeat(turns, turn, axis=1), ((0, 0), (0, turn)), mode="edge")[:, : lasted.shape[1]]
    return replace(by_delay, intervals=beyond)


def usual_load(ready: Floats, waits: Bools, scatter: float) -> tuple[float, float, int]:
    """Ns that a healthy loader's worker usually takes for a batch, its standard error, and of how many ranks.

    ``ready`` [R, N] is when the first worker of each rank had its batches, from its start on. A rank that waits for
    each of them shows each load; once it does not, its queue fills, and hides them. Until then all loads count. The
    first that is hidden was no longer than until it was fetched: without it, the long ones alone would count. Loads
    vary by the share ``scatter``.
    """
    rows = np.flatnonzero(waits[:, 0])
    if not len(rows):  # recorded from later on
        return np.nan, np.nan, 0
    ready, waits = ready[rows], waits[rows]
    last = np.where(waits.all(axis=1), waits.shape[1], np.argmin(waits, axis=1)) - 1
    took, at = ready[np.arange(len(rows)), last], np.minimum(last + 1, waits.shape[1] - 1)
    hidden = np.fmin(ready[np.arange(len(rows)), at] - took, median(ready[:, 0]))
    count = at + 1
    mean = (took + hidden) / count
    healthy = mean <= lower_median(mean, axis=0) * (1 + _OUTLIES * scatter / np.sqrt(count))
    first = ready[healthy, 0]
    if first.std() > _UNLIKE * scatter * first.mean():  # caches were cold
        return np.nan, np.nan, 0
    known = count[healthy].sum()
    usual = float((mean * count)[healthy].sum() / known)
    return usual, usual * scatter / float(np.sqrt(known)), int(healthy.sum())


def _loads(blocks: Blocks, run: Run, turn: int) -> tuple[Floats, float, float, int | None] | None:
    """[R, S] ns a step that each rank's loader takes; NaN: unknown. Then what healthy ones usually take, what a step
    of a job with such loaders takes, and the only row of which loads are known, if it is one.

    ``None`` where it is known of no rank, or of one that is not seen to have workers: it may as well stall.
    """
    table = columns_that_fill(phases.training(run.steps), "step")
    numbers = np.union1d(table["step"], blocks.steps).astype(np.int64)
    times = phases.pivots(table, blocks.ranks, numbers, ("start_ns", "input_ns"))
    if len(times) < 2:
        return None
    waits = times["input"] > _WAITED * turn * average(blocks.period)
    ready, loads = times["start"] + times["input"], np.full(waits.shape, np.nan)
    twice = waits[:, turn:] & waits[:, :-turn]
    loads[:, turn:] = np.where(twice, (ready[:, turn:] - ready[:, :-turn]) / turn, np.nan)
    since = ready[:, :turn] - times["start"][:, :1]  # workers start all at once, with the first step
    level = median(loads, axis=1)
    filled = or_zero(np.where(np.isnan(loads), level[:, None], loads))
    spans = np.array([segmentation.levels(row) for row in filled])
    scatter = (loads / np.where(np.isnan(loads), np.nan, spans) - 1)[~np.isnan(loads)]
    if not len(scatter):
        return None
    started = float(median(since[:, 0] - turn * level))
    started = started if started > _OUTLIES * scatter.std() * turn * median(level) else 0.0
    loads[:, :turn] = np.where(waits[:, :turn], (since - started) / turn, np.nan)
    rows = np.flatnonzero(~np.isnan(loads).all(axis=1))
    workers, alone = blocks.gauge("children"), int(rows[0]) if len(rows) == 1 else None
    seen = alone is None or (workers is not None and workers[alone] >= _SEEN)
    if not seen:
        return None
    first = (ready - times["start"][:, :1] - started)[:, ::turn]
    usual, error, count = usual_load(first, waits[:, ::turn], float(scatter.std()))
    pace = float("nan")
    if count > FEW_RANKS - 1:
        # They load ahead, which evens out their batches: steps take as long as what else is in them, or as loading.
        pace = max(usual / turn, float(median(blocks.period - or_zero(blocks.parts["input"]).max(axis=0))))
    usual = (usual + error) / turn if count else float(lower_median(level, axis=0))
    return loads[:, np.searchsorted(numbers, blocks.steps)], usual, pace, alone


def length(blocks: Blocks) -> int:
    """After how many steps waits for input come again; 1 where they do not come in turns."""
    inputs = blocks.parts.get("input")
    if inputs is None:
        return 1
    waited = or_zero(inputs).max(axis=0)
    waited = np.minimum(waited, np.quantile(waited, _CLIPPED))
    lags, step = np.arange(1, min(_MOST_WORKERS, len(waited) // _TURNS) + 1), average(blocks.period)
    if len(lags) < 2 or not waited.mean() >= _WAITS * step or not finds_batches(inputs, step).any():
        return 1
    differs = waited - waited.mean()
    alike = np.array([np.mean(differs[lag:] * differs[:-lag]) for lag in lags]) / max(float(np.mean(differs**2)), 1.0)
    found = int(np.argmax(alike >= alike.max() - _BY_CHANCE / np.sqrt(len(waited)))) + 1
    return found if found > 1 and alike[found - 1] >= max(_ALIKE, alike[0] + _MORE) else 1


def finds_batches(inputs: Floats, step: float) -> Bools:
    """Whether batches are there in so many of the steps (last axis) that workers load them; ``inputs`` is in ns."""
    return np.asarray(np.mean(inputs < _WAITED * step, axis=-1) >= _AHEAD)


def mean_of_turn(block: Floats, turn: int) -> Floats:
    """[R, S] means of the known values in as many steps around each; at the ends, of the first and last so many."""
    known = ~np.isnan(block)
    sums, counts = (np.cumsum(np.pad(one, ((0, 0), (1, 0))), axis=1) for one in (np.where(known, block, 0.0), known))
    count = counts[:, turn:] - counts[:, :-turn]
    means = np.where(count > 0, (sums[:, turn:] - sums[:, :-turn]) / np.maximum(count, 1), np.nan)
    return np.pad(means, ((0, 0), (turn // 2, turn - 1 - turn // 2)), mode="edge")
