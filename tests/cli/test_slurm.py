"""What `hindmost report --slurm` and `hindmost slurm` say, with programs in place of Slurm's."""

import base64
import fcntl
import gzip
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hindmost_cli import main, slurm
from hindmost_cli.top import source
from hindmost_collector.report import admin_comment, brief
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge.judge import judge

from tests.commands import Says
from tests.needs import need
from tests.programs import shell_program

SCRIPTS = Path(__file__).parents[2] / "deploy" / "slurm"


@pytest.fixture
def sacct(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What sacct prints; its arguments are in ``asked``."""
    said = tmp_path / "said"
    shell_program(tmp_path / "sacct", f'echo "$@" >> {tmp_path}/asked\ncat {said}')
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return said


def row(comment: str, name: str = "12", number: str = "12", end: str = "12:00:00") -> str:
    return f"{name}|{number}|COMPLETED|0:0|00:01:00|2026-01-31T{end}|n[1-2]|{comment}\n"


def sacctmgr(folder: Path, line: str = "") -> None:
    """A sacctmgr whose arguments are in ``set``, with another line of its script."""
    shell_program(folder / "sacctmgr", f'echo "$@" >> {folder}/set\n{line}')


def of(data: bytes) -> str:
    return "HM1:" + base64.b32encode(gzip.compress(data, mtime=0)).decode()


@pytest.fixture(scope="module")
def report() -> dict[str, Any]:
    """A rank of eight that computes longer."""
    return dict(judge(simulate(Scenario(8, 60, faults=(Fault("compute", (3,), 0.06),))).run).to_dict())


def test_a_summary_has_verdict_and_end(sacct: Path, report: dict[str, Any], says: Says) -> None:
    """Slurm 22.05 keeps the letters of a comment as small ones."""
    sacct.write_text(row(admin_comment.packed(report).lower()))
    said = says(0, ["report", "--slurm", "12.0"]).out
    assert "SLOW   rank 3" in said
    assert "COST   " in said
    assert "SLURM  12: COMPLETED, exit code 0:0, ran 00:01:00 on n[1-2]" in said
    assert "--jobs 12\n" in (sacct.parent / "asked").read_text()
    found = json.loads(says(0, ["report", "--slurm", "12", "--format", "json"]).out)
    assert (found["schema"], found["verdicts"][0]["ranks"], found["slurm"]["number"]) == (brief.SCHEMA, [3], "12")


def test_a_summary_of_an_earlier_version_has_the_cost_in_numbers(report: dict[str, Any]) -> None:
    """Accounting keeps it for years."""
    found = brief.of(report)
    (verdict,) = found["verdicts"]
    del verdict["cost"]
    verdict |= {"cost_ms_per_step": 5.21, "cost_ratio": 0.04}
    assert "COST   5.2 ms per step (4.0 %)\n" in admin_comment.rendered(found, 100)


def test_what_to_do_about_a_second_verdict_comes_after_the_first(report: dict[str, Any]) -> None:
    """As in the whole report."""
    (first,) = report["verdicts"]
    both = report | {"verdicts": [first, first | {"ranks": [5], "advice": ["look at rank 5"]}]}
    lines = admin_comment.rendered(brief.of(both), 100).splitlines()
    assert [line.split()[0] for line in lines if line.startswith(("DO ", "THEN "))] == ["DO", "THEN"]


def test_a_summary_is_small_and_the_same_for_the_same_report(report: dict[str, Any]) -> None:
    """A timer that meets it again changes nothing; a long report is cut to the brief one's size."""
    assert admin_comment.packed(report) == admin_comment.packed(report)
    noisy = {**report, "notes": [f"{number * 7919:x}" * 60 for number in range(4000)]}
    assert len(admin_comment.packed(noisy)) <= admin_comment.MOST


@pytest.mark.parametrize(
    ("comment", "said"),
    [
        ("", "Slurm job 12 has no summary: hindmost did not observe it, or it has not ended"),
        ("JS1:H4sI", "Slurm job 12: its AdminComment is not hindmost's"),
        ("HM7:H4SI", "Slurm job 12: its summary is HM7, and this hindmost reads HM1: upgrade hindmost"),
        ("HM1:H4SI", "Slurm job 12: its summary is damaged: the AdminComment was cut off or changed"),
        ("HM1:!", "Slurm job 12: its summary is damaged: the AdminComment was cut off or changed"),
        (of(b"[]"), "Slurm job 12: its summary is damaged: the AdminComment was cut off or changed"),
        (of(b"0" * (1 << 24)), "Slurm job 12: its summary is damaged: the AdminComment was cut off or changed"),
        (
            of(b'{"schema": "hindmost.brief/1", "title": "x", "verdicts": [{}]}'),
            "Slurm job 12: its summary is damaged: parts are missing",
        ),
    ],
)
def test_no_summary_is_one_line(sacct: Path, says: Says, comment: str, said: str) -> None:
    """Whatever stands there: of another tool or version, torn, or a bomb."""
    sacct.write_text(row(comment))
    assert says(1, ["report", "--slurm", "12"]).err == f"hindmost report: {said}\n"


def test_a_summary_does_not_control_the_terminal(sacct: Path, says: Says) -> None:
    """Names in it are the job's."""
    found = {"schema": brief.SCHEMA, "title": "\x1b[2Jx", "verdicts": [], "pace": "\x1b]0;y\x07"}
    sacct.write_text(row(of(json.dumps(found).encode())))
    assert "\x1b" not in says(0, ["report", "--slurm", "12"]).out


@pytest.mark.parametrize(
    ("rows", "job", "said"),
    [
        ("", "12", "sacct has no such job, or does not show it to this user"),
        (
            row("", "12_1", "13") + row("", "12_2", "12"),
            "12",
            "is an array, of which 2 have started: name one of it (12_1, 12_2)",
        ),
    ],
)
def test_no_job_is_one_line(sacct: Path, capsys: pytest.CaptureFixture[str], rows: str, job: str, said: str) -> None:
    """An array's number is that of its last job, too: no user means that one."""
    sacct.write_text(rows)
    assert main(["report", "--slurm", job]) > 0
    assert said in capsys.readouterr().err


def test_a_job_of_an_array_is_found_by_index_and_by_number(sacct: Path) -> None:
    """Users give the index; Slurm gives its epilog the number."""
    sacct.write_text(row("a", "12_1", "13") + row("b", "12_2", "12"))
    assert slurm.accounting.job("12_1").comment == "a"
    assert slurm.accounting.by_number("12").comment == "b"


def test_without_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """One line, and no stack."""
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["report", "--slurm", "12"]) == 1
    assert capsys.readouterr().err == "hindmost report: sacct is not on PATH: run this where Slurm's commands are\n"


