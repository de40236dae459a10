"""Agent and collector run below the ranks of their node, and know when these fill all cores."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hindmost.daemon_process import FullCores

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


class Machine:
    """A /proc/stat of four cores, and a clock; ``pass_s`` lets time pass in which so much of each core was idle."""

    def __init__(self, folder: Path) -> None:
        self.stat, self.now, self._idle = folder / "stat", 100.0, [0.0] * 4
        self._write()

    def clock(self) -> float:
        return self.now

    def pass_s(self, seconds: float, *idle: float) -> None:
        self.now += seconds
        self._idle = [before + seconds * share for before, share in zip(self._idle, idle, strict=True)]
        self._write()

    def _write(self) -> None:
        lines = [f"cpu{core} 7 0 5 {int(100 * idle)} 0 0 0 0 0 0" for core, idle in enumerate(self._idle)]
        self.stat.write_text("\n".join(["cpu  28 0 20 999999 0 0 0 0 0 0", *lines, "intr 5"]) + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("idle", "full"),
    [((0, 0, 0, 0), True), ((0.1, 0.1, 0.1, 0.1), True), ((0, 0, 0, 0.9), False), ((0.5, 0.5, 0.5, 0.5), False)],
)
def test_cores_are_full_where_none_is_idle(machine: Machine, idle: tuple[float, ...], full: bool) -> None:
    """Ranks that wait for each other leave some of every core; half a core of it is room for a guest."""
    cores = FullCores(machine.stat, range(4), machine.clock)
    machine.pass_s(2.0, *idle)
    assert cores() is full


def test_only_cores_that_may_be_used_count(machine: Machine) -> None:
    """A job confined to two cores of four fills them, however idle the others are."""
    cores = FullCores(machine.stat, (0, 1), machine.clock)
    machine.pass_s(2.0, 0, 0, 1, 1)
    assert cores()


def test_it_says_so_no_longer_once_a_core_is_idle(machine: Machine) -> None:
    """What counts is the time since the last reading, which is a second old at most."""
    cores = FullCores(machine.stat, range(4), machine.clock)
    machine.pass_s(2.0, 0, 0, 0, 0)
    assert cores()
    machine.pass_s(0.5, 1, 1, 1, 1)
    assert cores(), "too soon to look again"
    machine.pass_s(0.6, 1, 1, 1, 1)
    assert not cores()


def test_cores_count_as_free_where_nothing_is_known(machine: Machine) -> None:
    """Without /proc/stat nothing is put off."""
    cores = FullCores(machine.stat.with_name("absent"), range(4), machine.clock)
    machine.pass_s(2.0, 0, 0, 0, 0)
    assert not cores()
