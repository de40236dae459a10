"""Simulated jobs obey the arithmetic of waiting for each other, and their recordings do not tell the truth."""

import numpy as np
import pytest
from hindmost.errors import UsageError
from hindmost_collector.simulate import Fault, Noise, Scenario, simulate
from hindmost_judge.model import Run

QUIET = Noise(0, 0, 0, 0.8, 0, 0, 0, 0, 0, 0)


def _alike(first: Run, second: Run) -> bool:
    tables = zip(first.tables().values(), second.tables().values(), strict=True)
    return all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for a, b in tables for name in a)


def test_a_seed_gives_one_run() -> None:
    """The same scenario is the same recording, another seed another."""
    scenario = Scenario(ranks=4, steps=10, seed=3, faults=(Fault("compute", (1,)),))
    assert _alike(simulate(scenario).run, simulate(scenario).run)
    assert not _alike(simulate(scenario).run, simulate(Scenario(ranks=4, steps=10, seed=4)).run)


def test_the_slow_rank_waits_least() -> None:
    """In each collective the culprit's duration is shortest: the others wait in theirs."""
    run = simulate(Scenario(ranks=4, steps=20, faults=(Fault("compute", (2,), 0.2),), noise=QUIET)).run
    duration = run.collectives["duration_ns"].reshape(4, 20, 6)
    assert (duration[:, :, -1].argmin(axis=0) == 2).all()
    assert (duration[[0, 1, 3]] > duration[2]).all()


@pytest.mark.parametrize("layout", ["dp", "fsdp", "tp_dp", "pp_dp"])
def test_without_noise_a_fault_costs_about_its_size(layout: str) -> None:
    """Nothing hides a slower GPU where every step waits for it; the truth comes from the run without it."""
    fault = Fault("compute", (1,), 0.2, onset=5)
    scenario = Scenario(8, 15, layout=layout, tensor=2, pipeline=2, warmup=0, faults=(fault,), noise=QUIET)
    truth = simulate(scenario).truth
    step_ns = scenario.step_ms * 1e6
    assert truth.active == (tuple(range(5, 15)),)
    assert (truth.total_ns - truth.repaired_ns) / 10 / step_ns == pytest.approx(0.2, abs=0.03)


def test_run_ahead_hides_a_slow_input() -> None:
    """While the GPU has queued work, a host that comes later costs nothing."""
    fault = (Fault("input", (0,), 0.2),)
    shown, hidden = (simulate(Scenario(4, 30, run_ahead=ahead, faults=fault)).truth for ahead in (0, 1))
    assert shown.cost_ratio > 0.1
    assert hidden.cost_ratio < 0.01


def test_a_set_repaired_together_saves_more_than_its_members() -> None:
    """Two equally slow ranks hide each other: repairing one alone saves nothing."""
    faults = (Fault("compute", (0,), 0.2), Fault("compute", (3,), 0.2))
    truth = simulate(Scenario(4, 20, faults=faults, noise=QUIET)).truth
    assert truth.total_ns - truth.repaired_ns > 20 * 0.15 * 100e6
    assert max(truth.total_ns - one for one in truth.repaired_each_ns) < 20 * 0.001 * 100e6


def test_an_intermittent_fault_acts_in_its_share_of_steps() -> None:
    """Which steps those are depends on the seed alone."""
    fault = Fault("gc", (1,), 0.5, duty=0.25)
    truth = simulate(Scenario(4, 400, faults=(fault,))).truth
    assert 60 < len(truth.active[0]) < 140


def test_a_hang_leaves_the_others_in_flight() -> None:
    """All ranks but the hung one have entered every overlapped operation of that step."""
    run = simulate(Scenario(4, 20, faults=(Fault("hang", (2,), onset=7),))).run
    assert run.steps["step"].max() == 6
    following = int(run.collectives["seq"].max()) + 1
    for rank in (0, 1, 3):
        mine = run.in_flight["rank"] == rank
        assert run.in_flight["seq"][mine].tolist() == list(range(following, following + 6))
    assert set(run.in_flight["rank"].tolist()) == {0, 1, 3}


def test_a_rank_that_waits_for_a_waiting_one_is_in_flight_elsewhere() -> None:
    """The hung rank's tensor group waits for it, the replicas for that group; a rank never waits twice."""
    run = simulate(Scenario(8, 12, layout="tp_dp", tensor=2, faults=(Fault("hang", (5,), onset=7),))).run
    names = dict(zip(run.communicators["comm"].tolist(), run.communicators["name"].tolist(), strict=True))
    inside: dict[str, set[int]] = {}
    for comm, rank in zip(run.in_flight["comm"].tolist(), run.in_flight["rank"].tolist(), strict=True):
        inside.setdefault(names[comm], set()).add(rank)
    assert inside == {"tensor": {4}, "data": {0, 1, 2, 3, 6, 7}}


def test_a_rank_that_diverges_is_inside_another_operation() -> None:
    """At one sequence number all others have entered what the program says."""
    run = simulate(Scenario(4, 20, layout="fsdp", faults=(Fault("desync", (2,), onset=7),))).run
    entered = zip(run.in_flight["rank"].tolist(), run.in_flight["name"].tolist(), strict=True)
    assert sorted(entered) == [(0, "all_gather"), (1, "all_gather"), (2, "all_reduce"), (3, "all_gather")]
    assert len(set(run.in_flight["seq"].tolist())) == 1


def test_members_of_a_group_have_one_communicator() -> None:
    """Tensor groups are neighbours, data groups hold one rank of each."""
    run = simulate(Scenario(8, 4, layout="tp_dp", tensor=2)).run
    held: dict[int, list[int]] = {}
    for comm, rank in zip(run.communicators["comm"].tolist(), run.communicators["rank"].tolist(), strict=True):
        held.setdefault(comm, []).append(rank)
    assert sorted(held.values(), key=lambda ranks: (len(ranks), ranks)) == [
        *([i, i + 1] for i in range(0, 8, 2)),
        [0, 2, 4, 6],
        [1, 3, 5, 7],
        list(range(8)),
    ]


def test_clocks_disagree_between_nodes_and_gpus() -> None:
    """Ends of one collective, equal in truth, lie apart on the GPUs' clocks."""
    run = simulate(Scenario(16, 6)).run
    first = (run.collectives["seq"] == 0) & (run.collectives["step"] == 0)
    ends = (run.collectives["start_ns"] + run.collectives["duration_ns"])[first]
    assert np.ptp(ends) > 500_000


def test_what_cannot_be_simulated_is_refused() -> None:
    """The error names the value and what would do."""
    with pytest.raises(UsageError, match="layout 'ring': use one of dp, fsdp"):
        Scenario(layout="ring")
    with pytest.raises(UsageError, match="--ranks 6: use a multiple of the 4 ranks of a replica"):
        Scenario(6, layout="tp_dp", tensor=4)
    with pytest.raises(UsageError, match=r"--fault: ranks \[9\]: use 0 to 7"):
        Scenario(8, faults=(Fault("compute", (9,)),))
    with pytest.raises(UsageError, match="cause 'gremlins'"):
        Scenario(8, faults=(Fault("gremlins", (1,)),))
    with pytest.raises(UsageError, match="--fault: step 100: steps are 0 to 99"):
        Scenario(8, faults=(Fault("hang", (1,), onset=100),))
