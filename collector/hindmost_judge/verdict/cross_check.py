"""Cross-check of two recordings: some ranks' collectives are missing, and there is a log of all ranks' steps.

Collectives show which of their ranks is late, for whatever reason. Steps do not show a slow backward, in which ranks
wait for each other. For ranks without collectives the steps are all that is known: they clear no rank.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hindmost_judge import dictionary_encoding
from hindmost_judge.model import without_waits
from hindmost_judge.timeline import join
from hindmost_judge.verdict.schema import STOPS, Report, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from hindmost_judge.model import Run

#: Verdicts on all of a job, which hold for all other ranks too.
_OF_THE_JOB = (*STOPS, "input_bound", "host_bound")
#: Forward is timed as long as it is launched: hosts without a fault differ in that by up to 1.4 % of a step.
_UNEXPLAINED = 0.03


def judged(run: Run, judge: Callable[[Run], Report]) -> Report | None:
    """The report on such a run, by what ``judge`` says of the collectives and of the steps; ``None`` for another."""
    lacking = run.unseen
    if lacking is None or not lacking.by_steps:
        return None
    if not join.synchronising(run.collectives, dictionary_encoding.codes(run.collectives["op"])).any():
        return None  # of the steps alone
    met, log = judge(replace(run, unseen=replace(lacking, by_steps=False))), judge(without_waits(run))
    told = [one for one in met.verdicts if one.ranks or one.kind in _OF_THE_JOB]
    unmet = [one for one in log.verdicts if one.kind in STOPS or _slow(one, lacking.ranks)]
    if any(one.kind == "host_bound" for one in told):  # what events time on GPUs is then how long hosts launch
        unmet = [one for one in unmet if one.cause == "input" or one.kind in STOPS]
    if told and not unmet:
        return replace(met, notes=log.notes)
    if unmet:
        return replace(log, verdicts=(*unmet, *(one for one in told if not _same(one, unmet))))
    nobody = tuple(one for one in log.verdicts if one.kind == "insufficient_data")
    return replace(log, verdicts=nobody or met.verdicts)


def _slow(one: Verdict, lacking: Sequence[int]) -> bool:
    """Whether it names any of these for something that was measured, or for more than launching differs by."""
    sure = one.cause != "unknown" or (one.cost_ratio or 0.0) >= _UNEXPLAINED
    return sure and bool(set(one.ranks) & set(lacking))


def _same(one: Verdict, others: list[Verdict]) -> bool:
    return any(one.kind == other.kind and set(one.ranks) <= set(other.ranks) for other in others)
