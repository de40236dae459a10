"""A job on two hosts: network namespaces with names and shared memory of their own, and a stand-in for ssh."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import HINDMOST, TRAIN_MPI, environ, job_of, wait_until_gone

pytestmark = [pytest.mark.cluster, pytest.mark.needs("mpirun"), pytest.mark.uses("ip")]


def test_ranks_of_another_host_are_seen(out: Path, hosts: tuple[Path, Path]) -> None:
    """mpirun carries the probe to the second host, where the first rank starts an agent: all is reported."""
    here, there = hosts
    launch = ["mpirun", "--bind-to", "none", "--prtemca", "plm_ssh_agent", str(there)]
    launch += ["--host", "10.213.7.1:2,10.213.7.2:2", "-np", "4", sys.executable]
    train = [TRAIN_MPI, "--steps", "40"]
    observed = [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--", *launch]
    done = subprocess.run([str(here), *observed, *train], env=environ(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert wait_until_gone(job_of(out)) == {}
    assert "unencrypted" not in done.stderr
    assert not (out / "credentials").exists()
    report = json.loads((out / "report.json").read_text())
    assert report["job"]["nodes"] == 2
    assert {row["rank"]: row["node"][-1] for row in report["ranks"]} == {0: "a", 1: "a", 2: "b", 3: "b"}
    assert report["job"]["steps"] == 40
