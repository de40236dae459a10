"""What `hindmost run` hears of its daemons, and says of verdicts while the job writes to the same terminal."""

import json
import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pyte
import pytest
from hindmost.errors import HindmostError
from hindmost_cli import launchers, run, stdio
from hindmost_cli.run import environment, session
from hindmost_cli.run.session import Daemon, from_here

from tests.programs import shell_program
from tests.waiting import wait_until


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
    shell_program(here / "hook", 'echo "$1" > written')
    monkeypatch.chdir(here)
    subprocess.run(shlex.split(from_here("./hook 'a $HOME b'")), cwd="/", check=True)
    assert (here / "written").read_text() == "a $HOME b\n"
    assert from_here("https://hooks.example/1") == "https://hooks.example/1"


def test_a_daemon_that_only_prints_noise_has_not_started(tmp_path: Path) -> None:
    """One that ends without the word is an error with its last words, not a wait."""
    program = "import sys; print('{}'); sys.exit('hindmost collector: no port is free')"
    with pytest.raises(HindmostError, match="the collector did not start: no port is free"):
        daemon(tmp_path, program, "print('welcome')").ready("grpc")


EVENT = {
    "event": "opened",
    "time_ns": 1_795_454_503_000_000_000,
    "text": "SLOW rank 2 on vm: computing",
    "ended": False,
    "kind": "straggler",
}


@pytest.mark.parametrize(
    ("before", "rows"),
    [
        ("step 100\r\n", ["step 100", "hindmost: ", "step 200"]),
        ("step 100", ["step 100", "hindmost: ", "step 200"]),
        ("\r 12%|# |\r 13%|# |", [" 13%|# |", "hindmost: ", "step 200"]),
        ("x" * 80, ["x" * 80, "hindmost: ", "step 200"]),
        ("", ["hindmost: ", "step 200"]),
    ],
)
def test_a_verdict_has_a_line_of_its_own_on_a_terminal(before: str, rows: list[str]) -> None:
    """Wherever the job's cursor was, and without an empty line where that was the first column."""
    screen = pyte.Screen(80, 6)
    stream = pyte.Stream(screen)
    stream.feed(before)
    stream.feed(run.line(EVENT, 80, color=True).replace("\n", "\r\n"))  # as a terminal's driver does
    stream.feed("step 200")
    shown = [line.rstrip() for line in screen.display]
    assert [line[: len(row)] for line, row in zip(shown, rows, strict=False)] == rows
    assert shown[rows.index("hindmost: ")].endswith("SLOW rank 2 on vm: computing")
    assert not any(shown[len(rows) :])


def test_a_log_has_one_plain_line_with_the_date(monkeypatch: pytest.MonkeyPatch) -> None:
    """No blanks, no escape sequences."""
    found = run.line(EVENT)
    assert found.startswith("hindmost: 2026-11-2")
    assert found.endswith(" SLOW rank 2 on vm: computing\n")
    assert found[:-1].isprintable()


def test_the_end_of_the_job_is_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    """The report follows."""
    run.say({**EVENT, "event": "closed", "ended": True})
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("quiet", "log_verdicts", "terminal", "kinds"),
    [
        (False, False, True, ["straggler", "hang", "input_bound"]),
        (False, False, False, ["hang"]),
        (False, True, False, ["straggler", "hang", "input_bound"]),
        (True, False, False, []),
        (True, False, True, []),
    ],
)
def test_a_log_has_hangs_without_being_asked(
    quiet: bool,
    log_verdicts: bool,
    terminal: bool,
    kinds: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who reads the log of a job that stands still wants to know why; `--quiet` leaves them out, too."""
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    hears = run.listener(quiet, log_verdicts)
    for kind in ("straggler", "hang", "input_bound"):
        hears({**EVENT, "kind": kind, "text": f"text of {kind}"})
    printed = capsys.readouterr().err
    assert [kind for kind in ("straggler", "hang", "input_bound") if f"text of {kind}" in printed] == kinds


@pytest.mark.parametrize(
    ("page", "connection", "expected"),
    [
        (
            "127.0.0.1:4012",
            "10.0.0.7 50000 10.0.0.9 22",
            "ssh -N -L 4012:127.0.0.1:4012 ada@10.0.0.9  then http://127.0.0.1:4012/",
        ),
        (
            "0.0.0.0:80",
            "10.0.0.7 50000 fd00::9 2222",
            "ssh -N -p 2222 -L 80:127.0.0.1:80 ada@fd00::9  then http://127.0.0.1:80/",
        ),
        ("[fd00::1]:9461", "a 1 login 22", "ssh -N -L '9461:[fd00::1]:9461' ada@login  then http://127.0.0.1:9461/"),
        ("127.0.0.1:4012", "", ""),
        ("127.0.0.1:4012", "nonsense", ""),
    ],
)
def test_over_ssh_the_tunnel_is_a_command_to_copy(page: str, connection: str, expected: str) -> None:
    """Of the address and port by which the user came here."""
    environ = {"SSH_CONNECTION": connection, "USER": "ada"}
    assert run.ssh_tunnel(page, environ) == expected
    assert run.ssh_tunnel(page, environ, "?token=j.x") == (f"{expected}?token=j.x" if expected else "")


@pytest.mark.parametrize(
    ("page", "expected"),
    [("0.0.0.0:80", "{}:80"), ("[::]:80", "{}:80"), ("127.0.0.1:80", "127.0.0.1:80"), ("[fd00::1]:80", "[fd00::1]:80")],
)
def test_the_address_of_a_page_opens_on_another_machine(page: str, expected: str) -> None:
    """Every address is none: this host's name is."""
    assert run.reachable(page) == expected.format(os.uname().nodename)


@pytest.mark.parametrize("on_path", [True, False])
@pytest.mark.parametrize("module", [True, False])
def test_printed_commands_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, on_path: bool, module: bool) -> None:
    """By the name where the shell finds it, else as this program was started."""
    program = shell_program(tmp_path / "bin dir" / "hindmost", "echo found")
    monkeypatch.setenv("PATH", str(program.parent) if on_path else str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["/packages/hindmost/__main__.py" if module else str(program)])
    found = shlex.split(stdio.program())
    if on_path:
        assert found == ["hindmost"]
    else:
        assert found == ([sys.executable, "-m", "hindmost"] if module else [str(program)])
    assert subprocess.run([*found, "--version"], check=True, capture_output=True).stdout


@pytest.mark.parametrize(("ranks", "offered"), [([1], ["1-trace-0-5.json and 1 more"]), ([], [])])
def test_only_traces_of_ranks_that_the_report_names_are_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], ranks: list[int], offered: list[str]
) -> None:
    """A verdict that was over before the job ended left its trace."""
    (tmp_path / "stacks").mkdir()
    for name in ("0-trace-0-5.json", "1-trace-0-5.json", "1-trace-9-14.json"):
        (tmp_path / "stacks" / name).touch()
    (tmp_path / "report.json").write_text(json.dumps({"verdicts": [{"ranks": ranks}]}))
    run.say_files(tmp_path)
    said = capsys.readouterr().err
    assert [line.partition("stacks/")[2].partition(" on ")[0] for line in said.splitlines()] == offered


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
