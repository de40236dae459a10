"""Standard streams that are closed, full or poor in characters cost an output at most, never a traceback."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import run_directory

from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.uses("cc")]

HINDMOST = f"{sys.executable} -m hindmost"
EVERY = "select * from collectives, steps"
FULL = "cannot write the output (No space left on device): free some space, or write it elsewhere"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two ranks."""
    folder = tmp_path_factory.mktemp("streams") / "run"
    run_directory([simulate(Scenario(2, 12)).run], folder)
    return folder


def shell(command: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """A command line in a shell, to its end."""
    return subprocess.run(
        ["bash", "-c", command], env={**os.environ, **environ}, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("words", ["report {run}", "query {run} 'select * from collectives'", "doctor"])
def test_a_full_disk_is_said_in_one_line(run: Path, words: str) -> None:
    """Output that cannot be written is an error of one line, also where it fits a buffer."""
    done = shell(f"{HINDMOST} {words.format(run=run)} > /dev/full")
    assert (done.returncode, done.stderr) == (1, f"hindmost {words.split(maxsplit=1)[0]}: {FULL}\n")


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&- >&- 2>&-", "-o {run}/said 2>&-"])
def test_closed_streams_are_no_error(run: Path, closed: str) -> None:
    """Who closes a stream gets nothing there, and everything else."""
    done = shell(f"{HINDMOST} report {run} {closed.format(run=run)}")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_reader_that_has_read_enough_is_no_error(run: Path) -> None:
    """Behind `head -1` nothing is said, and the exit code is that of a closed pipe."""
    done = shell(f"{HINDMOST} query {run} '{EVERY}' | head -1; exit ${{PIPESTATUS[0]}}")
    assert (done.returncode, done.stderr) == (141, "")


def test_a_question_of_hours_is_left_by_ctrl_c(run: Path) -> None:
    """The engine lets no signal through: a query ends at once all the same, without a word."""
    hours = ", ".join(f"collectives c{number}" for number in range(9))
    asked = [*HINDMOST.split(), "query", str(run), f"select count(*) from {hours} where c0.rank + c1.seq * c8.seq > 3"]  # noqa: S608 - ours
    # Tests that run in a shell's background are deaf to it, and so would be what they start.
    hears = ["env", "--default-signal=INT", *asked]
    with subprocess.Popen(hears, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: "duckdb" in Path(f"/proc/{process.pid}/maps").read_text())
        wait_until(lambda: asking_threads(process.pid) >= 2)
        process.send_signal(signal.SIGINT)
        try:
            out, err = process.communicate()
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "")


@pytest.mark.parametrize("command", [HINDMOST.split(), [str(Path(sys.executable).with_name("hindmost"))]])
@pytest.mark.parametrize("module", ["argparse", "numpy"])
def test_ctrl_c_amid_an_import_is_an_exit_code(run: Path, tmp_path: Path, module: str, command: list[str]) -> None:
    """Python would end itself by the signal, though caught, where it met the `exec` that makes a data class."""
    (tmp_path / f"{module}.py").write_text("exec('raise KeyboardInterrupt')\n")
    done = subprocess.run(
        [*command, "report", run], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, b"", b"")


def asking_threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


def test_a_terminal_of_few_characters_gets_what_it_has(run: Path, tmp_path: Path) -> None:
    """Lines and dots become hyphens, and data that it has no characters for is spelled out."""
    plain = {"PYTHONIOENCODING": "ascii"}
    done = shell(f"{HINDMOST} report {run}", **plain)
    assert done.returncode == 0
    assert done.stdout.startswith("hindmost - simulated-0 - 2 ranks")
    others = [shutil.copytree(run, tmp_path / name) for name in ("b", "c")]
    assert " ####" in shell(f"{HINDMOST} compare {run} {others[0]} {others[1]}", **plain).stdout
    done = shell(f"{HINDMOST} query {run} \"select 'ä' as x\" --format csv", **plain)
    assert (done.returncode, done.stdout) == (0, "x\n\\xe4\n")


@pytest.mark.parametrize("redirected", ["2>&-", "> /dev/full 2>&1"])
def test_a_job_keeps_its_exit_code_whatever_takes_our_words(tmp_path: Path, redirected: str) -> None:
    """The verdict cannot be printed: it is in the run directory, and the job ends as it ended."""
    done = shell(f"{HINDMOST} run --no-live --out {tmp_path / 'run'} -- sh -c 'exit 3' {redirected}")
    assert done.returncode == 3
    assert (tmp_path / "run" / "report.json").is_file()