def test_without_a_configuration_it_says_what_is_fatal(sacct: Path, says: Says) -> None:
    """Slurm's first lines are of how it looked for one; each has the program's name."""
    said = ["sacct: error: fetch_config: DNS SRV lookup failed", "sacct: fatal: Could not establish a source"]
    (sacct.parent / "sacct").write_text("#!/bin/sh\n" + "".join(f"echo '{line}' >&2\n" for line in said) + "exit 1\n")
    assert says(1, ["report", "--slurm", "12"]).err == "hindmost report: sacct: fatal: Could not establish a source\n"


def test_a_job_that_cannot_be_written_keeps_no_other_from_it(
    sacct: Path, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch, says: Says
) -> None:
    """The timer meets it again and again, and the jobs behind it too."""
    sacct.write_text(row("") + row("", "13", "13"))
    sacctmgr(sacct.parent, 'case "$*" in *jobid=12*) echo no >&2; exit 1;; esac')
    monkeypatch.setattr(slurm, "Collector", lambda *_: Collector(report))
    assert says(1, ["slurm", "--since", "now-2days"]).err == "hindmost slurm: job 12: sacctmgr: no\n"
    assert "jobid=13 set admincomment=HM1:" in (sacct.parent / "set").read_text()


def test_the_timer_leaves_jobs_for_later(sacct: Path, report: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment is written once: what it says is of the whole job."""
    sacct.write_text(row(""))
    sacctmgr(sacct.parent)
    live = {**report, "judged": 1, "recording": None}
    for found, jobs in ((live, 0), (report, 1)):
        monkeypatch.setattr(slurm, "Collector", lambda *_, found=found: Collector(found))
        assert main(["slurm", "--since", "now-2days"]) == 0
        written = sacct.parent / "set"
        assert len(written.read_text().splitlines() if written.exists() else []) == jobs


@pytest.mark.parametrize("argv", [[], ["x", "--slurm", "1"], ["--slurm", "1;id"], ["--slurm", "1", "--format", "csv"]])
def test_what_does_not_go_together_is_a_mistake(argv: list[str], says: Says) -> None:
    """A path or a job, and a number that is one."""
    assert len(says(2, ["report", *argv]).err.splitlines()) == 1


def test_the_timer_asks_once_a_job_and_the_newest_first(sacct: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Most jobs of a cluster may not be observed, and the timer's run has an end."""
    ends = {"12": "09:00:00", "13": "11:00:00", "14": "10:00:00"}
    sacct.write_text("".join(row("", number, number, end) for number, end in ends.items()))
    asked: list[tuple[str, dict[str, str]]] = []
    monkeypatch.setattr(source, "fetch", lambda _, path, query, __: asked.append((path, query)))
    assert main(["slurm", "--since", "now-2days"]) == 0
    assert asked == [("/api/jobs", {}), *(("/api/report", {"job": job}) for job in ("13", "14", "12"))]


@pytest.mark.parametrize("wait", ["nan", "inf", "-1"])
def test_a_wait_has_an_end(wait: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No time is past one that is no number."""
    assert main(["slurm", "12", "--wait", wait]) == 2
    assert capsys.readouterr().err == f"hindmost slurm: --wait {wait}: use a number of seconds, 0 or more\n"


class Collector:
    """A collector that says these, one after another; the last again and again."""

    def __init__(self, *said: dict[str, Any] | None) -> None:
        self.said, self.asked_s = list(said), 0.0

    def report_if_any(self, job: str) -> dict[str, Any] | None:
        return self.said.pop(0) if len(self.said) > 1 else self.said[0]

    def jobs(self) -> list[str]:
        return []

    def of(self, wait_s: float) -> dict[str, Any] | None:
        """What the command gets of it."""

        def sleep(seconds: float) -> None:
            self.asked_s += seconds

        return slurm.report_of(self, "12", wait_s, lambda: self.asked_s, sleep)  # type: ignore[arg-type]


def test_it_waits_for_the_last_of_a_job() -> None:
    """A job in memory is judged once more when it is over; after the wait the newest report has to do."""
    live, last = {"judged": None}, {"job": {}}
    ends = Collector(live, live, last)
    assert (ends.of(60), ends.asked_s) == (last, 10)
    never = Collector(live)
    assert (never.of(60), never.asked_s) == (live, 60)


def test_a_job_that_was_not_observed_is_soon_given_up() -> None:
    """Most jobs of a cluster may be such, and each is a process that waits."""
    unknown = Collector(None)
    assert (unknown.of(600), unknown.asked_s) == (None, slurm.UNKNOWN_S)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder of all users, as /dev/shm is."""
    with TemporaryDirectory(dir="/dev/shm") as folder:
        Path(folder).chmod(0o1777)
        yield Path(folder)


@pytest.mark.parametrize("link", [False, True])
def test_the_epilog_removes_rings_and_follows_no_link(memory: Path, link: bool) -> None:
    """It runs as root, and the user may make the rings' folder a link to one of root's or of another user."""
    user = os.getuid() or 65534
    folder, target = memory / f"hindmost-{user}", memory / "target"
    job = (target if link else folder) / "77"
    job.mkdir(parents=True)
    (job / "0.ring").touch()
    for path in (job, job.parent, job / "0.ring"):
        os.chown(path, user, -1)
    if link:
        folder.symlink_to(target)
    environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_UID": str(user), "HINDMOST_SHM": str(memory)}
    environ["HINDMOST_TOKENS"] = str(memory)
    subprocess.run(["/bin/bash", SCRIPTS / "epilog.sh"], check=True, env=environ)
    assert job.exists() == link
    assert job.parent.exists()


def test_the_epilog_has_the_rights_of_the_user(memory: Path) -> None:
    """What the user may not remove stays."""
    need("root")
    job = memory / "hindmost-65534" / "77"
    job.mkdir(parents=True)
    environ = {"SLURM_JOB_ID": "77", "SLURM_JOB_UID": "65534", "HINDMOST_SHM": str(memory)}
    environ["HINDMOST_TOKENS"] = str(memory)
    subprocess.run(["/bin/bash", SCRIPTS / "epilog.sh"], check=True, env=environ)
    assert job.exists()


def test_the_controllers_epilog_waits_for_eight_jobs_at_once(tmp_path: Path) -> None:
    """A thousand short jobs are no thousand processes. The timer writes the others; a slot is free again later."""
    programs, slots, starts, ends = (tmp_path / name for name in ("bin", "slots", "starts", "ends"))
    programs.mkdir()
    lines = {
        "hindmost": f'echo "$2" > {starts}\nexec flock --shared {ends} true',
        "logger": f'[ $# -gt 2 ] || exec cat\necho "$3" >> {tmp_path}/log',
    }
    for name, line in lines.items():
        shell_program(programs / name, line)
    environ = {"PATH": f"{programs}:/usr/bin:/bin", "HINDMOST_VENV": str(tmp_path)}
    environ |= {"HINDMOST_SLURM_SLOTS": str(slots), "HINDMOST_SLURM_SETTINGS": "/dev/null"}

    def end(job: int) -> None:
        script = ["/bin/bash", SCRIPTS / "epilog-slurmctld.sh"]
        subprocess.run(script, check=True, env={**environ, "SLURM_JOB_ID": str(job)})

    os.mkfifo(starts)
    with starts.open("rb+", buffering=0) as pipe:
        with ends.open("w") as running:
            fcntl.flock(running, fcntl.LOCK_EX)
            for job in range(9):
                end(job)
            assert {pipe.readline() for _ in range(8)} == {f"{job}\n".encode() for job in range(8)}
            said = "job 8: no slot is free: its summary is left to hindmost-slurm.timer\n"
            assert (tmp_path / "log").read_text() == said
        with (slots / "8").open() as slot:
            fcntl.flock(slot, fcntl.LOCK_EX)  # once its job's processes have ended
        end(9)
        assert pipe.readline() == b"9\n"
    assert slots.stat().st_mode & 0o777 == 0o700


def test_the_controllers_epilog_takes_no_folder_of_another(tmp_path: Path) -> None:
    """In /tmp another user may have made one before, or a link."""
    for name, line in (("hindmost", f"touch {tmp_path}/ran"), ("logger", f'echo "$3" >> {tmp_path}/log')):
        shell_program(tmp_path / "bin" / name, line)
    (tmp_path / "target").mkdir()
    (tmp_path / "slots").symlink_to("target")
    environ = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "HINDMOST_VENV": str(tmp_path), "SLURM_JOB_ID": "77"}
    environ |= {"HINDMOST_SLURM_SLOTS": f"{tmp_path}/slots", "HINDMOST_SLURM_SETTINGS": "/dev/null"}
    subprocess.run(["/bin/bash", SCRIPTS / "epilog-slurmctld.sh"], check=True, env=environ)
    assert f"job 77: {tmp_path}/slots is no folder of this user" in (tmp_path / "log").read_text()
    assert list((tmp_path / "target").iterdir()) == []
