"""The output of `hindmost query`: plain and parseable in a pipe, folded on a terminal."""

import sys
from pathlib import Path

import pytest
from hindmost_cli import main

from tests.commands import Says

LONG = "select rank, repeat('word ', 40) as text, 1.5 as ratio, null as nothing from ranks order by rank limit 2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("query") / "run"
    assert main(["simulate", str(made), "--ranks", "4", "--steps", "10"]) == 0
    return made


@pytest.fixture
def terminal(run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Standard output is one of 60 columns."""
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: True)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("NO_COLOR", "1")


def test_a_pipe_gets_one_line_a_row_however_long(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Columns are two blanks apart, as they were."""
    assert main(["query", str(run), LONG]) == 0
    words = " ".join(["word"] * 40)
    assert capsys.readouterr().out.splitlines() == [
        f"rank  {'text':>200}  ratio  nothing",
        f"   0  {words + ' '}    1.5     null",
        f"   1  {words + ' '}    1.5     null",
    ]


@pytest.mark.usefixtures("terminal")
def test_a_terminal_gets_long_values_folded_in_their_column(run: Path, says: Says) -> None:
    """No line is longer than the terminal, and nothing is cut."""
    shown = says(0, ["query", str(run), LONG]).out
    assert max(map(len, shown.splitlines())) <= 60
    assert shown.count("word") == 80
    assert shown.split()[:4] == ["rank", "text", "ratio", "nothing"]


@pytest.mark.usefixtures("terminal")
@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from range(1005)", "5 more rows: --format csv prints all"),
        ("select 'a' || chr(27) || '[2J' as name", r"a\x1b[2J"),
        ("select rank from ranks where rank > 99", "rank"),
    ],
)
def test_what_a_terminal_is_spared(run: Path, says: Says, sql: str, said: str) -> None:
    """Thousands of rows and escape sequences; an empty answer has its titles."""
    shown = says(0, ["query", str(run), sql]).out
    assert said in shown
    assert "\x1b" not in shown
