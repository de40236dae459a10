"""From a run to what detectors take: blocks of [rank x step], on no clock but each rank's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.telemetry import Samples
from hindmost_judge.encoding import columns_that_fill, distinct_integers
from hindmost_judge.model import Job, Run, Table, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import SAMPLE, median, or_zero, peers_median, sums_by_step
from hindmost_judge.timeline import cohorts, matching, phases, pipelined, steps
from hindmost_judge.timeline.cohorts import that_meet
from hindmost_judge.timeline.collective_calls import SAMPLED_FROM_NS
from hindmost_judge.timeline.exchanges import Exchanges, with_exchanges_joined
from hindmost_judge.timeline.matching import Grid
from hindmost_judge.timeline.messages import messages_a_step, schedule_of, with_gathers_joined
from hindmost_judge.timeline.overlap import delay_by_round, is_overlapped, net_of_prefetch, overlapping_columns
from hindmost_judge.types import Array, Floats, Ints


def build(run: Run, settings: Settings) -> Blocks | None:
    """The blocks of a run, from its collectives where it has them, else from its steps' phases; ``None``: neither."""
    run = phases.with_steps_of_launches(run)
    table = columns_that_fill(phases.training(run.steps), "step")
    ours = run.job.source == Job.source  # other recordings do not guarantee that every step is marked
    found = _by_marks(run, table, settings) if ours and _too_short(run.collectives, table, settings) else None
    if found is None or len(found.steps) < settings.min_steps:
        found = _of_collectives(run, table, settings)
    if found is None:
        return None
    times = phases.pivots(table, found.ranks, found.steps, ("start_ns", "duration_ns"))
    began, took = times.get("start"), times.get("duration")
    inside = phases.intervals_by_step(run.intervals, found.ranks, steps.step_ends(found, began, took), found.period[0])
    return replace(
        found,
        took=took,
        ended=began + took if began is not None and took is not None else None,
        parts=inside | found.parts,
        samples=Samples(run, found.ranks, steps.step_bounds(found, began)),
    )


#: Ranks are judged by their exchanges where these are of so many times as many steps as their collectives.
_OFTEN = 4


def _of_collectives(run: Run, table: Table, settings: Settings) -> Blocks | None:
    """The blocks of the collectives; where they are of too few steps, of exchanges with neighbours, or of the marks.

    Ranks that exchange in each step may meet in a collective only now and then.
    """
    run = with_gathers_joined(run)
    found = _of_meetings(run, table)
    if (exchanging := with_exchanges_joined(run, rare=_enough(found, settings))) is not None:
        of_messages = _of_meetings(exchanging.run, table)
        if of_messages is not None and (found is None or len(of_messages.steps) >= _OFTEN * len(found.steps)):
            judged = np.asarray(np.isin(exchanging.neighbours, of_messages.ranks).all(axis=0))
            neighbours = np.searchsorted(of_messages.ranks, exchanging.neighbours[:, judged])
            of_messages = replace(of_messages, neighbours=neighbours, travel=_travel(exchanging, of_messages, judged))
            in_cohorts = cohorts.of_exchanges(of_messages, exchanging.kind, exchanging.cohort, settings)
            found = _rather(in_cohorts, found, settings)
        elif found is not None and len(found.ranks) == len(exchanging.kind) and not exchanging.cohort.any():
            found = cohorts.of_exchanges(found, exchanging.kind, exchanging.cohort, settings)
    if not _enough(found, settings) and rows(table):  # a profiler looks at a few steps, step marks at all
        found = _rather(_by_marks(run, table, settings), found, settings)
    return found


def _travel(exchanging: Exchanges, found: Blocks, judged: Array) -> Floats | None:
    """[E, S] for how long ranks waited on in each step, of the ``judged`` neighbours; ``None`` where a step has several
    exchanges."""
    grid = found.joined
    one_each = grid is not None and grid.columns == len(found.steps)
    return exchanging.travel[judged][:, grid.seq] if grid is not None and one_each else None


def _enough(found: Blocks | None, settings: Settings) -> bool:
    return found is not None and len(found.steps) >= settings.min_steps


def _rather(other: Blocks | None, found: Blocks | None, settings: Settings) -> Blocks | None:
    return other if found is None or _enough(other, settings) else found


