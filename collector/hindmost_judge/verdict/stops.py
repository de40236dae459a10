"""Verdicts on a job that stopped, or whose ranks ran different operations and went on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hindmost_judge.detect.hang import since_step
from hindmost_judge.verdict import wording_stop
from hindmost_judge.verdict.schema import Verdict

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.detect.hang import Hang
    from hindmost_judge.detect.mismatch import Mismatch
    from hindmost_judge.model import Run


def of_hang(stop: Hang, run: Run, blocks: Blocks | None) -> Verdict:
    """The verdict of a job that stopped."""
    halted = wording_stop.halted(stop, run)
    if halted and not stop.ranks and not stop.unproven:  # stopped inside the operation, which all members entered
        ranks = tuple(sorted(halted))
        stop = replace(stop, ranks=ranks, victims=tuple(rank for rank in stop.victims if rank not in halted))
    cause = "stopped" if stop.ranks and halted.keys() >= set(stop.ranks) else "unknown"
    return Verdict(
        kind=stop.kind,
        ranks=stop.ranks,
        victims=stop.victims,
        cause="deadlock" if stop.deadlock else cause,
        since_step=since_step(stop, run, blocks),
        confidence=stop.confidence,
        evidence=tuple(wording_stop.hang(stop, run)),
        advice=tuple(wording_stop.hang_advice(stop, run)),
    )


def of_parted(stop: Hang, found: Mismatch | None, run: Run, blocks: Blocks | None) -> Verdict:
    """The verdict of a job that stopped; where its ranks had parted in that communicator before, of that."""
    stopped = of_hang(stop, run, blocks)
    if found is None or stop.kind != "hang" or found.comm != stop.comm:
        return stopped
    (parted,) = of_mismatch(found, run)
    ran, _ = parted.evidence
    victims = tuple(sorted({*found.ranks, *found.others} - {*found.named}))
    return replace(parted, victims=victims, confidence=stopped.confidence, evidence=(ran, *stopped.evidence[:1]))


def of_mismatch(found: Mismatch | None, run: Run) -> list[Verdict]:
    """The verdict on ranks that ran another operation than the rest, in a job that went on."""
    if found is None:
        return []
    started = run.steps["step"][run.steps["start_ns"] <= found.start_ns]
    return [
        Verdict(
            kind="desync",
            ranks=found.named,
            victims=found.others,
            cause="unknown",
            since_step=int(started.max()) if len(started) else None,
            confidence=0.9,
            evidence=tuple(wording_stop.mismatch(found)),
            advice=(wording_stop.branch_of(found.named),),
        )
    ]
