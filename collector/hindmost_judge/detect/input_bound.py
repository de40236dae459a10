"""Jobs in which every rank waits for its input alike, longer than their GPUs hide."""

from __future__ import annotations

from hindmost_judge.detect import Case
from hindmost_judge.verdict import advice
from hindmost_judge.verdict.schema import Verdict
from hindmost_judge.verdict.whole_job import of_job


def verdicts(case: Case) -> list[Verdict]:
    """The verdict on input that holds all ranks back alike; that of ranks named for theirs is not counted again."""
    return [advice.on(one, case.run) for one in of_job(case.blocks, case.settings, case.slow, case.seen)]
