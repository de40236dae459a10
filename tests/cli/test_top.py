"""Watching a running job in the terminal."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from hindmost.errors import HindmostError, UsageError
from hindmost_cli import main, top
from hindmost_cli.top import source
from hindmost_judge.judge import judge

from tests.commands import Says
from tests.scenarios import loads

REPORT = judge(loads.make(loads.Load(faults=[{"rank": 2, "compute": 3.0}]))).to_dict()


@pytest.fixture
def collector() -> Iterator[tuple[str, dict[str, Any]]]:
    """A page that answers what is put into the dictionary, by path; 404 for the rest."""
    answers: dict[str, Any] = {"/api/jobs": [{"id": "made"}]}

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = answers.get(self.path)
            self.send_response(404 if body is None else 200)
            self.end_headers()
            self.wfile.write(body if isinstance(body, bytes) else json.dumps(body).encode())

        def log_message(self, *_: object) -> None:
            """Tests are quiet."""

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}", answers
    server.shutdown()
    server.server_close()


def running(folder: Path, page: str, /, *, stored: bool = True, **more: Any) -> Path:
    """The directory of a run whose collector serves this page, before anything of it is stored or after."""
    run = folder / "run"
    run.mkdir()
    if stored:
        assert main(["simulate", str(run), "--ranks", "4", "--steps", "30"]) == 0
    meta = {"schema": "hindmost.run/1", "job_id": "run", "page": page, "host": os.uname().nodename, **more}
    (run / "meta.json").write_text(json.dumps(meta))
    return run


def start_run(proc: Path, pid: int, job: str) -> None:
    """The collector of a `hindmost run`, as /proc shows it."""
    words = ["/usr/bin/python", "-m", "hindmost", "collector", "--out", f"/runs/{job}", "--job-id", job]
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cmdline").write_bytes("\0".join([*words, ""]).encode())
    (proc / str(pid) / "environ").write_bytes(b"")


def test_without_an_address_the_job_that_runs_here_is_shown(tmp_path: Path) -> None:
    """Of several the one that `--job` names, else an error with the command for each."""
    assert top.running(None, tmp_path) == top.USUAL
    start_run(tmp_path, 1, "a")
    assert top.running(None, tmp_path) == "/runs/a"
    start_run(tmp_path, 2, "b")
    assert top.running("b", tmp_path) == "/runs/b"
    with pytest.raises(UsageError, match=r"2 of your jobs run here; .*`hindmost top /runs/a`, `hindmost top /runs/b`"):
        top.running(None, tmp_path)


def test_the_report_of_a_running_job(collector: tuple[str, dict[str, Any]], says: Says) -> None:
    """Piped, it is printed once, as the report after the run would be."""
    address, answers = collector
    answers["/api/report"] = REPORT
    assert "SLOW   rank 2 on node0: computing" in says(0, ["top", address]).out


@pytest.mark.parametrize(
    ("picture", "state"),
    [
        ({"age_s": 1.0, "judged_s": 42.0}, "live, verdicts 42 s old"),
        ({"age_s": 1.0, "judged_s": 2.0}, "live"),
        ({"age_s": 60.0, "judged_s": 42.0}, "no data for 60 s"),
        ({"over": True}, "ended"),
    ],
)
def test_a_report_that_is_printed_once_says_how_old_it_is(
    collector: tuple[str, dict[str, Any]], says: Says, picture: dict[str, Any], state: str
) -> None:
    """A job on full cores is judged rarely, one that was lost no more: its figures would be taken for today's."""
    address, answers = collector
    answers |= {"/api/report": {**REPORT, "judged": {"time_ns": 1}}, "/api/newest": picture}
    assert says(0, ["top", address, "--once"]).out.splitlines()[-1] == state


