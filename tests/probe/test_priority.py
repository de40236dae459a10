"""Agent and collector run below the ranks of their node, as far as the system lets them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Runs in a session of its own, as a daemon of ``hindmost run`` does, with a second thread.
LOWERED = """
import os, sys, threading, time
from pathlib import Path
from hindmost import daemon_process
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
daemon_process.lower_priority(19, Path(sys.argv[1]))
tasks = [int(task) for task in os.listdir("/proc/self/task")]
nice = {os.getpriority(os.PRIO_PROCESS, task) for task in tasks}
print(len(tasks), nice, {os.sched_getscheduler(task) for task in tasks})
"""


#: The tests' own nice value: they may run below other work.
OWN = os.getpriority(os.PRIO_PROCESS, 0)


def lowered(process: str, *, nice: int = 0, session: bool = True) -> str:
    done = subprocess.run(
        ["nice", "-n", str(nice), sys.executable, "-c", LOWERED, process],
        start_new_session=session,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return done.stdout.strip()


def orphaned(process: str) -> None:
    """Lower a process as ranks start an agent: the shell that leads its session has ended by then."""
    own = [sys.executable, "-c", f"import os, time\nwhile os.getppid() != 1: time.sleep(0.01)\n{LOWERED}", process]
    shell = subprocess.Popen(
        ["sh", "-c", '"$@" &', "sh", *own],
        start_new_session=True,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert shell.wait() == 0
    assert shell.stdout is not None
    with shell.stdout as said:
        said.read()


def of_a_process(folder: Path) -> Path:
    (folder / "task").symlink_to("/proc/self/task")
    (folder / "autogroup").write_text("")
    return folder


def test_every_thread_is_lowered_and_interrupts_no_rank() -> None:
    """Threads that libraries have started are lowered too; SCHED_BATCH has none of them preempt a rank."""
    assert lowered("/proc/self") == f"2 { {max(10, OWN)} } {{{os.SCHED_BATCH}}}"


def test_a_lower_priority_stays() -> None:
    """Under `nice -n 15` nothing is raised."""
    assert lowered("/proc/self", nice=15) == f"2 { {min(15 + OWN, 19)} } {{{os.SCHED_BATCH}}}"


def test_a_session_of_its_own_is_lowered(tmp_path: Path) -> None:
    """Where the kernel weighs sessions against each other the nice values of threads count for nothing."""
    lowered(str(of_a_process(tmp_path)))
    assert (tmp_path / "autogroup").read_text() == "19"


def test_a_session_whose_leader_has_ended_is_lowered(tmp_path: Path) -> None:
    """An agent that a rank starts is a child of init: the shell in between has made its session."""
    orphaned(str(of_a_process(tmp_path)))
    assert (tmp_path / "autogroup").read_text() == "19"


def test_the_session_of_others_stays_as_it_is(tmp_path: Path) -> None:
    """An agent that was started by hand shares its terminal's session with whatever else runs there."""
    lowered(str(of_a_process(tmp_path)), session=False)
    assert (tmp_path / "autogroup").read_text() == ""


@pytest.mark.parametrize("process", ["/nonexistent", "/dev/null"])
def test_what_a_system_refuses_is_left(process: str) -> None:
    """Without /proc the calling thread is lowered at least, and nothing is raised."""
    assert lowered(process) == f"2 { {OWN, max(10, OWN)} } {{{os.SCHED_OTHER}, {os.SCHED_BATCH}}}"
