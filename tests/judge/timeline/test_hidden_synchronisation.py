"""What steps alone tell of jobs whose ranks meet in forward."""

from typing import Any

import numpy as np
import pytest
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.timeline import phases

from tests.runs import made, rows_of

STEPS = 60


def job(late: Any, computes: Any, *, members: Any = None) -> Run:
    """Steps of ranks whose input is ``late`` [R] (ms) and who ``computes`` [R] in forward, all on the GPU. Those of one
    of ``members`` [R] meet at the beginning of forward (``None``: none does), all at backward's end."""
    late, computes = np.asarray(late, float), np.asarray(computes, float)
    ranks = len(computes)
    groups = np.arange(ranks) if members is None else np.asarray(members)
    generator = np.random.default_rng(5)
    done, rows = np.zeros(ranks), []
    for step in range(STEPS):
        began = done.copy()
        ready = began + late + generator.normal(0.5, 0.02, ranks)
        met = np.array([ready[groups == group].max() for group in groups])
        worked = met + computes + generator.normal(0.0, 0.02, ranks)
        done = np.full(ranks, (worked + 20.0).max())
        phases = {"input_ns": ready - began, "gpu_forward_ns": worked - ready, "gpu_backward_ns": done - worked}
        columns = {"start_ns": began + 1, "duration_ns": done - began, **phases}
        rows.append(rows_of("steps", step=step, **{name: one[:, None] for name, one in columns.items()}))
    return made(ranks, steps=rows)


@pytest.mark.parametrize("members", [[0, 0, 0, 0], [0, 0, 1, 1]])
def test_who_waits_in_forward_is_not_slow(members: list[int]) -> None:
    """The peers' forward is longer by what the GPU of the late rank idled: all of them, or its tensor group alone."""
    (found,) = judge(job([0.0, 8.0, 0.0, 0.0], [10.0] * 4, members=members)).verdicts
    assert (found.kind, found.ranks, found.cause) == ("straggler", (1,), "input")
    assert found.cost_ms_per_step == pytest.approx(8.0, rel=0.1)


def test_no_rank_waits_for_one_with_an_unmeasured_forward() -> None:
    """How much longer another's is than that one is unknown."""
    forward, idle = np.full((3, 9), 8.0), np.zeros((3, 9))
    forward[0], idle[0], idle[1], forward[2] = np.nan, 30.0, 4.0, 12.0
    found = phases.waited_in_forward(forward, idle, np.full(9, 40.0))
    np.testing.assert_array_equal(found[2], 4.0)
    np.testing.assert_array_equal(np.nan_to_num(found[:2]), 0.0)


def test_what_is_as_long_by_chance_in_some_steps_is_no_wait() -> None:
    """Who meets others in forward waits for most of what they come late by."""
    forward, idle = np.full((3, 9), 8.0), np.zeros((3, 9))
    idle[0], forward[2, :3] = 4.0, 12.0
    assert not phases.waited_in_forward(forward, idle, np.full(9, 40.0)).any()


def test_who_computes_longer_than_another_idles_is_slow() -> None:
    """Its forward is longer by something else than what that one's GPU waited for input."""
    (found,) = judge(job([0.0, 4.0, 0.0, 0.0], [16.0, 10.0, 10.0, 10.0])).verdicts[:1]
    assert (found.kind, found.ranks) == ("straggler", (0,))
