"""Verdicts that name nobody and clear nobody: what was seen does not tell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector import lacking, phases, wording
from hindmost_collector.model import Run, rows
from hindmost_collector.robust import median
from hindmost_collector.verdict import Verdict

if TYPE_CHECKING:
    from hindmost_collector.blocks import Blocks
    from hindmost_collector.settings import Settings


def no_measure(blocks: Blocks) -> Verdict:
    """Waits without the length of a step to weigh them against."""
    return _abstaining(*wording.no_measure(blocks))


def nothing_inside(blocks: Blocks) -> Verdict:
    """Steps alike long, and not a word on what is in them: that may be a wait or work."""
    return _abstaining(*wording.nothing_inside(blocks))


#: Of steps of which less than this share is in any phase, of any rank, nobody is cleared: its work may be elsewhere.
#: Phases that a probe marks are 0.9 and more of a step; of a log that lacks the forward they were 0.7.
_SEEN = 0.75


def little_inside(blocks: Blocks) -> Verdict | None:
    """Steps of which the phases that were seen are the lesser part; ``None`` where they tell most of it."""
    took = blocks.took if blocks.took is not None else np.full(blocks.own.shape, np.nan)
    share = float(np.nanmin(median(phases.named_share(blocks.parts, took), axis=1), initial=1.0))
    return _abstaining(*wording.little_inside(blocks, share)) if share < _SEEN else None


def insufficient(run: Run, blocks: Blocks | None, settings: Settings) -> Verdict:
    """Too little was seen; what is missing, and how to get it."""
    ranks = len(blocks.ranks) if blocks is not None else rows(run.ranks)
    count = len(blocks.steps) if blocks is not None else 0
    evidence, advice = lacking.insufficient(ranks, blocks, settings, run.job)
    if blocks is None and ranks > 1:
        evidence, advice = lacking.polled(run) or lacking.of_dumps(run) or (evidence, advice)
    told = lacking.patternless(run, settings) if blocks is None else None
    if told is not None and not run.job.exit_code:
        return Verdict(kind="insufficient_data", evidence=told[0], advice=(told[1],))
    if run.job.exit_code and ranks:
        warmup = blocks.warmup if blocks is not None else 0
        evidence, advice = lacking.ended_early(run, count + warmup)
    return _abstaining(evidence, advice)


def _abstaining(evidence: str, advice: str) -> Verdict:
    """Nobody is named and nobody cleared."""
    return Verdict(kind="insufficient_data", evidence=(evidence,), advice=(advice,))
