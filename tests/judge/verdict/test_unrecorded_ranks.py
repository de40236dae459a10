"""Ranks without recorded collectives: none is cleared, and no rank is named that may have waited for one of them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.encoding import chosen
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict import missing_ranks
from hindmost_judge.verdict.missing_ranks import Absent
from hindmost_judge.verdict.schema import Verdict

OF_RANKS = ("steps", "collectives", "intervals", "in_flight", "stacks", "rank_states")
#: What is gone of a rank: all that it did, that and what it was defined as, its plugin's, or every trace.
GONE = {
    "rows": OF_RANKS,
    "rows and communicators": (*OF_RANKS, "communicators"),
    "collectives": ("collectives", "communicators"),
    "all": (*OF_RANKS, "communicators", "ranks"),
}
LAYOUTS = (
    Scenario(seed=3),
    Scenario(seed=3, layout="fsdp"),
    Scenario(16, seed=18, layout="tp_dp", tensor=2),
    Scenario(seed=3, layout="pp_dp", pipeline=2),
    Scenario(4, seed=11, layout="pp_dp", pipeline=2),
)


def _without_rank(run: Run, rank: int, gone: str) -> Run:
    """As a collector has it to which nothing of this came."""
    tables = run.tables()
    left = {name: chosen(tables[name], tables[name]["rank"] != rank) for name in GONE[gone]}
    return missing_ranks.with_missing(replace(run, job=replace(run.job, source="hindmost"), **left))


@cache
def _run(scenario: Scenario) -> Run:
    return simulate(scenario).run


def _verdicts(scenario: Scenario, rank: int, gone: str) -> tuple[Verdict, ...]:
    return judge(_without_rank(_run(scenario), rank, gone)).verdicts


@pytest.mark.parametrize("gone", GONE)
@pytest.mark.parametrize("scenario", LAYOUTS, ids=lambda one: f"{one.layout}-{one.ranks}")
def test_no_rank_is_named_or_cleared_if_a_partner_is_missing(scenario: Scenario, gone: str) -> None:
    """In no layout, although partners of the missing one come late to the ranks they meet next; the report says so."""
    for rank in (0, scenario.ranks - 1):
        (verdict,) = _verdicts(scenario, rank, gone)
        assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
        assert any(f"rank {rank}" in one for one in verdict.evidence)


@pytest.mark.parametrize("scenario", LAYOUTS, ids=lambda one: f"{one.layout}-{one.ranks}")
def test_a_slow_and_missing_rank_gets_no_other_named(scenario: Scenario) -> None:
    """All ranks wait for it, and it is not recorded."""
    slow = replace(scenario, faults=(Fault("compute", (1,), 0.3),))
    (verdict,) = _verdicts(slow, 1, "rows")
    assert verdict.ranks == ()
    assert verdict.kind == "insufficient_data"


def test_one_that_is_slow_itself_is_named_though_another_is_missing() -> None:
    """Its tensor partner's and its replicas' collectives show who waits for whom: none of them lacks a member but one
    that many others are in."""
    slow = Scenario(64, layout="tp_dp", tensor=4, faults=(Fault("compute", (9,), 0.3),))
    (verdict,) = _verdicts(slow, 63, "rows")
    assert (verdict.kind, verdict.ranks) == ("straggler", (9,))
    assert verdict.evidence[-1] == "rank 63 is missing: no collective of it was recorded"


@pytest.mark.parametrize("gone", ["rows", "collectives"])
@pytest.mark.parametrize("layout", ["dp", "tp_dp"])
def test_who_hangs_is_named_and_not_who_is_missing(layout: str, gone: str) -> None:
    """The missing rank's open operations are unknown; the culprit is known not to have come."""
    stopped = Scenario(layout=layout, tensor=2, steps=60, faults=(Fault("hang", (5,), onset=40),))
    (verdict,) = _verdicts(stopped, 0, gone)
    assert (verdict.kind, verdict.ranks) == ("hang", (5,))


def test_ranks_that_take_part_in_no_collective_lack_nothing() -> None:
    """All members of all communicators were seen: a further rank is no partner of theirs."""
    run = simulate(Scenario()).run
    ranks = {name: np.append(column, column[-1:]) for name, column in run.ranks.items()}
    ranks["rank"][-1] = 8
    (verdict,) = judge(replace(run, job=replace(run.job, source="hindmost"), ranks=ranks)).verdicts
    assert verdict.kind == "balanced"


@pytest.mark.parametrize(("late", "doubted"), [((0,), False), ((0, 1), True), ((0, 1, 2, 3), True), ((4, 5), False)])
def test_half_of_those_who_meet_a_missing_rank_may_be_late_for_it(late: tuple[int, ...], doubted: bool) -> None:
    """A rank that waits for it is not alone, and not all are late enough to be named; one of four is late alone."""
    absent = Absent((8,), (frozenset({0, 1, 2, 3}),))
    assert absent.doubts(Verdict(kind="straggler", ranks=late, cause="unknown")) == doubted


@pytest.mark.parametrize(
    "slow",
    [Verdict(kind="slow_link"), Verdict(kind="straggler", ranks=(5,), cause="network")],
    ids=lambda one: one.kind,
)
def test_slow_transfers_are_not_reported_with_a_missing_rank(slow: Verdict) -> None:
    """All that wait for a rank of which nothing is known look as if their transfers were slow."""
    assert Absent((8,), (frozenset({0, 1, 2, 3}),)).doubts(slow)
