"""Daemons of ``hindmost run``: what they print before they serve, and what is made of it."""

import shlex
import subprocess
from pathlib import Path

import pytest
from hindmost.errors import HindmostError
from hindmost_cli.run.session import Daemon, from_here


def daemon(folder: Path, program: str, sitecustomize: str = "") -> Daemon:
    """A daemon whose ``python -m hindmost`` is this program, under a user's sitecustomize."""
    package = folder / "hindmost"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(program)
    (folder / "sitecustomize.py").write_text(sitecustomize)
    return Daemon("collector", [], {"PYTHONPATH": str(folder)}, folder / "collector.log")


@pytest.mark.parametrize(
    "noise",
    [
        "print('welcome')",
        "print('a', 'b', sep='\\n')",
        "print('no end of line: ', end='')",
        'print(\'{"level": "info"}\')',
        "print('{')",
        "print(42)",
        "print()",
    ],
)
def test_what_a_sitecustomize_prints_is_not_what_the_daemon_says(tmp_path: Path, noise: str) -> None:
    """Lines before the one that has what is asked for are passed over; what follows it is kept for the end."""
    program = """print('{"grpc": "here:1"}'); input(); print('{"report": 1}')"""
    started = daemon(tmp_path, program, noise)
    try:
        assert started.ready("grpc") == {"grpc": "here:1"}
        started.tell({})
        assert started.finish(10.0) == ('{"report": 1}\n', "")
    finally:
        started.kill()


@pytest.mark.parametrize(
    ("ending", "seconds", "wrong"),
    [
        ("sys.exit('hindmost collector: the disk hangs')", 10.0, "the collector ended early: the disk hangs"),
        ("time.sleep(60)", 0.5, "the collector did not finish within 0 s and was stopped"),
    ],
)
def test_what_a_daemon_said_counts_however_it_ends(tmp_path: Path, ending: str, seconds: float, wrong: str) -> None:
    """A collector that gives up on a hanging disk prints its report before."""
    program = f"""import sys, time; print('{{"grpc": "here:1"}}', '{{"report": 1}}', sep='\\n', flush=True); {ending}"""
    started = daemon(tmp_path, program)
    try:
        started.ready("grpc")
        assert started.finish(seconds) == ('{"report": 1}\n', wrong)
    finally:
        started.kill()


def test_what_a_daemon_says_while_the_job_runs_is_heard_and_its_last_words_are_kept(tmp_path: Path) -> None:
    """Verdicts go to who follows them; the report that comes at the end does not get lost among them."""
    program = """import sys, time
print('{"grpc": "here:1"}', '{"verdict": {"text": "SLOW"}}', flush=True, sep='\\n')
sys.stdin.read()
print('{"verdict": {"text": "over"}}', '{"report": 1}', sep='\\n')"""
    heard: list[str] = []
    started = daemon(tmp_path, program)
    started.ready("grpc")
    started.follow("verdict", lambda event: heard.append(event["text"]))
    assert started.finish(10.0) == ('{"report": 1}\n', "")
    assert heard == ["SLOW", "over"]


def test_a_command_on_verdict_works_where_the_user_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The collector works in /, and no shell takes the command's words or the folder's name apart."""
    here = tmp_path / "it's $HOME; here"
    here.mkdir()
    hook = here / "hook"
    hook.write_text('#!/bin/sh\necho "$1" > written\n')
    hook.chmod(0o755)
    monkeypatch.chdir(here)
    subprocess.run(shlex.split(from_here("./hook 'a $HOME b'")), cwd="/", check=True)
    assert (here / "written").read_text() == "a $HOME b\n"
    assert from_here("https://hooks.example/1") == "https://hooks.example/1"


def test_a_daemon_that_only_prints_noise_has_not_started(tmp_path: Path) -> None:
    """One that ends without the word is an error with its last words, not a wait."""
    program = "import sys; print('{}'); sys.exit('hindmost collector: no port is free')"
    with pytest.raises(HindmostError, match="the collector did not start: no port is free"):
        daemon(tmp_path, program, "print('welcome')").ready("grpc")
