"""What a file holds reaches no terminal as it is: neither as an error's words nor as a name in a report."""

import io
import json
from pathlib import Path

import pytest
from hindmost.errors import MOST, UsageError, one_line, printable
from hindmost_cli import main
from hindmost_collector.report import csv, text
from hindmost_collector.simulate import Scenario, simulate
from hindmost_judge.judge import judge

CLEAR = "\x1b[2J\x1b]0;owned\x07\u202e\x9b31m"


def test_what_is_no_character_is_spelled_out() -> None:
    """Escapes, line ends, and what turns the direction of writing; letters of any script stay."""
    assert printable("a\x1b[2J\nb\u202eé中") == "a\\x1b[2J\\nb\\u202eé中"
    assert printable("one\ntwo", keep="\n") == "one\ntwo"


def test_a_line_is_bounded_and_keeps_its_begin_and_its_end() -> None:
    """The begin names the input, the end what helps."""
    line = one_line("file: " + "\x00" * 5_000_000 + "; copy it again")
    assert len(line) == MOST
    assert line.startswith("file: \\x00")
    assert line.endswith("; copy it again")
    assert one_line("short") == "short"


@pytest.mark.parametrize("most", [1, 2, 3, 40, 161, 162, 400])
def test_a_line_is_no_longer_than_asked_for_however_short(most: int) -> None:
    """A narrow terminal's lines, too."""
    line = one_line("begin" + "x" * 5_000 + "end", most)
    assert len(line) == most
    assert "…" in line


#: Files that a format takes for its own and cannot read, each quoting itself in its complaint.
HOSTILE = {
    "prof.1.csv": f"e9,0,0,AllReduce,1,RING,LL,1,1,1,1,1,1\n{CLEAR * 3000},x\n1,2\n",
    "n-pid1.log": json.dumps(
        {"header": {"id": CLEAR * 3000, "rank": 0, "n_ranks": 1}, "metadata": {"pid": 1}, "coll_perf": {"coll": "A"}}
    )
    + "\n",
    "trace.0.json": f'{{"schemaVersion": 1, "traceEvents": [{CLEAR * 3000}',
    "nccl_trace_rank_0": f'{{"collective_seq_id": 1, "entries": {CLEAR * 3000}',
    "steps.0.jsonl": '{"step": 0, "t_start": 1, "t_end": 2}\n' + CLEAR * 3000,
    "nvml.csv": f"t_ns,gpu,util\n{CLEAR * 3000},0,1\n",
    f"{CLEAR[:4]}name.bin": CLEAR * 3000,
}


@pytest.mark.parametrize("name", HOSTILE, ids=printable)
def test_hostile_bytes_do_not_reach_the_terminal(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that can be read, of bounded length, or a report without its bytes."""
    (tmp_path / name).write_text(HOSTILE[name])
    code = main(["report", str(tmp_path)])
    out, err = capsys.readouterr()
    for line in (out + err).splitlines():
        assert line.isprintable()
        assert len(line) <= MOST + 40
    assert code == 0 or err.count("\n") == 1


def test_an_error_s_line_is_bounded_wherever_it_is_raised() -> None:
    """A printed failure shows this."""
    said = io.StringIO()
    print(UsageError(f"trace.json: {CLEAR}{'x' * 10_000}; not a trace"), file=said)
    assert said.getvalue().removesuffix("\n").isprintable()
    assert len(said.getvalue()) <= MOST + 1


def test_names_in_a_report_are_fit_for_a_terminal() -> None:
    """A node may call itself anything; colour is ours alone."""
    report = judge(simulate(Scenario(4, 40)).run).to_dict()
    report["job"]["id"] = report["job"]["command"] = CLEAR
    report["notes"] = [f"{CLEAR} was left out"]
    for row in report["ranks"]:
        row["node"] = CLEAR * 100
    assert all(line.isprintable() for line in text.render(report).splitlines())
    assert all(line.isprintable() for line in csv.render(report).splitlines())
    assert max(map(len, text.render(report).splitlines())) < 200
