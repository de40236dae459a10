"""Real clean recordings with faults put in: their noise is real, and the truth is known.

A fault makes the own work of a rank longer. What follows from that is replayed: ranks that meet it in a collective
leave it later, and all that came after on each rank's clock moves by as much. Then parts of the recording may be lost:
a rank's clock, its log of steps, the second half of its file, a part of the rows, all metrics.

A recording is the part of a file before its fault, where it has one.
"""

import os
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias

import numpy as np
from hindmost_judge.judge import judge
from hindmost_judge.model import IN_FLIGHT, STACKS, Run, Table, empty
from two_lanes.grade import compared
from two_lanes.job import Fault, Truth

Array: TypeAlias = "np.ndarray[Any, Any]"

ROOT = Path(__file__).resolve().parents[2]
OURS = ROOT / "tests/fixtures/recordings"
CORPUS = Path(os.environ.get("HINDMOST_CORPUS", ROOT.parent / "shared/corpus"))

MS = 1e6
#: A collective that starts so soon after the one before was queued behind it.
QUEUED = 30_000.0
#: Steps by which a log and the collectives may differ: a barrier at either end is counted as a part of one.
MOST_OFF = 2


@dataclass(frozen=True)
class Source:
    """A recording without faults in its first ``steps``, and how it ran.

    ``lanes``: where faults are put in, as lane and phase. ``blocks``: whether computing waits for each collective.
    ``waits``: the phase in which a host waits for its GPU; with ``ahead``, a fault is hidden by what it waits there.
    ``least``: the smallest fault, as a share of a step. ``slower``: ranks whose own work is longer without any fault.
    """

    name: str
    lanes: tuple[tuple[str, str], ...]
    steps: int | None = None
    blocks: bool = False
    waits: str = ""
    ahead: bool = False
    least: float = 0.03
    slower: tuple[int, ...] = ()


GPU = (("gpu", "forward"), ("gpu", "backward"))
HOST = (("host", "forward"), ("host", "backward"))
CPU = (("host", "cpu"), ("input", "blocked"))
_SOURCES = (
    Source("ddp-clean", GPU),
    Source("ddp-slow-compute-onset-rank1", GPU, steps=60),
    # rank 3 enters each of the first seven gathers 1.2 ms after the others, for its host launches them late
    Source("fsdp-slow-compute-from40-rank1", GPU, steps=40, blocks=True, slower=(3,)),
    Source("ddp-observed-clean", GPU, waits="forward"),
    Source("ddp-observed-late-input-rank1", (("input", "input"),), steps=120, waits="forward"),
    Source("hostbound-live-clean", HOST),
    Source(
        "inputbound-live-clean", (("input", "input"), ("host", "forward")), waits="forward", ahead=True, slower=(1,)
    ),
    # four ranks on two cores, which differ by a tenth and more without a fault
    *(Source(f"mpi-observed-even-{number}", CPU, blocks=True, least=0.2) for number in range(1, 5)),
)
#: The archive of each source; where the corpus is not there, its sources are left out.
_ARCHIVES = {
    source.name: path
    for source in _SOURCES
    for folder in (CORPUS, OURS)
    if (path := folder / f"{source.name}.tar.xz").exists()
}
SOURCES = {source.name: source for source in _SOURCES if source.name in _ARCHIVES}
#: Runs of each.
SHARES = dict.fromkeys(SOURCES, 100)
#: What is lost of a recording.
LOSSES = ("", "", "", "clock", "steps", "half", "rows", "metrics")
KINDS = ("clean", "lasting", "lasting", "onset", "onset", "stalls", "episode")


@dataclass(frozen=True)
class Clean:
    """A recording as blocks: ``place`` [R, K] rows of its collectives, ``step`` [K] of each column.

    ``arrives`` [R, K] and ``leaves`` [K] are ns on a clock that all share, since a collective's members leave together.
    """

    run: Run
    ranks: Array
    place: Array
    step: Array
    arrives: Array
    leaves: Array

    @property
    def steps(self) -> Array:
        return np.unique(self.step)


@lru_cache(maxsize=2)
def clean(name: str) -> Clean:
    """The recording of a source, its first step and what came before left out."""
    from hindmost_collector.recordings.load import load  # noqa: PLC0415 - its formats need packages that judging does not

    source, run = SOURCES[name], load(_ARCHIVES[name])
    table = run.collectives
    ranks = np.unique(table["rank"])
    mine = [np.flatnonzero((table["rank"] == rank) & (table["duration_ns"] >= 0)) for rank in ranks]
    mine = [rows[np.argsort(table["start_ns"][rows], kind="stable")] for rows in mine]
    numbers = _numbers(run, mine[0])
    kept = numbers >= 1
    place = np.stack([rows[: len(numbers)][kept] for rows in mine])
    numbers = numbers[kept]
    start, took = (table[column][place].astype(float) for column in ("start_ns", "duration_ns"))
    end = start + took - start[0, 0]
    end -= np.median(end - end[0], axis=1)[:, None]
    leaves = np.median(end, axis=0)
    whole = Clean(run, ranks, place, numbers, leaves - took, leaves)
    return within(whole, 0, source.steps) if source.steps else whole


