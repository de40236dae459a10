"""Commands of hindmost that tests run in their own process."""

from typing import Any

import hindmost_cli
import pytest


class Says:
    """Fixture ``says``: what a command prints, which ends with this code."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, code: int, words: list[str]) -> Any:
        assert hindmost_cli.main(words) == code
        return self._capsys.readouterr()