@pytest.mark.parametrize(
    ("nodes", "age_s", "said"),
    [
        (["n7"], 60.0, "n7, no data for 60 s: what follows was so before"),
        (["n7"], 1.0, "n7: its ranks below are old, others are live"),
        (["n7", "n8"], 1.0, "2 nodes: their ranks below are old, others are live"),
    ],
)
def test_a_lost_contact_stands_above_the_report_that_it_makes_old(
    nodes: list[str], age_s: float, said: str, collector: tuple[str, dict[str, Any]], says: Says
) -> None:
    """A line below the table is overlooked, and "no rank is slow" is read as of now."""
    address, answers = collector
    lost = {"age_s": age_s, "judged_s": 42.0, "lost": nodes}
    answers |= {"/api/report": {**REPORT, "judged": {"time_ns": 1}}, "/api/newest": lost}
    first = says(0, ["top", address, "--once"]).out.splitlines()[0]
    assert first == f"LOST   contact with {said}"


@pytest.mark.parametrize(
    ("answers", "arguments", "said"),
    [
        ({}, ["--job", "other"], "has no job 'other'; it has made"),
        ({"/api/report": b"<html>"}, [], "does not answer with JSON: is this a hindmost collector?"),
    ],
)
def test_what_is_no_such_job_or_no_collector(
    collector: tuple[str, dict[str, Any]],
    capsys: pytest.CaptureFixture[str],
    answers: dict[str, Any],
    arguments: list[str],
    said: str,
) -> None:
    """One clear line each."""
    address, known = collector
    known.update(answers)
    assert main(["top", address, *arguments]) != 0
    assert said in capsys.readouterr().err


def test_a_job_not_judged_yet(collector: tuple[str, dict[str, Any]], says: Says) -> None:
    """The first seconds are no error."""
    assert "made · no verdict yet" in says(0, ["top", collector[0]]).out


