"""Faults that are put into real recordings cost what they must, and nothing else in these changes."""

from typing import Any

import injected
import numpy as np
import pytest

MPI, SHARDED = "mpi-observed-even-1", "fsdp-slow-compute-from40-rank1"


def put_in(name: str, ms: float, onset: int = 1) -> tuple[Any, Any, float]:
    """The recording before and after, and what the fault cost, ms."""
    source, whole = injected.SOURCES[name], injected.clean(name)
    run, cost = injected.injected(whole, source, injected.Fault(*source.lanes[0], (1,), ms, onset))
    return whole, run, cost / 1e6


@pytest.mark.parametrize("name", [MPI, SHARDED, "ddp-observed-clean"])
def test_a_fault_of_nothing_changes_nothing(name: str) -> None:
    """The replay gives back what was recorded, to a ns."""
    whole, run, cost = put_in(name, 0.0)
    for column in ("start_ns", "duration_ns"):
        assert np.abs(run.collectives[column] - whole.run.collectives[column]).max() <= 1
    assert cost == pytest.approx(0.0, abs=1e-5)


def test_what_is_longer_than_any_noise_costs_all_of_it() -> None:
    """Steps of 4 ms in which one rank works 500 ms more: the job takes so much longer in each, less their own noise."""
    whole, _, cost = put_in(MPI, 500.0, onset=100)
    assert cost == pytest.approx(500.0 * (whole.steps >= 100).sum(), rel=0.02)


def test_the_others_wait_and_the_slow_rank_does_not() -> None:
    """Its collectives are short, theirs are longer by what it does more; its self time shows it."""
    whole, run, _ = put_in(MPI, 20.0)
    took = run.collectives["duration_ns"][whole.place] / 1e6
    own = run.collectives["self_ns"][whole.place] / 1e6
    assert np.median(took[1]) < 1
    assert np.median(took[[0, 2, 3]]) > 15
    assert np.median(own[1]) - np.median(own[0]) == pytest.approx(20, abs=2)


def test_what_came_before_stays() -> None:
    """Nothing moves before the fault's onset."""
    whole, run, _ = put_in(SHARDED, 10.0, onset=30)
    before = whole.place[:, whole.step < 30]
    assert np.abs(run.collectives["start_ns"][before] - whole.run.collectives["start_ns"][before]).max() <= 1
    assert (run.steps["start_ns"] >= whole.run.steps["start_ns"] - 1).all()
