"""``hindmost report``: which ranks and sections it shows, and the command for all evidence."""

import json
import shlex
from pathlib import Path

import pytest
from hindmost_collector.report import brief
from hindmost_collector.report.columns import deciding
from hindmost_collector.report.sections import SECTIONS
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import write

from tests.commands import Says


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recording of a job of 4 ranks."""
    folder = tmp_path_factory.mktemp("job") / "traces"
    write(simulate(Scenario(4, 30)).run, folder, "traces")
    return folder


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ("9", "no such rank; the report has ranks 0 to 3"),
        ("3-1", "expected numbers and ranges"),
        ("0-99999999999", "expected numbers and ranges"),
    ],
)
def test_ranks_of_no_table_are_errors(traces: Path, ranks: str, said: str, says: Says) -> None:
    """A report without a table would hide the slip."""
    captured = says(2, ["report", str(traces), "--ranks", ranks])
    assert captured.out == ""
    assert said in captured.err


def test_of_a_list_the_ranks_that_there_are_are_shown(traces: Path, says: Says) -> None:
    """One of them may have left the job."""
    shown = says(0, ["report", str(traces), "--ranks", "2-3,9"]).out.splitlines()
    rows = [line.split()[0] for line in shown if line[:4].strip().isdigit()]
    assert rows == ["2", "3"]


def test_sections_without_a_list_says_which_there_are(traces: Path, says: Says) -> None:
    """A line each; nothing is judged."""
    lines = says(0, ["report", str(traces), "--sections"]).out.splitlines()
    assert [line.split()[0] for line in lines] == list(SECTIONS)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sections", ""], "LIST is empty; sections are all, wall_clock"),
        (["--sections", "hosts,cpus"], "no section 'cpus'; sections are all, wall_clock"),
    ],
)
def test_unknown_sections_fail(words: list[str], said: str, traces: Path, says: Says) -> None:
    """One line that names those that there are."""
    (line,) = says(2, ["report", str(traces), *words]).err.splitlines()
    assert said in line


def test_a_run_taken_for_sections_is_an_error_that_says_so(traces: Path, says: Says) -> None:
    """What follows the option is its list."""
    (line,) = says(2, ["report", "--sections", str(traces)]).err.splitlines()
    assert line.endswith(f"--sections {traces}: this is a path; put PATH before --sections")


def test_where_there_is_no_mfu_the_report_says_why(traces: Path, says: Says) -> None:
    """It was asked for; without being asked for it is not missed."""
    assert "no MFU: " in says(0, ["report", str(traces), "--flops-per-sample", "1e9"]).out
    assert "MFU" not in says(0, ["report", str(traces)]).out


def test_the_command_for_the_rest_can_be_typed_and_prints_it(
    traces: Path, says: Says, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the thresholds that were set; a path with a blank is quoted."""
    monkeypatch.setattr("hindmost_cli.stdio.program", lambda: "hindmost")
    spaced = tmp_path / "my traces"
    spaced.symlink_to(traces)
    short = says(0, ["report", str(spaced), "--set", "min_effect=0.5"]).out
    label, _, command = next(line for line in short.splitlines() if " --explain" in line).partition(": ")
    name, *words = shlex.split(command)
    assert (name, words[:2]) == ("hindmost", ["report", str(spaced)])
    assert "min_effect=0.5" in words
    assert label == "all evidence"
    assert set(says(0, words).out.splitlines()) - set(short.splitlines())


@pytest.mark.parametrize(("waited", "columns"), [(3.0, ["self time", "caused wait"]), (None, ["self time"])])
def test_a_column_decides_only_where_it_was_measured(waited: float | None, columns: list[str]) -> None:
    """The wait that a rank causes is unknown in recordings without waits: no table has it."""
    rows = [{"rank": rank, "self_ms": 8.0, "caused_wait_ms": waited} for rank in range(2)]
    verdicts = [{"ranks": (1,), "kind": "straggler", "cause": "unknown"}]
    assert deciding({"job": {}, "verdicts": verdicts, "ranks": rows}) == columns


def test_a_format_goes_by_the_ending_of_its_files_too(traces: Path, says: Says) -> None:
    """``md`` is what everybody types."""
    short = says(0, ["report", str(traces), "--format", "md"]).out
    assert short == says(0, ["report", str(traces), "--format", "markdown"]).out


def test_a_page_without_scripts_shows_the_verdict(traces: Path, says: Says) -> None:
    """As in a text browser, or in a mail that blocks them."""
    page = says(0, ["report", str(traces), "--format", "html"]).out
    assert "OK no rank is slow" in page[page.index("<noscript>") : page.index("</noscript>")]


def test_a_brief_report_is_json(traces: Path, says: Says) -> None:
    """Nothing else can be brief: no other option is needed, and another format is refused."""
    assert json.loads(says(0, ["report", str(traces), "--brief"]).out)["schema"] == brief.SCHEMA
    assert "only JSON can be brief" in says(2, ["report", str(traces), "--brief", "--format", "text"]).err
