"""What goes wrong in a subcommand ends in one line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

from hindmost import cli

if TYPE_CHECKING:
    import pytest


def test_an_empty_path_is_not_this_folder(capsys: pytest.CaptureFixture[str]) -> None:
    """A variable that nobody set: the line says so."""
    assert cli.main(["report", ""]) == 2
    assert capsys.readouterr().err == "hindmost report: an empty PATH: is a variable not set?\n"


def test_what_may_not_be_read_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A recording of somebody else's: the file is named, no traceback is shown."""

    def denied(_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied", "runs/7/meta.json")

    module = SimpleNamespace(configure=lambda _: None, run=denied)
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: module)
    assert cli.main(["report"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("hindmost report: runs/7/meta.json: Permission denied")
    assert told.count("\n") == 1
