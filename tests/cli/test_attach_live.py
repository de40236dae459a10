"""Looking into processes that really run: py-spy from outside, a Python 3.14 from inside, by its own door."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import hindmost_cli
import pytest
from hindmost_agent import stacks
from hindmost_cli.attach import injected
from hindmost_judge.types import UNREAD

from tests.commands import Says
from tests.waiting import wait_until

#: A loop that spends its time in two functions, for so many seconds each; waking up late must not change the shares.
LOOP = """
    import sys, time
    class comm:
        Allreduce = staticmethod(time.sleep)
    def forward(): time.sleep(float(sys.argv[2]))
    sys.stdout.write("training\\n"); sys.stdout.flush()
    end = time.monotonic() + 600
    while time.monotonic() < end:
        forward()
        comm.Allreduce(float(sys.argv[1]))
"""

needs_py_spy = pytest.mark.skipif(
    not (shutil.which("py-spy") or Path(sys.executable).with_name("py-spy").exists()), reason="py-spy is not installed"
)


@pytest.fixture
def train(tmp_path: Path) -> Iterator[Callable[..., int]]:
    """Starts a training process of a script, which says when it trains; returns its pid."""
    started: list[subprocess.Popen[str]] = []

    def start(script: str, *argv: str, python: str = sys.executable, **environ: str) -> int:
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(script))
        process = subprocess.Popen(
            [python, str(path), *argv], stdout=subprocess.PIPE, text=True, env={**os.environ, **environ}
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "training\n"
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


@needs_py_spy
def test_two_running_ranks_are_sampled(train: Callable[..., int], says: Says) -> None:
    """Shares of two live processes come out as they are spent, and the one that waits less stands out."""
    spent = [("0.2", "0.02"), ("0.02", "0.2")]
    pids = [train(LOOP, *seconds, RANK=str(r), WORLD_SIZE="2") for r, seconds in enumerate(spent)]
    argv = ["attach", "--sample", "--seconds", "3", "--format", "json", *(f"--pid={pid}" for pid in pids)]
    report = json.loads(says(0, argv).out)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    comm = [rank["phases"]["comm"]["share"] for rank in report["ranks"]]
    assert comm[0] > 0.65
    assert comm[1] < 0.35
    assert (report["stands_out"]["rank"], report["stands_out"]["phase"]) == (1, "other")


@needs_py_spy
def test_a_rank_whose_interpreter_has_ended_does_not_hide_the_others(
    train: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Its process may wait for peers as it ends, and has no Python left."""
    over = """
    import ctypes, sys
    libc = ctypes.CDLL(None)
    libc.on_exit(libc.sleep, None)  # sleeps as many seconds as the exit code, once Python has ended
    sys.stdout.write("training\\n"); sys.stdout.flush()
    sys.exit(250)
    """
    pids = train(LOOP, "0.02", "0.02", RANK="0"), train(over, RANK="1")
    wait_until(lambda: stacks.dump(pids[1]).startswith(UNREAD))
    assert hindmost_cli.main(["attach", "--sample", "--seconds", "1", *(f"--pid={pid}" for pid in pids)]) == 0
    _, _, first, second, why, *_ = capsys.readouterr().out.splitlines()
    assert "±" in first
    assert "±" not in second
    assert why == f"process {pids[1]} cannot be sampled: its interpreter has ended, or has not started"


@needs_py_spy
def test_a_running_process_shows_where_it_stands(train: Callable[..., int], tmp_path: Path, says: Says) -> None:
    """A dump holds the functions a process is in, and is kept where asked for; of one that is gone it says why not."""
    pid = train(LOOP, "1.0", "0.002")
    wait_until(lambda: "<module> (script.py:" in stacks.dump(pid))
    assert f"Process {pid}" in stacks.dump(pid)
    assert hindmost_cli.main(["attach", "--stacks", f"--pid={pid}", "--save-to", str(tmp_path / "run")]) == 0
    (kept,) = (tmp_path / "run/stacks").iterdir()
    assert "<module> (script.py:" in kept.read_text()
    assert kept.read_text().startswith("--- 20")
    assert says(1, ["attach", "--stacks", f"--pid={pid}", "--save-to", str(kept)]).err.startswith(
        f"hindmost attach: --save-to: cannot write {kept}/stacks (Not a directory)"
    )
    assert stacks.dump(2**22 + 1).startswith(f"no stack of process {2**22 + 1}: ")


