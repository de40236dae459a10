"""Where no rank was seen the report says why, as far as that is known, and what helps."""

import os
import shutil
from pathlib import Path

import hindmost
import pytest
from hindmost_cli.run import environment
from hindmost_cli.run.environment import kept_out
from hindmost_collector.recordings.tables import table
from hindmost_judge import job_command
from hindmost_judge.judge import judge
from hindmost_judge.model import Job, Run, Unrecorded
from hindmost_judge.verdict import missing_ranks
from hindmost_judge.verdict.schema import Verdict


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python -I loop.py", ("python", "-I")),
        ("mpirun -np 4 /opt/bin/python3.11 -uE train.py -S", ("/opt/bin/python3.11", "-E")),
        ("python3 -W ignore -X dev -Im train", ("python3", "-I")),
        ("python -IS loop.py", ("python", "-S")),
        ("python -u -m train -I", None),
        ("python -WI loop.py", None),
        ("python loop.py -I -E", None),
        ("cat -E python", None),
    ],
)
def test_options_that_keep_the_probe_out(command: str, found: tuple[str, str] | None) -> None:
    """Only the interpreter's own options count: not the script's, nor an option's value."""
    assert job_command.isolating_option(command.split()) == found


def test_a_python_with_the_pth_file_is_seen_under_isolation(tmp_path: Path) -> None:
    """What decides is whether the job's interpreter loads the probe at its start, not the option alone."""
    environ = {"PATH": os.defpath}
    plain, ready = _interpreter(tmp_path / "plain"), _interpreter(tmp_path / "ready")
    site = next((tmp_path / "ready").glob("lib/python*/site-packages"))
    agent = Path(hindmost.__file__).parents[1]
    (site / "agent.pth").write_text(f"{agent}\n")
    shutil.copy(agent / "hindmost/inject/hindmost.pth", site / "hindmost.pth")
    said = kept_out((plain, "-I", "loop.py"), environ)
    assert said is not None
    assert f"`{plain} -m pip install ." in said
    assert kept_out((ready, "-I", "loop.py"), environ) is None
    assert "drop -S" in (kept_out((ready, "-S", "loop.py"), environ) or "")
    assert kept_out((plain, "loop.py"), environ) is None


def _interpreter(folder: Path) -> str:
    """An interpreter without anything installed."""
    import venv

    venv.create(folder, with_pip=False, symlinks=True)
    return str(folder / "bin/python")


@pytest.mark.parametrize(("together", "reported"), [(0.03, False), (0.09, True)])
def test_waiting_beyond_the_scatter_of_transfers_is_for_a_missing_rank(together: float, reported: bool) -> None:
    """The share of the time for which all who were seen wait at once: transfers alone make up to 0.025 of it."""
    run = Run(Job("a", source="inspector"), unrecorded=Unrecorded((3,), together))
    (found,) = missing_ranks.with_missing_ranks([Verdict(kind="balanced")], run, None)
    assert any("likely for rank 3" in one for one in found.evidence) == reported


@pytest.mark.parametrize(("count", "reported"), [(7, "ranks 1 to 7"), (8, "that are missing")])
def test_ranks_whose_files_are_missing_are_named_as_long_as_they_can_be_read(count: int, reported: str) -> None:
    """Up to seven."""
    run = Run(Job("a", source="inspector"), unrecorded=Unrecorded(tuple(range(1, count + 1))))
    (found,) = missing_ranks.with_missing_ranks([], run, None)
    assert reported in found.advice[0]


@pytest.mark.parametrize(
    ("job", "evidence", "advice"),
    [
        (Job("j", command="python -I loop.py"), "no rank was seen", "ignores PYTHONPATH"),
        (Job("j", command="python -S loop.py"), "no rank was seen", "drop -S"),
        (Job("j", command="python -I loop.py", entered=True), "without a known step", "hindmost.step()"),
        (Job("j", command="python a.py", entered=True), "of MPI under mpirun or srun", "`mpirun -np 1`"),
        (Job("j", command="python -c pass", entered=True), "without a known step", "this command's environment"),
        (Job("j", command="sh -c 'exit 3'", exit_code=3), "before the job failed", "read the job's own output"),
        (Job("j", command="python no.py", exit_code=2, entered=True), "before the job failed", "job's own output"),
        (Job("j", command="python -I no.py", exit_code=2), "before the job failed", "job's own output"),
        (Job("j", command="./a", exit_code=130, interrupted_by="SIGINT"), "was interrupted", "run for longer"),
        (Job("j", command="./bin/a.out 3", exit_code=0), "a.out ended; a rank is what makes steps of", "doctor"),
        (Job("j", command="true", started_ns=10**9, ended_ns=3 * 10**9), "true ended after 2.0 s; a rank is", "doctor"),
        (Job("j", command="cut 'quote"), "cut ended; a rank is", "hindmost doctor"),
        (
            Job("j", command="python a.py", no_ring="no ring can be made in /x (full)"),
            "(full)",
            "make room in /dev/shm",
        ),
    ],
)
def test_advice_for_a_job_under_hindmost_does_not_suggest_it(job: Job, evidence: str, advice: str) -> None:
    """For a command that ``hindmost run`` started, the note says why its ranks are missing, not to do what was done."""
    (verdict,) = judge(Run(job)).verdicts
    assert evidence in "; ".join(verdict.evidence)
    assert advice in verdict.advice[0]
    assert "hindmost run" not in verdict.advice[0]
    assert not (job.entered and "PYTHONPATH" in verdict.advice[0])


def test_advice_for_a_job_without_hindmost_run_names_it() -> None:
    """A collector that knows no command was not started by ``hindmost run``."""
    (verdict,) = judge(Run(Job("j"))).verdicts
    assert "put `hindmost run --` before the command" in verdict.advice[0]


@pytest.mark.parametrize(
    ("size", "evidence", "advice"),
    [
        (1, "no other rank to compare it with, and no step was recognised", "hindmost.steps(loader)"),
        (8, "one rank of 8 was seen", "inherit this command's environment"),
    ],
)
def test_the_report_on_one_rank_says_what_would_show_more(size: int, evidence: str, advice: str) -> None:
    """Its steps where it made none that is known, and the others where it is one of several."""
    (verdict,) = judge(Run(Job("made", world_size=size), ranks=table("ranks", rank=[0], world_size=size))).verdicts
    assert verdict.kind == "insufficient_data"
    assert evidence in verdict.evidence[0]
    assert advice in verdict.advice[0]


def test_room_for_a_ring_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's refusal is quoted; a trial leaves nothing behind."""
    assert environment.no_room_for_a_ring(tmp_path) is None
    assert not any(tmp_path.iterdir())
    gone = tmp_path / "gone"
    assert environment.no_room_for_a_ring(gone) == f"no ring can be made in {gone} (No such file or directory)"

    def full(*_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(environment.os, "posix_fallocate", full)
    assert "No space left on device" in (environment.no_room_for_a_ring(tmp_path) or "")
    assert not any(tmp_path.iterdir())
