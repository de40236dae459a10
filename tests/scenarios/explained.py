"""The invariant that users see: a verdict or a sentence explains who comes last in the table."""

from hindmost_collector.report import columns
from hindmost_judge.verdict.schema import Report

#: A rank is seen to come last in this share of the collectives, with the others waiting for this share of a step.
_MOSTLY, _MUCH = 0.5, 0.05
#: What other ranks cause, as means, explains a rank's typical wait if it is this share of it.
_ABOUT = 1 / 3


def not_explained(report: Report) -> list[int]:
    """Ranks that are last in most collectives with others waiting, and that no verdict and no sentence is about."""
    said = [line for verdict in report.verdicts for line in verdict.evidence] + list(report.notes)
    named = {rank for verdict in report.verdicts for rank in (*verdict.ranks, *verdict.victims)}
    found = []
    for row in report.ranks:
        others = [other.wait_ms or 0.0 for other in report.ranks if other.rank != row.rank]
        waited = max(min(others, default=0.0), row.caused_wait_ms or 0.0)
        seen = (row.share_last or 0.0) > _MOSTLY and waited >= _MUCH * (row.step_ms or float("inf"))
        reported = row.rank in named or any(f"rank {row.rank} " in f"{line} " for line in said)
        if seen and not reported:
            found.append(row.rank)
    return found


def waits_of_no_rank(report: Report) -> list[int]:
    """Ranks that wait for much of a step, says the table, though it shows no other rank that they wait for."""
    shown = report.to_dict()
    caption = columns.caption(columns.table(shown["ranks"])[0], shown)
    if "wait: in receives" in caption or "longer work of this rank explains" in caption:
        return []
    found = []
    for row in report.ranks:
        caused = sum(other.caused_wait_ms or 0.0 for other in report.ranks if other.rank != row.rank)
        if (row.wait_ms or 0.0) > max(_MUCH * (row.step_ms or float("inf")), caused / _ABOUT):
            found.append(row.rank)
    return found
