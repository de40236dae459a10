"""What each rank did in each step, in bounded memory."""

import dataclasses

import numpy as np
import pytest
from hindmost_collector.page.history import LEAST, StepHistory, cells_of

from .steps import MS, late_steps


def test_steps_are_counted_once_and_gaps_stay_gaps() -> None:
    """A window that reaches back to known steps adds only those that are new."""
    history = StepHistory()
    history.add(late_steps(0, 9))
    history.add(late_steps(5, 14))
    history.add(late_steps(20, 24))
    columns = history.columns()
    assert columns["first"] == [*range(15), *range(20, 25)]
    assert (columns["last"], columns["checkpoint"]) == (24, [7])
    assert sum(columns["count"]) == 20


def test_means_do_not_change_as_columns_become_wider() -> None:
    """A job of 10,000 steps has as many columns as one of some hundred, and the same means."""
    history = StepHistory(cells=3 * 6 * LEAST)
    for first in range(0, 10_000, 40):
        history.add(late_steps(first, first + 39, late=2.0 if first < 5000 else 4.0))
    means = history.means()
    assert means is not None
    assert len(history.columns()["first"]) <= LEAST
    assert (means.steps, means.step_ms) == (10_000, pytest.approx(10.0))
    assert means.shares["delay"] * means.step_ms == pytest.approx([0.0, 3.0, 0.0])
    assert means.shares["last"] == pytest.approx([0.0, 1.0, 0.0])
    early, late = history.means(0, 4000), history.means(6000, None)
    assert early is not None
    assert late is not None
    assert [one.shares["delay"][1] * one.step_ms for one in (early, late)] == pytest.approx([2.0, 4.0])


def test_means_of_some_steps_have_none_of_before() -> None:
    """A column that begins before the onset is left out; of steps within one column it is what is known."""
    history = StepHistory(cells=3 * 6 * LEAST)
    history.add(late_steps(0, 9_999))
    wide = history.columns()["first"][1]
    for chosen, expected in (((1, None), (wide, 9_999)), ((wide + 1, wide + 2), (wide, 2 * wide - 1))):
        means = history.means(*chosen)
        assert means is not None
        assert (means.first, means.last) == expected


def test_how_often_a_rank_is_last_is_counted_in_steps_not_in_time() -> None:
    """A step that takes nine times as long is one step: page and report give one number, however wide columns are."""
    found = late_steps(0, 799)
    long = np.arange(800) % 4 == 0
    last = np.stack([long, ~long, np.zeros(800, bool)]).astype(np.float64)
    found = dataclasses.replace(found, period=np.where(long, 9.0, 1.0) * found.period)
    found = dataclasses.replace(found, planes={**found.planes, "last": last})
    for cells in (10**6, 3 * 6 * LEAST):
        history = StepHistory(cells=cells)
        history.add(found)
        means = history.means()
        assert means is not None
        assert means.shares["last"] == pytest.approx([0.25, 0.75, 0.0])


def test_many_jobs_share_what_one_may_keep() -> None:
    """Of each of a thousand jobs there are fewer columns, with the same means."""
    history = StepHistory()
    history.add(late_steps(0, 399))
    history.bound(cells_of(1) // 3)
    assert len(history.columns()["first"]) == 400
    history.bound(cells_of(12_000))
    means = history.means()
    assert means is not None
    assert len(history.columns()["first"]) <= LEAST + 8
    assert (means.steps, means.shares["delay"][1]) == (400, pytest.approx(0.2))


def test_a_lane_of_what_is_sampled_is_one_step_long() -> None:
    """Phases that a GPU times in one of 16 steps, and waits that are known of each, add up to a step all the same."""
    found = late_steps(0, 63)
    phases = {name: np.full((3, 64), np.nan) for name in ("gpu_forward", "gpu_backward")}
    for block in phases.values():
        block[:, ::16] = 4 * MS
    history = StepHistory()
    history.add(dataclasses.replace(found, planes={**found.planes, **phases}, on_gpu=True))
    means = history.means()
    assert means is not None
    gpu = means.lanes()["gpu"]
    assert sum(gpu.parts.values()) == pytest.approx(np.ones(3))
    assert gpu.parts["forward"] == pytest.approx([0.3, 0.4, 0.3])  # collectives run in backward first
    assert gpu.parts["wait"] == pytest.approx([0.2, 0.0, 0.2])
    assert gpu.parts["idle"] == pytest.approx(0.2)


def test_a_job_that_was_started_again_begins_anew() -> None:
    """Its steps are counted from 0 again."""
    history = StepHistory()
    history.add(late_steps(0, 99))
    history.add(late_steps(0, 19))
    assert history.columns()["last"] == 19


def test_newest_steps_are_added_only_where_none_is_missing_between() -> None:
    """What a full evaluation brings later would find them known."""
    history = StepHistory()
    history.add(late_steps(0, 9), without_gap=True)
    assert not history
    history.add(late_steps(0, 9))
    history.add(late_steps(15, 19), without_gap=True)
    history.add(late_steps(8, 12), without_gap=True)
    assert history.columns()["first"] == list(range(13))


def test_ranks_that_come_later_have_no_past() -> None:
    """Not measured is no delay of 0."""
    history = StepHistory()
    history.add(late_steps(0, 9))
    history.add(late_steps(10, 19, ranks=4))
    heat = history.heat(300)
    assert heat is not None
    assert np.isnan(heat.ms[3, :10]).all()
    assert (heat.ms[3, 10:] == 0).all()


def test_a_map_of_many_ranks_keeps_the_late_one() -> None:
    """A row of several ranks shows the latest of them."""
    history = StepHistory()
    history.add(late_steps(0, 9, ranks=4096))
    heat = history.heat(256)
    assert heat is not None
    assert (heat.ms.shape, heat.per_row) == ((256, 10), 16)
    assert heat.ms[0] == pytest.approx(2.0)
    assert heat.ms[1:].max() == 0
