"""Which ports a live ``hindmost run`` opens, in all of its processes and those of its job."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import listening

pytestmark = pytest.mark.cluster

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}
#: A job whose ranks are here, and one whose batch system has given it a second host, which this one reaches.
JOB = [sys.executable, "-c", "import sys; sys.stdin.read()"]


def tree(pid: int) -> Iterator[tuple[int, str]]:
    """A process and all below it, with their command lines; those that end meanwhile are left out."""
    with contextlib.suppress(OSError):
        yield pid, Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def opened(tmp_path: Path, *options: str, **more: str) -> dict[tuple[str, str], str]:
    """Address and port of each listener of a live run, and which of its processes has it."""
    words = ["run", "--out", str(tmp_path / "run"), "--job-id", f"scan-{os.getpid()}", *options, "--", *JOB]
    log = tmp_path / "stderr"  # a pipe that no one reads would stop the run when it is full
    with log.open("w") as stderr, subprocess.Popen(
        [sys.executable, "-m", "hindmost", *words],
        env={**os.environ, **more}, stdin=subprocess.PIPE, stderr=stderr, text=True,
    ) as process:  # fmt: skip
        job = " ".join(JOB)
        while not any(command.startswith(job) for _, command in tree(process.pid)):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        found = {one: command for pid, command in list(tree(process.pid)) for one in listening(pid)}
        process.communicate()
    return found


def test_a_run_on_one_host_listens_on_loopback_only(tmp_path: Path) -> None:
    """The agents' port and the page, both of the collector."""
    found = opened(tmp_path)
    assert {address for address, _ in found} <= LOOPBACK, found
    assert len(found) == 2
    assert all(" collector " in command for command in found.values()), found


def test_a_run_without_a_page_has_one_port(tmp_path: Path) -> None:
    """That of the agents."""
    (where,) = opened(tmp_path, "--no-live")
    assert where[0] in LOOPBACK


@pytest.mark.needs("root", "ip")
def test_a_run_with_ranks_elsewhere_opens_the_agents_port_alone(tmp_path: Path) -> None:
    """On one address, the one on the way to them, and it speaks TLS; the page stays on loopback."""
    hosts = tmp_path / "hosts"
    hosts.write_text("192.0.2.7\n")
    route = subprocess.run(["ip", "-o", "route", "get", "192.0.2.7"], capture_output=True, text=True, check=False)
    if route.returncode:
        pytest.skip("needs a route to other hosts")
    found = opened(tmp_path, PBS_NODEFILE=str(hosts))
    outside = {one: command for one, command in found.items() if one[0] not in LOOPBACK}
    assert len(found) == 2, found
    (((address, _), command),) = outside.items()
    assert set(address) != {"0"}
    assert "--tls-cert" in command
    assert "--token-file" in command
