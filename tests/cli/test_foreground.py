"""A command under ``hindmost run`` behaves as it does alone: exit codes, signals, what is left running."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost.errors import HindmostError
from hindmost_cli import launchers
from hindmost_cli.run import environment, session

from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
#: A suite that a script put into the background was started with SIGINT ignored; what is tested here was not.
RUN = """
import os, signal, sys
for number in (signal.SIGINT, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
from hindmost_cli.run import foreground
sys.exit(foreground.exit_like(foreground.run(sys.argv[1:], os.environ)))
"""
ALONE = [sys.executable, "-c", RUN]


def start(*command: str, **options: object) -> subprocess.Popen[str]:
    """``command`` in the foreground of a process of its own, which is in a session of its own."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*ALONE, *command], env=environ, start_new_session=True, **pipes, **options)


@pytest.mark.parametrize("code", [0, 3, 255])
def test_the_exit_code_is_the_commands(code: int) -> None:
    """What the command returns is what its caller sees, and its output is its own."""
    with start("sh", "-c", f"cat; echo error >&2; exit {code}", stdin=subprocess.PIPE) as process:
        assert process.communicate("hello") == ("hello", "error\n")
        assert process.returncode == code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL, signal.SIGSEGV])
def test_a_signal_ends_both_alike(number: signal.Signals) -> None:
    """Where a signal ends the command, the caller sees the same signal, as a shell does by 128 + n."""
    with start("sh", "-c", f"kill -{number.value} $$") as process:
        process.communicate()
        assert process.returncode == -number


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_a_signal_to_us_alone_reaches_the_command_once(number: signal.Signals) -> None:
    """A signal to hindmost is meant for the job: the job gets it, once, and we outlive it."""
    name = number.name.removeprefix("SIG")
    script = f"trap 'echo caught {name}; exit 7' {name}; echo ready; while :; do sleep 0.02; done"
    with start("bash", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.communicate()[0] == f"caught {name}\n"
        assert process.returncode == 7


def test_signals_to_us_are_reported() -> None:
    """The caller of the command learns which signals came meanwhile, without its children's ends."""
    script = """
import os, signal
from hindmost_cli.run import foreground
signal.signal(signal.SIGINT, signal.SIG_DFL)
command = ["sh", "-c", "trap '' USR1; kill -USR1 $PPID; kill -INT $PPID; exec sleep 20"]
heard = []
code = foreground.run(command, os.environ, heard.append)
print(sorted(one.name for one in heard), code)
"""
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "agent")}
    said = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert said.stdout == "['SIGINT', 'SIGUSR1'] -2\n"


def test_an_ignored_signal_stays_ignored() -> None:
    """Under nohup the command keeps ignoring hang-ups, and so do we."""
    with start("sh", "-c", "trap '' HUP; exec true") as process:
        assert process.wait(300) == 0
    nohup = subprocess.run(
        ["nohup", *ALONE, "sh", "-c", "kill -HUP $PPID; kill -HUP $$; echo alive"],
        env={**os.environ, "PYTHONPATH": str(ROOT / "agent")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (nohup.stdout, nohup.returncode) == ("alive\n", 0)


def test_the_command_does_not_outlive_us() -> None:
    """kill -9 of us ends the command too."""
    with start("sh", "-c", "echo $$; exec sleep 60") as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.kill()
        wait_until(lambda: not Path(f"/proc/{pid}").exists() or _state(pid) == "Z")


@pytest.mark.parametrize(
    ("what", "code", "says"),
    [
        ("no-such-command", 127, "command not found"),
        ("./no-such-file", 127, "no such file"),
        ("/", 126, "is a directory"),
        (str(ROOT / "README.md"), 126, "not executable"),
    ],
)
def test_a_command_that_cannot_be_run(what: str, code: int, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be run is named in one line, with a shell's exit code."""
    from hindmost_cli import main

    assert main(["run", "--", what]) == code
    said = capsys.readouterr().err
    assert said.startswith(f"hindmost run: {what}: ")
    assert says in said
    assert said.count("\n") == 1


def test_a_missing_interpreter_is_named(tmp_path: Path) -> None:
    """A script whose first line names an interpreter that is not there is not called missing itself."""
    script = tmp_path / "job"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with start(str(script)) as process:
        assert "interpreter on its first line is missing" in process.communicate()[1]


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


def test_what_is_compiled_at_first_use_is_no_part_of_the_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's time begins with its collector: by then the native parts are there."""
    happened: list[str] = []

    def compiled(*_: object) -> tuple[dict[str, Path], list[str]]:
        happened.append("compiled")
        return {}, []

    def started(*_: object) -> None:
        happened.append("started")
        raise HindmostError("it does not start here")

    monkeypatch.setattr(environment, "native_libraries", compiled)
    monkeypatch.setattr(session, "_collector", started)
    request = session.RunRequest(("true",), tmp_path / "run", "compiled-first", False, None)
    with pytest.raises(HindmostError):
        session.Session.start(request, launchers.find(("true",)), dict(os.environ), print)
    assert happened == ["compiled", "started"]