def _of_meetings(run: Run, table: Table) -> Blocks | None:
    joined = matching.grid(run)
    alone = run.job.world_size == 1 and not rows(table)
    if joined is None or (len(joined.ranks) < 2 and not alone):
        return None
    found, pace_ns = _from_collectives(run, joined, table), run.job.pace_ns
    if found is None or pace_ns is None or not np.isnan(found.period).all():
        return found
    return replace(found, period=np.full(len(found.steps), pace_ns * found.collectives / len(found.steps)))


def _by_marks(run: Run, table: Table, settings: Settings) -> Blocks | None:
    on_gpus, sending = bool((run.ranks["gpu_uuid"] != "").any()), messages_a_step(run, table["step"]) >= 1
    found = _from_phases(table, settings, on_gpus=on_gpus, sending=sending)
    return pipelined.of_transfers(found, run) if found is not None else None


def _too_short(collectives: Table, table: Table, settings: Settings) -> bool:
    """Whether collectives, of which a window holds so many rows, are of fewer of the newest steps than is judged by.

    As many steps are marked in as much time, one more may have begun before, and the first is left out as a warm-up.
    GPUs have a clock of their own, so that times are not compared, only how long it is from the first to the last.
    """
    if not rows(collectives) or not rows(table) or min(one["start_ns"].min() for one in (collectives, table)) < 0:
        return False
    since = table["start_ns"].max() - np.ptp(collectives["start_ns"])
    return len(distinct_integers(table["step"][table["start_ns"] >= since])) < settings.min_steps


#: Between two segments lies the left-out time, less a part of a step: at least this share of the expected distance.
_NEARLY = 0.9


