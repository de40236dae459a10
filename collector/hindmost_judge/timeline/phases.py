"""The steps table as blocks of [rank x step]: marks, phases, work, and intervals that are no phases of a step.

Waiting may hide inside forward phases on the GPU, where steps alone must show who is late. Sharded parameters,
tensor-parallel groups, synchronised batch norm and broadcast buffers make ranks meet in forward: early ranks wait there
for late ones. A rank whose GPU idles some ms more before its forward than another's waits for its host, and for no
other rank. If that other rank's forward is longer by just as much in the same step, it waited. A rank that computes
longer is longer by any amount, regardless of others' idle time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from hindmost_judge.encoding import chosen, codes, grouped, is_constant
from hindmost_judge.model import AMOUNTS, GPU_TIME, OTHER, PHASES, UNMEASURED, Run, Table, has_launches, rows
from hindmost_judge.stats.robust import median, or_zero
from hindmost_judge.types import Array, Floats, Ints

#: Phases in which a rank may sit waiting for others without saying so: no sign of its own slowness.
_MAY_WAIT = {"backward", "sync", "device_wait", "device_copy", "gpu_backward"}
#: … and where ranks send to each other in their steps: what waits for a message is in it.
_HOLD_MESSAGES = {"forward", "gpu_forward"}
#: Columns of the phases.
COLUMNS = tuple(f"{name}_ns" for name in PHASES)


def training(table: Table) -> Table:
    """Steps that train: evaluation is a phase of its own, and never a stall."""
    if rows(table) == 0:
        return table
    mask = (table["kind"] != "eval") & (table["duration_ns"] > 0)
    return chosen(table, mask)


def pivots(table: Table, ranks: Ints, numbers: Ints, names: Iterable[str] = COLUMNS) -> dict[str, Floats]:
    """[R, S] of each of these columns that some rank measured, by its name without the unit.

    Where some rank recorded a step more than once, the last that was measured counts.
    """
    there = [name for name in names if name in table and rows(table)]
    there = [name for name in there if not (is_constant(table[name]) and table[name][0] < 0)]
    if not there:
        return {}
    row, of_ranks = _places(ranks, table["rank"])
    column, of_steps = _places(numbers, table["step"])
    place, found = np.where(of_ranks & of_steps, row * len(numbers) + column, -1), dict[str, Floats]()
    for name in there:
        measured = (place >= 0) & (table[name] >= 0)
        if measured.any():
            block = np.full(len(ranks) * len(numbers), np.nan)
            block[place[measured]] = table[name][measured]
            found[name.removesuffix("_ns")] = block.reshape(len(ranks), len(numbers))
    return found


def _places(known: Ints, values: Ints) -> tuple[Ints, Array]:
    """Where in ``known``, sorted, each value is, and whether it is there at all."""
    if known[-1] - known[0] == len(known) - 1:  # without gaps there is nothing to search
        place = values.astype(np.int64) - known[0]
        there = (place >= 0) & (place < len(known))
        return np.where(there, place, 0), there
    place = np.minimum(np.searchsorted(known, values), len(known) - 1)
    return place, known[place] == values


def unnamed(parts: Mapping[str, Array], duration: Array) -> Array | None:
    """ns of each step in no phase of its host's, such as logging after the optimizer's step; ``None`` without any.

    NaN where a step is not known by its phases. A copy that was timed in addition to the GPU's phases is inside
    forward.
    """
    if "optimizer" not in parts:
        return None
    named = [name for name in parts if name in PHASES and name not in AMOUNTS and not name.startswith("gpu_")]
    total = np.zeros(np.shape(parts["optimizer"]))
    for name in named:  # one after the other: there may be millions of steps
        took = np.maximum(or_zero(parts[name]), 0.0)
        if name == "h2d" and "gpu_forward" in parts:
            took = np.where(parts["gpu_forward"] >= 0, 0.0, took)
        total += took
    rest = np.maximum(duration - total, 0.0)
    return np.where(parts["optimizer"] >= 0, rest, np.nan)


def with_rest(parts: dict[str, Floats], duration: Floats) -> dict[str, Floats]:
    """These phases, and the rest of each step where that is self time: where waiting for others is recorded as sync.

    Elsewhere a rank may wait in the rest, too: in an unmarked collective, or for a GPU that waits in one.
    """
    rest = unnamed(parts, duration)
    if rest is None or "sync" not in parts or _on_gpu(parts) is not None:
        return parts
    return parts | {OTHER: np.where(np.isnan(parts["sync"]), np.nan, rest)}


def counted(work: Floats | None) -> Floats | None:
    """[R, S] samples or tokens without the steps that counted none; ``None`` where none did."""
    return np.where(work > 0, work, np.nan) if work is not None and (work > 0).any() else None


def named_share(parts: Mapping[str, Floats], duration: Floats) -> Floats:
    """[R, S] share of each step that is in a phase of its host's or of its GPU's, whichever has more."""
    total = {True: np.zeros_like(duration), False: np.zeros_like(duration)}
    for name in (name for name in parts if name in {*PHASES, OTHER} - AMOUNTS):
        total[name.startswith("gpu_")] += np.maximum(or_zero(parts[name]), 0.0)
    return np.asarray(np.maximum(total[True], total[False]) / duration)


def _on_gpu(parts: dict[str, Floats]) -> Floats | None:
    """[R, S] ns that the GPU was in one of its phases; ``None`` where untimed."""
    found = [block for name, block in parts.items() if name.startswith("gpu_")]
    return _sum(found) if found else None


def _idle(took: Floats, parts: dict[str, Floats], duration: Floats) -> Floats:
    """[R, S] ns for which GPUs, which ``took`` so long over each step, had nothing to do before it.

    A host that runs ahead is done with a step long before the GPU is, and waits for all of it once in a while: its
    time in one step says nothing about that step. The GPU begins a step when the host has got its input, or when it
    is done with the step before, whichever is later.
    """
    known = or_zero(duration)
    launched = np.cumsum(known, axis=1) - known + np.minimum(np.nan_to_num(parts.get("input", 0.0)), known)
    idle = np.zeros_like(known)
    done = np.zeros(len(known))
    for step in range(known.shape[1]):
        idle[:, step] = np.maximum(launched[:, step] - done, 0.0)
        done += idle[:, step] + took[:, step]
    return idle


def busy(parts: dict[str, Floats], duration: Floats, *, sending: bool = False) -> tuple[Floats, Floats | None]:
    """[R, S] ns of a step in which a rank surely did not wait for others; and the step's length on the GPU, with its
    idle time.

    ``None`` for the latter where the GPU was not timed. If it was, its phases and idle time count, and the host's do
    not: a host that is late while its GPU still has queued work delays no rank. ``sending``: ranks send to each other.
    """
    took, may_wait = _on_gpu(parts), _MAY_WAIT | (_HOLD_MESSAGES if sending else set())
    if took is not None:
        idle = _idle(took, parts, duration)
        busy_for = _sum([idle, *(parts[name] for name in parts if name.startswith("gpu_") and name not in may_wait)])
        if "gpu_forward" in parts and not sending:
            busy_for -= waited_in_forward(parts["gpu_forward"], idle, median(took + idle, axis=0))
        return busy_for, took + idle
    worked = {name: block for name, block in parts.items() if name not in may_wait | AMOUNTS}
    if worked.keys() <= {"gc"}:  # which is recorded of steps that are otherwise bare
        return np.full_like(duration, np.nan), None
    return _sum([*worked.values()]), None


def _sum(blocks: list[Floats]) -> Floats:
    """What these are together; what is missing counts as nothing."""
    total = or_zero(blocks[0])
    for block in blocks[1:]:
        total += or_zero(block)
    return total


#: A wait must equal the other's idle time before it within this share: GPUs begin a step slightly apart.
_AS_LONG = 0.2
#: Idling for less than this share of the step is launch time, and shows no delay.
_LEAST = 0.02
#: A rank that meets others there waits for at least this share of their delay; less may be chance.
_MOSTLY = 0.5


def waited_in_forward(forward: Floats, idle: Floats, step: Floats) -> Floats:
    """[R, S] ns of ``forward`` [R, S] in which a rank waited for the rank whose GPU was ``idle`` [R, S] longest before
    it.

    ``step`` [S] is how long each step is.
    """
    column = np.arange(forward.shape[1])
    last = np.argmax(np.where(np.isnan(forward), -1.0, idle), axis=0)
    longer = forward - forward[last, column]
    waits = idle[last, column] - idle
    waited_for = waits >= _LEAST * step
    alike = waited_for & (np.abs(longer - waits) <= _AS_LONG * waits)
    meets = np.sum(waits, axis=1, where=alike) >= _MOSTLY * np.sum(waits, axis=1, where=waited_for)
    return np.where(alike & meets[:, None], np.minimum(longer, waits), 0.0)


#: Names that causes ask for; what else there is stays out.
INTERVALS = ("issue", "file_read", "file_write", "file_sync", "checkpoint", "gc", "h2d", "input")


def intervals_by_step(table: Table, ranks: Ints, ends: Floats, first: float) -> dict[str, Floats]:
    """Name to [R, S] ns; ``ends`` [R, S] is when each rank's steps ended on the clock of the intervals.

    An interval belongs to the step in which it began; what began after the last step is left out. The ``first`` step
    took so many ns, or as many as the typical one where that is NaN.
    """
    if rows(table) == 0 or ends.shape[1] < 2:
        return {}
    name, names = codes(table["name"])
    found: dict[str, Floats] = {}
    for one, text in enumerate(names):
        if text not in INTERVALS:
            continue
        block = np.zeros(ends.shape)
        indices = np.flatnonzero((name == one) & (table["duration_ns"] >= 0))
        for row, rank in enumerate(ranks.tolist()):
            mine = indices[table["rank"][indices] == rank]
            if len(mine) == 0:
                continue
            step = np.searchsorted(ends[row], table["start_ns"][mine])
            begin = ends[row, 0] - np.fmax(first, np.median(np.diff(ends[row])))
            inside = (step < ends.shape[1]) & (table["start_ns"][mine] >= begin)
            np.add.at(block[row], step[inside], table["duration_ns"][mine[inside]].astype(np.float64))
        found[text] = block
    return found


#: Marks outside of which, before the first or after the last, a larger share is launched do not count: patterns tell
#: the steps of the whole run.
_MISSED = 0.25


def with_steps_of_launches(run: Run) -> Run:
    """Operations are of the step in which their host launched or entered them, where it marked that: hosts run ahead of
    their GPUs."""
    table, marks = run.collectives, run.steps
    if not rows(marks) or not rows(table):
        return run
    began = np.where((table["flags"] & GPU_TIME) == 0, table["start_ns"], UNMEASURED)
    began = np.where(table["enqueue_ns"] >= 0, table["enqueue_ns"], began) if has_launches(table) else began
    launched = np.flatnonzero(began >= 0)
    launched = launched[np.argsort(began[launched], kind="stable")]
    step = table["step"].copy()
    for mine in (launched[one] for one in grouped(table["rank"][launched])):
        found = _launched_in(marks, int(table["rank"][mine[0]]), began[mine])
        if found is None:
            return run
        step[mine] = np.where(step[mine] < 0, found, step[mine])
    return replace(run, collectives={**table, "step": step})


def _launched_in(marks: Table, rank: int, times: Array) -> Ints | None:
    """[N] the step that launched at these times, ascending ns; -1 for none; ``None`` where too few steps are marked.

    A mark may end early, as one of the forward does: until the next mark as many launches as usual are of it.
    """
    known = (marks["start_ns"] >= 0) & (marks["duration_ns"] != UNMEASURED)
    marked = np.flatnonzero((marks["rank"] == rank) & known)
    if len(marked) == 0:
        return np.full(len(times), UNMEASURED)
    marked = marked[np.argsort(marks["start_ns"][marked], kind="stable")]
    start = marks["start_ns"][marked]
    place = np.searchsorted(start, times, side="right") - 1
    inside = (place >= 0) & (times < start[place] + marks["duration_ns"][marked][place])
    trains = (place >= 0) & (marks["kind"][marked] != "eval")[place]
    usual = np.median(np.unique(place[trains], return_counts=True)[1]) if trains.any() else 0
    inside = trains & (inside | (np.arange(len(times)) - np.searchsorted(place, place) < usual))
    missed = (place < 0) | (trains & ~inside & (place == len(marked) - 1))
    return None if np.mean(missed) > _MISSED else np.where(inside, marks["step"][marked][place], UNMEASURED)
