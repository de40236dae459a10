"""What a wait for input is made of: storage, the run queue or a CPU, by the threads that load it.

A rank without DataLoader workers loads in its own thread. With workers it waits for these, which its own clocks do
not show. The agent samples both. An input phase is storage's or the scheduler's doing where that explains most of it.

A host that gets its input later than its peers in every step makes its rank late where nothing is queued. Where its GPU
still works on what was queued before, the host fetches meanwhile, and slow input costs nothing yet.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from hindmost_judge.blocks import Blocks, Slowdown
from hindmost_judge.causes.table import MEASURES, Cause
from hindmost_judge.causes.telemetry import scattered
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, lower_median, mean, median, or_zero, peers_median
from hindmost_judge.timeline import cohorts
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.wording import ms, names
from hindmost_judge.whatif import savings

#: The least mean number of descendants of a rank that loads by workers.
_WORKERS = 0.5
#: A cause explains most of a wait. Storage is named from this share on.
_MOST, _BLOCKED = 0.5, 0.1
#: Ranks have unequal shards if one reads this many times as many bytes as its peers, which read at least so much (B per
#: s): less is what remains where files are in memory.
_MORE_BYTES, _FROM_STORAGE = 2.0, 1e5
#: The least that a disk reads while it is waited for, B per s: 100 random reads of 4 KiB. Pages of programs are less.
_SLOWEST_DISK = 4e5
#: Ranks of one verdict whose storage is described.
_DESCRIBED = 2


@dataclass(frozen=True)
class Loading:
    """What loads the ranks' input, [R] each: s per s in storage, in the run queue, on a CPU, B per s from storage.

    ``workers`` [R]: whether that is their DataLoader workers'. ``waited`` [R] s per s that the ranks waited.
    ``period``: ns that a step takes.
    """

    workers: Array
    waited: Floats
    storage: Floats
    queued: Floats
    cpu: Floats
    read: Floats
    period: float

    @cached_property
    def shares(self) -> dict[str, Floats]:
        """Cause to its share [R] of each rank's wait for input; 0 where nothing of it was measured."""
        activity = {"io": self.storage, "cpu_contention": self.queued, "input": self.cpu}
        return shares(self.waited, activity)

    def cause(self, row: int) -> tuple[str, float]:
        """What explains most of a rank's wait, and its share; ``input`` where nothing does.

        Queueing for CPUs that peers suffer alike comes with the rank's own work.
        """
        name = max(self.shares, key=lambda one: float(self.shares[one][row]))
        share = float(self.shares[name][row])
        if name == "cpu_contention" and len(self.waited) > 1:
            share -= float(median(np.delete(self.shares[name], row)))
        return (name, share) if name != "input" and share >= _MOST else ("input", 1.0)

    def evidence(self, blocks: Blocks, row: int) -> list[str]:
        """What shows that storage, or the run queue, is what a rank's input waits for; then how fast it reads."""
        rank, others = int(blocks.ranks[row]), np.arange(len(blocks.ranks)) != row
        who = f"all workers of rank {rank} together" if self.workers[row] else f"rank {rank}"
        why, _ = self.cause(row)
        what, rates = (
            ("blocked by storage (state D)", self.storage) if why == "io" else ("waiting for a CPU", self.queued)
        )

        def against(values: Floats, shown: Callable[[float], str]) -> str:
            theirs = float(median(values[others])) if others.any() else float("nan")
            peers = f", others {shown(theirs)}" if not np.isnan(theirs) else ""
            return f"{who} {shown(values[row])}{peers}"

        found = f"{what} per step: {against(rates * self.period, ms)}"
        if why != "io":
            return [found]
        mount = blocks.samples.mount(row) if blocks.samples is not None else None
        found += f"; {mount[0]}, mounted on {mount[1]}" if mount is not None else ""
        if np.isnan(self.read[row]):
            return [found]
        return [found, f"reads: {against(self.read, lambda rate: f'{rate / 1e6:.1f} MB/s')}"]


