"""Inconclusive verdicts, which neither name nor clear a rank: the recording does not decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import Run, rows
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline import blocks as blocks_of
from hindmost_judge.timeline import phases
from hindmost_judge.verdict import missing_evidence, unrecorded_ranks, wording
from hindmost_judge.verdict.schema import STOPS, Verdict

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.settings import Settings


def no_measure(blocks: Blocks) -> Verdict:
    """Waits without the length of a step to weigh them against."""
    return _abstaining(*wording.no_measure(blocks))


def nothing_inside(blocks: Blocks) -> Verdict:
    """Steps alike long, and not a word on what is in them: that may be a wait or work."""
    return _abstaining(*wording.nothing_inside(blocks))


def passed_on(blocks: Blocks) -> Verdict:
    """Stages that only send to each other, of which no two hold the same layers."""
    return _abstaining(*wording.passed_on(blocks))


#: If less than this share of the steps is in any phase, of any rank, no rank is cleared: its work may be elsewhere.
#: Phases that a probe marks are 0.9 and more of a step; in a log without the forward they were 0.7.
_SEEN = 0.75


def little_inside(blocks: Blocks) -> Verdict | None:
    """Steps of which the phases that were seen are the lesser part; ``None`` where they tell most of it."""
    took = blocks.took if blocks.took is not None else np.full(blocks.own.shape, np.nan)
    share = float(np.nanmin(median(phases.named_share(blocks.parts, took), axis=1), initial=1.0))
    return _abstaining(*wording.little_inside(blocks, share)) if share < _SEEN else None


#: If some rank did nothing in its phases of work for at least this share of the steps, no rank is cleared: it may have
#: waited there for others. Ranks that work use all of their time, and more with several threads.
_IDLE = 0.1
#: What a rank does in a step that is no wait for others.
_ACCOUNTED = ("input", "checkpoint", "cpu", "runqueue")


def idle_inside(blocks: Blocks) -> Verdict | None:
    """Phases of work in which a rank did nothing, where no wait for others was seen; ``None`` where they say more.

    The time in no input and no checkpoint, less the CPU time of the rank's threads and the wait for a CPU. A GPU's
    phases tell its work themselves.
    """
    parts = blocks.parts
    if "cpu" not in parts or blocks.took is None or any(name == "sync" or name.startswith("gpu_") for name in parts):
        return None
    used = np.sum([np.nan_to_num(parts[name]) for name in _ACCOUNTED if name in parts], axis=0)
    idle = np.where(np.isnan(parts["cpu"]), np.nan, 1.0 - used / blocks.took)
    known = ~np.isnan(idle).all(axis=1)
    share = float(np.max(median(idle[known], axis=1), initial=0.0))
    return _abstaining(*wording.idle_inside(blocks, share)) if share >= _IDLE else None


def exchanging_inside(run: Run, blocks: Blocks) -> Verdict | None:
    """Phases that hold sends and receives in an unknown order; ``None`` where there are none in most steps.

    A slow rank makes these longer on all ranks that it exchanges with, so that no rank's phases show which it is.
    """
    exchanged = (run.collectives["peer"] >= 0) & np.isin(run.collectives["step"], blocks.steps)
    often = int(np.sum(exchanged)) / blocks.own.size
    return _abstaining(*wording.exchanging_inside(often)) if often >= 1 else None


def without_starts(blocks: Blocks) -> Verdict | None:
    """Several groups that meet at unknown times; ``None`` where self time is known, or all ranks meet in one."""
    grid = blocks.joined
    if grid is None or blocks.overlapped or not np.isnan(grid.start).all() or not np.isnan(grid.self_time).all():
        return None
    return _abstaining(*wording.without_starts())


def beside_exchanges(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What holds of verdicts by phases that hold sends and receives: of a rank named, what it was seen to do itself."""
    if blocks is None or blocks.evidence != blocks_of.PHASES or blocks.pipeline is not None:
        return found
    if not any(one.ranks for one in found) or exchanging_inside(run, blocks) is None:
        return found
    return [one for one in found if not one.ranks or one.kind in STOPS or one.cause in unrecorded_ranks.ITS_OWN]


def hosts_unmarked(blocks: Blocks, settings: Settings) -> Verdict | None:
    """A GPU that waits for its host, of which nothing tells that it is slower than the others'; ``None``: none does."""
    if blocks.unsure is None or not float(np.max(blocks.unsure)) >= settings.min_effect * blocks.step_ns:
        return None
    return _abstaining(*wording.hosts_unmarked(blocks, int(np.argmax(blocks.unsure)), float(np.max(blocks.unsure))))


def insufficient(run: Run, blocks: Blocks | None, settings: Settings) -> Verdict:
    """Too little was seen; what is missing, and how to get it."""
    ranks = len(blocks.ranks) if blocks is not None else rows(run.ranks)
    count = len(blocks.steps) if blocks is not None else 0
    evidence, advice = missing_evidence.insufficient(ranks, blocks, settings, run)
    if blocks is None and ranks > 1:
        evidence, advice = missing_evidence.polled(run) or missing_evidence.of_dumps(run) or (evidence, advice)
    told = missing_evidence.patternless(run, settings) if blocks is None else None
    if told is not None and not run.job.exit_code:
        return Verdict(kind="insufficient_data", evidence=told[0], advice=(told[1],))
    if run.job.exit_code and ranks:
        warmup = blocks.warmup if blocks is not None else 0
        evidence, advice = missing_evidence.ended_early(run, count + warmup)
    return _abstaining(evidence, advice)


def _abstaining(evidence: str, advice: str) -> Verdict:
    """No rank is named and none cleared."""
    return Verdict(kind="insufficient_data", evidence=(evidence,), advice=(advice,))
