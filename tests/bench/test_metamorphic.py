"""bench/metamorphic.py: forms of a recording of which the truth is known."""

from functools import cache
from typing import Any

import numpy as np
import pytest
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from bench.golden import as_decision
from bench.metamorphic import FEWEST, FORMS, expected, flip, steps_of


@cache
def simulated() -> Run:
    return simulate(Scenario(ranks=4, steps=120, seed=3, faults=(Fault("compute", (1,), 0.2, onset=60),))).run


@pytest.mark.parametrize("form", [name for name in FORMS if name != "network"])
def test_every_form_of_a_plain_job_has_the_same_rank_named(form: str) -> None:
    """A rank that is slow since the middle is, whatever is cut, repeated, moved, stretched or renumbered."""
    run = simulated()
    plain = [as_decision(one) for one in judge(run).verdicts]
    made = FORMS[form](run, plain)
    assert made is not None
    now = [as_decision(one) for one in judge(made).verdicts]
    must, may = expected(form, plain, made, 3)
    assert flip(must, may, now) == ""
    assert {rank for one in now for rank in one["ranks"]} == {2 if form == "renumbered" else 1}


def test_a_repeated_job_has_whole_steps() -> None:
    """Steps and calls of the second time follow those of the first, numbered on."""
    run = simulated()
    made = FORMS["twice"](run, [])
    assert made is not None
    assert np.array_equal(steps_of(made), np.arange(120 + 108))
    calls = np.unique(made.collectives["seq"][made.collectives["comm"] == made.collectives["comm"][0]])
    assert np.array_equal(calls, np.arange(calls[0], calls[0] + len(calls)))


def decision(**other: Any) -> dict[str, Any]:
    return {"kind": "straggler", "ranks": [1], "cause": "input", "since": 0, "until": None, "cost_ms": 1.0} | other


@pytest.mark.parametrize(
    ("now", "what"),
    [
        (decision(since=40, cost_ms=9.0), ""),
        (decision(cause="unknown"), "cause"),
        (decision(kind="intermittent"), "kinds"),
        (decision(ranks=[2]), "ranks"),
    ],
)
def test_a_flip_is_of_ranks_kinds_or_causes(now: dict[str, Any], what: str) -> None:
    """Costs and onsets may move."""
    assert flip([decision()], [decision()], [now]) == what


def test_a_fault_may_vanish_where_little_of_it_is_left() -> None:
    """A part with a few of its steps shows nothing of it."""
    run = simulated()
    made = FORMS["until70"](run, [])
    assert made is not None
    late = decision(since=int(steps_of(made)[-1]) - FEWEST // 2)
    assert expected("until70", [late], made, 3) == ([], [late])
