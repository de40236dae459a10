#!/usr/bin/env python3
"""What is left in an agent of a node after thousands of jobs: memory, descriptors, folders, and what its tables hold.

    python bench/agent_years.py [--jobs 10000] [--out FILE]

A real agent (all samplers, rings, spool, page) whose clock and whose /proc, /sys and /dev/shm are handed in, so that
each job, two ranks that write into their rings, live in a control group of their own and end, takes milliseconds. What
it spools is acknowledged after each tick, as a collector would. ``held``: objects and bytes that the agent leads to.
"""

import argparse
import gc
import json
import logging
import os
import shutil
import sys
import tempfile
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

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

RANKS, FIRST_PID, PIDS = 2, 1000, 30000
#: Ticks of a job's life and after it, s.
LIFE, AFTER = 4, 6
STEPS = 20
#: As an agent has it by default.
SPOOL = 256 << 20
#: What belongs to the program and not to an agent.
PROGRAM = (type, ModuleType, FunctionType, BuiltinFunctionType)
OWN_FILES = (
    "stat", "meminfo", "loadavg", "vmstat", "diskstats", "net/dev", "net/snmp", "net/netstat", "self/mounts",
    "self/mountstats",
)  # fmt: skip
#: Fields of a process's stat from the third on: it sleeps, and nothing else is known of it but its start.
STAT = ["S", "1", *["0"] * 50]
PID_FIELD, TICKS_FIELD = 5, 11  # of a ring's header


class Node:
    """A node's files below ``root``, and the agent on it."""

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
        self.runner = Runner(samplers.load(), self.host, NS)
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

    def state(self, jobs: int) -> dict[str, Any]:
        gc.collect()
        return {
            "jobs": jobs,
            "rss_mib": round(
                int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1
            ),
            "held": memory_of(self),
            "open_files": len(list(Path("/proc/self/fd").iterdir())),
            "folders_of_jobs": len(list((self.shm / "hindmost-0").iterdir())),
            "spool_files": len(list(self.spool._folder.glob("*.spool"))) if self.spool._folder else 0,
            "series_on_the_page": self.page.render(self.runner.latest.values()).count(b"\nhindmost_"),
        }


def memory_of(root: object) -> dict[str, int]:
    """How many objects ``root`` leads to, itself included, and their bytes."""
    seen: dict[int, object] = {}
    todo = [root]
    while todo:
        one = todo.pop()
        if id(one) not in seen and not isinstance(one, PROGRAM):
            seen[id(one)] = one
            todo += gc.get_referents(one)
    return {"objects": len(seen), "bytes": sum(map(sys.getsizeof, seen.values()))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    states = []
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        node = Node(Path(folder))
        for number in range(args.jobs):
            node.job(number)
            if (number + 1) % max(args.jobs // 10, 1) == 0:
                states.append(node.state(number + 1))
                print(json.dumps(states[-1]), flush=True)
        errors = +node.host.counts.errors
        node.spool.close()
    assert not errors, errors
    if args.out:
        what = "bench/agent_years.py: jobs of two ranks that come and go on one node, one after the other"
        args.out.write_text(json.dumps({"what": what, "ticks_a_job": LIFE + AFTER, "states": states}, indent=1) + "\n")


if __name__ == "__main__":
    main()
