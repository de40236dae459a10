"""Jobs of a real Slurm, by another user: observed without a word from the user, and summed up in Slurm's accounting."""

import importlib.util
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from tests.cluster.jobs import HINDMOST, ROOT, environ
from tests.needs import need
from tests.slurm import Slurm, slurm
from tests.waiting import wait_until

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(300)]

PATIENCE_S = 150.0
NOBODY = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env", "HOME=/tmp"]
SCRIPTS = {"Prolog": "prolog", "Epilog": "epilog", "TaskProlog": "task-prolog", "EpilogSlurmctld": "epilog-slurmctld"}
#: Rank 1 takes half as long again for each step, and may fail.
TRAIN = """
import os, sys, time, hindmost
number, fails = int((sys.argv + ["150"])[1]), "fail" in sys.argv
rank = int(next(os.environ[name] for name in ("OMPI_COMM_WORLD_RANK", "RANK", "SLURM_PROCID") if name in os.environ))
for step in range(number):
    with hindmost.step():
        time.sleep(0.03 if rank == 1 else 0.02)
    if fails and rank == 1 and step == number // 2:
        raise ValueError("loss is NaN")
"""


class Cluster:
    """A Slurm with hindmost's scripts, a collector with a secret, and a user."""

    def __init__(self, folder: Path, made: Slurm) -> None:
        self.folder, self.slurm = folder, made

    def submit(self, line: str, *options: str) -> str:
        """The number of a batch job of another user."""
        return self.batch(*options, "--wrap", line)

    def batch(self, *argv: str) -> str:
        """The same, with options of sbatch and perhaps a script."""
        where = ["-D", str(self.folder), "-o", f"{self.folder}/%A_%a.out"]
        sbatch = ["env", "-C", str(self.folder), "sbatch", "--parsable", "-O"]
        return self.slurm.said(*NOBODY, *sbatch, *where, *argv).strip()

    def hindmost(self, *argv: str) -> subprocess.CompletedProcess[str]:
        more = {"SLURM_CONF": self.slurm.environ["SLURM_CONF"], "COLUMNS": "100"}
        command = [*HINDMOST, *argv]
        return subprocess.run(command, env=environ(**more), capture_output=True, text=True, timeout=60, check=False)

    def summary(self, job: str) -> str:
        """What `hindmost report --slurm` prints of a job, once it has one."""
        deadline = time.monotonic() + PATIENCE_S
        while (done := self.hindmost("report", "--slurm", job)).returncode and time.monotonic() < deadline:
            time.sleep(1)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def logs(self) -> str:
        return "".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log"))