def _numbers(run: Run, rows: Array) -> Array:
    """[K] step of each collective of a rank, -1 of those that are in none.

    Where no row says it, all steps have as many, and the longest time without any is before a step's first.
    """
    known = run.collectives["step"][rows]
    if (known >= 0).any():
        return np.asarray(known)
    steps = len(np.unique(run.steps["step"][run.steps["kind"] == "train"])) or len(rows)
    each, start = round(len(rows) / steps), run.collectives["start_ns"][rows]
    idle = np.append(0, start[1:] - (start + run.collectives["duration_ns"][rows])[:-1])
    first = int(np.argmax([np.median(idle[place::each]) for place in range(each)]))
    whole = (len(rows) - first) // each
    if abs(whole - steps) > MOST_OFF:
        raise ValueError(f"{whole} steps by collectives, {steps} by the log")
    numbers = np.full(len(rows), -1)
    numbers[first : first + each * whole] = np.repeat(np.arange(whole) + steps - whole, each)
    return numbers


def within(whole: Clean, first: int, last: int) -> Clean:
    """The steps from ``first`` to before ``last``."""
    kept = (whole.step >= first) & (whole.step < last)
    place = whole.place[:, kept]
    run, rows = whole.run, np.sort(place.ravel())
    inside = (run.steps["step"] >= first) & (run.steps["step"] < last) & (run.steps["kind"] == "train")
    begins, ends = (float(f(run.collectives["start_ns"][rows])) for f in (np.min, np.max))
    metrics = (run.metrics["time_ns"] >= begins) & (run.metrics["time_ns"] <= ends)
    intervals = (run.intervals["start_ns"] >= begins) & (run.intervals["start_ns"] <= ends)
    cut = replace(
        run,
        collectives=_taken(run.collectives, rows),
        steps=_taken(run.steps, inside),
        metrics=_taken(run.metrics, metrics),
        intervals=_taken(run.intervals, intervals),
        in_flight=empty(IN_FLIGHT),
        stacks=empty(STACKS),
        job=replace(run.job, exit_code=0, interrupted_by=None),
    )
    where = np.searchsorted(rows, place)
    return Clean(cut, whole.ranks, where, whole.step[kept], whole.arrives[:, kept], whole.leaves[kept])


def _taken(table: Table, rows: Array) -> Table:
    return {name: values[rows] for name, values in table.items()}


def injected(one: Clean, source: Source, fault: Fault) -> tuple[Run, float]:
    """The recording with a fault, and what it cost, ns."""
    delay = _delays(one, fault)
    arrives, leaves = _replayed(one, source, fault, delay)
    table = dict(one.run.collectives)
    start, took = table["start_ns"].copy(), table["duration_ns"].copy()
    moved = np.rint(arrives - one.arrives).astype(np.int64)
    start[one.place] += moved
    took[one.place] += np.rint(leaves - one.leaves).astype(np.int64) - moved
    ends = np.searchsorted(one.step, one.steps, side="right") - 1
    lag = np.rint((leaves - one.leaves)[ends]).astype(np.int64)  # of all ranks, once a step is over
    joins = (one.run.collectives["start_ns"] + one.run.collectives["duration_ns"])[one.place][:, ends]
    table |= {"start_ns": start, "duration_ns": took}

    def warp(rank: Array, times: Array) -> Array:
        """Times of ranks, moved by what all ranks lag behind since the last step that was over."""
        moved, behind = times.copy(), np.append(0, lag)
        for row, number in enumerate(one.ranks.tolist()):
            mine = np.flatnonzero(rank == number)
            moved[mine] += behind[np.searchsorted(joins[row], times[mine], side="right")]
        return np.asarray(moved)

    if "enqueue_ns" in table:
        table["enqueue_ns"] = np.where(
            table["enqueue_ns"] > 0, warp(table["rank"], table["enqueue_ns"]), table["enqueue_ns"]
        )
    if "self_ns" in table and (table["self_ns"] >= 0).any():
        table = _with_own(one, table, fault, delay)
    steps = _longer(one, source, fault, delay, warp, np.diff(lag, prepend=0))
    rank = np.full(len(one.run.metrics["time_ns"]), one.ranks[0])
    metrics = dict(one.run.metrics) | {"time_ns": warp(rank, one.run.metrics["time_ns"])}
    intervals = dict(one.run.intervals)
    intervals["start_ns"] = warp(intervals["rank"], intervals["start_ns"])
    run = replace(one.run, collectives=table, steps=steps, metrics=metrics, intervals=intervals)
    return run, float((leaves - one.leaves)[-1])


