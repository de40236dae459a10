"""How the probe gets into a training process, stays out of everything else, and has its last word: real processes."""

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import hindmost
import pytest
from hindmost import bootstrap, ring
from hindmost.identity import Identity

from tests.waiting import wait_until

PACKAGE = Path(hindmost.__file__).parent
RANK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "1"}


class Job:
    """Runs Python as `hindmost run` would have a launcher run it."""

    def __init__(self, directory: Path) -> None:
        self.rings = directory / "rings"
        self.environ = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(PACKAGE / "inject"),
            "HINDMOST_JOB_ID": "job",
            "HINDMOST_RING_DIR": str(self.rings),
            "HINDMOST_LAUNCHER": "mpirun",
        }

    def python(self, *argv: str, **environ: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *argv]
        return subprocess.run(command, env={**self.environ, **environ}, capture_output=True, text=True, check=False)

    def headers(self) -> list[ring.Header]:
        headers = []
        for path in sorted(self.rings.glob("*.ring")):
            reader = ring.Reader(path)
            headers.append(reader.header)
            reader.close()
        return headers


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_a_rank_gets_a_ring(job: Job) -> None:
    """The rank's place stands in its ring, `import hindmost` works, and sys.path is as without hindmost."""
    script = "import sys, hindmost; print(hindmost.__file__, any('inject' in p for p in sys.path))"
    done = job.python("-c", script, **RANK)
    assert done.stdout.split() == [str(PACKAGE / "__init__.py"), "False"]
    assert done.stderr == ""
    (header,) = job.headers()
    assert (header.job_id, header.rank, header.world_size, header.local_rank) == ("job", 1, 2, 1)


def test_a_rank_imports_little_for_its_probe(job: Job) -> None:
    """All ranks start at once, and wait for what a probe imports that the job may never use."""
    script = "import sys; print(*sys.modules)"
    without = job.python("-I", "-c", script).stdout.split()
    more = set(job.python("-c", script, **RANK).stdout.split()).difference(without)
    assert more.isdisjoint({"dataclasses", "importlib.abc", "inspect", "pathlib", "hindmost.ring.reader"})


@pytest.mark.parametrize(
    "environ", [{"HINDMOST_JOB_ID": ""}, {"HINDMOST_PROBE": "0"}, {"OMPI_COMM_WORLD_RANK": ""}], ids=str
)
def test_no_rank_no_ring(job: Job, environ: dict[str, str]) -> None:
    """Outside a job, with the probe switched off, or without a rank, there is no ring."""
    done = job.python("-c", "print(1)", **RANK | environ)
    assert (done.stdout, done.stderr) == ("1\n", "")
    assert job.headers() == []


def test_without_a_job_nothing_is_imported(job: Job) -> None:
    """Where nothing listens, hindmost is not even imported."""
    done = job.python("-c", "import sys; print('hindmost' in sys.modules)", HINDMOST_JOB_ID="")
    assert done.stdout == "False\n"


def test_the_users_sitecustomize_still_runs(job: Job, tmp_path: Path) -> None:
    """A sitecustomize further down the path is executed, and is the module of that name."""
    (tmp_path / "sitecustomize.py").write_text("MARK = 'the user was here'\n")
    path = f"{job.environ['PYTHONPATH']}:{tmp_path}"
    done = job.python("-c", "import sitecustomize; print(sitecustomize.MARK)", PYTHONPATH=path, **RANK)
    assert done.stdout == "the user was here\n"
    assert len(job.headers()) == 1


def test_an_isolated_python_is_reached_by_the_pth_file(job: Job, tmp_path: Path) -> None:
    """`python -I` ignores PYTHONPATH; the .pth file of an installed hindmost starts the probe all the same."""
    site_packages = tmp_path / "site-packages"
    site_packages.mkdir()
    (site_packages / "hindmost").symlink_to(PACKAGE)
    (site_packages / "hindmost.pth").write_bytes((PACKAGE / "inject" / "hindmost.pth").read_bytes())
    done = job.python("-I", "-c", f"import site; site.addsitedir({str(site_packages)!r})", **RANK)
    assert done.stderr == ""
    assert len(job.headers()) == 1