def python_of_all() -> str:
    """An interpreter that every user can run, with what hindmost needs."""
    site = str(Path(np.__file__).parents[1])
    for one in (sys.executable, f"/usr/bin/python3.{sys.version_info[1]}"):
        line = [*NOBODY, f"PYTHONPATH={site}", one, "-c", "import google.protobuf, numpy, pyarrow"]
        if not subprocess.run(line, capture_output=True, check=False, cwd="/").returncode:
            return f"export PYTHONPATH={ROOT}/agent:{ROOT}/collector:{ROOT}/proto:{site}:$PYTHONPATH\nexec {one}"
    pytest.skip("needs a Python that all users can run")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """As docs/how-to/slurm.md sets it up, with TLS. Its folder is one that other users may enter."""
    need("slurmd", "slurmdbd", "mariadbd", "root")
    python = python_of_all()
    folder = Path(mkdtemp(prefix="hindmost-slurm-"))
    folder.chmod(0o777)
    programs = folder / "venv/bin"
    programs.mkdir(parents=True)
    (programs / "activate").write_text(f"PATH={programs}:$PATH\n")
    for name, what in (("python", ""), ("hindmost", "-m hindmost"), ("torchrun", "-m torch.distributed.run")):
        (programs / name).write_text(f'#!/bin/bash\n{python} {what} "$@"\n')
        (programs / name).chmod(0o755)
    (folder / "train.py").write_text(TRAIN)
    secret = folder / "secret"
    authority = folder / "pki"
    for words in (["secret", secret], ["init", authority], ["issue", authority, "collector,127.0.0.1"]):
        subprocess.run([*HINDMOST, "pki", *map(str, words)], env=environ(), check=True, capture_output=True)
    authority.chmod(0o755)
    shutil.chown(secret, group="slurm")
    secret.chmod(0o640)
    collector = [*HINDMOST, "collector", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    collector += ["--store", str(folder / "store"), "--token-file", str(secret)]
    collector += ["--tls-cert", f"{authority}/collector.pem", "--tls-key", f"{authority}/collector.key"]
    log = (folder / "collector.log").open("wb")
    with log, subprocess.Popen(collector, env=environ(), stdout=subprocess.PIPE, stderr=log) as service:
        try:
            assert service.stdout is not None
            address = json.loads(service.stdout.readline())
            where = f"HINDMOST_COLLECTOR={address['grpc']}\nHINDMOST_TLS_CA={authority}/ca.pem\n"
            (folder / "agent").write_text(where)
            (folder / "page").write_text(f"HINDMOST_PAGE={address['http']}\nHINDMOST_TOKEN_FILE={secret}\n")
            settings = {name: str(script(folder, stem)) for name, stem in SCRIPTS.items()}
            with slurm(folder / "slurm", settings) as made:
                yield Cluster(folder, made)
        finally:
            service.terminate()
    shutil.rmtree(folder)


def script(folder: Path, name: str) -> Path:
    """One of hindmost's scripts, where everything is in this folder: Slurm gives them no variable of ours."""
    path = folder / f"{name}.sh"
    places = {
        "HINDMOST_VENV": "venv",
        "HINDMOST_SECRET": "secret",
        "HINDMOST_TOKENS": "tokens",
        "HINDMOST_SETTINGS": "agent",
        "HINDMOST_SLURM_SETTINGS": "page",
        "SLURM_CONF": "slurm/slurm.conf",
    }
    exports = " ".join(f"{key}={folder}/{value}" for key, value in places.items())
    path.write_text(f"#!/bin/bash\nexport {exports}\nexec bash {ROOT}/deploy/slurm/{name}.sh\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def jobs(cluster: Cluster) -> dict[str, str]:
    """Jobs of all kinds, submitted at once: half a minute after each, the collector has the last of it."""
    srun = f"srun --overcommit -n2 {cluster.folder}/venv/bin/python {cluster.folder}/train.py"
    look = f"cat {cluster.folder}/secret; cat $HINDMOST_TOKEN_FILE | wc -c"
    found = {
        "srun": cluster.submit(f"{srun} 150", "-N2", "-n2"),
        "array": cluster.submit(f"{srun} 100", "-N1", "-n2", "-a", "1-2"),
        "fails": cluster.submit(f"{srun} 100 fail", "-N1", "-n2"),
        "opt-out": cluster.submit(f"export HINDMOST_PROBE=0; {srun} 20", "-N1", "-n2"),
        "looks": cluster.submit(look, "-N1", "-n1"),
    }
    if shutil.which("mpirun"):
        mpirun = f"PATH={Path(str(shutil.which('mpirun'))).parent}:$PATH mpirun --bind-to none -np 2"
        line = f"OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe {mpirun}"
        found["mpirun"] = cluster.submit(f"{line} {srun.partition('-n2 ')[2]} 150", "-N1", "-n1")
    if importlib.util.find_spec("torch"):
        torchrun = f"{cluster.folder}/venv/bin/torchrun --standalone --nproc-per-node=2 {cluster.folder}/train.py 150"
        found["torchrun"] = cluster.submit(f"srun -n1 {torchrun}", "-N1", "-n1")
    return found


def test_a_job_of_srun_ends_with_a_summary(cluster: Cluster, jobs: dict[str, str]) -> None:
    """The user typed nothing of hindmost. The verdict, its cost and how Slurm saw the job end are there."""
    said = cluster.summary(jobs["srun"])
    assert "2 ranks on 1 node · 150 steps" in said
    assert "SLOW   rank 1" in said
    assert "COST   " in said
    assert f"SLURM  {jobs['srun']}: COMPLETED, exit code 0:0, ran 00:00:" in said


def test_a_step_is_of_its_job(cluster: Cluster, jobs: dict[str, str]) -> None:
    """Accounting has one comment for all of it."""
    assert cluster.summary(f"{jobs['srun']}.0") == cluster.summary(jobs["srun"])


def test_each_job_of_an_array_has_its_own(cluster: Cluster, jobs: dict[str, str]) -> None:
    """By its index; the array's number alone names none."""
    for index in (1, 2):
        assert f"SLURM  {jobs['array']}_{index}: COMPLETED" in cluster.summary(f"{jobs['array']}_{index}")
    done = cluster.hindmost("report", "--slurm", jobs["array"])
    assert (done.returncode, done.stdout) == (2, "")
    assert f"is an array, of which 2 have started: name one of it ({jobs['array']}_" in done.stderr


def test_a_job_that_failed_has_one(cluster: Cluster, jobs: dict[str, str]) -> None:
    """With what was known until then."""
    assert f"SLURM  {jobs['fails']}: FAILED, exit code 1:0" in cluster.summary(jobs["fails"])


def test_the_script_for_torchrun_that_we_give_runs(cluster: Cluster) -> None:
    """One torchrun a node, under `hindmost run`, as a user submits it; this cluster has no GPUs, and few cores."""
    pytest.importorskip("torch")
    need("the right to mount")
    environ = f"--export=ALL,HINDMOST_VENV={cluster.folder}/venv,SLURM_GPUS_ON_NODE=1"
    job = cluster.batch("--gpus-per-node=0", "--cpus-per-task=1", environ, str(ROOT / "deploy/slurm/torchrun.sbatch"))
    run = cluster.folder / "hindmost-runs" / job
    wait_until((run / "report.json").exists)
    done = cluster.hindmost("report", str(run))
    assert "2 ranks on 1 node · 150 steps" in done.stdout, done.stderr


@pytest.mark.parametrize("launcher", ["mpirun", "torchrun"])
def test_a_job_of_another_launcher_has_one(cluster: Cluster, jobs: dict[str, str], launcher: str) -> None:
    """The batch script's own task prolog, or that of torchrun's task, passes the probe on."""
    if launcher not in jobs:
        pytest.skip(f"needs {launcher}")
    assert "2 ranks on 1 node · 150 steps" in cluster.summary(jobs[launcher])


def test_users_read_their_token_and_not_the_secret(cluster: Cluster, jobs: dict[str, str]) -> None:
    """And the epilog removes it."""
    cluster.summary(jobs["srun"])  # submitted earlier, and over
    out = cluster.folder / f"{jobs['looks']}_4294967294.out"
    cluster.slurm.until("end", "squeue", "-h", holds="")
    assert "secret: Permission denied" in out.read_text()
    assert int(out.read_text().splitlines()[-1]) > 20
    assert list((cluster.folder / "tokens").iterdir()) == []


def test_who_opts_out_is_not_observed(cluster: Cluster, jobs: dict[str, str]) -> None:
    """One variable in the job script; the timer passes such a job over."""
    cluster.slurm.until("end", "squeue", "-h", holds="")
    done = cluster.hindmost("report", "--slurm", jobs["opt-out"])
    assert done.returncode == 1
    assert f"Slurm job {jobs['opt-out']} has no summary: hindmost did not observe it" in done.stderr


def test_the_timer_writes_what_was_missed(cluster: Cluster, jobs: dict[str, str]) -> None:
    """As while the collector was away; a comment of another tool stays."""
    before = cluster.summary(jobs["srun"])
    cluster.summary(jobs["fails"])
    for job, text in ((jobs["srun"], ""), (jobs["fails"], "JS1:other")):
        change = ["sacctmgr", "-i", "modify", "job", "where", f"jobid={job}", "set", f"admincomment={text}"]
        cluster.slurm.said(*change)
    address = dict(line.split("=", 1) for line in (cluster.folder / "page").read_text().splitlines())
    options = ["--collector", address["HINDMOST_PAGE"], "--token-file", address["HINDMOST_TOKEN_FILE"]]
    done = cluster.hindmost("slurm", "--since", "now-1days", *options)
    assert (done.returncode, done.stderr) == (0, "")
    assert cluster.summary(jobs["srun"]) == before
    other = cluster.hindmost("report", "--slurm", jobs["fails"])
    assert other.stderr.endswith("its AdminComment is not hindmost's\n")


def test_a_job_that_lost_a_node_has_one(cluster: Cluster, jobs: dict[str, str]) -> None:
    """What was known until then, from the node that is left."""
    cluster.slurm.until("end", "squeue", "-h", holds="")
    line = f"srun --overcommit -n2 {cluster.folder}/venv/bin/python {cluster.folder}/train.py 3000"
    job = cluster.submit(line, "-w", "one,three")
    deadline = time.monotonic() + PATIENCE_S
    while not list(Path("/dev/shm/hindmost-65534").glob(f"{job}/*.ring")) and time.monotonic() < deadline:
        time.sleep(0.2)
    time.sleep(5)  # it trains
    cluster.slurm.lose("three")
    said = cluster.summary(job)
    assert "2 ranks on 1 node" in said
    assert f"SLURM  {job}: " in said
    assert "COMPLETED" not in said
