"""``--help`` explains every option in short sentences, fits a screen, and its examples work."""

import argparse
import re
import shlex
import subprocess
import sys
from pathlib import Path

import hindmost_cli
import pytest
from hindmost_cli import stdio

from style_check import rules

LONGEST_SENTENCE = 25
SCREEN_LINES, SCREEN_COLUMNS = 50, 120
EXAMPLE = re.compile(r"^  (hindmost .*)$", re.MULTILINE)


@pytest.fixture(params=hindmost_cli.COMMANDS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


#: argparse has no other way to its options than ``_actions``.
def texts(parser: argparse.ArgumentParser) -> list[str]:
    """What a parser's help says: a text for each option, and for each line around them."""
    around = f"{parser.description}\n{parser.epilog or ''}".splitlines()
    return around + [action.help or "" for action in parser._actions if action.help != argparse.SUPPRESS]


def examples(name: str) -> list[list[str]]:
    """The invocations of hindmost in a command's help, as words."""
    lines = EXAMPLE.findall(hindmost_cli.command(name).epilog or "")
    return [shlex.split(part, comments=True) for line in lines for part in line.split("&&")]


def test_every_option_is_explained(name: str) -> None:
    unexplained = [action.dest for action in hindmost_cli.command(name)._actions if not action.help]
    assert not unexplained


def test_no_sentence_is_long(name: str) -> None:
    found = [sentence for text in texts(hindmost_cli.command(name)) for _, sentence in rules.sentences(text)]
    assert [sentence for sentence in found if len(sentence.split()) > LONGEST_SENTENCE] == []


def test_help_fits_a_screen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    lines = hindmost_cli.command(name).format_help().splitlines()
    assert len(lines) <= SCREEN_LINES
    assert [line for line in lines if len(line) > SCREEN_COLUMNS] == []


def test_the_first_help_loads_nothing_slow() -> None:
    """``typing``, and ``shutil`` with its archives, each take a tenth of the time until the help is there."""
    program = "import sys, hindmost_cli\ntry: hindmost_cli.main(['--help'])\nfinally: print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert [name for name in ("shutil", "typing", "lzma") if f"'{name}'" in out.splitlines()[-1]] == []


def test_the_first_help_fits_a_screen_and_names_every_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(SCREEN_COLUMNS))
    text = hindmost_cli.parser().format_help()
    assert len(text.splitlines()) <= SCREEN_LINES
    named = re.findall(r"^  (\w+) +\w", text.partition("your job:")[2].partition("start with")[0], re.MULTILINE)
    assert named == list(hindmost_cli.COMMANDS)


@pytest.mark.parametrize(
    ("former", "words"),
    [
        ("agent --hold", "agent --exit-when-stdin-closes"),
        ("collector --hold", "collector --exit-when-stdin-closes"),
        ("collector --no-hold", "collector --no-exit-when-stdin-closes"),
        ("simulate run --truth F", "simulate run --ground-truth F"),
        ("attach --pid 1 --stacks --keep D", "attach --pid 1 --stacks --save-to D"),
    ],
)
def test_an_option_of_0_1_is_accepted_and_in_no_help(former: str, words: str) -> None:
    name, *old = former.split()
    parser = hindmost_cli.command(name)
    assert parser.parse_args(old) == parser.parse_args(words.split()[1:])
    assert re.search(r"--(no-)?(hold|truth|keep)\b", parser.format_help()) is None


def test_help_has_an_example_that_the_command_accepts(name: str) -> None:
    own = [words for words in examples(name) if words[1] == name]
    assert own
    for words in own:
        hindmost_cli.command(name).parse_args(words[2:])


def test_examples_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hindmost-runs").mkdir()
    for run in ("hindmost-runs/JOB", "hindmost-runs/before", "hindmost-runs/after"):
        assert hindmost_cli.main(["simulate", run, "--ranks", "8", "--steps", "20"]) == 0
    assert (
        hindmost_cli.main(["simulate", "profiler-traces", "--ranks", "8", "--steps", "20", "--format", "traces"]) == 0
    )
    for words in [*examples("report"), *examples("compare"), *examples("query")]:
        if "--slurm" in words:  # reads Slurm's accounting, no recording
            continue
        capsys.readouterr()
        assert hindmost_cli.main(words[1:]) == 0, words
        assert capsys.readouterr().out or "-o" in words


def test_examples_of_simulated_faults_are_judged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local = [words for words in examples("simulate") if "--collector" not in words and words[1] == "simulate"]
    for at, words in enumerate(local):
        monkeypatch.chdir(tmp_path)
        out = f"run{at}"
        fewer = ["--ranks", "8"] if "--ranks" not in words else []
        assert hindmost_cli.main([words[1], out, *words[3:], *fewer]) == 0
        assert hindmost_cli.main(["report", out, "-o", "report.txt"]) == 0
        assert "8 ranks" in (tmp_path / "report.txt").read_text() or "64 ranks" in (tmp_path / "report.txt").read_text()


def test_a_number_of_columns_that_no_number_can_be_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python reads no number of more than 4,300 digits."""
    monkeypatch.setenv("COLUMNS", "9" * 5000)
    assert stdio.width(unknown=77) in range(1, stdio.WIDEST + 1)
