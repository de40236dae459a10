"""psutil is asked where it knows better, and agrees with what is read without it."""

import os
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import psutil
import pytest
from hindmost_agent.jobs.processes import descendants
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.sampler import Host
from hindmost_agent.samplers.cpu import Cpu
from hindmost_agent.samplers.memory import Memory
from hindmost_agent.samplers.node_info import NodeInfo
from hindmost_agent.samplers.process import Process

from tests.agent.readings import read


def test_the_node_says_what_it_is() -> None:
    """This machine's kernel, boot time and physical cores."""
    found = read(NodeInfo(Host()))
    assert found["hindmost_node_info", os.uname().release] == 1
    assert found["hindmost_node_boot_time_seconds",] == psutil.boot_time()
    assert found["hindmost_node_cpu_physical_cores",] == psutil.cpu_count(logical=False)


def test_both_read_the_same_of_this_machine() -> None:
    """Memory, cores, CPU time and context switches, read between two readings of psutil, lie between them."""
    before = psutil.cpu_times(), psutil.cpu_stats()
    found = {**read(Cpu(Host())), **read(Memory(Host()))}
    after = psutil.cpu_times(), psutil.cpu_stats()
    for mode in ("user", "system"):
        assert getattr(before[0], mode) <= found["hindmost_node_cpu_seconds_total", mode] <= getattr(after[0], mode)
    switches = found["hindmost_node_context_switches_total",]
    assert before[1].ctx_switches <= switches <= after[1].ctx_switches
    assert found["hindmost_node_memory_total_bytes",] == psutil.virtual_memory().total
    assert found["hindmost_node_cpus",] == psutil.cpu_count()


def test_both_read_the_same_of_a_process() -> None:
    """This very process as a rank: CPU time lies between two readings of psutil; threads are as many."""
    me, host = psutil.Process(), Host()
    host.ranks.put(RankProcess("j", 0, 1, 0, me.pid, 1))
    before = me.cpu_times()
    found = read(Process(host))
    after = me.cpu_times()
    cpu = found["hindmost_process_cpu_seconds_total", "j", "0"]
    # The kernel counts user and system time in ticks of 10 ms each.
    assert before.user + before.system - 0.02 <= cpu <= after.user + after.system + 0.02
    assert found["hindmost_process_resident_memory_bytes", "j", "0"] > 1 << 20


@pytest.mark.parametrize("listed", [True, False])
def test_children_are_found_with_and_without_the_kernel_s_list(listed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child and a grandchild; where the kernel has no list of children, psutil finds the same."""
    code = "import subprocess, sys; p = subprocess.Popen(['cat']); print(p.pid, flush=True); p.wait()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        grandchild = int(child.stdout.readline())
        if not listed:
            monkeypatch.setattr("hindmost_agent.jobs.processes.numbers", Mock(side_effect=FileNotFoundError))
        found = descendants(Host(), os.getpid())
        assert found is not None
        assert {child.pid, grandchild} <= set(found)
        host = Host()
        host.ranks.put(RankProcess("j", 1, 2, 1, child.pid, 1))
        apart = descendants(host, os.getpid())
        assert apart is not None
        assert not {child.pid, grandchild} & set(apart)
    finally:
        child.communicate()


def test_without_psutil_the_rest_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is a convenience: where it is missing and the kernel lists no children, there are just none to show."""
    monkeypatch.setitem(sys.modules, "psutil", None)
    assert descendants(Host(proc=tmp_path), 1) is None
