"""Most ranks slow at once: the typical rank is slow, and the delays show the few that are not, ahead."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.report.verdict_lines import of_verdict
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import TABLES, empty


def _job(cause: str, onset: int, layout: str = "dp", end: int | None = None) -> Scenario:
    return Scenario(8, 160, 3, layout, tensor=2, faults=(Fault(cause, (0, 1, 2, 3, 4, 5), 0.2, onset, end),))


@pytest.mark.parametrize("cause", ["compute", "input"])
def test_most_ranks_slow_from_the_start_are_no_all_clear(cause: str) -> None:
    """Whether two ranks have less to do or six are slow is unknown: the report says so, and names no rank."""
    report = judge(simulate(_job(cause, 0)).run)
    (verdict,) = report.verdicts
    assert (verdict.kind, verdict.ranks) == ("balanced", ())
    assert verdict.evidence[0].startswith("ranks 6 and 7 are ")
    assert "faster than the other 6: they have less work, or these are slow" in verdict.evidence[0]
    assert not any("costs nothing" in note for note in report.notes)
    assert of_verdict(report.to_dict()["verdicts"][0]).head == "UNSURE"


def test_of_three_ranks_too_whether_one_is_fast_or_two_are_slow_is_unknown() -> None:
    """As of eight: delays do not show which."""
    faults = tuple(Fault("compute", (rank,), 0.12) for rank in (1, 2))
    (verdict,) = judge(simulate(Scenario(3, 200, 1, "dp", faults=faults)).run).verdicts
    assert (verdict.kind, verdict.ranks) == ("balanced", ())
    assert "faster than the other 2: it has less work, or these are slow" in verdict.evidence[0]


def test_a_rank_that_may_wait_for_its_peers_makes_no_rank_slow() -> None:
    """Of a pair that shares tensors one becomes slow and the other waits for it, in unmarked steps."""
    job = Scenario(8, 104, 1, "tp_dp", tensor=2, faults=(Fault("compute", (3,), 0.06, 80),))
    run = simulate(job).run
    unmarked = {**run.collectives, "step": np.full(len(run.collectives["rank"]), -1)}
    (verdict,) = judge(replace(run, collectives=unmarked, steps=empty(TABLES["steps"]))).verdicts
    assert set(verdict.ranks) <= {3}
