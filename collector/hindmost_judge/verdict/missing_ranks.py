"""Verdicts on a recording with missing ranks: a rank that was judged without them is not cleared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import Job, Unseen, rows
from hindmost_judge.timeline import blocks as blocks_of
from hindmost_judge.verdict import unrecorded_ranks
from hindmost_judge.verdict.schema import STOPS, Verdict
from hindmost_judge.verdict.wording import names, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.verdict.unrecorded_ranks import Absent

#: Ranks that wait at once for this share of the time wait for a missing rank. Without late ranks, transfers alone
#: scatter by up to 0.025; a rank that costs 3 % of the step made it 0.1.
_TOGETHER = 0.05
#: Where files of all ranks have so large a share of a job, it is judged by that: what ends it is no part of its steps.
_NEARLY_ALL = 0.8
#: Missing ranks that a remedy names.
_NAMED = 8
#: Verdicts that hold of the ranks that were seen, whatever the others did.
_OF_SOME = ("straggler", "intermittent", "input_bound", "host_bound")
#: More ranks than this no job has: whatever claims them is believed in nothing.
_MOST_RANKS = 1 << 20


def with_missing(run: Run) -> Run:
    """The run with its ranks marked that sent nothing to the collector that wrote it."""
    seen, world = set(run.ranks["rank"].tolist()), run.job.world_size or 0
    if not len(seen) < world <= _MOST_RANKS or not seen:
        return run
    return replace(run, unseen=Unseen(tuple(sorted(set(range(world)) - seen))))


def judged(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What still holds although ranks are missing, and what is unknown because of that."""
    if run.job.source == Job.source:
        return _ours(found, run, blocks)
    lacking = run.unseen
    if lacking is None or any(one.kind in STOPS for one in found):
        return found
    if not lacking.ranks and lacking.judged < 1.0:
        return [_of_part(one, lacking) for one in found]
    waited = lacking.together is not None and lacking.together >= _TOGETHER
    if lacking.by_steps:
        return [_with(one, lacking) for one in found] if waited else found
    kept = [one for one in found if one.kind in _OF_SOME and not (lacking.apart and one.ranks)]
    named = any(one.ranks for one in kept)
    already = [one for one in found if one.kind == "insufficient_data"]
    if already and not waited and not named:
        return [replace(one, evidence=(_missing(lacking), *one.evidence)) for one in already]
    return kept if named else [_insufficient(lacking, waited), *kept]


def unjudged(run: Run, blocks: Blocks) -> Verdict | None:
    """That no rank can be cleared if steps alone show who is late, and some ranks of the recording have none."""
    lacking = [int(rank) for rank in run.ranks["rank"] if rank not in blocks.ranks]
    if blocks.evidence != blocks_of.PHASES or run.job.source == Job.source or not lacking:
        return None
    late = f"no rank of the {len(blocks.ranks)} with steps is late; {_recorded_no_steps(lacking)}"
    remedy = f"add the log of the steps{_of(lacking)}; `hindmost run -- COMMAND` records every rank"
    return Verdict(kind="insufficient_data", evidence=(late,), advice=(remedy,))


def _ours(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What holds in a run of our own: a rank that may have waited for one without collectives is not named."""
    lacking = unrecorded_ranks.find(run, blocks)
    if lacking is None:
        return found
    doubted = [one for one in found if lacking.doubts(one)]
    kept = [one for one in found if one not in doubted]
    if doubted and not kept:
        return [unrecorded_ranks.told(lacking, doubted)]
    seen = rows(run.ranks) - int(np.isin(run.ranks["rank"], lacking.ranks).sum())
    return [_of_those_seen(one, lacking, seen) for one in kept]


def _recorded_no_steps(lacking: list[int]) -> str:
    who = names(lacking) if len(lacking) < _NAMED else f"{len(lacking)} other ranks"
    return f"the steps of {who} are not recorded: others may wait for {_them(lacking)}"


def _of_those_seen(one: Verdict, lacking: Absent, seen: int) -> Verdict:
    """Ranks found alike without the missing ones are not cleared; findings on the recorded ranks hold."""
    if one.kind != "balanced":
        known = one.kind in STOPS or one.kind == "insufficient_data"
        return one if known else replace(one, evidence=(*one.evidence, unrecorded_ranks.missing(lacking)))
    count = len(lacking.ranks)
    others = f"{count} other ranks are" if count > 1 else "1 other rank is" if count else "others are"
    who = f" ({names(lacking.ranks)})" if 0 < count < _NAMED else ""
    whom = "it" if count == 1 else "one of them"
    late = f"no rank of the {seen} recorded is late, but they may wait for {whom}: {others} not recorded{who}"
    remedy = unrecorded_ranks.remedy(lacking)
    return replace(one, kind="insufficient_data", evidence=(late, *one.evidence), advice=(remedy,))


def _with(one: Verdict, lacking: Unseen) -> Verdict:
    """A balanced job whose ranks wait together all the same."""
    if one.kind != "balanced":
        return one
    return replace(
        one, kind="insufficient_data", evidence=(*one.evidence, _awaited(lacking)), advice=(_remedy(lacking),)
    )


def _of_part(one: Verdict, lacking: Unseen) -> Verdict:
    """A part of a job clears no rank of what happened in the rest."""
    if one.kind != "balanced" or lacking.judged >= _NEARLY_ALL:
        return one
    cut = f"some files are cut: only {percent(lacking.judged)} of the job is in all files; no rank is late there"
    remedy = "give the whole files of all ranks"
    return Verdict(kind="insufficient_data", evidence=(cut, *one.evidence), advice=(remedy,))


def _insufficient(lacking: Unseen, waited: bool) -> Verdict:
    waits = _awaited(lacking) if waited else f"others may wait for {_them(lacking.ranks)}"
    return Verdict(kind="insufficient_data", evidence=(_missing(lacking), waits), advice=(_remedy(lacking),))


def _missing(lacking: Unseen) -> str:
    who = names(lacking.ranks) if lacking.ranks else "some ranks"
    return f"{who} {'is' if len(lacking.ranks) == 1 else 'are'} missing from most of the recording"


def _awaited(lacking: Unseen) -> str:
    who = names(lacking.ranks) if len(lacking.ranks) == 1 else "a missing rank"
    share = percent(lacking.together or 0.0)
    return f"all recorded ranks wait at once for {share} of the time, transfers apart: likely for {who}"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _of(ranks: Sequence[int]) -> str:
    return f" of {names(ranks)}" if 0 < len(ranks) < _NAMED else " that are missing"


def _remedy(lacking: Unseen) -> str:
    return f"add the whole files{_of(lacking.ranks)}; `hindmost run -- COMMAND` records every rank"
