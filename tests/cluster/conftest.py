"""What the end-to-end tests share."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.needs import need

NETWORK = """
ip netns add {0} && ip netns add {1}
ip link add {0} type veth peer name {1}
ip link set {0} netns {0} && ip link set {1} netns {1}
ip -n {0} addr add 10.213.7.1/24 dev {0} && ip -n {1} addr add 10.213.7.2/24 dev {1}
ip -n {0} link set {0} up && ip -n {1} link set {1} up
ip -n {0} link set lo up && ip -n {1} link set lo up
"""
#: With /sys as the machine has it, where Slurm looks for control groups.
INSIDE = (
    "exec nsenter --net=/run/netns/{0} unshare --uts --mount "
    "sh -c 'hostname {0}; mount -t tmpfs none /dev/shm; '\"$*\"\n"
)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """Where this test's run goes."""
    return tmp_path / "run"


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """Two hosts that reach each other: for each a program that runs a command line there."""
    need("ip", "root", "the right to mount")
    names = [f"hm{os.getpid()}{side}" for side in "ab"]
    made = subprocess.run(["sh", "-ec", NETWORK.format(*names)], capture_output=True, text=True, check=False)
    try:
        if made.returncode:
            pytest.skip(f"needs the right to make network namespaces: {made.stderr.strip()}")
        yield _enter(tmp_path / "first", names[0], ""), _enter(tmp_path / "second", names[1], "shift\n")
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _enter(program: Path, host: str, skip: str) -> Path:
    """A program that runs its arguments on ``host``; as ssh it is given the host's address first, which it skips."""
    program.write_text(f"#!/bin/sh\n{skip}{INSIDE.format(host)}")
    program.chmod(0o755)
    return program
