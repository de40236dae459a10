"""What holds for every test."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator

# A machine that is busy with much else is no failure: how long an example takes is not what any test says.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


@pytest.fixture(autouse=True)
def no_detector_fails() -> Iterator[None]:
    """A detector that fails costs a user's report its own verdict only; a test that it happens in, it fails."""
    yield
    detector = sys.modules.get("hindmost_collector.detector")
    failed = dict(detector.failures) if detector is not None else {}
    if detector is not None:
        detector.failures.clear()
    assert not failed, f"detectors failed: {failed}"
