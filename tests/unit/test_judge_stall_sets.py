"""Several ranks that stall now and then: all of them are told, at what the repair of them saves."""

from __future__ import annotations

import numpy as np
import pytest
from hindmost_collector.detectors import stall_sets
from hindmost_collector.judge import judge
from hindmost_collector.robust import peers_median
from hindmost_collector.settings import DEFAULT
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_collector.timeline import calm_peers
from hindmost_collector.timeline.blocks import build


@pytest.mark.parametrize("count", range(2, 33))
def test_whoever_is_early_is_on_time_however_many_are_late(count: int) -> None:
    """What ranks are beyond the median of their peers says in full how far they are apart."""
    came = np.random.default_rng(count).normal(size=(count, 20))
    early = np.sort(came, axis=0)[(count - 1) // 4]
    behind = calm_peers.behind(came - peers_median(came), np.zeros(count, np.int64))
    assert behind == pytest.approx(came - early)


def _sets() -> list[Scenario]:
    """Ranks that all stall in the same steps, or each in others."""
    same = [Fault("gc", (rank,), 0.25, duty=0.6) for rank in (0, 1, 3)]
    return [
        Scenario(8, 200, 1, faults=(Fault("memory", (3, 4), 0.2, duty=0.45),)),
        Scenario(16, 160, 2, faults=(Fault("checkpoint", (4, 9, 13), 0.4, duty=0.57),)),
        Scenario(8, 110, 3, layout="fsdp", faults=(Fault("gc", (3, 6, 7), 0.4, duty=0.36),)),
        Scenario(8, 160, 4, layout="pp_dp", pipeline=2, faults=(Fault("gc", (1, 3), 0.5, duty=0.56),)),
        Scenario(4, 200, 54, faults=tuple(same)),
        Scenario(8, 200, 21, layout="pp_dp", pipeline=2, faults=tuple(same)),
    ]


@pytest.mark.parametrize("job", _sets(), ids=lambda job: f"{job.layout}-{job.ranks}-{job.seed}")
def test_ranks_that_stall_for_one_cause_are_told_as_one(job: Scenario) -> None:
    """Whether in the same steps or in others, in few of them or most: they would be repaired together."""
    made = simulate(job)
    (one,) = judge(made.run).verdicts
    ranks = sorted(rank for fault in job.faults for rank in fault.ranks)
    assert (one.kind, list(one.ranks), one.cause) == ("intermittent", ranks, job.faults[0].cause)
    saved = (made.truth.total_ns - made.truth.repaired_ns) / job.steps / 1e6
    assert one.cost_ms_per_step == pytest.approx(saved, rel=0.25)


def test_stalls_beside_a_rank_that_is_always_late_are_told_at_what_they_add() -> None:
    """It hides a good part of them: what is saved is saved once that rank is repaired, and both make the whole."""
    faults = (Fault("input", (2,), 0.2), Fault("gc", (9,), 0.4, duty=0.4))
    made = simulate(Scenario(16, 160, 5, faults=faults))
    found = {one.kind: one for one in judge(made.run).verdicts}
    assert {kind: (one.ranks, one.cause) for kind, one in found.items()} == {
        "straggler": ((2,), "input"),
        "intermittent": ((9,), "gc"),
    }
    assert found["intermittent"].given == (2,)
    cost = sum(one.cost_ms_per_step or 0.0 for one in found.values())
    assert cost == pytest.approx((made.truth.total_ns - made.truth.repaired_ns) / 160e6, rel=0.1)


@pytest.mark.parametrize("seed", range(6))
def test_of_noisy_ranks_none_is_in_a_set(seed: int) -> None:
    """Hosts that hesitate now and then by anything, and work that differs from step to step, stall nobody."""
    noise = Noise(0.004, 0.02, 0.01, stall_probability=0.1, stall_size=0.3)
    run = simulate(Scenario(8, 150, seed, noise=noise, varying_lengths=0.1 * (seed % 2))).run
    blocks = build(run, DEFAULT)
    assert blocks is not None
    assert not stall_sets.find(blocks, DEFAULT)


def test_of_two_kinds_of_steps_that_last_nobody_is_in_a_set() -> None:
    """Who is slow for some long stretches does not stall, and is told otherwise."""
    faults = tuple(Fault("gc", (rank,), 0.3, 30 * rank, 30 * rank + 25) for rank in range(1, 5))
    blocks = build(simulate(Scenario(8, 200, 0, layout="fsdp", faults=faults)).run, DEFAULT)
    assert blocks is not None
    assert not stall_sets.find(blocks, DEFAULT)
