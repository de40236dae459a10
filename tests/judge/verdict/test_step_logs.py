"""From a log of steps alone, a rank is named if its forward time differs from that of all others."""

from dataclasses import replace

import numpy as np
import pytest
from hindmost_collector.recordings.tables import table
from hindmost_judge.judge import judge
from hindmost_judge.model import Run

from tests.runs import made, rows_of

STEPS_EACH = 60


def _logged(forward: list[float], backward: float = 20.0, groups: list[list[int]] | None = None) -> Run:
    """Ranks with these forward times, ms, that end backward together; ``groups`` have untimed collectives."""
    count = len(forward)
    noise = np.random.default_rng(1).normal(0, 0.03, (count, STEPS_EACH))
    ahead = np.array(forward)[:, None] + noise
    behind = ahead.max(axis=0) - ahead + backward
    took = ahead + behind + 1.0
    phases = {"input_ns": 0.1, "gpu_forward_ns": ahead, "gpu_backward_ns": behind, "gpu_optimizer_ns": 1.0}
    steps = rows_of("steps", kind="train", start_ns=np.cumsum(took, axis=1) - took, duration_ns=took, **phases)
    members = np.array([(comm, rank) for comm, group in enumerate(groups or [], 1) for rank in group]).reshape(-1, 2)
    comm, member = members.T
    return replace(
        made(count, steps=[steps], source="a log"),
        communicators=table("communicators", comm=comm, rank=member),
        collectives=table("collectives", comm=comm, rank=member, op="all_reduce"),
    )


def _named(run: Run) -> list[tuple[str, tuple[int, ...]]]:
    return [(verdict.kind, verdict.ranks) for verdict in judge(run).verdicts]


def test_a_rank_whose_forward_is_longer_than_every_other_is_named() -> None:
    """Ranks that share a model take equally long: a single longer one is slow itself."""
    assert _named(_logged([8.0, 8.0, 8.0, 11.0])) == [("straggler", (3,))]


@pytest.mark.parametrize("second", [10.6, 13.0])
def test_two_ranks_of_forwards_as_long_are_not_named(second: float) -> None:
    """One may only look slow, because it waits for the other in forward."""
    (verdict,) = judge(_logged([8.0, 8.0, 11.0, second])).verdicts
    assert verdict.kind == "insufficient_data"
    assert "ranks 2 and 3 take up to" in verdict.evidence[1]


def test_two_ranks_of_unlike_forwards_are_named() -> None:
    """A rank that waits takes as long as the one it waits for: unequal ranks are both slow."""
    assert _named(_logged([8.0, 8.0, 10.0, 16.0])) == [("straggler", (2, 3))]


def test_two_ranks_as_slow_are_named_where_all_ranks_are_one_group() -> None:
    """No part of a model has a communicator of its own: no rank waits in forward for some of the others only."""
    assert _named(_logged([8.0, 8.0, 11.0, 11.0], groups=[[0, 1, 2, 3]])) == [("straggler", (2, 3))]
    (verdict,) = judge(_logged([8.0, 8.0, 11.0, 11.0], groups=[[0, 1, 2, 3], [0, 1], [2, 3]])).verdicts
    assert verdict.kind == "insufficient_data"


def test_a_forward_is_no_measure_where_steps_are_mostly_waiting() -> None:
    """All ranks, the late one too, are in backward for ten times as long as in forward: others' launches, or stages."""
    (verdict,) = judge(_logged([2.0, 2.0, 2.0, 4.0], backward=20.0)).verdicts
    assert (verdict.kind, verdict.ranks) == ("insufficient_data", ())


def test_no_rank_is_cleared_by_a_log_of_the_steps_alone() -> None:
    """All ranks wait for one that is slow in backward, and all take as long over it."""
    (verdict,) = judge(_logged([8.0, 8.0, 8.0, 8.0])).verdicts
    assert verdict.kind == "insufficient_data"
    assert "backward, 69 % of a step of 29.0 ms" in verdict.evidence[0]