def test_a_python_314_is_entered_and_left_without_a_trace(
    train: Callable[..., int], tmp_path: Path, says: Says, python_314: str
) -> None:
    """Phases are measured from inside; afterwards modules, hooks, environment and open files are what they were."""
    script = """
        import gc, json, os, signal, sys, time
        import importlib.util
        def look():
            return [sorted(m for m in sys.modules if "hindmost" in m), sorted(k for k in os.environ if "HIND" in k),
                    len(sys.meta_path), len(gc.callbacks),
                    sorted(p for p in (os.readlink(f"/proc/self/fd/{f}") for f in os.listdir("/proc/self/fd")
                                       if os.path.islink(f"/proc/self/fd/{f}")) if "hindmost" in p or "schedstat" in p)]
        def tell(*_):  # whole, or not at all: the test polls for the file
            with open(sys.argv[1] + ".part", "w") as part:
                part.write(json.dumps(look()))
            os.replace(sys.argv[1] + ".part", sys.argv[1])
        signal.signal(signal.SIGUSR1, tell)
        sys.stdout.write("training\\n"); sys.stdout.flush()
        end = time.monotonic() + 600
        while time.monotonic() < end:
            if hindmost := sys.modules.get("hindmost"):
                with hindmost.step():
                    with hindmost.phase("input"): time.sleep(0.06)
                    with hindmost.phase("forward"): time.sleep(0.02)
            else:
                time.sleep(0.08)
    """
    pid = train(script, str(tmp_path / "seen"), python=python_314, RANK="0", WORLD_SIZE="1")
    report = json.loads(says(0, ["attach", "--seconds", "3", "--format", "json", f"--pid={pid}"]).out)
    assert report["method"] == "measured inside"
    phases = {name: seen["share"] for name, seen in report["ranks"][0]["phases"].items()}
    assert 0.55 < phases["input"] < 0.85
    assert 0.1 < phases["forward"] < 0.45
    os.kill(pid, 10)
    wait_until((tmp_path / "seen").exists)
    assert json.loads((tmp_path / "seen").read_text()) == [[], [], 3, 0, []]


def test_a_python_314_that_makes_no_step_can_be_sampled_is_said(
    train: Callable[..., int], says: Says, python_314: str
) -> None:
    """Phases are measured in steps: of a loop that has none that is said, and what shows it all the same."""
    pid = train(LOOP, "0.2", "0.02", python=python_314, RANK="0", WORLD_SIZE="1")
    assert f"process {pid} finished no step" in (said := says(0, ["attach", "--seconds", "1", f"--pid={pid}"]).out)
    assert f"`hindmost attach --sample --pid {pid}`" in said


@needs_py_spy
def test_a_python_314_can_be_sampled_from_outside(train: Callable[..., int], says: Says, python_314: str) -> None:
    """Where it is asked for, py-spy looks into the newest Python too, and nothing enters the process."""
    pid = train(LOOP, "0.2", "0.02", python=python_314, RANK="0", WORLD_SIZE="1")
    report = json.loads(says(0, ["attach", "--sample", "--seconds", "2", "--format", "json", f"--pid={pid}"]).out)
    assert report["method"].startswith("sampled")
    assert report["ranks"][0]["phases"]["comm"]["share"] > 0.6
    assert stacks.dump(pid).splitlines()[1].startswith("Python v3.14.")


def test_a_process_that_comes_by_too_late_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], python_314: str
) -> None:
    """Inside one long call Python does not come by: attach says so, and nothing happens in the process afterwards."""
    script = tmp_path / "stuck.py"
    script.write_text("import os, sys\nos.write(1, b'in')\nos.read(0, 1)\nprint('hindmost' in sys.modules)\n")
    monkeypatch.setattr(injected, "ARRIVAL_S", 0.3)
    monkeypatch.setattr(injected, "SHARED_MEMORY", str(tmp_path))
    with subprocess.Popen(
        [python_314, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.read(2) == b"in"
        assert hindmost_cli.main(["attach", "--seconds", "1", f"--pid={process.pid}"]) != 0
        assert "inside one long call" in capsys.readouterr().err
        assert process.communicate(b"x") == (b"False\n", b"")
    assert not list(tmp_path.glob("hindmost-attach-*"))