def of(blocks: Blocks, columns: Array | None = None) -> Loading | None:
    """What loads the input in these steps (indices), or in all; ``None`` where there is none, or no samples."""
    inputs = blocks.parts.get("input", blocks.parts.get("file_read"))
    if inputs is None or blocks.samples is None:
        return None
    steps = None if columns is None or scattered(columns) else columns
    chosen = np.arange(len(blocks.steps)) if steps is None else steps
    period = average(blocks.period[chosen])
    waited = or_zero(mean(inputs[:, chosen])) / period

    def level(name: str) -> Floats:
        found = blocks.gauge(name, steps)
        return np.full(len(blocks.ranks), np.nan) if found is None else found

    workers = or_zero(level("children")) >= _WORKERS
    queue, own = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue")), blocks.self_time[:, chosen]
    queued = np.full(len(blocks.ranks), np.nan)
    if queue is not None and own.any():  # it queues in its input as in the rest of its self time
        part = np.clip(mean(inputs[:, chosen]) / np.maximum(mean(own), 1.0), 0.0, 1.0)
        queued = mean(queue[:, chosen]) / period * part
    return Loading(
        workers=workers,
        waited=waited,
        storage=np.where(workers, level("children_blocked"), level("blocked")),
        queued=np.where(workers, level("children_runqueue"), queued),
        cpu=np.where(workers, level("children_cpu"), np.nan),
        read=np.where(workers, level("children_read"), level("read")),
        period=period,
    )


def queued(blocks: Blocks) -> Floats | None:
    """[R] which share of each rank's wait for input is one for a CPU; ``None`` where that was not measured."""
    made = of(blocks)
    return None if made is None else made.shares["cpu_contention"]


def on(verdict: Verdict, blocks: Blocks) -> tuple[Verdict, str]:
    """A verdict on ranks whose input is late with what that waits for, where this is most of it, else as it was; and
    what to do where they have unequal shards."""
    late = verdict.cause == "input" and len(verdict.ranks) > 0
    made = of(blocks, np.arange(*savings.span_of(verdict, blocks))) if late else None
    if made is None:
        return verdict, ""
    named = np.isin(blocks.ranks, verdict.ranks)
    rows, shards = np.flatnonzero(named).tolist(), _unequal_shards(verdict, made.read, named)
    found = [made.cause(row) for row in rows]
    if len({cause for cause, _ in found}) != 1 or found[0][0] == "input":
        return verdict, shards
    shown = [line for row in rows[:_DESCRIBED] for line in made.evidence(blocks, row)]
    causes = tuple(found[0][0] if one == "input" else one for one in verdict.causes)
    explained = (verdict.explained or 1.0) * min(share for _, share in found)
    evidence = (*shown, *verdict.evidence)
    return replace(verdict, cause=found[0][0], causes=causes, explained=explained, evidence=evidence), shards


def uses_storage(verdict: Verdict, blocks: Blocks) -> bool:
    """Whether ranks with late input were seen to read, or to be blocked by storage."""
    if verdict.cause != "input" or "file_read" in blocks.parts:
        return verdict.cause == "input"
    made, named = of(blocks), np.isin(blocks.ranks, verdict.ranks)
    if made is None or not named.any():
        return False
    reads = or_zero(made.read) >= np.maximum(_FROM_STORAGE, _SLOWEST_DISK * made.waited)
    return bool(reads[named].any() or made.shares["io"][named].max() >= _BLOCKED)


def _unequal_shards(verdict: Verdict, read: Floats, named: Array) -> str:
    """What to do about ranks whose input is late as they ``read`` [R] more: all take as many steps, so each step has
    more bytes of them, which no disk can cause. Empty where that was not seen, or where the peers read from memory."""
    if named.all() or len(verdict.causes) > 1:
        return ""
    theirs, least = float(median(read[~named])), float(read[named].min())
    if not theirs >= _FROM_STORAGE or not least >= _MORE_BYTES * theirs:
        return ""
    reads = "reads" if len(verdict.ranks) == 1 else "read"
    return f"{names(verdict.ranks)} {reads} {least / theirs:.0f} times as many bytes as the others: balance the shards"


