"""What goes wrong in a subcommand ends in one line."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, NoReturn

import pytest
from hindmost import cli

if TYPE_CHECKING:
    from pathlib import Path


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


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["report", "."], "hindmost_collector.judge", "collector"),
        (["query", ".", "select 1"], "duckdb", "collector"),
        (["compare", ".", "."], "hindmost_collector.judgement.compare", "collector"),
        (["simulate", "out"], "hindmost_collector.simulate", "collector"),
        (["collector", "--help"], "hindmost_collector.options", "collector"),
        (["agent"], "hindmost_agent.service", "agent"),
    ],
)
def test_what_is_not_installed_is_named_with_what_installs_it(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    module: str,
    extra: str,
) -> None:
    """A package that a subcommand needs and nobody installed: one line, with what works in a clone."""
    for name in [one for one in sys.modules if one.startswith(("hindmost_collector", "hindmost_agent"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "segments").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli.main(command) == 1
    told = f"hindmost {command[0]}: {module} is not installed: pip install '.[{extra}]' in a clone of hindmost\n"
    assert capsys.readouterr().err == told


def test_what_is_broken_is_said_as_it_is(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A package that is there and cannot be loaded is not called missing."""

    def broken(_: object) -> NoReturn:
        raise ImportError("libarrow.so: cannot open shared object file", name="pyarrow")

    module = SimpleNamespace(configure=lambda _: None, run=broken)
    monkeypatch.setattr(cli.importlib, "import_module", lambda _: module)
    assert cli.main(["report"]) == 1
    assert capsys.readouterr().err.startswith(
        "hindmost report: libarrow.so: cannot open shared object file: pip install"
    )
