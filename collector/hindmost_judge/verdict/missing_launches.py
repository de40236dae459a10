"""Verdicts on recordings without launch times: a rank that is late in them may only have lost its host's lead.

Hosts that launch for nearly all of a step are equally slow, and each is some steps ahead of its GPU. A rank that
lost its lead to a stall comes last until it has caught up, at every collective and for tens of steps; then it is
another's turn. In recordings of healthy jobs on 2 and 4 H200s that looked like one rank that is slow for a while,
and another one next. From durations alone, a rank computes longer only if it is late throughout, or if it is the
only late one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.wording import names
from hindmost_judge.whatif import residual

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.types import Array

#: A rank that is late in so large a share of the steps is late throughout: no lead lasts for that.
_THROUGHOUT = 0.75
#: In a smaller share of them than this a rank is late by chance, or for one stall.
_SELDOM = 0.125

#: What remains of a rank's delay may be a lead if this many times as much was one.
_MOSTLY = 0.5

#: Most segments of the steps that are reported.
_SHOWN = 4

#: Kinds of verdicts on who comes late.
_LATE = ("straggler", "intermittent")

_REMEDY = (
    "record launches and a log of the steps: `hindmost run -- COMMAND`,"
    " or NCCL Inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1"
)


def without_doubtful(found: list[Verdict], blocks: Blocks | None) -> list[Verdict]:
    """These verdicts without ranks that may be late because their hosts lost their lead; the reason, if none is
    left."""
    if blocks is None or blocks.joined is None or not blocks.joined.gpu_time:
        return found
    late = [one for one in found if one.ranks and one.kind in _LATE and _unseen(one, blocks)]
    throughout = _throughout(late, blocks)
    kept = [one for one in late if not _doubtful(one, late, blocks, throughout)]
    if len(kept) == len(late):
        return found
    left = [one for one in found if one not in late or one in kept]
    return left or [_abstaining(late)]


def _unseen(one: Verdict, blocks: Blocks) -> bool:
    """Whether how long kernels took is all that was recorded, or a rank's GPU waited for a host that marked nothing."""
    assert blocks.joined is not None  # noqa: S101 - without_doubtful() has looked
    if np.isnan(blocks.joined.start).all():
        return True
    return blocks.unsure is not None and bool((blocks.unsure[np.isin(blocks.ranks, one.ranks)] > 0).any())


def _throughout(late: Sequence[Verdict], blocks: Blocks) -> set[tuple[int, ...]]:
    """Ranks that are late nearly throughout, whatever other ranks are; none where sets of these share a rank, and are
    unsure.

    A rank that is late from where another no longer is took its turn.
    """
    found = set()
    for ranks in {one.ranks for one in late}:
        held = _of_all([one for one in late if one.ranks == ranks and one.kind == "straggler"], blocks)
        others = [_held(one, blocks) for one in late if one.ranks != ranks]
        if held.mean() >= _THROUGHOUT and all(2 * np.sum(other & held) >= np.sum(other) for other in others):
            found.add(ranks)
    apart = len({rank for ranks in found for rank in ranks}) == sum(map(len, found))
    return found if apart else set()


def _doubtful(one: Verdict, late: Sequence[Verdict], blocks: Blocks, throughout: set[tuple[int, ...]]) -> bool:
    """Whether what a verdict says of its ranks may be said of any rank whose host has no lead.

    Hosts that gather parameters launch far more than others, and are what such a job waits for at times: there one
    rank that is late for a while is doubtful, too; so is one that seemed later by what launching alone may differ.
    """
    if one.ranks in throughout:
        return False
    several = len({one.ranks for one in late}) > 1
    if several or _held(one, blocks).mean() < _SELDOM:
        return True
    return _of_all(late, blocks).mean() < _THROUGHOUT and (_gathers(blocks) or _mostly_a_lead(one, blocks))


def _of_all(late: Sequence[Verdict], blocks: Blocks) -> Array:
    """[S] the steps that any of these verdicts holds of."""
    return np.asarray(np.any([np.zeros(len(blocks.steps), bool), *(_held(one, blocks) for one in late)], axis=0))


def _held(one: Verdict, blocks: Blocks) -> Array:
    """[S] the steps that a verdict holds of."""
    held = np.zeros(len(blocks.steps), bool)
    held[slice(*residual.span(one, blocks))] = True
    return held


def _mostly_a_lead(one: Verdict, blocks: Blocks) -> bool:
    """Whether so much of what ranks seemed to be late by was taken for others' lead that the rest may be one, too."""
    if blocks.unsure is None:
        return False
    named = np.isin(blocks.ranks, one.ranks)
    left = np.maximum(np.nan_to_num(blocks.excess[named]), 0.0).mean(axis=1)
    return bool((blocks.unsure[named] >= _MOSTLY * left).any())


def _gathers(blocks: Blocks) -> bool:
    """Whether parameters are gathered inside of forward and backward, in most steps."""
    assert blocks.joined is not None  # noqa: S101 - without_doubtful() has looked
    return int(blocks.joined.gathers.sum()) >= len(blocks.steps)


def _abstaining(late: Sequence[Verdict]) -> Verdict:
    """No rank is named, and none cleared."""
    found = "; ".join(f"{names(one.ranks)} {_when(one)}" for one in late[:_SHOWN])
    who = "ranks are late in turn"
    if len({one.ranks for one in late}) == 1:
        who = "one rank is late in a part of the steps"
    unknown = "launches were not recorded: more work, or a CPU that was behind for a while"
    return Verdict(
        kind="insufficient_data",
        evidence=(f"{who}: {found}", unknown),
        advice=(_REMEDY,),
    )


def _when(one: Verdict) -> str:
    return f"from step {one.since_step or 0} " + (f"to {one.until_step}" if one.until_step is not None else "on")
