"""What tests of the training process's side share."""

from __future__ import annotations

import pytest
from hindmost.native import build


@pytest.fixture(params=["python", "c"])
def written_in(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs over pure Python and over its twin in C, where that can be built."""
    monkeypatch.delenv("HINDMOST_RING_MODULE", raising=False)
    if request.param == "c":
        try:
            monkeypatch.setenv("HINDMOST_RING_MODULE", str(build.library("ring")))
        except build.BuildError as error:
            pytest.skip(str(error))
    return str(request.param)
