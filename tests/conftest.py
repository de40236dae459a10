"""What holds for every test."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# A machine that is busy with much else is no failure: how long an example takes is not what any test says.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

#: CPUs of a shared machine may in truth be uneven for seconds (a core's two threads, a virtual one's neighbours), and
#: ranks on them late. What a test of a real job says holds in one of three; a rule that is wrong is so in each.
ON_SHARED_CPUS = pytest.mark.flaky(reruns=2, only_rerun=["AssertionError", "KeyError"])


@pytest.fixture(autouse=True)
def no_detector_fails() -> Iterator[None]:
    """A detector that fails costs a user's report its own verdict only; a test that it happens in, it fails."""
    yield
    detector = sys.modules.get("hindmost_collector.detector")
    failed = dict(detector.failures) if detector is not None else {}
    if detector is not None:
        detector.failures.clear()
    assert not failed, f"detectors failed: {failed}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Spread each folder's files evenly over the run: some wait for processes, others compute, and together
    they leave no core idle. Those that measure real jobs may be run again."""
    for item in items:
        if item.get_closest_marker("timed"):
            item.add_marker(ON_SHARED_CPUS)
    folders: dict[Path, list[Path]] = defaultdict(list)
    for path in dict.fromkeys(item.path for item in items):
        folders[path.parent].append(path)
    place = {path: (at + 0.5) / len(files) for files in folders.values() for at, path in enumerate(files)}
    items.sort(key=lambda item: place[item.path])  # stable: where folders tie, and within a file, nothing is moved
