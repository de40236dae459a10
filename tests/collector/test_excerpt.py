"""A recording too large for memory is read in stretches, alike on every rank, and judged as the whole would be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hindmost_collector.judge import judge
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_collector.simulate.write import write
from hindmost_collector.store import excerpt
from hindmost_collector.store.run_directory import read_run

if TYPE_CHECKING:
    from pathlib import Path

STEPS = 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of 4 ranks, rank 2 slower by 10 %."""
    run = simulate(Scenario(4, STEPS, faults=(Fault("compute", (2,), 0.10),))).run
    write(run, tmp_path / "run", "run")
    return tmp_path / "run"


def test_a_small_recording_is_read_whole(folder: Path) -> None:
    """Nothing is left out, and nothing said."""
    assert excerpt.plan(folder / "segments") is None
    assert read_run(folder).job.skipped_ns is None


def test_a_large_one_is_read_in_stretches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A quarter of the calls, alike on all ranks; the report counts all steps, and says what it rests on."""
    whole = read_run(folder)
    monkeypatch.setitem(excerpt.MOST, "collectives", len(whole.collectives["rank"]) // 4)
    part = read_run(folder)
    calls = np.bincount(part.collectives["rank"])
    assert 0.2 < calls.sum() / len(whole.collectives["rank"]) < 0.3
    assert calls.max() - calls.min() <= 2 * excerpt.STRETCHES
    report = judge(part)
    assert report.job.steps == STEPS
    assert report.job.step_ms["p50"] == pytest.approx(judge(whole).job.step_ms["p50"], rel=0.01)
    assert report.what_if.step_ms == pytest.approx(judge(whole).what_if.step_ms, rel=0.05)
    assert [(one.kind, one.ranks, one.cause) for one in report.verdicts] == [("straggler", (2,), "compute")]
    assert any(note.startswith("to stay in memory") for note in report.notes)


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0, 5, True), (15, 18, False), (15, 21, True), (95, 96, False), (0, 200, True)]
)
def test_row_groups_without_any_kept_row_are_not_read(low: int, high: int, kept: bool) -> None:
    """The first 10 ns of every 20 are kept."""
    part = excerpt.Excerpt(first=0, every_ns=20, kept_ns=10, steps=None, sample_every=1)
    assert part.covers("steps", low, high) is kept
    assert kept == bool(part.keeps("steps", np.arange(low, high + 1)).any())


def test_of_a_very_large_job_steps_are_read_where_collectives_would_be_too_few(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of ranks: collectives of ten steps judge nothing, phases of a hundred do; the note says both."""
    whole = read_run(folder)
    monkeypatch.setitem(excerpt.MOST, "collectives", len(whole.collectives["rank"]) * 10 // STEPS)
    monkeypatch.setitem(excerpt.MOST, "steps", len(whole.steps["rank"]) // 2)
    part = read_run(folder)
    assert len(np.unique(part.steps["step"])) == pytest.approx(excerpt.OF_STEPS * STEPS / 2, rel=0.2)
    assert len(part.collectives["rank"]) < len(whole.collectives["rank"]) * 10 / STEPS
    report = judge(part)
    assert [(one.kind, one.ranks, one.cause) for one in report.verdicts] == [("straggler", (2,), "compute")]
    assert report.job.steps == STEPS
    assert any("s of collectives) were read" in note for note in report.notes)
