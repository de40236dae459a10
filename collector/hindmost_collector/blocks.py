"""From a run to what detectors take: blocks of [rank x step], on no clock but each rank's own."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import align, steps
from hindmost_collector.model import PHASES, Run, Table, rows
from hindmost_collector.robust import median, peers_median, sums_by_step

if TYPE_CHECKING:
    from hindmost_collector.align import Floats, Grid, Ints
    from hindmost_collector.settings import Settings

#: Phases in which a rank may sit waiting for others without saying so: no sign of its own slowness.
_MAY_WAIT = {"backward", "sync", "gpu_backward"}
#: Phases that are not a share of the step's time but a property of it.
_NOT_TIME = {"cpu", "runqueue"}


@dataclass(frozen=True)
class Blocks:
    """What every rank did in every step; ns, NaN where unmeasured, R ranks, S steps after warm-up, K segments.

    ``excess`` [R, S] is how much later than its median peer a rank was by its own doing. ``segments`` [R, K] is the
    same for each stretch between two synchronisations and ``segment_step`` [K] the step's index. ``period`` [S] is the
    job's step time, ``wait`` [R, S] what a rank waited in collectives, ``caused`` [R, S] what it made each other one
    wait, ``last`` [R, S] the share of collectives it entered last. ``parts`` are what own time consists of.
    """

    ranks: Ints
    steps: Ints
    period: Floats
    own: Floats
    excess: Floats
    segments: Floats
    segment_step: Ints
    wait: Floats
    caused: Floats
    last: Floats
    collectives: int
    warmup: int
    parts: dict[str, Floats] = field(default_factory=dict)
    work: Floats | None = None
    evidence: str = "collectives"
    overlapped: bool = False

    @property
    def step_ns(self) -> float:
        """Typical step time of the job."""
        return float(median(self.period))


def build(run: Run, settings: Settings) -> Blocks | None:
    """The blocks of a run, from its collectives where it has them, else from its steps' phases; ``None``: neither."""
    joined = align.grid(run)
    table = _training(run.steps)
    if joined is not None and len(joined.ranks) > 1:
        found = _from_collectives(joined, table, settings)
        if found is not None:
            return found
    return _from_phases(table, settings) if rows(table) else None


def _training(table: Table) -> Table:
    """Steps that train: evaluation is a phase of its own and nobody's stall."""
    if rows(table) == 0:
        return table
    mask = (table["kind"] != "eval") & (table["duration_ns"] > 0)
    return {name: column[mask] for name, column in table.items()}


def _from_collectives(joined: Grid, table: Table, settings: Settings) -> Blocks | None:
    own = align.own_time(joined)
    number = joined.step
    if (number < 0).all():
        number = steps.infer(joined.token, median(own, axis=0))
    keep = np.flatnonzero(number >= 0)
    if len(keep) == 0:
        return None
    keep = keep[np.argsort(number[keep], kind="stable")]
    joined, own, number = joined.take(keep), own[:, keep], number[keep]
    found, starts = np.unique(number, return_index=True)
    period = _period(joined, starts, found, table)
    first = steps.warmup(period, settings)
    if len(found) - first < 1:
        return None
    cut = starts[first]
    joined, own = joined.take(np.arange(cut, joined.columns)), own[:, cut:]
    return _assemble(joined, own, found[first:], starts[first:] - cut, period[first:], first, table)


def _assemble(
    joined: Grid, own: Floats, numbers: Ints, starts: Ints, period: Floats, warmup: int, table: Table
) -> Blocks:
    waits = np.maximum(joined.duration - align.shortest(joined), 0.0)
    is_last = joined.duration == align.shortest(joined)
    counts = np.diff(np.append(starts, joined.columns))
    step_of = np.repeat(np.arange(len(numbers)), counts)
    overlapped = joined.gpu_time and joined.group.shape[1] == 1
    if overlapped:
        excess = _lateness(joined.duration, step_of, starts)
        segments, segment_step = excess, np.arange(len(numbers))
    else:
        segments, segment_step = own - peers_median(own), step_of
        excess = sums_by_step(segments, starts)
    members = np.maximum(np.sum(~np.isnan(joined.duration), axis=0) - 1, 1)
    caused = np.where(is_last, np.nansum(waits, axis=0) / members, 0.0)
    return Blocks(
        ranks=joined.ranks,
        steps=numbers,
        period=period,
        own=sums_by_step(own, starts),
        excess=excess,
        segments=np.nan_to_num(segments),
        segment_step=segment_step,
        wait=sums_by_step(waits, starts),
        caused=sums_by_step(caused, starts),
        last=sums_by_step(is_last.astype(float), starts) / counts,
        collectives=joined.columns,
        warmup=warmup,
        parts=_parts(joined, own, starts, numbers, table),
        work=_pivot(table, joined.ranks, numbers, "work"),
        overlapped=overlapped,
    )