def shares(waited: Floats, activity: Mapping[str, Floats]) -> dict[str, Floats]:
    """Name to the share [R] of each rank's wait, 0 to 1, that each ``activity`` of those waited for explains.

    ``waited`` [R] and the activities [R] are s per s, of all threads together: on a CPU, in the run queue, blocked in
    storage; NaN, unmeasured, explains nothing. They may do more than is waited for, since they work ahead. What they
    do less is unexplained, as a sleep is.
    """
    rates = {name: or_zero(rate) for name, rate in activity.items()}
    whole = np.maximum(or_zero(waited), sum(rates.values(), np.zeros_like(waited)))
    return {name: np.divide(rate, whole, out=np.zeros_like(whole), where=whole > 0) for name, rate in rates.items()}


#: Extra input time of one rank that overlaps with computing and gets a note: faster GPUs would expose it (of the
#: step).
_HIDDEN_INPUT_RANK = 0.05
#: The same for all ranks; input that all ranks have is more common (of the step).
_HIDDEN_INPUT_ALL = 0.15
#: A rank that is late by this share of its longer input does not hide it (of the longer input).
_HIDDEN_INPUT_SHOWS = 0.25

#: A rank's input is persistently slow if it is slow in this share of the steps.
_NEARLY_ALL = 0.9
#: Causes that are phases of the host, of which what is queued hides now more and now less.
_ON_HOST = ("input", "h2d")


def _longer_input(blocks: Blocks) -> Floats | None:
    """[R, S] ns by which each rank's input took longer than its peers', where GPUs may hide it; else ``None``."""
    inputs = blocks.parts.get("input")
    if inputs is None or not any(name.startswith("gpu_") for name in blocks.parts):
        return None
    return _beyond_peers(inputs)


def _beyond_peers(part: Floats) -> Floats:
    return np.asarray(or_zero(part - peers_median(part)))


def throughout(blocks: Blocks) -> Array:
    """[R] whether a rank's input is longer in nearly all steps."""
    more = _longer_input(blocks)
    if more is None:
        return np.zeros(len(blocks.ranks), bool)
    return np.asarray(np.mean(more > _HIDDEN_INPUT_RANK * blocks.step_ns, axis=1) >= _NEARLY_ALL)


def with_stalls(blocks: Blocks, slowdown: Slowdown, cause: Cause, settings: Settings) -> Slowdown:
    """A slowdown with those of its steps in which its input, or its copies, made its rank far later than usual.

    A job that waits for its GPUs every so many steps has nothing queued then. A step is late by at most its own
    input, since the delay of the step before is over.
    """
    part = blocks.parts.get(cause.cause)
    if cause.cause not in _ON_HOST or part is None:
        return slowdown
    usual, outer = slowdown.delay, slowdown.outer
    while outer is not None:
        usual, outer = usual + outer.delay, outer.outer
    more = _beyond_peers(part)[slowdown.row]
    stalled = np.fmin(or_zero(blocks.delay[slowdown.row]), more) - usual
    steps = slowdown.steps()
    steps = steps[stalled[steps] >= settings.stall_effect * blocks.step_ns]
    return replace(slowdown, stalls=tuple(zip(steps.tolist(), stalled[steps].tolist(), strict=True)))


def stalls_sentence(slowdowns: list[Slowdown], cause: Cause) -> list[str]:
    """The steps in which a slowdown's cause shows by far more than usual: nothing was queued then."""
    found = [ns for slowdown in slowdowns for _, ns in slowdown.stalls]
    if not found:
        return []
    times = "1 step" if len(found) == 1 else f"{len(found)} steps"
    return [f"another {ms(float(np.median(found)))} late in {times} in which nothing hid its {MEASURES[cause.cause]}"]