def _delays(one: Clean, fault: Fault) -> Array:
    """[R, S] ns that a fault adds to the work of each rank in each step."""
    steps, delay = one.steps, np.zeros((len(one.ranks), len(one.steps)))
    acts = (steps >= fault.onset) & (steps < (fault.end if fault.end is not None else steps[-1] + 1))
    acts &= (steps - fault.onset) % fault.every == 0
    delay[np.ix_(np.isin(one.ranks, fault.ranks), acts)] = fault.ms * MS
    return delay


def _hidden(one: Clean, source: Source) -> Array:
    """[R, S] ns that each host waits for its GPU: a fault of a host that is ahead takes these first."""
    table, steps = one.run.steps, one.steps
    waits = np.zeros((len(one.ranks), len(steps)))
    column = table[f"{source.waits}_ns"].astype(float)
    least = float(np.quantile(column[column > 0], 0.1))
    for row, rank in enumerate(one.ranks.tolist()):
        mine = np.flatnonzero((table["rank"] == rank) & np.isin(table["step"], steps))
        waits[row, np.searchsorted(steps, table["step"][mine])] = np.maximum(column[mine] - least, 0.0)
    return waits


def _replayed(one: Clean, source: Source, fault: Fault, delay: Array) -> tuple[Array, Array]:
    """[R, K] arrivals and [K] leaves with the fault."""
    shows = np.maximum(delay - _hidden(one, source), 0.0) if source.ahead else delay
    shortest = (one.leaves - one.arrives).min(axis=0)
    arrives, leaves = one.arrives.copy(), one.leaves.copy()
    lag, late, before, first = 0.0, np.zeros(len(one.ranks)), -np.inf, -1
    number = np.searchsorted(one.steps, one.step)
    count = np.bincount(number)
    for column, step in enumerate(number.tolist()):
        if step != first:
            lag = leaves[column - 1] - one.leaves[column - 1] if column else 0.0
            late, first, at = shows[:, step], step, 0
        at += 1
        shown = late * (at / count[step] if fault.phase == "backward" and not source.blocks else 1.0)
        arrives[:, column] = one.arrives[:, column] + lag + shown
        if column:
            after = one.arrives[:, column] - one.leaves[column - 1]
            behind = np.where(after <= QUEUED, before + after, -np.inf)
            arrives[:, column] = np.maximum(arrives[:, column], behind)
        leaves[column] = before = arrives[:, column].max() + shortest[column]
        if source.blocks:
            lag, late = leaves[column] - one.leaves[column], np.zeros(len(one.ranks))
    return arrives, leaves


def _with_own(one: Clean, table: Table, fault: Fault, delay: Array) -> Table:
    """What ranks measured themselves between two collectives: a busy one's CPU time grows, too."""
    first = np.searchsorted(one.step, one.steps)  # a step's work is before its first collective
    more = np.zeros(one.place.shape, np.int64)
    more[:, first] = np.rint(delay).astype(np.int64)
    found = dict(table)
    for name in ("self_ns", *(("cpu_ns",) if fault.lane == "host" else ())):
        values = table[name].copy()
        values[one.place] += np.where(values[one.place] >= 0, more, 0)
        found[name] = values
    return found


def _longer(
    one: Clean, source: Source, fault: Fault, delay: Array, warp: Callable[[Array, Array], Array], lost: Array
) -> Table:
    """The log of the steps, with what the fault adds to its rank's phase and to the others' waiting; ``lost`` [S]."""
    table = dict(one.run.steps)
    if not len(table["rank"]):
        return table
    begin = warp(table["rank"], table["start_ns"])
    end = warp(table["rank"], table["start_ns"] + table["duration_ns"])
    at = np.searchsorted(one.steps, table["step"])
    known = np.isin(table["step"], one.steps)
    row = np.searchsorted(one.ranks, table["rank"])
    own = np.where(known, delay[row, np.minimum(at, len(one.steps) - 1)], 0.0)
    all_lose = np.where(known, lost[np.minimum(at, len(one.steps) - 1)], 0.0)
    more = {("gpu", fault.phase): own, ("gpu", "backward"): all_lose - own}
    if fault.lane == "gpu" and fault.phase == "backward":
        more = {("gpu", "backward"): np.maximum(all_lose, own)}
    if fault.lane != "gpu":
        more = {("", fault.phase): own, ("gpu", "backward"): all_lose - own, ("gpu", "forward"): own}
        more |= {("", "cpu"): own} if fault.lane == "host" else {}
    if source.waits:
        waits = end - begin - table["duration_ns"] - (own if fault.lane != "gpu" else 0.0)
        more["", source.waits] = more.get(("", source.waits), 0.0) + waits
    for (lane, phase), ns in more.items():
        name = f"gpu_{phase}_ns" if lane else f"{phase}_ns"
        if name in table:
            longer = np.maximum(table[name] + np.rint(ns).astype(np.int64), 0)
            table[name] = np.where(table[name] >= 0, longer, table[name])
    return table | {"start_ns": begin, "duration_ns": end - begin}


