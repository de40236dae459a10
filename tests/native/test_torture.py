"""What may happen to a training process must happen to it as if it were not observed."""

import fcntl
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.native import build

pytestmark = pytest.mark.needs("mpirun", "cc")

#: Every program begins so: one rank, with mpi4py.
START = """
import os, signal, sys, threading
from mpi4py import MPI
world = MPI.COMM_WORLD
world.Barrier()
"""


@pytest.fixture
def run(observed: dict[str, str]) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a program that goes on from START, preloaded; ``environ`` is added to that of a rank."""

    def start(program: str, **environ: str) -> subprocess.CompletedProcess[str]:
        line = [sys.executable, "-c", START + textwrap.dedent(program)]
        # Named by a launcher, and observed already as far as the probe of Python can tell: the ring is the shim's.
        named = {"RANK": "0", "WORLD_SIZE": "1", "HINDMOST_ATTACHED": "job-1/0/1"}
        preloaded = observed | named | {"LD_PRELOAD": str(build.library("pmpi"))} | environ
        return subprocess.run(line, env=preloaded, capture_output=True, text=True, timeout=100, check=False)

    return start


@pytest.mark.parametrize(
    ("end", "code", "closed"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, False),
        ("os._exit(3)", 3, False),
        ("sys.exit(4)", 4, True),
        ("raise ValueError", 1, True),
    ],
)
def test_every_end_keeps_its_exit_code(
    run: Callable[..., subprocess.CompletedProcess[str]],
    rings: Callable[[], list[ring.Reader]],
    end: str,
    code: int,
    closed: bool,
) -> None:
    """However a rank ends, its exit code is its own, and what it recorded can be read."""
    done = run(f"world.Barrier()\n{end}")
    assert done.returncode == code
    (reader,) = rings()
    assert [e.name for e in reader.poll() if e.kind == ring.COLLECTIVE] == ["barrier", "barrier"]
    assert reader.closed == closed


def test_forked_children_are_not_ranks(
    run: Callable[..., subprocess.CompletedProcess[str]], rings: Callable[[], list[ring.Reader]]
) -> None:
    """A forked child's MPI calls are its own affair; the parent goes on recording."""
    done = run("""
        if os.fork() == 0:
            MPI.COMM_SELF.Barrier()
            os._exit(0)
        assert os.wait()[1] == 0
        world.Allreduce(MPI.IN_PLACE, bytearray(8))
    """)
    assert done.returncode == 0, done.stderr
    (reader,) = rings()
    assert [e.name for e in reader.poll() if e.kind == ring.COLLECTIVE] == ["barrier", "all_reduce"]


def test_a_hundred_threads(
    run: Callable[..., subprocess.CompletedProcess[str]], rings: Callable[[], list[ring.Reader]]
) -> None:
    """More threads than the open table has places lose no record."""
    done = run(
        """
        def talk(tag):
            for _ in range(20):
                MPI.COMM_SELF.sendrecv(tag, 0, tag, source=0, recvtag=tag)
        threads = [threading.Thread(target=talk, args=(tag,)) for tag in range(100)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        """,
        HINDMOST_RING_CAPACITY=str(1 << 18),
    )
    assert done.returncode == 0, done.stderr
    (reader,) = rings()
    sent = [e for e in reader.poll() if e.kind == ring.P2P and e.name in ("send", "recv", "sendrecv", "wait", "probe")]
    assert len(sent) >= 2000
    assert (reader.lost, reader.open_records()) == (0, [])


def test_signals_that_interrupt(
    run: Callable[..., subprocess.CompletedProcess[str]], rings: Callable[[], list[ring.Reader]]
) -> None:
    """A timer's signals, thousands of times a second, reach the program's own handler, and no record is lost."""
    done = run(
        """
        came = 0
        def handler(*_):
            global came
            came += 1
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
        calls = 0
        while came < 200:
            world.Barrier()
            calls += 1
        signal.setitimer(signal.ITIMER_REAL, 0)
        print(calls)
        """,
        HINDMOST_RING_CAPACITY=str(1 << 20),
    )
    assert done.returncode == 0, done.stderr
    (reader,) = rings()
    seen = sum(e.kind == ring.COLLECTIVE for e in reader.poll())
    assert (seen, reader.lost) == (int(done.stdout) + 1, 0)


