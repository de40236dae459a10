"""What was seen of running ranks, as a table and a sentence, or as JSON."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_cli.attach.sampling import PHASES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_cli.attach.sampling import Shares
    from hindmost_cli.attach.target import Target

SCHEMA = "hindmost.attach/1"
#: How ranks were looked at that were entered.
MEASURED = "measured inside"
#: Own work: a rank that spends more of its time in one of these than its peers holds them up.
OWN = ("input", "forward", "optimizer", "checkpoint", "other")
#: A smaller delay than this share, or than so many standard errors, is not reported.
LEAST_EXCESS = 0.05
LEAST_ERRORS = 3.0
#: From this share on of what no phase of training is, in samples of every rank, they tell nothing of its training.
NO_TRAINING = 0.95


class Excess(NamedTuple):
    """What one rank spends more of its time on than the median of the others."""

    rank: int
    phase: str
    share: float
    others: float
    error: float


def largest_excess(targets: Sequence[Target], seen: Sequence[Shares]) -> Excess | None:
    """The rank and phase that stand out most, beyond what sampling can produce; ``None``: none does."""
    found: list[Excess] = []
    usable = [(target, shares) for target, shares in zip(targets, seen, strict=True) if shares.share]
    for index, (target, shares) in enumerate(usable):
        peers = [other for place, (_, other) in enumerate(usable) if place != index]
        for phase in OWN if peers else ():
            others = statistics.median(peer.share[phase] for peer in peers)
            error = math.hypot(shares.error(phase), max(peer.error(phase) for peer in peers)) / 1.96
            excess = shares.share[phase] - others
            if excess >= LEAST_EXCESS and excess >= LEAST_ERRORS * error:
                found.append(Excess(target.rank, phase, shares.share[phase], others, shares.error(phase)))
    return max(found, key=lambda one: one.share - one.others, default=None)


def to_dict(targets: Sequence[Target], seen: Sequence[Shares], method: str, seconds: float) -> dict[str, Any]:
    """``hindmost.attach/1``: shares 0 to 1, ``error`` half a 95 % interval; null where nothing was seen."""
    excess = largest_excess(targets, seen)
    return {
        "schema": SCHEMA,
        "method": method,
        "seconds": seconds,
        "ranks": [
            {
                "rank": target.rank if target.rank >= 0 else None,
                "pid": target.pid,
                "command": target.command,
                "samples": shares.samples or None,
                "phases": {
                    phase: {"share": shares.share.get(phase), "error": shares.error(phase) if shares.share else None}
                    for phase in PHASES
                },
            }
            for target, shares in zip(targets, seen, strict=True)
        ],
        "stands_out": excess._asdict() if excess else None,
    }


def render(targets: Sequence[Target], seen: Sequence[Shares], method: str, seconds: float) -> str:
    """The table for people: percent of the main thread's time, with half of the 95 % interval."""
    processes = "1 process" if len(targets) == 1 else f"{len(targets)} processes"
    lines = [f"{processes}, {seconds:g} s, {method}; % of the main thread's time"]
    lines.append("  ".join([f"{'rank':>4}", f"{'pid':>8}", *(f"{phase:>10}" for phase in PHASES)]))
    for target, shares in zip(targets, seen, strict=True):
        cells = [_cell(shares, phase) for phase in PHASES]
        rank = str(target.rank) if target.rank >= 0 else "-"
        lines.append("  ".join([f"{rank:>4}", f"{target.pid:>8}", *(f"{cell:>10}" for cell in cells)]))
    return "\n".join([*lines, _sentence(targets, seen), *_without_steps(targets, seen, method)]) + "\n"


def _without_steps(targets: Sequence[Target], seen: Sequence[Shares], method: str) -> list[str]:
    """Of which processes nothing is known because they made no step, and what would show it all the same."""
    pids = [str(target.pid) for target, shares in zip(targets, seen, strict=True) if not shares.share]
    if method != MEASURED or not pids:
        return []
    who = f"process {pids[0]}" if len(pids) == 1 else f"processes {', '.join(pids)}"
    asked = " ".join(f"--pid {pid}" for pid in pids)
    return [f"{who} finished no step, so no phase was measured; try `hindmost attach --sample {asked}`"]


def _no_training(seen: Sequence[Shares]) -> bool:
    """Whether the samples show almost no phase. Measurements from inside always belong to steps."""
    sampled = [shares for shares in seen if shares.samples]
    return bool(sampled) and all(shares.share["other"] >= NO_TRAINING for shares in sampled)


def _cell(shares: Shares, phase: str) -> str:
    if not shares.share:
        return "-"
    text = f"{100 * shares.share[phase]:.0f}"
    return f"{text} ±{100 * shares.error(phase):.0f}" if shares.samples else text


def _sentence(targets: Sequence[Target], seen: Sequence[Shares]) -> str:
    excess = largest_excess(targets, seen)
    if excess is None and _no_training(seen):
        return (
            "these samples show no training: the ranks may still be starting (try --seconds 60), "
            "or run code that sampling does not recognise"
        )
    if len(targets) < 2:
        return "one process: no other rank to compare with"
    if excess is None:
        return "no rank stands out"
    error = f" ± {100 * excess.error:.0f}" if excess.error else ""
    return (
        f"rank {excess.rank} stands out: {100 * excess.share:.0f}{error} % of its time is {excess.phase}, "
        f"the others' median {100 * excess.others:.0f} %"
    )