def test_the_pth_file_loads_nothing_where_no_job_is_observed(tmp_path: Path) -> None:
    """It runs at every start of an interpreter that has hindmost installed: no module comes in."""
    (tmp_path / "hindmost.pth").write_bytes((PACKAGE / "inject" / "hindmost.pth").read_bytes())
    script = (
        "import site, sys\n"
        "before = set(sys.modules)\n"
        f"site.addpackage({str(tmp_path)!r}, 'hindmost.pth', set())\n"
        "print(set(sys.modules) - before)"
    )
    environ = {name: value for name, value in os.environ.items() if not name.startswith("HINDMOST_")}
    done = subprocess.run([sys.executable, "-I", "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")


def test_descendants_of_a_rank_are_not_ranks(job: Job) -> None:
    """A process that a rank starts inherits its variables and is not observed."""
    script = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'pass'], check=True)"
    job.python("-c", script, **RANK)
    assert len(job.headers()) == 1


def test_a_forked_child_writes_nothing(job: Job) -> None:
    """Marks in a forked child neither raise nor reach the parent's ring."""
    script = (
        "import os, hindmost\n"
        "if os.fork() == 0:\n"
        "    with hindmost.step(): pass\n"
        "    os._exit(7)\n"
        "assert os.waitstatus_to_exitcode(os.wait()[1]) == 7\n"
        "with hindmost.step('eval'): pass\n"
    )
    done = job.python("-c", script, **RANK)
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = job.rings.glob("*.ring")
    reader = ring.Reader(path)
    assert [event.name for event in reader.poll() if event.kind == ring.STEP] == ["eval"]
    assert reader.closed
    reader.close()


def test_a_helper_of_the_launcher_leaves_no_ring(job: Job) -> None:
    """A plain python that does not train is no rank 0; one that does is."""
    job.python("-c", "import json", HINDMOST_LAUNCHER="python")
    assert job.headers() == []
    job.python("-c", "import hindmost\nwith hindmost.step(): pass", HINDMOST_LAUNCHER="python")
    assert [(header.rank, header.world_size) for header in job.headers()] == [(0, 1)]


TRAINS = "import hindmost\nwith hindmost.step(): pass\n"
STARTS = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"


@pytest.mark.parametrize(
    ("parent", "child", "rings"),
    [(STARTS, TRAINS, 1), (STARTS + TRAINS, "pass", 1), (TRAINS + STARTS, TRAINS, 1), (STARTS, "pass", 0)],
)
@pytest.mark.parametrize("launcher", ["python", "accelerate"])
def test_whoever_trains_is_the_rank(job: Job, launcher: str, parent: str, child: str, rings: int) -> None:
    """A job of one process may be started by another Python; what a training process starts is its helper."""
    done = job.python("-c", parent, child, HINDMOST_LAUNCHER=launcher)
    assert (done.returncode, done.stderr) == (0, "")
    assert [(header.rank, header.world_size) for header in job.headers()] == [(0, 1)] * rings


def test_a_process_that_makes_no_ring_leaves_a_trace(job: Job) -> None:
    """The probe says that it was in, in a folder that is there; a process of another launcher's job is no such one."""
    done = job.python("-c", "pass", HINDMOST_LAUNCHER="python")
    assert (done.stderr, job.rings.exists()) == ("", False)
    job.rings.mkdir()
    job.python("-c", "pass", HINDMOST_LAUNCHER="mpirun")
    assert not any(job.rings.iterdir())
    job.python("-c", "pass", HINDMOST_LAUNCHER="python")
    assert [path.name for path in job.rings.iterdir()] == [bootstrap.ENTERED]