def test_there_is_no_answer(collector: tuple[str, dict[str, Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """A job that is over took its page along."""
    assert main(["top", "127.0.0.1:1"]) != 0
    said = capsys.readouterr().err
    assert "is the job still running?" in said
    assert "Errno" not in said


def test_what_is_no_host_is_called_that(says: Says, monkeypatch: pytest.MonkeyPatch) -> None:
    """With where the address is found, and no number of an error."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert "train-7: no such host or run directory; give HOST:PORT" in says(2, ["top", "train-7"]).err
    assert says(2, ["top", "nosuch:9461"]).err.strip() == (
        "hindmost top: ADDRESS http://nosuch:9461: no such host; give HOST:PORT from the first line of `hindmost run`"
    )


def test_without_textual_the_error_is_one_line_with_the_command(
    collector: tuple[str, dict[str, Any]], says: Says, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only a terminal needs it: piped, and with --once, the report is printed all the same."""
    address, answers = collector
    answers["/api/report"] = REPORT
    for name in [name for name in sys.modules if name.startswith("textual") or name == "hindmost_cli.top.app"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "textual", None)
    says(0, ["top", address, "--once"])
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    said = says(1, ["top", address]).err
    assert said.startswith("hindmost top: ")
    assert "textual" in said
    assert "pip install" in said
    assert said.count("\n") == 1


def test_help_loads_neither_textual_nor_rich() -> None:
    """They take longer than all of the rest."""
    program = "import sys, hindmost_cli\ntry: hindmost_cli.main(['top', '--help'])\nfinally: print(sorted(sys.modules))"
    out = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    loaded = out.splitlines()[-1]
    assert "'hindmost_cli.top'" in loaded
    assert not [name for name in ("textual", "rich", "numpy", "hindmost_collector") if f"'{name}'" in loaded]


def test_a_run_directory_is_shown_like_a_collector(tmp_path: Path, says: Says) -> None:
    """Also one that is still being recorded, and has no report yet."""
    assert main(["simulate", str(tmp_path / "run"), "--ranks", "4", "--steps", "30", "--fault", "compute:2:30%"]) == 0
    assert "SLOW   rank 2" in says(0, ["top", str(tmp_path / "run")]).out


@pytest.mark.parametrize(
    ("more", "of", "live"),
    [
        ({}, "run", True),
        ({"ended_ns": 7}, "run", False),
        ({}, "other", False),
        ({"host": "another"}, "run", False),
        ({"host": None}, "run", False),
        ({"job_id": [1]}, "run", False),
        ({"page": 5}, "run", False),
    ],
)
def test_the_run_directory_of_a_running_job_leads_to_its_collector(
    collector: tuple[str, dict[str, Any]], tmp_path: Path, more: dict[str, Any], of: str, live: bool
) -> None:
    """Page and terminal show the same; a collector of another job, or on another host, is no answer."""
    address, answers = collector
    answers |= {"/api/jobs": [{"id": of}], f"/api/newest?job={of}": {"title": "as on the page"}}
    found = source.RunDirectory(running(tmp_path, address, started_ns=1, **more)).picture(None)
    assert (found["title"] == "as on the page") is live


@pytest.mark.parametrize("known", [[], [{"id": "run"}]])
def test_the_first_seconds_of_a_run_are_no_error(
    collector: tuple[str, dict[str, Any]], tmp_path: Path, says: Says, known: list[Any]
) -> None:
    """Its collector has no rank yet, then no verdict; nothing is stored until the first flush."""
    address, answers = collector
    run = running(tmp_path, address, stored=False)
    answers |= {"/api/jobs": known, f"/api/newest{'?job=run' if known else ''}": {"title": "as on the page"}}
    assert source.RunDirectory(run).picture(None)["title"] == "as on the page"
    assert "run · no verdict yet" in says(0, ["top", str(run)]).out


def test_the_address_in_a_file_of_another_user_is_not_asked(
    collector: tuple[str, dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That user may serve there whatever it likes."""
    address, answers = collector
    run = running(tmp_path, address)
    answers |= {"/api/jobs": [{"id": "run"}], "/api/newest?job=run": {"title": "as on the page"}}
    user = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: user + 1)
    assert source.RunDirectory(run).picture(None)["title"] != "as on the page"


def test_a_silent_collector_is_asked_once_for_a_picture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time takes seconds."""
    run, asked = running(tmp_path, "127.0.0.1:1"), []
    (run / "report.json").unlink(missing_ok=True)

    def refused(*_: object) -> None:
        asked.append(1)
        raise HindmostError("no answer")

    monkeypatch.setattr(source, "fetch", refused)
    assert source.RunDirectory(run).picture(None)["title"]
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["meta.json", "report.json"])
@pytest.mark.parametrize("content", [b'{"page":"127.0.0.1:1"}', b"[1]", b'{"page": 5}', b"{", None])
def test_damaged_files(tmp_path: Path, says: Says, name: str, content: bytes | None) -> None:
    """The recording is judged, whatever they hold, and a pipe is not waited for."""
    assert main(["simulate", str(tmp_path / "run"), "--ranks", "4", "--steps", "30", "--fault", "compute:2:30%"]) == 0
    damaged = tmp_path / "run" / name
    damaged.unlink(missing_ok=True)
    if content is None:
        os.mkfifo(damaged)
    else:
        damaged.write_bytes(content)
    assert "SLOW   rank 2" in says(0, ["top", str(tmp_path / "run")]).out


@pytest.mark.parametrize("address", ["http://h:80/", "h:80", "http://h:80/metrics?x=1"])
def test_whatever_was_pasted_leads_to_the_page(address: str) -> None:
    """The address as `hindmost run` prints it, or parts of it."""
    assert source.place(address) == "http://h:80"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        *(
            (path, f"{path}: no such run directory; give one, or HOST:PORT")
            for path in ("runs/gone", "./gone", "/gone")
        ),
        *(
            (other, f"ADDRESS '{other}': give HOST:PORT from the first line")
            for other in ("h:x", "ftp://h:1", "http://")
        ),
    ],
)
def test_what_is_no_address(text: str, said: str) -> None:
    """Named, with what to write, as is a path that is not there."""
    with pytest.raises(UsageError, match=f"^{said}"):
        source.place(text)
