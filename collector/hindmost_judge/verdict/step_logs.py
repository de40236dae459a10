"""Verdicts on recordings with a log of the steps only: what it does not show of waiting between ranks.

A rank may wait for others in its backward, so that a backward clears no rank. The forward of a tensor-parallel job
holds collectives too: a rank that is slow there, or comes late to it, makes its whole group's forward longer. The
stages of a pipeline wait for each other there, and have different forwards. In a launch-bound job, events around a
forward time the host's launching.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import Job, rows
from hindmost_judge.stats.robust import lower_median, median
from hindmost_judge.timeline import blocks as blocks_of
from hindmost_judge.verdict import unrecorded_ranks
from hindmost_judge.verdict.schema import STOPS, Verdict
from hindmost_judge.verdict.wording import ms, names, percent

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.types import Array, Floats

#: A backward computes about twice what a forward does, and with its transfers recorded ones of GPUs at work took up to
#: six times as long; where that of every rank takes more than this, most of it is waiting, or launching.
_MOSTLY_WAITS = 8.0
#: Whose forward is longer by this share of what it is late by is late in it.
_IN_FORWARD = 0.5
#: Ranks that differ by at least this share of what a late one takes longer may be the ones that it waits for; and where
#: they do of what a forward takes, they may have each their own work.
_UNLIKE = 0.5
#: … unless they are later than that one by this factor: who waits for another is late by as much.
_FAR = 3.0
#: Share of a step from which a phase may hide a rank that others wait for.
_MAY_HIDE = 0.05
#: Ranks are reported with the one of the longest forward if their extra time is this share of its extra time.
_AS_LONG = 0.5

#: What to do about it.
_REMEDY = "record waits, too: `hindmost run -- COMMAND`, or NCCL Inspector's logs of the same steps"


def without_doubtful(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """These verdicts but for those on ranks whose longer forward may be a wait, or another stage's work.

    Nor for what costs less than such a wait: it is part of what that is for, and costs more than is seen of it.
    """
    if blocks is None or not _alone(run, blocks):
        return found
    own = {rank for one in found if one.cause in unrecorded_ranks.ITS_OWN for rank in one.ranks}
    doubtful = [one for one in found if one.kind not in STOPS and _doubtful(one, run, blocks, own)]
    most = max((one.cost_ms_per_step or 0.0 for one in doubtful), default=0.0)
    kept = [one for one in found if one not in doubtful]
    return [one for one in kept if one.kind in STOPS or not doubtful or (one.cost_ms_per_step or 0.0) >= most]


def unclear(run: Run, blocks: Blocks) -> Verdict | None:
    """Why phases in which ranks may wait clear no rank; ``None`` where other ranks' collectives do."""
    if not _alone(run, blocks) or _others_met(run):
        return None
    backward = _phase(blocks, "backward")
    share = float(median(median(backward, axis=1)) / blocks.step_ns) if backward is not None else 0.0
    if not share >= _MAY_HIDE:
        return None
    spent = f"backward, {percent(share)} of a step of {ms(blocks.step_ns)}, is work and wait in one"
    return Verdict(
        kind="insufficient_data",
        evidence=(f"only a log of the steps was recorded: {spent}", *_longer(blocks)),
        advice=(_REMEDY,),
    )


def _alone(run: Run, blocks: Blocks) -> bool:
    """Whether logged phases show who is late; our own probe marks where ranks meet."""
    return blocks.evidence == blocks_of.PHASES and run.job.source != Job.source and blocks.pipeline is None


def _others_met(run: Run) -> bool:
    """Whether collectives of some ranks were recorded, and show whether all of these wait for a missing one."""
    return run.unseen is not None and run.unseen.by_steps and run.unseen.together is not None


def _doubtful(one: Verdict, run: Run, blocks: Blocks, told: set[int]) -> bool:
    """Whether a verdict rests on forwards that may be longer for what others do, or for what is done in them."""
    forward = _phase(blocks, "forward")
    by_forward = bool(one.ranks) and one.cause not in unrecorded_ranks.ITS_OWN
    by_forward |= one.kind == "uneven_workload" and blocks.work is None
    if not by_forward or forward is None:
        return False
    held = _held(one, blocks)
    typical = median(forward[:, held], axis=1)
    backward = _phase(blocks, "backward")
    if backward is not None:
        least = float(np.nanmin(median(backward[:, held], axis=1)))
        if least > _MOSTLY_WAITS * float(lower_median(typical, axis=0)):
            return True
    world = run.job.world_size or 0
    if not one.ranks or rows(run.ranks) < world:  # a part of a job may wait for ranks outside of it
        return rows(run.ranks) < world or _differ(typical) >= _UNLIKE * float(lower_median(typical, axis=0))
    if _all_meet(run):
        return False
    own = median(blocks.own[:, held], axis=1)
    before = median(blocks.parts["input"][:, held], axis=1) if "input" in blocks.parts else np.zeros_like(own)
    named = np.flatnonzero(np.isin(blocks.ranks, one.ranks)).tolist()
    late, longer = _beyond(own), _beyond(typical)
    clear = np.isin(blocks.ranks, list(told))
    return any(longer[row] >= _IN_FORWARD * late[row] and _among_unlike(late, before, row, clear) for row in named)


def _held(one: Verdict, blocks: Blocks) -> Array:
    """[S] the steps of a verdict; all of them where it has none of these."""
    held = (blocks.steps >= (one.since_step or 0)) & (blocks.steps <= (one.until_step or blocks.steps[-1]))
    return held if held.any() else np.ones_like(held)


def _all_meet(run: Run) -> bool:
    """Whether all ranks are in each communicator: those that share a part of a model would have one of their own."""
    comms, count = np.unique(run.communicators["comm"], return_counts=True)
    used = count[np.isin(comms, run.collectives["comm"])]
    sent = (run.collectives["peer"] >= 0).any()  # from stage to stage
    return bool(len(used)) and not sent and bool((used == rows(run.ranks)).all())


def _among_unlike(late: Floats, before: Floats, row: int, clear: Array) -> bool:
    """Whether others, but for those that are later by far, differ about as much as this row is late, or are as late.

    ``late`` [R] is by how much each is, ``before`` [R] the time that it took for what comes before the forward.
    """
    others = late < _FAR * late[row]
    others[row] = False
    others &= ~clear
    return bool(others.any()) and max(_differ(late[others]), _differ(before[others])) >= _UNLIKE * late[row]


def _differ(values: Floats) -> float:
    return float(np.nanmax(values) - np.nanmin(values))


def _longer(blocks: Blocks) -> list[str]:
    """A sentence on ranks whose forward is longer than that of others, where there are any; in a list of its own."""
    forward = _phase(blocks, "forward")
    if forward is None:
        return []
    beyond = _beyond(median(forward, axis=1))
    most = float(np.nanmax(beyond))
    if not most >= _MAY_HIDE * blocks.step_ns:
        return []
    late = blocks.ranks[beyond >= _AS_LONG * most].tolist()
    take = "takes" if len(late) == 1 else "take"
    why = "slow, or waiting in a model-parallel group, or another stage of a pipeline"
    return [f"{names(late)} {take} up to {ms(most)} longer in forward than others: {why}"]


def _phase(blocks: Blocks, name: str) -> Floats | None:
    """[R, S] ns of a phase on the GPU, or else on the host; ``None`` where unmeasured."""
    return next((blocks.parts[one] for one in (f"gpu_{name}", name) if one in blocks.parts), None)


def _beyond(typical: Floats) -> Floats:
    """[R] by how much each is more than the typical; of as many who are more, than the others."""
    return np.asarray(typical - lower_median(typical, axis=0))
