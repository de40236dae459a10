"""What a wait for input is made of: storage, the run queue or a CPU, by the threads that load it.

A rank without DataLoader workers loads in its own thread. With workers it waits for these, which its own clocks do
not show. The agent samples both. An input phase is storage's or the scheduler's doing where that explains most of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.causes.telemetry import scattered
from hindmost_judge.stats.robust import average, mean, median
from hindmost_judge.verdict.wording import ms
from hindmost_judge.whatif import savings

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array, Floats
    from hindmost_judge.verdict.schema import Verdict


#: The least mean number of descendants of a rank that loads by workers.
_WORKERS = 0.5
#: A cause explains most of a wait.
_MOST = 0.5
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
        """What explains most of a rank's wait, and its share; ``input`` where nothing does."""
        name = max(self.shares, key=lambda one: float(self.shares[one][row]))
        share = float(self.shares[name][row])
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
        return [found, *([f"reads: {against(self.read, _speed)}"] if not np.isnan(self.read[row]) else [])]


def _speed(rate: float) -> str:
    return f"{rate / 1e6:.1f} MB/s"


def of(blocks: Blocks, columns: Array | None = None) -> Loading | None:
    """What loads the input in these steps (indices), or in all; ``None`` where there is none, or no samples."""
    inputs = blocks.parts.get("input", blocks.parts.get("file_read"))
    if inputs is None or blocks.samples is None:
        return None
    steps = None if columns is None or scattered(columns) else columns
    held = np.arange(len(blocks.steps)) if steps is None else steps
    period = average(blocks.period[held])
    waited = np.nan_to_num(mean(inputs[:, held])) / period

    def level(name: str) -> Floats:
        found = blocks.samples.level(name, steps) if blocks.samples is not None else None
        return np.full(len(blocks.ranks), np.nan) if found is None else found

    workers = np.nan_to_num(level("children")) >= _WORKERS
    queue, own = blocks.parts.get("self_runqueue", blocks.parts.get("runqueue")), blocks.own[:, held]
    queued = np.full(len(blocks.ranks), np.nan)
    if queue is not None and own.any():  # it queues in its input as in the rest of its self time
        part = np.clip(mean(inputs[:, held]) / np.maximum(mean(own), 1.0), 0.0, 1.0)
        queued = mean(queue[:, held]) / period * part
    return Loading(
        workers=workers,
        waited=waited,
        storage=np.where(workers, level("children_blocked"), level("blocked")),
        queued=np.where(workers, level("children_runqueue"), queued),
        cpu=np.where(workers, level("children_cpu"), np.nan),
        read=np.where(workers, level("children_read"), level("read")),
        period=period,
    )


def on(verdict: Verdict, blocks: Blocks) -> Verdict:
    """A verdict on ranks whose input is late with what that waits for, where this is most of it; else as it was."""
    if verdict.cause != "input" or not verdict.ranks:
        return verdict
    made = of(blocks, np.arange(*savings.span_of(verdict, blocks)))
    rows = np.flatnonzero(np.isin(blocks.ranks, verdict.ranks)).tolist()
    found = [made.cause(row) for row in rows] if made is not None else []
    if made is None or len({cause for cause, _ in found}) != 1 or found[0][0] == "input":
        return verdict
    shown = [line for row in rows[:_DESCRIBED] for line in made.evidence(blocks, row)]
    causes = tuple(found[0][0] if one == "input" else one for one in verdict.causes)
    explained = (verdict.explained or 1.0) * min(share for _, share in found)
    return replace(verdict, cause=found[0][0], causes=causes, explained=explained, evidence=(*shown, *verdict.evidence))


def shares(waited: Floats, activity: Mapping[str, Floats]) -> dict[str, Floats]:
    """Name to the share [R] of each rank's wait, 0 to 1, that each ``activity`` of those waited for explains.

    ``waited`` [R] and the activities [R] are s per s, of all threads together: on a CPU, in the run queue, blocked in
    storage; NaN, unmeasured, explains nothing. They may do more than is waited for, since they work ahead. What they
    do less is unexplained, as a sleep is.
    """
    rates = {name: np.nan_to_num(rate) for name, rate in activity.items()}
    whole = np.maximum(np.nan_to_num(waited), sum(rates.values(), np.zeros_like(waited)))
    return {name: np.divide(rate, whole, out=np.zeros_like(whole), where=whole > 0) for name, rate in rates.items()}
