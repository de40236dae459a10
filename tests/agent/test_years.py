"""An agent that runs for years: what it holds is of the jobs that run, not of those that ran."""

import gc
import os
import shutil
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.ring import layout
from hindmost_agent import samplers
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.exposition import Exposition
from hindmost_agent.jobs.discovery import Jobs
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host

from tests.memory import memory_of

WARM, MORE = 12, 72  # samplers of all periods stand as they did 72 jobs before
#: Not the writers: they are the ranks'.
READERS = ("hindmost_agent", "hindmost.ring.reader")
RANKS, FIRST_PID, PIDS = 2, 1000, 30000
#: Ticks of a job's life and after it, s.
LIFE, AFTER = 4, 6
STEPS = 20
#: As an agent has it by default.
SPOOL = 256 << 20
OWN_FILES = (
    "stat", "meminfo", "loadavg", "vmstat", "diskstats", "net/dev", "net/snmp", "net/netstat", "self/mounts",
    "self/mountstats",
)  # fmt: skip
#: Fields of a process's stat from the third on: it sleeps, and nothing else is known of it but its start.
STAT = ["S", "1", *["0"] * 50]
PID_FIELD, TICKS_FIELD = 5, 11  # of a ring's header


class Node:
    """A node's files below ``root``, and the agent on it: all samplers, rings, spool, page. Its clock and its /proc,
    /sys and /dev/shm are handed in, so that a job takes milliseconds."""

    def __init__(self, root: Path) -> None:
        self.proc, self.groups, self.shm = root / "proc", root / "cgroup", root / "shm"
        for name in OWN_FILES:
            (self.proc / name).parent.mkdir(parents=True, exist_ok=True)
            (self.proc / name).write_bytes(Path("/proc", name).read_bytes())
        self.shm.mkdir()
        self.groups.mkdir()
        (self.groups / "cgroup.controllers").touch()
        self.host = Host(proc=self.proc, sys=root / "sys", cgroup=self.groups, dev=root / "dev")
        self.spool = Spool(root / "spool", SPOOL)
        self.runner = Runner(samplers.load(), self.host, NS, timer=lambda: 0)
        jobs = Jobs(self.host, self.shm, unix_s=lambda: 1 << 40)
        self.agent = Agent("node", NS, self.host, self.runner, Rings(self.host), self.spool, jobs)
        self.page = Exposition("node")
        self.now_ns = 0
        self.spool.connected(0)

    def ticks(self, count: int) -> None:
        for _ in range(count):
            self.agent.tick(self.now_ns)
            self.page.render(self.runner.latest.values())
            self.now_ns += NS
            sent = [outgoing.sequence for outgoing in iter(self.spool.next, None)]
            self.spool.acknowledge(max(sent, default=0))

    def job(self, number: int) -> None:
        """One job from its first ring to its end."""
        pids = [FIRST_PID + (number * RANKS + rank) % PIDS for rank in range(RANKS)]
        for rank, pid in enumerate(pids):
            self._process(pid, number, ticks=number * RANKS + rank + 1)
            self._ring(f"job{number}", rank, pid, ticks=number * RANKS + rank + 1)
        self.ticks(LIFE)
        assert len(self.agent.rings) == RANKS, "its rings were not found"
        for pid in pids:
            for path in (self.proc / str(pid)).iterdir():
                path.write_bytes(b"")  # what was opened before must not be read on, as of a process that has gone
            shutil.rmtree(self.proc / str(pid))
        shutil.rmtree(self.groups / f"job_{number}")
        self.ticks(AFTER)
        assert len(self.agent.rings) == 0, "it is over, and its rings are still read"

    def _process(self, pid: int, number: int, ticks: int) -> None:
        folder, group = self.proc / str(pid), self.groups / f"job_{number}"
        folder.mkdir()
        group.mkdir(exist_ok=True)
        fields = [*STAT[:19], str(ticks), *STAT[20:]]
        files = {
            "stat": f"{pid} (python) {' '.join(fields)}\n", "comm": "python\n", "cmdline": "python\0train.py\0",
            "environ": "", "schedstat": "5 6 7\n", "cgroup": f"0::/job_{number}\n",
            "io": "rchar: 1\nwchar: 2\nsyscr: 3\nsyscw: 4\nread_bytes: 5\nwrite_bytes: 6\ncancelled_write_bytes: 0\n",
            "status": "Cpus_allowed_list:\t0-3\nvoluntary_ctxt_switches:\t8\nnonvoluntary_ctxt_switches:\t9\n",
        }  # fmt: skip
        for name, content in files.items():
            (folder / name).write_text(content)
        (group / "memory.current").write_text("4096\n")
        (group / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n")

    def _ring(self, job: str, rank: int, pid: int, ticks: int) -> None:
        """A ring that says it is that process's, with some steps in it."""
        identity = Identity(job, rank, RANKS, rank, "node", "torch", "train.py")
        folder = self.shm / "hindmost-0" / job
        writer = ring.Writer.create(folder, identity, "py", 64)
        name, world = writer.name("train"), writer.communicator(7, rank, RANKS, "world")
        for step in range(STEPS):
            writer.event(ring.COLLECTIVE, name, self.now_ns, 5, seq=step, comm=world)
            writer.event(ring.STEP, name, self.now_ns, 10, seq=step)
        (own,) = folder.glob(f"{rank}.py.{os.getpid()}.ring")
        data = bytearray(own.read_bytes())
        header = list(layout.HEADER.unpack_from(data))
        header[PID_FIELD], header[TICKS_FIELD] = pid, ticks
        layout.HEADER.pack_into(data, 0, *header)
        writer.close()
        own.unlink()
        own.with_name(f"{rank}.py.{pid}.tmp").write_bytes(data)
        own.with_name(f"{rank}.py.{pid}.tmp").rename(own.with_name(f"{rank}.py.{pid}.ring"))


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_an_agent_holds_nothing_of_jobs_that_are_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven times as many jobs leave no more objects, bytes and open files: what is remembered has a bound."""
    monkeypatch.setattr("hindmost_agent.delivery.spool.MOST_DEFINITIONS", 32)
    monkeypatch.setattr("hindmost_agent.jobs.rings.KEPT_ENDS", 4)
    node = Node(tmp_path)
    for number in range(WARM):
        node.job(number)
    before, files = memory_of(node), open_files()
    for number in range(WARM, WARM + MORE):
        node.job(number)
    after = memory_of(node)
    assert after["objects"] - before["objects"] < MORE
    assert after["bytes"] - before["bytes"] < MORE * 100
    assert open_files() <= files
    node.spool.close()


def test_what_a_job_leaves_does_not_wait_for_the_garbage_collector(tmp_path: Path) -> None:
    """That rarely runs in an agent, and until then each job would leave its rings' tables in memory."""
    node = Node(tmp_path)
    node.job(0)
    gc.collect()
    gc.disable()
    try:
        node.job(1)
        gc.set_debug(gc.DEBUG_SAVEALL)
        gc.collect()
    finally:
        gc.set_debug(0)
        gc.enable()
    left = {type(one).__qualname__ for one in gc.garbage if type(one).__module__.startswith(READERS)}
    gc.garbage.clear()
    node.spool.close()
    assert not left
