"""What the end-to-end tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where this test's run goes."""
    return tmp_path / "run"
