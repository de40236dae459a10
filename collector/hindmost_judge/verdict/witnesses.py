"""A job of so many ranks that collectives of only some are judged: a sample, and all ranks that the others wait for.

What is usual shows in a sample from all over the job, and who holds it up shows in its own collectives: there it waits
less than the others. So these witnesses are judged as a job of their own. The steps of all ranks are judged next to
that: they show which rank is slow in a phase of its own, which ranks stopped, and what all ranks did.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge.model import COLLECTIVES, Run, empty
from hindmost_judge.timeline.separate_jobs import run_of_ranks
from hindmost_judge.verdict.missing_ranks import ITS_OWN
from hindmost_judge.verdict.schema import STOPS
from hindmost_judge.verdict.summary import RankRows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hindmost_judge.types import Ints
    from hindmost_judge.verdict.schema import RankRow, Report, Verdict


def judged(run: Run, ranks: Ints, judge: Callable[[Run], Report]) -> Report:
    """The report on a run by what ``judge`` says of the witnesses ``ranks`` [W], and of the steps of all.

    Only the first where only the named ranks are wanted.
    """
    met = judge(_of_these(run, ranks))
    if run.look:
        return met
    steps = judge(replace(run, collectives=empty(COLLECTIVES), witnesses=None))
    seen = set(ranks.tolist())
    unmet = [one for one in steps.verdicts if one.kind in STOPS or _of_another(one, seen)]
    waiting = [one for one in met.verdicts if one.ranks or not unmet]
    of_all = f"the collectives of {len(ranks):,} of {len(run.ranks['rank']):,} ranks are judged: a sample, and of those"
    return replace(
        steps,
        job=replace(steps.job, step_ms=met.job.step_ms, bound=met.job.bound, slowed=met.job.slowed),
        verdicts=(*unmet, *waiting),
        ranks=_with_waits(steps.ranks, met.ranks),
        what_if=met.what_if,
        notes=(f"{of_all} that wait least", *steps.notes, *(one for one in met.notes if one not in steps.notes)),
    )


def _of_these(run: Run, ranks: Ints) -> Run:
    """What was recorded of these, as a job of its own: others are not missing in their communicators."""
    part = run_of_ranks(run, ranks)
    comm, size = np.unique(part.communicators["comm"], return_inverse=True)
    members = np.bincount(size, minlength=len(comm))
    communicators = {**part.communicators, "size": members[size].astype(np.int32)}
    return replace(part, communicators=communicators, look=run.look, past=run.past, unseen=run.unseen)


def _of_another(one: Verdict, seen: set[int]) -> bool:
    """Whether it names a rank that is no witness, for what was measured on that rank."""
    return one.cause in ITS_OWN and not seen.issuperset(one.ranks)


def _with_waits(every: Sequence[RankRow], of_witnesses: Sequence[RankRow]) -> Sequence[RankRow]:
    """The rows of all ranks, with what only their collectives tell of some."""
    if not (isinstance(every, RankRows) and isinstance(of_witnesses, RankRows)):
        return every
    at = np.searchsorted(every.ranks, of_witnesses.ranks)
    figures = dict(every.figures)
    for name, values in of_witnesses.figures.items():
        known = ~np.isnan(values)
        figures[name] = np.array(figures.get(name, np.full(len(every.ranks), np.nan)))
        figures[name][at[known]] = values[known]
    return replace(every, figures=figures)
