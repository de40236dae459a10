"""A job on two hosts: network namespaces with names and shared memory of their own, and a stand-in for ssh."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cluster.jobs import HINDMOST, TRAIN_MPI, environ, job_of, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.mpi

NETWORK = """
ip netns add {0} && ip netns add {1}
ip link add {0} type veth peer name {1}
ip link set {0} netns {0} && ip link set {1} netns {1}
ip -n {0} addr add 10.213.7.1/24 dev {0} && ip -n {1} addr add 10.213.7.2/24 dev {1}
ip -n {0} link set {0} up && ip -n {1} link set {1} up
ip -n {0} link set lo up && ip -n {1} link set lo up
"""
INSIDE = "exec ip netns exec {0} unshare --uts --mount sh -c 'hostname {0}; mount -t tmpfs none /dev/shm; '\"$*\"\n"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two hosts that reach each other: for each a program that runs a command line there."""
    names = [f"hm{os.getpid()}{side}" for side in "ab"]
    made = subprocess.run(["sh", "-ec", NETWORK.format(*names)], capture_output=True, text=True, check=False)
    try:
        if made.returncode:
            pytest.skip(f"needs ip and the right to make network namespaces: {made.stderr.strip()}")
        yield _enter(tmp_path / "first", names[0], ""), _enter(tmp_path / "second", names[1], "shift\n")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def test_ranks_of_another_host_are_seen(out: Path, hosts: tuple[Path, Path]) -> None:
    """mpirun carries the probe to the second host, whose first rank starts an agent; the slow rank there is named."""
    here, there = hosts
    launch = ["mpirun", "--bind-to", "none", "--prtemca", "plm_ssh_agent", str(there)]
    launch += ["--host", "10.213.7.1:2,10.213.7.2:2", "-np", "4", sys.executable, TRAIN_MPI]
    observed = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--", *launch, "--slow-rank", "2"]
    done = subprocess.run(
        [str(here), *observed, "--steps", "300"],
        env=environ(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert wait_until_gone(job_of(out)) == {}
    report = json.loads((out / "report.json").read_text())
    assert report["job"]["nodes"] == 2
    assert {row["rank"]: row["node"][-1] for row in report["ranks"]} == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert report["verdicts"][0]["ranks"] == [2]


def _enter(program: Path, host: str, skip: str) -> Path:
    """A program that runs its arguments on ``host``; as ssh it is given the host's address first, which it skips."""
    program.write_text(f"#!/bin/sh\n{skip}{INSIDE.format(host)}")
    program.chmod(0o755)
    return program
