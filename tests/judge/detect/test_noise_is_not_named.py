"""What keeps noise from being named, each by jobs in which nothing else does."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hindmost_judge.judge import judge
from hindmost_judge.settings import Settings

from tests.scenarios.loads import Load, make

SEEDS = range(16)


def scattered(seed: int) -> Load:
    """Few steps, in which one rank's own times scatter by as much as it is late: it may be so by chance."""
    return Load(ranks=8, noise=0.05, steps=13, seed=seed, faults=[{"rank": 2, "compute": 0.3, "scatter": 0.3}])


def in_a_row(seed: int) -> Load:
    """Healthy ranks that differ by nature, each by 1 % from the next: the last of a row is no odd one."""
    return Load(ranks=8, steps=60, seed=seed, faults=[{"rank": rank, "compute": 0.1 * rank} for rank in range(8)])


def named(job: Callable[[int], Load], settings: Settings) -> list[int]:
    """Seeds with which a rank is named."""
    return [seed for seed in SEEDS if any(verdict.ranks for verdict in judge(make(job(seed)), settings).verdicts)]


@pytest.mark.parametrize(("threshold", "job"), [("min_z", scattered), ("min_spread_ratio", in_a_row)])
def test_each_threshold_keeps_its_kind_of_noise_from_being_named(threshold: str, job: Callable[[int], Load]) -> None:
    """With it no rank is named, without it one is: nothing else in the judge holds these jobs back."""
    assert named(job, Settings()) == []
    without: dict[str, Any] = {threshold: 0.0}
    assert len(named(job, replace(Settings(), **without))) >= 3


@pytest.mark.parametrize("without", [("min_z",), ("min_spread_ratio",), ("min_z", "min_spread_ratio")])
def test_a_threshold_of_nothing_is_no_measure_of_confidence(without: tuple[str, ...]) -> None:
    """What is not asked for cannot be far exceeded: the confidence is that by what is, and otherwise the least."""
    settings: dict[str, Any] = dict.fromkeys(without, 0.0)
    load = Load(ranks=8, steps=60, faults=[{"rank": 2, "compute": 2.0}])
    (verdict,) = judge(make(load), replace(Settings(), **settings)).verdicts
    assert verdict.ranks == (2,)
    assert verdict.confidence is not None
    assert verdict.confidence > 0.9 if len(without) == 1 else verdict.confidence < 0.7
