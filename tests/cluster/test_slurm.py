"""A job of a real Slurm on two hosts: its controller, a daemon on each, and nothing installed but its programs."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.jobs import HINDMOST, environ, job_of, wait_until_gone

WITH_SLURM = Path(__file__).parents[1] / "with-slurm"
#: A job of less than a second, which begins when its host's agent has reached the collector: one that starts on a busy
#: machine when the job has ended is too late for the report.
MARKED = """
import os, sys, time, hindmost
port = int(os.environ["HINDMOST_COLLECTOR"].rpartition(":")[2])
def reached():
    sockets = [line.split() for kind in ("tcp", "tcp6") for line in open(f"/proc/net/{kind}")]
    return any(one[3] == "01" and int(one[2].rpartition(":")[2], 16) == port for one in sockets)
while not reached():
    time.sleep(0.01)
for step in range(60):
    with hindmost.step():
        time.sleep(0.01)
print(os.environ["SLURM_PROCID"], "trained")
"""


@pytest.mark.cluster
@pytest.mark.needs("slurmd", "root")
def test_srun_of_a_real_slurm_reaches_hosts_that_it_chooses(
    out: Path, tmp_path: Path, hosts: tuple[Path, Path]
) -> None:
    """Outside an allocation the hosts are unknown, and srun exports a list: ranks of both are seen all the same."""
    here, there = hosts
    script, settings = tmp_path / "train.py", tmp_path / "slurm.conf"
    script.write_text(MARKED)
    run = [
        str(here),
        "timeout",
        "--kill-after=5",
        "180",
        str(WITH_SLURM),
        str(tmp_path),
        "10.213.7.1",
        "two=10.213.7.2",
        "--",
    ]
    run += [*HINDMOST, "run", "--out", str(out), "--job-id", job_of(out), "--"]
    srun = ["srun", "--export=PATH", "-N", "2", "-n", "4", "--overcommit", sys.executable, str(script)]
    daemon = f"until [ -e {settings} ]; do sleep 0.1; done; SLURM_CONF={settings} exec slurmd -N two -D"
    with (
        (tmp_path / "two.log").open("w") as log,
        subprocess.Popen([str(there), "x", daemon], env=environ(), stdout=log, stderr=log) as second,
    ):
        try:
            done = subprocess.run([*run, *srun], env=environ(), capture_output=True, text=True, check=False)
        finally:
            second.terminate()
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"{rank} trained" for rank in range(4)]
    assert wait_until_gone(job_of(out)) == {}
    report = json.loads((out / "report.json").read_text())
    assert (report["job"]["nodes"], report["job"]["steps"]) == (2, 60)
    assert [row["node"][-1] for row in sorted(report["ranks"], key=lambda row: row["node"])] == ["a", "a", "b", "b"]