@pytest.mark.parametrize("launcher", ["mpirun", "python"])
def test_without_a_place_for_rings_the_job_goes_on(job: Job, tmp_path: Path, launcher: str) -> None:
    """No ring can be made: one line on stderr says so, and the script's output and exit code are its own."""
    (tmp_path / "file").write_text("")
    place = str(tmp_path / "file" / "rings")
    script = "import hindmost\nfor _ in hindmost.steps('ab'): print('trained')\nraise SystemExit(3)"
    environ = RANK if launcher == "mpirun" else {"HINDMOST_LAUNCHER": "python"}
    done = job.python("-c", script, HINDMOST_RING_DIR=place, **environ)
    assert (done.returncode, done.stdout) == (3, "trained\ntrained\n")
    assert done.stderr.startswith("hindmost: no ring in")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("name", ["../../x", "/x", "a/b", "..", "."])
def test_a_job_id_that_is_a_path_is_one_line(job: Job, name: str) -> None:
    """No ring is made, for it may be where that leads; the script runs, and one line says why."""
    done = job.python("-c", "print('runs')", **RANK, HINDMOST_JOB_ID=name)
    assert (done.returncode, done.stdout) == (0, "runs\n")
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"hindmost: HINDMOST_JOB_ID is {name!r}")
    assert not job.rings.exists()


def test_a_probe_that_raises_is_one_line(job: Job, tmp_path: Path) -> None:
    """A torch that is not what the probe expects is imported and works; one line says that it is not observed."""
    (tmp_path / "torch.py").write_text("answer = 42\n")
    path = f"{job.environ['PYTHONPATH']}:{tmp_path}"
    done = job.python("-c", "import torch; print(torch.answer)", PYTHONPATH=path, **RANK)
    assert (done.returncode, done.stdout) == (0, "42\n")
    assert done.stderr.startswith("hindmost: torch cannot be observed")
    assert done.stderr.count("\n") == 1


def test_an_error_of_the_script_is_the_scripts(job: Job) -> None:
    """A traceback and exit code 1 are what they are without hindmost; the ring is closed in order."""
    done = job.python("-c", "raise ValueError('mine')", **RANK)
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: mine\n")
    assert "hindmost" not in done.stderr


def agent_of(job: Job, tmp_path: Path) -> Path:
    """Stands in for the interpreter that has the agent: writes its arguments to a file."""
    said, fake = tmp_path / "said", tmp_path / "agent-python"
    fake.write_text(f'#!/bin/sh\necho "$@" > {said}.part && mv {said}.part {said}\n')
    fake.chmod(0o755)
    job.environ |= {"HINDMOST_PYTHON": str(fake), "HINDMOST_COLLECTOR": "127.0.0.1:4317"}
    return said


def test_the_first_rank_of_a_node_starts_its_agent(job: Job, tmp_path: Path) -> None:
    """Where no agent holds the lock, local rank 0 starts one, which is not its child; local rank 1 does not."""
    said = agent_of(job, tmp_path)
    script = "import os\ntry: os.wait()\nexcept ChildProcessError: print('no children')"
    done = job.python("-c", script, **RANK | {"OMPI_COMM_WORLD_LOCAL_RANK": "0"})
    assert done.stdout == "no children\n"
    wait_until(said.exists)
    assert said.read_text().split() == [
        *("-m", "hindmost", "agent", "--collector", "127.0.0.1:4317", "--job-id", "job"),
        *("--ring-dir", str(job.rings)),
    ]


def test_a_node_that_has_an_agent_gets_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the lock is held no rank starts an agent; once it is free, one is started."""
    started: list[str] = []
    monkeypatch.setenv("HINDMOST_COLLECTOR", "127.0.0.1:4317")
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(os, "posix_spawn", lambda path, *_, **__: started.append(path))
    rank = Identity("job", 0, 2, 0, "node", "python", "train.py")
    with (tmp_path / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        bootstrap.start_agent(str(tmp_path), rank)
        assert started == []
    bootstrap.start_agent(str(tmp_path), rank)
    assert started == ["/bin/sh"]


def test_a_lock_that_is_no_file_keeps_no_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening a FIFO would wait for its reader: it cannot be this node's agent, and the rank goes on."""
    started: list[str] = []
    monkeypatch.setenv("HINDMOST_COLLECTOR", "127.0.0.1:4317")
    monkeypatch.setattr(os, "posix_spawn", lambda path, *_, **__: started.append(path))
    os.mkfifo(tmp_path / "agent.lock")
    bootstrap.start_agent(str(tmp_path), Identity("job", 0, 2, 0, "node", "python", "train.py"))
    assert started == []