def _lateness(duration: Floats, step_of: Ints, starts: Ints) -> Floats:
    """[R, S] how late each rank was where it typically is latest in the step.

    Where collectives overlap with computing, one delay shows again in every collective of the step; the largest counts,
    at the position in the step where it typically is largest, so that noise is not collected over all positions.
    """
    late = peers_median(duration) - duration
    position = np.arange(duration.shape[1]) - starts[step_of]
    typical = np.stack([median(late[:, position == p], axis=1) for p in range(position.max() + 1)], axis=1)
    where = np.argmax(np.nan_to_num(typical, nan=-np.inf), axis=1)
    column = np.minimum(starts[None, :] + where[:, None], np.append(starts[1:], duration.shape[1])[None, :] - 1)
    return np.take_along_axis(late, column, axis=1)


def _period(joined: Grid, starts: Ints, numbers: Ints, table: Table) -> Floats:
    """[S] step time: what the ranks' step marks say, else from the end of one step's collectives to the next's."""
    marked = _pivot(table, joined.ranks, numbers, "duration_ns")
    if marked is not None:
        return median(marked, axis=0)
    end = joined.start + joined.duration
    ends = end[:, np.append(starts[1:], joined.columns) - 1]
    lengths = np.full(ends.shape, np.nan)
    lengths[:, 1:] = np.diff(ends, axis=1)
    return median(lengths, axis=0)


def _parts(joined: Grid, own: Floats, starts: Ints, numbers: Ints, table: Table) -> dict[str, Floats]:
    """What own time consists of: CPU, run queue and being blocked between collectives, or the phases of the steps."""
    found = _phase_blocks(table, joined.ranks, numbers)
    if not np.isnan(joined.cpu).all():
        runqueue = np.nan_to_num(joined.runqueue)
        cpu = np.clip(joined.cpu, 0.0, np.maximum(own - runqueue, 0.0))  # of all threads: more than elapsed is parallel
        known = ~np.isnan(joined.cpu)
        found["self_cpu"] = sums_by_step(cpu, starts)
        if not np.isnan(joined.runqueue).all():
            found["self_runqueue"] = sums_by_step(np.where(known, runqueue, np.nan), starts)
            found["self_blocked"] = sums_by_step(np.where(known, own - cpu - runqueue, np.nan), starts)
    return found


def _phase_blocks(table: Table, ranks: Ints, numbers: Ints) -> dict[str, Floats]:
    """Every measured phase as [R, S]."""
    blocks = {name: _pivot(table, ranks, numbers, f"{name}_ns") for name in PHASES}
    return {name: block for name, block in blocks.items() if block is not None}


def _pivot(table: Table, ranks: Ints, numbers: Ints, name: str) -> Floats | None:
    """[R, S] of one column of the steps; ``None`` where no rank measured it."""
    if rows(table) == 0 or name not in table:
        return None
    row = np.searchsorted(ranks, table["rank"])
    column = np.searchsorted(numbers, table["step"])
    row, column = np.minimum(row, len(ranks) - 1), np.minimum(column, len(numbers) - 1)
    held = (ranks[row] == table["rank"]) & (numbers[column] == table["step"]) & (table[name] >= 0)
    if not held.any():
        return None
    block = np.full((len(ranks), len(numbers)), np.nan)
    block[row[held], column[held]] = table[name][held]
    return block


def _from_phases(table: Table, settings: Settings) -> Blocks | None:
    """Without collectives the phases in which nobody waits tell who is late; the rest of the step is wait."""
    ranks, numbers = np.unique(table["rank"]).astype(np.int64), np.unique(table["step"]).astype(np.int64)
    duration = _pivot(table, ranks, numbers, "duration_ns")
    if duration is None:
        return None
    first = steps.warmup(median(duration, axis=0), settings)
    numbers, duration = numbers[first:], duration[:, first:]
    parts = _phase_blocks(table, ranks, numbers)
    busy = [block for name, block in parts.items() if name not in _MAY_WAIT | _NOT_TIME and not name.startswith("gpu_")]
    own = np.sum([np.nan_to_num(block) for block in busy], axis=0) if busy else np.full_like(duration, np.nan)
    excess = own - peers_median(own)
    nothing = np.full_like(duration, np.nan)
    return Blocks(
        ranks=ranks,
        steps=numbers,
        period=median(duration, axis=0),
        own=own,
        excess=excess,
        segments=np.nan_to_num(excess),
        segment_step=np.arange(len(numbers)),
        wait=nothing,
        caused=nothing,
        last=nothing,
        collectives=0,
        warmup=first,
        parts=parts,
        work=_pivot(table, ranks, numbers, "work"),
        evidence="phases",
    )
