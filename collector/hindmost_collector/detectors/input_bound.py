"""Jobs in which every rank waits for its input alike, longer than their GPUs hide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_collector.detector import register
from hindmost_collector.judgement.job_verdicts import of_job

if TYPE_CHECKING:
    from hindmost_collector.detector import Case
    from hindmost_collector.judgement.verdict import Verdict


@register()
def verdicts(case: Case) -> list[Verdict]:
    """The verdict on input that holds all ranks back alike; that of ranks named for theirs is not counted again."""
    return of_job(case.blocks, case.settings, case.slow)