@pytest.mark.parametrize(
    ("theirs", "slot", "behind"),
    [("mine.so", "ours.so", "mine.so"), ("ours.so", "ours.so", ""), ("none", "none", ""), ("", "", "")],
)
def test_a_profiler_that_a_script_sets_goes_behind_hindmosts(job: Job, theirs: str, slot: str, behind: str) -> None:
    """NCCL has one slot; a script that empties it, or wants no profiler, is heard."""
    script = (
        "import os; print(*(os.environ.get(n, '') for n in ('NCCL_PROFILER_PLUGIN', 'HINDMOST_NCCL_NEXT')), sep=';')"
    )
    done = job.python("-c", script, **RANK, HINDMOST_NCCL_PLUGIN="ours.so", NCCL_PROFILER_PLUGIN=theirs)
    assert done.stdout == f"{slot};{behind}\n"


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("raise ValueError('x')", ["raised ValueError at job.py:2"]),
        ("__import__('json').loads('{')", ["raised JSONDecodeError at job.py:2"]),
        ("__import__('sys').exit(3)", []),
        ("raise KeyboardInterrupt", ["raised KeyboardInterrupt at job.py:2"]),
        ("try: 1 / 0\nexcept ZeroDivisionError: pass", []),
    ],
)
def test_an_exception_is_told_with_the_job_s_own_line(tmp_path: Path, body: str, said: list[str]) -> None:
    """Also where a library raised it; an exit and what was caught are no exception."""
    (tmp_path / "job.py").write_text(f"import hindmost.bootstrap; hindmost.bootstrap.start()\n{body}\n")
    placed = {"RANK": "0", "WORLD_SIZE": "2", "HINDMOST_JOB_ID": "j", "HINDMOST_RING_DIR": str(tmp_path / "rings")}
    environ = {**os.environ, **placed}
    subprocess.run([sys.executable, str(tmp_path / "job.py")], env=environ, capture_output=True, check=False)
    (path,) = (tmp_path / "rings").glob("*.py.*.ring")
    reader = ring.Reader(path)
    assert [one.name for one in reader.poll() if one.kind == ring.MARK and one.name.startswith("raised")] == said
    assert reader.closed
    assert [reader.text.partition(": ")[0]] == (said or [""])


@pytest.mark.parametrize(
    ("raised", "text"),
    [
        ("ValueError('no room')", "raised ValueError at job.py:3: no room"),
        ("ValueError()", "raised ValueError at job.py:3"),
        (r"ValueError('a\n\x1b[31m b\x00\u202e')", "raised ValueError at job.py:3: a [31m b"),
        ("ValueError('é' * 10**6)", f"raised ValueError at job.py:3: {'é' * 499}…"),
        ("Unprintable()", ""),
    ],
)
def test_an_exception_s_message_is_kept_in_one_bounded_line(tmp_path: Path, raised: str, text: str) -> None:
    """Whatever it holds; one that cannot be had is left out, and the ring is closed all the same."""
    unprintable = "class Unprintable(Exception): __str__ = lambda self: exit(5)"
    script = f"import hindmost.bootstrap; hindmost.bootstrap.start()\n{unprintable}\nraise {raised}\n"
    (tmp_path / "job.py").write_text(script)
    placed = {"RANK": "0", "WORLD_SIZE": "2", "HINDMOST_JOB_ID": "j", "HINDMOST_RING_DIR": str(tmp_path / "rings")}
    environ = {**os.environ, **placed}
    done = subprocess.run([sys.executable, str(tmp_path / "job.py")], env=environ, capture_output=True, check=False)
    (path,) = (tmp_path / "rings").glob("*.py.*.ring")
    reader = ring.Reader(path)
    assert (done.returncode, reader.text, reader.closed) == (1, text, True)
