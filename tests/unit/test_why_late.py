"""What of a slow computing's cost collectives show beyond lateness, and where they cannot."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hindmost_collector.explain import backward, causes, why_late
from hindmost_collector.settings import DEFAULT


@pytest.mark.parametrize(("gathered", "unseen"), [(False, 6e6), (True, 0.0)])
def test_gathers_that_are_fetched_ahead_tell_nothing_of_what_peers_compute(
    gathered: bool, unseen: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between them peers compute while they wait, and leave little: it is no cost that the rank leaves more."""
    monkeypatch.setattr(backward, "of_habit", lambda *_: backward.Backward(0.0, 8e6))
    monkeypatch.setattr(causes, "explain", lambda *_: causes.Cause("compute"))
    blocks: Any = SimpleNamespace(joined=SimpleNamespace(gathers=np.array([gathered, False])))
    habit: Any = SimpleNamespace(outer=None, row=0, excess=2e6, steps=lambda: np.arange(2))
    assert why_late.of(blocks, habit, DEFAULT).unseen == unseen
