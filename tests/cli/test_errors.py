"""What goes wrong in a subcommand ends in one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import hindmost_cli
import pytest
from google.protobuf.runtime_version import VersionError
from hindmost import requirements
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory

from tests.commands import Says


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch) -> Callable[[Exception], None]:
    """Has every command raise this error."""

    def make(error: Exception) -> None:
        def run(_: object) -> NoReturn:
            raise error

        module = SimpleNamespace(configure=lambda _: None, run=run)
        monkeypatch.setattr(hindmost_cli.importlib, "import_module", lambda _: module)

    return make


@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        (["report", "."], "hindmost_judge.judge", "collector"),
        (["query", ".", "select 1"], "duckdb", "collector"),
        (["compare", ".", "."], "hindmost_collector.report.compare", "collector"),
        (["simulate", "out"], "hindmost_collector.simulate", "collector"),
        (["collector", "--help"], "hindmost_collector.options", "collector"),
        (["agent"], "hindmost_agent.daemon", "agent"),
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
    """A missing package that a subcommand needs: one line, with what works in a clone."""
    for name in [one for one in sys.modules if one.startswith(("hindmost_collector", "hindmost_agent"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "segments").mkdir()
    monkeypatch.chdir(tmp_path)
    assert hindmost_cli.main(command) == 1
    message = (
        f"hindmost {command[0]}: no module {module}: pip install --force-reinstall '.[{extra}]' in a clone of hindmost"
    )
    assert capsys.readouterr().err == message + "\n"


@pytest.mark.parametrize(("command", "least"), [(["agent"], ""), (["query", ".", "select 1"], "; grpcio 0 is older")])
def test_a_missing_distribution_is_named_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch,
    says: Says,
    fails: Callable[[Exception], None],
    command: list[str],
    least: str,
) -> None:
    """What is imported as ``google.protobuf`` is named protobuf, with all else that is missing or too old."""
    lacking = {"protobuf": "", "numpy": "", "pyarrow": "", "grpcio": "0"}
    monkeypatch.setattr(requirements, "installed", lambda name: lacking.get(name, "999"))

    fails(ModuleNotFoundError("No module named 'google'", name="google"))
    said = says(1, command[:1]).err
    assert "google" not in said
    assert said.startswith(f"hindmost {command[0]}: ")
    assert f"protobuf{' is' if command == ['agent'] else ', pyarrow are'} not installed{least}" in said
    assert f": {sys.executable} -m pip install '" in said
    assert "'protobuf>=" in said


def test_without_an_installed_hindmost_a_missing_module_is_named(
    monkeypatch: pytest.MonkeyPatch, says: Says, fails: Callable[[Exception], None]
) -> None:
    """A tree on PYTHONPATH has no metadata: the line names the module, and what installs hindmost."""

    def unknown(name: str) -> NoReturn:
        raise requirements.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(requirements.metadata, "requires", unknown)
    fails(ModuleNotFoundError("No module named 'duckdb'", name="duckdb"))
    said = says(1, ["report"]).err
    assert said.startswith("hindmost report: no module duckdb: pip install ")
    assert said.count("\n") == 1


@pytest.mark.parametrize("words", [["nonsense"], ["report"], ["report", "--nonsense", "."], ["top", "--interval", "x"]])
def test_wrong_words_are_one_line_with_the_remedy(says: Says, words: list[str]) -> None:
    """An unknown option, a missing argument, a wrong number: one line, exit code 2."""
    (line,) = says(2, words).err.splitlines()
    name = " report" * (words[0] == "report") + " top" * (words[0] == "top")
    assert line.startswith(f"hindmost{name}: ")
    assert line.endswith(f"; `hindmost{name} --help` lists the {'options' if name else 'commands'}")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "", "."], "PATH is empty: is a variable not set?"),
        (["compare", ".", ""], "PATH is empty: is a variable not set?"),
        (["query", "", "select 1"], "PATH is empty: is a variable not set?"),
        (["report", ""], "PATH is empty: is a variable not set?"),
        (["report", ".", ""], "PATH is empty: is a variable not set?"),
        (["doctor", "--python", "/no/such/python"], "--python /no/such/python: no such program"),
        (["report", ".", "--output", ""], "--output is empty: is a variable not set?"),
        (["report", ".", "--config", ""], "--config is empty: is a variable not set?"),
        (["report", ".", "--ranks", ""], "--ranks is empty: is a variable not set?"),
        (["doctor", "--cluster", ""], "--cluster: give a launcher"),
        (["report", "s3://runs/7"], "s3://runs/7: only clickhouse://"),
        (["query", ".", "select '\udcff'"], "SQL is not UTF-8"),
        (["run", "--out", "", "--", "true"], "--out is empty: is a variable not set?"),
        (["attach", "--job", ""], "--job is empty: is a variable not set?"),
        (["top", "--token-file", ""], "--token-file is empty: is a variable not set?"),
        (["agent", "--tls-ca", ""], "--tls-ca is empty: is a variable not set?"),
        (["collector", "--token-file", ""], "--token-file is empty: is a variable not set?"),
        (["top", ""], "ADDRESS '': give HOST:PORT"),
        (["top", "127.0.0.1:1", "--interval", "inf"], "--interval inf: "),
        (["simulate", ""], "FOLDER is empty: is a variable not set?"),
        (["simulate", "--collector", ""], "--collector is empty: is a variable not set?"),
        (["simulate", "--collector", "http://127.0.0.1:1"], "--collector http://127.0.0.1:1: write HOST:PORT"),
        (["simulate", "--collector", "127.0.0.1:1", "--speed", "nan"], "--speed nan: "),
        (["simulate", "out", "--seed", "-1"], "--seed -1: use 0 to "),
        (["simulate", "out", "--tensor", "0", "--layout", "tp_dp"], "--tensor 0: use 1 to "),
        (["simulate", "out", "--steps", "999999999999"], "--steps 999999999999: use 1 to "),
        (["simulate", "out", "--step-ms", "nan"], "--step-ms nan: use "),
        (["simulate", "out", "--varying-lengths", "nan"], "--varying-lengths nan: use "),
        (["simulate", "out", "--noise", "inf"], "--noise inf: "),
        (["simulate", "out", "--clock-offset-ms", "nan"], "--clock-offset-ms nan: use "),
        (
            ["simulate", "out", "--fault", "compute:0-999999999:1%"],
            "--fault compute:0-999999999:1%: 0-999999999 is not a ",
        ),
        (["simulate", "out", "--fault", "compute:0:1%@50-40"], "--fault: steps 50 to before 40: no step is between"),
        (["simulate", "out", "--fault", "compute:0:99999999999%"], "--fault: size is from 0 to 10,000 steps"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_done(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, says: Says, words: list[str], message: str
) -> None:
    """An unset variable, a number that no job has: one line names it, exit code 2, and nothing is written."""
    monkeypatch.chdir(tmp_path)
    (line,) = says(2, words).err.splitlines()
    assert line.startswith(f"hindmost {words[0]}: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_truth_that_cannot_be_written_is_named(tmp_path: Path, says: Says) -> None:
    """The file is named, and not the recording, which is there."""
    truth = tmp_path / "missing" / "truth.json"
    small = ["simulate", str(tmp_path / "out"), "--ranks", "2", "--steps", "4"]
    said = says(2, [*small, "--ground-truth", str(truth)]).err
    assert said.startswith(f"hindmost simulate: --ground-truth {truth}: cannot be written: ")
    assert said.endswith(f"; make its folder first: mkdir -p {truth.parent}\n")


def test_a_job_without_run_is_told_how_to_start(says: Says) -> None:
    """Who writes hindmost before a command, as before nsys or strace, is not shown a list of thirteen words."""
    assert "`hindmost run -- mpirun ...` starts a job" in says(2, ["mpirun", "-np", "4"]).err


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(["docter"], "hindmost doctor"), (["report", "--expalin"], "--explain"), (["run", "--oud", "x"], "--out")],
)
def test_a_slip_is_answered_by_what_was_meant(typed: list[str], meant: str, says: Says) -> None:
    """Of a command and of an option, in the one line of the error."""
    assert says(2, typed).err.endswith(f" did you mean `{meant}`?\n")


def test_an_option_of_another_command_is_said_to_be_its(capsys: pytest.CaptureFixture[str], says: Says) -> None:
    """Who mixes two commands up reads which one has it; of an unknown option, where all are listed."""
    assert "; --fail-if belongs to `hindmost compare`" in says(2, ["report", "run", "--fail-if", "step>3%"]).err
    assert hindmost_cli.main(["--fail-if", "run"]) == 2
    assert "unrecognized arguments: --fail-if; --fail-if belongs to `hindmost compare`" in capsys.readouterr().err
    assert "; `hindmost report --help` lists the options" in says(2, ["report", "run", "--fail-never"]).err
    # Part of an option is not taken for the whole: ``--output`` of ``report`` would write a file of that name.
    assert "unrecognized arguments: --out" in says(2, ["report", "runs/7", "--out", "folder"]).err


@pytest.mark.parametrize(
    ("error", "message", "code"),
    [
        (MemoryError("Unable to allocate 7 TiB"), "out of memory (Unable to allocate 7 TiB): ", 1),
        (OSError(5, "Input/output error", "runs/7/meta.json"), "runs/7/meta.json: Input/output error", 1),
        (PermissionError(13, "Permission denied", "runs/7/meta.json"), "runs/7/meta.json: Permission denied", 2),
        (UnicodeEncodeError("utf-8", "runs/\udcff", 5, 6, "surrogates"), "runs/\\udcff: this name is not UTF-8", 2),
        # Of protobuf's generated code, which refuses an older runtime; of a package that is there and cannot be loaded.
        (VersionError("gencode 9.0.0 runtime 8.0.0"), "gencode 9.0.0 runtime 8.0.0: pip install", 1),
        (ImportError("libarrow.so: cannot open", name="pyarrow"), "libarrow.so: cannot open: pip install", 1),
    ],
)
def test_what_the_system_refuses_is_one_line(
    says: Says, fails: Callable[[Exception], None], error: Exception, message: str, code: int
) -> None:
    """Memory, a disk that fails, a file of another user, a name or a library that cannot be used: no traceback."""
    fails(error)
    (line,) = says(code, ["report"]).err.splitlines()
    assert line.startswith(f"hindmost report: {message}")


@pytest.mark.parametrize("what", ["nothing there", "empty", "torn"])
def test_reporting_a_directory_that_is_no_run(tmp_path: Path, what: str, says: Says) -> None:
    """A missing or empty directory, and a run whose segments are all torn, is refused by name in one line."""
    out = tmp_path / "run"
    if what == "torn":
        run_directory([simulate(Scenario(2, 12)).run], out)
        for segment in (out / "segments").rglob("*.parquet"):
            segment.write_bytes(segment.read_bytes()[:40])
    elif what == "empty":
        out.mkdir()
    said = says(2, ["report", str(out)]).err
    assert str(out) in said
    assert said.count("\n") == 1
