"""A run's metrics are read once for all who ask, and forgotten with the run."""

import gc
import weakref
from dataclasses import replace

import numpy as np
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.encoding import codes
from hindmost_judge.model import Job, Run


def test_metrics_are_read_once_a_run_and_leave_no_mark_on_it() -> None:
    """Every caller gets one reading of one run, and another of another run; the run has its own fields only."""
    run = Run(Job("j"))
    fields = set(vars(run))
    read = Metrics.of(run)
    assert Metrics.of(run) is read
    assert Metrics.of(replace(run)) is not read
    assert set(vars(run)) == fields


def test_what_was_read_goes_with_the_run() -> None:
    """A collector judges runs for weeks: none is held by what was read of it."""
    run = Run(Job("j"))
    read = weakref.ref(Metrics.of(run))
    assert read() is not None
    del run
    gc.collect()
    assert read() is None


def test_texts_have_one_code_wherever_they_lie() -> None:
    """Rows that share a text and rows with one alike, in the order in which texts are met; every other row, too."""
    shared, alike = "GPU-1", "-".join(["GPU", "1"])
    assert shared is not alike
    column = np.array([shared, "", alike, "GPU-2", shared, ""], dtype=object)
    code, texts = codes(column)
    assert (code.tolist(), texts) == ([0, 1, 0, 2, 0, 1], ["GPU-1", "", "GPU-2"])
    code, texts = codes(column[1::2])
    assert (code.tolist(), texts) == ([0, 1, 0], ["", "GPU-2"])