def _from_collectives(run: Run, joined: Grid, table: Table) -> Blocks | None:
    self_time = matching.self_time(joined)
    number = joined.step
    if (number < 0).all():
        number = steps.steps_of_collectives(joined, self_time, table, run.counted)
    keep = np.flatnonzero(number >= 0)
    if len(keep) == 0:
        return None
    keep = keep[np.argsort(number[keep], kind="stable")]
    joined, self_time, number = joined.take(keep), self_time[:, keep], number[keep]
    found, starts = np.unique(number, return_index=True)
    period = _step_times(joined, starts, found, table)
    unmarked = (joined.step < 0).all() and not rows(table)
    if (
        unmarked
        and steps.are_parts(period)
        and steps.are_parts(np.fmin.reduce(sums_by_step(self_time, starts), axis=0))
    ):
        return None  # parts in what all ranks do, not one that the others wait for
    if run.job.skipped_ns is not None:  # what lies between two periods of an excerpt is no step
        period = np.where(period < _NEARLY * run.job.skipped_ns, period, np.nan)
    waits = np.maximum(joined.duration - matching.shortest(joined), 0.0)[:: max(len(joined.ranks) // SAMPLE, 1)]
    waited = sums_by_step(waits, starts)
    alone = period - (waited.max(axis=0) if len(waited) == 2 else median(waited, axis=0))  # of two ranks only one waits
    first = min(steps.warmup(period), steps.warmup(alone))  # a stall is no warm-up, nor are steps that wait for a rank
    if len(found) - first < 1:
        return None
    # A recording without warm-up may begin within a step: the first to come has not waited for set-up.
    entered = (np.fmax if first else np.fmin).reduce(joined.start[:, 0])
    entered_ns = float(entered) if not joined.gpu_time else float("-inf")
    cut = starts[first]
    position = np.arange(joined.columns) - np.repeat(starts, np.diff(np.append(starts, joined.columns)))
    overlapping = overlapping_columns(joined, position)
    overlapping[:cut] = False
    if overlapping.any():
        self_time = matching.self_time(joined, overlapping)
    left = np.fmax.reduce((joined.start + joined.duration)[:, :cut], axis=1, initial=np.nan)
    joined, self_time = joined.take(np.arange(cut, joined.columns)), self_time[:, cut:]
    numbers, starts, overlapping = found[first:], starts[first:] - cut, overlapping[cut:]
    order = schedule_of(run, joined, starts, overlapping, left)
    cohort = cohorts.find(joined, self_time, order.stages(len(joined.ranks)) if order is not None else None)
    assembled = _assemble(joined, self_time, overlapping, numbers, starts, table, cohort)
    return pipelined.of(replace(assembled, period=period[first:], warmup=first, entered_ns=entered_ns), order)


def _assemble(
    joined: Grid, self_time: Floats, overlapping: Array, numbers: Ints, starts: Ints, table: Table, cohort: Ints
) -> Blocks:
    """The blocks of collectives [R, K] from the first step after warm-up on: ``self_time`` [R, K] is before each,
    ``starts`` [S] the first of each step, ``numbers`` [S] the steps; ``table``: marks. The caller has the period."""
    # The last to come does not wait: the shortest call is the transfer, and what others take beyond it is their wait.
    shortest = matching.shortest(joined)
    waits = np.maximum(joined.duration - shortest, 0.0)
    is_last = joined.duration == shortest
    counts = np.diff(np.append(starts, joined.columns))
    step_of = np.repeat(np.arange(len(numbers)), counts)
    parts = phases.pivots(table, joined.ranks, numbers, ("work", *phases.COLUMNS))
    work = phases.counted(parts.pop("work", None))
    parts |= _parts(joined, self_time, starts)
    computed = work if work is not None else parts.get("gpu_forward")
    overlapped = is_overlapped(joined, self_time, step_of, starts, computed)
    intervals = delay_by_round(joined, self_time, starts) if overlapped else cohorts.delay(joined, self_time, cohort)
    if not overlapped and joined.gpu_time and joined.gathers.any():
        intervals = net_of_prefetch(joined, self_time, starts, intervals)
    members = np.maximum(np.sum(~np.isnan(joined.duration), axis=0) - 1, 1)
    caused = np.where(is_last, np.nansum(waits, axis=0) / members, 0.0)
    return Blocks(
        ranks=joined.ranks,
        steps=numbers,
        period=np.full(len(numbers), np.nan),
        self_time=sums_by_step(self_time, starts),
        delay=intervals if overlapped else sums_by_step(intervals, starts),
        intervals=or_zero(intervals),
        interval_step=np.arange(len(numbers)) if overlapped else step_of,
        wait=sums_by_step(waits, starts),
        transfer=sums_by_step(shortest, starts),
        caused=sums_by_step(caused, starts),
        last=sums_by_step(is_last.astype(float), starts) / counts,
        collectives=joined.columns,
        starts=starts,
        warmup=0,
        group=joined.group,
        comm_class=np.zeros(len(numbers), np.int64) if overlapped else joined.comm_class,
        overlapping=overlapping,
        cohort=cohort,
        parts=parts,
        joined=joined,
        work=work,
        overlapped=overlapped,
    )


#: What :class:`Blocks` rest on where a job shows when its steps began and ended, and nothing else.
BARE = "bare steps"
#: … or which phases they had, and no collectives.
PHASES = "phases"


#: Share of a step's self time whose CPU time is known, from which on that tells of the step.
_MEASURED = 0.5


def _parts(joined: Grid, self_time: Floats, starts: Ints) -> dict[str, Floats]:
    """The parts of self time between collectives, where they were measured: CPU, run queue and being blocked."""
    found = dict[str, Floats]()
    if not np.isnan(joined.cpu).all():
        # The kernel charges a wait when it ends: one that began in the collective may exceed the gap it ended in. CPU
        # time is exact, so it goes first. For MPI ranks it is the process's, and may exceed the elapsed time if several
        # threads computed; elsewhere it is the training thread's.
        room = np.where(joined.cpu <= self_time, self_time - joined.cpu, self_time)
        runqueue = np.clip(or_zero(joined.runqueue), 0.0, np.maximum(or_zero(room), 0.0))
        cpu = np.clip(joined.cpu, 0.0, np.maximum(self_time - runqueue, 0.0))
        known = ~np.isnan(joined.cpu)
        short = ~known & (self_time < SAMPLED_FROM_NS)  # the gap itself, which is the most it can have computed
        seen = sums_by_step(np.where(known | short, self_time, 0.0), starts)
        present = sums_by_step(~np.isnan(self_time), starts) > 0
        # What was measured of most of a step's self time is the least of it; a rank without calls in it shows nothing.
        least = np.where(present & (seen >= _MEASURED * sums_by_step(self_time, starts)), 0.0, np.nan)
        found["self_cpu"] = least + sums_by_step(np.where(short, self_time, cpu), starts)
        if not np.isnan(joined.runqueue).all():
            found["self_runqueue"] = least + sums_by_step(np.where(known, runqueue, 0.0), starts)
            found["self_blocked"] = least + sums_by_step(self_time - cpu - runqueue, starts)
    return found


def _from_phases(table: Table, settings: Settings, *, on_gpus: bool, sending: bool) -> Blocks | None:
    """Without collectives, phases without waiting show who is late; the rest of the step is wait.

    Bare steps show less: ranks that wait for each other take equally long for them. Only a rank that takes longer than
    the others, which do not wait for it there, is seen.
    """
    ranks, numbers = (distinct_integers(table[name]).astype(np.int64) for name in ("rank", "step"))
    parts = phases.pivots(table, ranks, numbers, ("duration_ns", "work", *phases.COLUMNS))
    duration, work = parts.pop("duration", None), phases.counted(parts.pop("work", None))
    if duration is None:
        return None
    if not on_gpus:  # item() of a loss waits for a GPU, and so for every rank that the GPU waits for
        parts = phases.with_rest(parts, duration)
    self_time, on_gpu = phases.busy(parts, duration, sending=sending)
    shared = np.flatnonzero(np.sum(~np.isnan(duration), axis=0) >= min(2, len(ranks)))
    if len(shared) == 0:  # no step that two ranks have
        return None
    first = steps.warmup(median(duration[:, shared], axis=0))
    chosen = shared[first:]
    chosen = chosen[steps.not_profiled(table, numbers[chosen], settings.min_steps)]
    numbers, duration = numbers[chosen], duration[:, chosen]
    self_time = np.where(np.isnan(duration), np.nan, self_time[:, chosen])  # a step that a rank did not record
    parts = {name: block[:, chosen] for name, block in parts.items()}
    bare = bool(np.isnan(self_time).all())
    period = duration.max(axis=0) if not np.isnan(duration).any() else median(duration, axis=0)
    if on_gpu is not None:  # hosts that run ahead are not in the step that their GPUs are in
        period = median(np.where(np.isnan(duration), np.nan, on_gpu[:, chosen]), axis=0)
    return replace(
        _without_collectives(ranks, numbers, period, duration if bare else self_time),
        warmup=first,
        parts=parts,
        work=work[:, chosen] if work is not None else None,
        evidence=BARE if bare else PHASES,
    )


def _without_collectives(ranks: Ints, numbers: Ints, period: Floats, self_time: Floats) -> Blocks:
    """Ranks in steps of which nothing is known but ``self_time`` [R, S], what each took for itself."""
    delay, nothing = self_time - peers_median(self_time), np.full_like(self_time, np.nan)
    return Blocks(
        ranks=ranks,
        steps=numbers,
        period=period,
        self_time=self_time,
        delay=delay,
        intervals=or_zero(delay),
        interval_step=np.arange(len(numbers)),
        wait=nothing,
        transfer=nothing,
        caused=nothing,
        last=nothing,
        collectives=0,
        starts=np.arange(len(numbers)),
        warmup=0,
        group=np.zeros((len(ranks), 1), np.int64),
        comm_class=np.zeros(len(numbers), np.int64),
        overlapping=np.zeros(len(numbers), bool),
        cohort=np.zeros(len(ranks), np.int64),
    )


#: Groups of ranks whose steps are longer by this factor are not part of the others' steps.
_OWN_PACE = 1.1


def _step_times(joined: Grid, starts: Ints, numbers: Ints, table: Table) -> Floats:
    """[S] step time: from the end of one step's collectives to the next's on a GPU's clock, else from the marks.

    Hosts run ahead of their GPUs, so that the time between two marks of a host is not the time a step takes.
    """
    marked = phases.pivots(table, joined.ranks, numbers, ("duration_ns",)).get("duration")
    if marked is not None and (not joined.gpu_time or np.isnan(joined.start).all()):
        return _slowest(marked, joined)
    end = joined.start + joined.duration
    ends = end[:, np.append(starts[1:], joined.columns) - 1]
    lengths = np.full(ends.shape, np.nan)
    lengths[:, 1:] = np.diff(ends, axis=1)
    apart = np.diff(numbers)
    lengths[:, 1:][:, apart > median(apart)] = np.nan  # steps are missing between, as in a torn segment
    return _slowest(lengths, joined)


def _slowest(lengths: Floats, joined: Grid) -> Floats:
    """[S] how long the typical rank's steps are [R, S]; with sets that train in parallel, those of the slowest."""
    which, typical = that_meet(joined), median(lengths, axis=0)
    if (which == which[0]).all():
        return typical
    each = [median(lengths[which == one], axis=0) for one in np.unique(which)]
    slowest = max(each, key=lambda one: float(np.nan_to_num(median(one))))
    return slowest if median(slowest) > _OWN_PACE * median(typical) else typical