def without(run: Run, loss: str, random: np.random.Generator, rank: int) -> Run:
    """The recording with something of one rank lost, or rows of all, or all metrics."""
    c, s = run.collectives, run.steps
    if loss == "clock":  # it was set, or its offset was never known
        moved = int(random.uniform(-40, 40) * MS)
        moved_c = dict(c) | {"start_ns": np.where(c["rank"] == rank, c["start_ns"] + moved, c["start_ns"])}
        return replace(run, collectives=moved_c)
    if loss == "steps":
        return replace(run, steps=_taken(s, s["rank"] != rank))
    if loss == "half":
        middle = np.median(c["start_ns"][c["rank"] == rank])
        return replace(run, collectives=_taken(c, (c["rank"] != rank) | (c["start_ns"] < middle)))
    if loss == "rows":
        return replace(run, collectives=_taken(c, random.random(len(c["rank"])) > 0.02))
    if loss == "metrics":
        return replace(run, metrics=_taken(run.metrics, np.zeros(len(run.metrics["name"]), bool)))
    return run


def made(family: str, seed: int) -> tuple[Run, Any, Truth]:
    """One recording with one fault or none, what was asked for, and what is true of it."""
    random = np.random.default_rng([seed, zlib.crc32(family.encode())])
    source, whole = SOURCES[family], clean(family)
    numbers = whole.steps
    length = int(random.integers(max(40, len(numbers) // 2), len(numbers) + 1)) if len(numbers) > 40 else len(numbers)
    first = int(numbers[0]) + int(random.integers(len(numbers) - length + 1))
    one = within(whole, first, first + length)
    kind, loss = (str(random.choice(names)) for names in (KINDS, LOSSES))
    period = float(np.median(np.diff(one.leaves[np.searchsorted(one.step, one.steps)]))) / MS
    rank = int(random.choice(one.ranks))
    fault = _fault(random, source, kind, one, rank, period)
    lost = int(random.choice(one.ranks))
    run, cost, active = one.run, 0.0, 0
    if fault is not None:
        run, cost = injected(one, source, fault)
        active = int((_delays(one, fault) > 0).any(axis=0).sum())
    total = float(one.leaves[-1] - one.leaves[0]) / MS
    unnumbered = int(one.steps[0]) if len(one.run.steps["rank"]) == 0 else 0  # steps are counted from the first one on
    last = int(one.steps[-1]) + 1 - unnumbered
    clean_ms = total * last / len(one.steps)  # steps that were left out count as long as these
    faults = (replace(fault, onset=fault.onset - unnumbered),) if fault is not None else ()
    truth = Truth(clean_ms + cost / MS, clean_ms, (clean_ms,) * len(faults), (active,) * len(faults))
    asked = SimpleNamespace(
        faults=faults, ranks=len(one.ranks), steps=last, written=loss, kind=kind, slower=source.slower
    )
    return without(run, loss, random, lost), asked, truth


def grade(family: str, seed: int) -> dict[str, Any]:
    """One recording with one fault or none, judged."""
    run, asked, truth = made(family, seed)
    begun = time.perf_counter()
    verdicts = judge(run).verdicts
    took = time.perf_counter() - begun
    found = compared(asked, truth, verdicts)
    if asked.written in ("half", "rows", "steps") and found["named"] == []:
        found["exact"] = True  # with a part of the evidence lost no name is right, too
    if asked.ranks == 4 and family.startswith("mpi"):
        found["cost"] = None  # four ranks on two cores: what one computes more also slows those that compute with it
    return found | {"family": family, "seed": seed, "judge_seconds": took, "kind": asked.kind}


def _fault(
    random: np.random.Generator, source: Source, kind: str, one: Clean, rank: int, period: float
) -> Fault | None:
    lane, phase = source.lanes[int(random.integers(len(source.lanes)))]
    first, count = int(one.steps[0]), len(one.steps)
    size = float(np.exp(random.uniform(np.log(source.least), np.log(max(0.5, 3 * source.least))))) * period
    onset = first + int(random.integers(count // 4, 3 * count // 4)) if kind in ("onset", "episode") else first
    if kind == "clean":
        return None
    if kind == "stalls":
        every = int(random.integers(5, 12))
        return Fault(lane, phase, (rank,), float(random.uniform(0.5, 4)) * period, first + every // 2, None, every)
    return Fault(lane, phase, (rank,), size, onset, onset + 25 if kind == "episode" else None)