def test_ring_that_is_removed_under_it(run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """Removing the ring does not hurt the rank."""
    done = run("""
        import shutil
        shutil.rmtree(os.environ["HINDMOST_RING_DIR"])
        for _ in range(1000): world.Barrier()
        print("done")
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "done\n", "")
    assert not (tmp_path / "rings").exists()


def test_ring_that_cannot_be_made_is_one_line(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """Without a place for its ring the rank runs, after one line that names the place."""
    (tmp_path / "rings").write_text("")
    done = run("print('done')")
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr == f"hindmost: this rank's MPI calls are not recorded: {tmp_path / 'rings'}: Not a directory\n"


@pytest.mark.needs("root", "the right to mount")
@pytest.mark.parametrize(("options", "why"), [("size=64k", "No space left on device"), ("ro", "Read-only file system")])
def test_shared_memory_that_is_full_or_read_only(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path, options: str, why: str
) -> None:
    """A full or read-only /dev/shm is said once, and is never a signal."""
    (tmp_path / "rings").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(tmp_path / "rings")]
    subprocess.run(mount, check=True)
    try:
        done = run("for _ in range(1000): world.Barrier()\nprint('done')")
    finally:
        subprocess.run(["umount", str(tmp_path / "rings")], check=True)
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert done.stderr.splitlines() == [
        f"hindmost: this rank's MPI calls are not recorded: {tmp_path / 'rings'}: {why}"
    ]


AGENT = """#!/bin/sh
echo "$@ probe=$HINDMOST_PROBE preload=$LD_PRELOAD session=$(cut -d' ' -f6 /proc/$$/stat) parent=$PPID" > {said}.part
ls /proc/$$/fd | wc -l >> {said}.part
mv {said}.part {said}
"""


def wait_for(path: Path) -> str:
    """The content of a file that another process is about to make."""
    deadline = time.monotonic() + 20
    while not path.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return path.read_text()


def test_agent_is_started_without_the_rank_noticing(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """The first rank of a node starts the agent in a session of its own; no child, signal or file remains with it."""
    said, agent = tmp_path / "said", tmp_path / "python"
    agent.write_text(AGENT.format(said=said))
    agent.chmod(0o755)
    program = """
        import errno
        try: os.waitpid(-1, os.WNOHANG)
        except ChildProcessError: print("no child")
        print(os.getsid(0))
    """
    done = run(program, HINDMOST_COLLECTOR="127.0.0.1:9", HINDMOST_PYTHON=str(agent))
    line, files = wait_for(said).splitlines()
    words = dict(word.split("=", 1) for word in line.split() if "=" in word)
    rings = tmp_path / "rings"
    assert line.startswith(f"-m hindmost agent --collector 127.0.0.1:9 --job-id job-1 --ring-dir {rings} ")
    assert (words["probe"], words["preload"]) == ("0", "")
    assert int(files) <= 5
    assert done.returncode == 0, done.stderr
    assert "no child" in done.stdout.splitlines()
    assert words["session"] != done.stdout.split()[-1]


def test_agent_is_not_started_where_one_holds_the_lock(
    run: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    """While the lock is held there is an agent, and none is started."""
    said, agent = tmp_path / "said", tmp_path / "python"
    agent.write_text(AGENT.format(said=said))
    agent.chmod(0o755)
    (tmp_path / "rings").mkdir()
    with (tmp_path / "rings" / "agent.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = run("print('done')", HINDMOST_COLLECTOR="127.0.0.1:9", HINDMOST_PYTHON=str(agent))
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert not said.exists()
