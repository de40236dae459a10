"""Where launches were not recorded, a rank that is late for a while may only have a host that lost its lead."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_judge.verdict.inconclusive import without_lost_leads
from hindmost_judge.verdict.schema import Verdict

STEPS = 100


def of(*, gathers: bool = False, starts: bool = False, unsure: float | None = None) -> Any:
    """As much as is looked at of the blocks of three ranks; rank 1 is late by 10, and its host ``unsure``."""
    start = np.full((3, STEPS), 5.0 if starts else np.nan)
    joined = SimpleNamespace(gpu_time=True, start=start, gathers=np.full(STEPS, gathers))
    doubt = None if unsure is None else np.array([0.0, unsure, 0.0])
    delay = np.repeat([[0.0], [10.0], [0.0]], STEPS, axis=1)
    return SimpleNamespace(joined=joined, steps=np.arange(STEPS), ranks=np.arange(3), unsure=doubt, delay=delay)


def late(rank: int, since: int = 0, until: int | None = None, *, kind: str = "straggler") -> Verdict:
    """A verdict on one rank."""
    return Verdict(kind=kind, ranks=(rank,), since_step=since, until_step=until, cause="unknown")


def test_ranks_that_are_late_in_turn_are_not_named() -> None:
    """Rank 0 until step 60, rank 1 from there on: so do hosts that set the pace, whichever of them has no lead."""
    (verdict,) = without_lost_leads([late(0, 0, 60), late(1, 61)], of())
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())
    assert verdict.evidence[0].endswith("rank 0 from step 0 to 60; rank 1 from step 61 on")


def test_a_rank_that_took_over_from_another_is_not_late_throughout() -> None:
    """It is later than the others in 77 of 100 steps, since another one no longer is."""
    (verdict,) = without_lost_leads([late(0, 23), late(1, 0, 27)], of())
    assert verdict.kind == "insufficient_data"


@pytest.mark.parametrize("other", [late(1, 30, 50), late(1, 0, kind="intermittent")])
def test_a_rank_late_throughout_is_named_whatever_others_do_for_a_while(other: Verdict) -> None:
    """No lead lasts for all of a run; the other one may have lost its own."""
    found = [late(0), other]
    assert without_lost_leads(found, of()) == found[:1]


def test_a_rank_that_is_late_for_a_while_is_named_where_hosts_launch_little() -> None:
    """Gradients are reduced in a few buckets: from step 28 to 68 it had more to do."""
    found = [late(2, 28, 68)]
    assert without_lost_leads(found, of()) == found


def test_where_parameters_are_gathered_no_rank_is_named_for_a_while() -> None:
    """Its host may have been behind for that while: of eight healthy FSDP jobs three had such a rank."""
    (verdict,) = without_lost_leads([late(2, 28, 68)], of(gathers=True))
    assert verdict.kind == "insufficient_data"
    assert without_lost_leads([late(2, 8)], of(gathers=True)) == [late(2, 8)]


def test_few_steps_of_many_name_no_rank() -> None:
    """Of 100 steps ten, of whatever a pattern of collectives is taken to be a step."""
    (verdict,) = without_lost_leads([late(2, 30, 39)], of())
    assert verdict.kind == "insufficient_data"


def test_recorded_starts_tell_it_unless_the_host_in_question_marked_nothing() -> None:
    """Two ranks in turn are two slow ranks where their hosts' launches were seen."""
    found = [late(0, 0, 60), late(1, 61)]
    assert without_lost_leads(found, of(starts=True)) == found
    assert without_lost_leads(found, of(starts=True, unsure=0.0)) == found
    (verdict,) = without_lost_leads([late(1, 30, 50)], of(starts=True, gathers=True, unsure=7.0))
    assert verdict.kind == "insufficient_data"


@pytest.mark.parametrize(("unsure", "reported"), [(4.0, True), (6.0, False)])
def test_what_is_left_of_a_lead_may_be_one_too(unsure: float, reported: bool) -> None:
    """A host that launched slower than others for 20 steps, though by no more than they differ for most of that."""
    found = [late(1, 0, 20)]
    assert (without_lost_leads(found, of(starts=True, unsure=unsure)) == found) is reported


def test_a_rank_that_pauses_is_late_throughout() -> None:
    """In 87 of 100 steps, in two segments, each of which may be a lead that was lost."""
    found = [late(1, 0, 60), late(1, 74)]
    assert without_lost_leads(found, of(gathers=True)) == found
    assert without_lost_leads([*found, late(2, 30, 50)], of()) == found


def test_what_is_certain_stays_where_no_rank_is_named() -> None:
    """Ranks in turn are doubtful, a slow link in the same job is not."""
    link = Verdict(kind="slow_link")
    assert without_lost_leads([late(0, 0, 60), late(1, 61), link], of()) == [link]


def test_one_rank_for_a_while_is_not_said_to_be_several() -> None:
    """The note names the ranks that it is about."""
    (verdict,) = without_lost_leads([late(2, 28, 68)], of(gathers=True))
    assert verdict.evidence[0] == ("one rank is late in a part of the steps: rank 2 from step 28 to 68")


def test_two_ranks_that_are_late_throughout_are_named() -> None:
    """No lead lasts for all of a run, whatever other ranks are late; sets that share a rank are not sure."""
    assert without_lost_leads([late(0), late(2)], of()) == [late(0), late(2)]
    both = Verdict(kind="straggler", ranks=(1, 2), since_step=0, cause="unknown")
    assert [lead.kind for lead in without_lost_leads([late(1), both], of())] == ["insufficient_data"]