def hidden_input_notes(blocks: Blocks, verdicts: Sequence[Verdict], settings: Settings) -> list[str]:
    """A sentence on input that costs nothing while GPUs hide it, and would if they became faster."""
    inputs = blocks.parts.get("input")
    on_gpu = any(name.startswith("gpu_") for name in blocks.parts)
    shown = any(verdict.kind in ("input_bound", "host_bound") for verdict in verdicts)
    if inputs is None or not on_gpu or len(blocks.ranks) < 2 or shown:
        return []
    level = or_zero(median(inputs, axis=1))[:, None]
    longer = cohorts.beyond_peers(level, blocks.cohort)[:, 0]  # of a whole stage nothing tells whether it hides
    late = or_zero(median(blocks.delay, axis=1))
    blamed = {rank for verdict in verdicts if verdict.cause == "input" for rank in verdict.ranks}
    least = _HIDDEN_INPUT_RANK * blocks.step_ns
    rows = np.flatnonzero(
        (longer > least) & (late < _HIDDEN_INPUT_SHOWS * longer) & ~np.isin(blocks.ranks, list(blamed))
    )
    typical = float(lower_median(level, axis=0)[0])
    shows = np.array([_shows(blocks, row, settings) for row in rows.tolist()], bool)
    found = [
        _longer(blocks, waiting, float(median(longer[waiting])), hides)
        for waiting, hides in ((rows[~shows], _HIDDEN), (rows[shows], _UNSURE))
        if len(waiting)
    ]
    covered = typical - float(np.nan_to_num(input_share(inputs, blocks))) * blocks.step_ns
    if not blamed and covered > _HIDDEN_INPUT_ALL * blocks.step_ns:
        part = f"{ms(covered)} of it" if covered < _ALL * typical else "it"
        found.append(f"every rank waits {ms(typical)} per step for input; {part} {_HIDDEN}")
    return found


def _shows(blocks: Blocks, row: int, settings: Settings) -> bool:
    """Whether a rank was late in some steps by what is worth a repair, though too few of them to name it for that."""
    more = _longer_input(blocks)
    if more is None:
        return False
    stalled = np.flatnonzero(blocks.delay[row] >= _HIDDEN_INPUT_SHOWS * np.maximum(more[row], 1.0))
    return float(savings.stall_saving(blocks, [row], stalled).mean()) >= settings.min_cost * blocks.step_ns


#: From this share of the input on, the covered part is called all.
_ALL = 0.9


_HIDDEN = "costs nothing now: queued work or a wait for others hides it"
_UNSURE = "queued work hides it in most steps"


def _longer(blocks: Blocks, rows: Ints, longer: float, hides: str) -> str:
    waits = f"wait{'s' if len(rows) == 1 else ''} {ms(longer)} longer per step for input than the rest"
    return f"{names(blocks.ranks[rows].tolist())} {waits}; {'it ' if hides == _HIDDEN else ''}{hides}"


#: A time block of input has at least so many steps, in which each worker has its turn; there are up to so many blocks.
_TURN, _BLOCKS = 8, 5


def input_share(inputs: Floats, blocks: Blocks) -> float:
    """Input that half of these ranks reach as a share of the step, where the GPU does not hide it.

    Workers deliver batches in turn: after a step that waits for one, most find theirs. So it is the mean of a time
    block, and that of the median block: a stall is in one of them. NaN where a GPU works and its phases are not known
    (yet: the first steps' come late): it may hide all of it.
    """
    shown = inputs
    gpu = [blocks.parts[name] for name in ("gpu_forward", "gpu_backward", "gpu_optimizer") if name in blocks.parts]
    if gpu:  # what the GPU still had queued covers the input; phases hold waits for others, but of the last rank
        busy = np.sum(gpu, axis=0)
        last = np.argmin(np.where(np.isnan(blocks.wait + busy), np.inf, blocks.wait), axis=0)
        busy = busy[last, np.arange(len(last))]
        shown = np.minimum(shown, np.maximum(blocks.period - busy, 0.0))
    elif blocks.joined is not None and blocks.joined.gpu_time and blocks.lanes is None:
        return float("nan")
    count = min(shown.shape[1] // _TURN, _BLOCKS)
    cuts = np.array_split(np.arange(shown.shape[1]), count if count > 1 else shown.shape[1])
    shares = [mean(shown[:, cut]) / average(blocks.period[cut]) for cut in cuts]
    return float(lower_median(lower_median(np.stack(shares, axis=1), axis=1), axis=0))
