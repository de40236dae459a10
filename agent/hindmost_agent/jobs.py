"""Finding jobs on a node that nobody announced: rings that appear, and processes that a launcher made ranks."""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost import identity

from hindmost_agent.files import read_once
from hindmost_agent.ranks import RankProcess
from hindmost_agent.rings import start_ticks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_agent.sampler import Host

NS = 1_000_000_000
PERIOD_NS = 10 * NS
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where rings live
#: Variables that name the job, the most particular first.
JOB_VARIABLES = (
    "HINDMOST_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID",
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
#: A job's number in the path of a control group, as Slurm, PBS and Kubernetes name it.
CGROUP = re.compile(r"/(?:job_|pbs_jobs\.service/jobid/|pbspro\.slice/pbspro-)([\w.-]+)|/kubepods.*?/pod([0-9a-f-]+)")
#: Programs that carry a rank's environment and are none.
NO_RANKS = frozenset(
    {"sh", "bash", "dash", "zsh", "csh", "tcsh", "slurmstepd", "srun", "mpirun", "mpiexec", "orted", "prted", "prterun",
     "hydra_pmi_proxy", "pmi_proxy", "ssh", "sshd", "env", "time", "numactl", "taskset"}
)  # fmt: skip


def ring_folders(base: Path = SHARED_MEMORY) -> list[Path]:
    """Folders of rings that no job's own agent reads: a job's agent holds the folder's lock."""
    try:
        return sorted(folder for folder in base.glob("hindmost-*/*") if folder.is_dir() and not _taken(folder))
    except OSError:
        return []


def sweep(proc: Path, base: Path = SHARED_MEMORY, uid: int | None = None) -> int:
    """Remove this user's rings whose processes are gone and whose agent is too; returns how many.

    An agent that was killed leaves its rings in shared memory, which is the node's memory.
    """
    removed = 0
    own = base / f"hindmost-{os.getuid() if uid is None else uid}"
    for folder in own.glob("*"):
        if not folder.is_dir() or _taken(folder):
            continue
        rings = list(folder.glob("*.ring"))
        dead = [ring for ring in rings if not (proc / ring.name.split(".")[-2]).exists()]
        for ring in dead:
            ring.unlink(missing_ok=True)
        removed += len(dead)
        if rings and len(dead) == len(rings):
            (folder / "agent.lock").unlink(missing_ok=True)
            folder.rmdir()
    return removed


def _taken(folder: Path) -> bool:
    try:
        lock = os.open(folder / "agent.lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # never locked, or another user's and out of reach
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


def job_id(environ: Mapping[str, str], cgroup: str) -> str:
    """The job that a process belongs to, from its environment or else its control group; empty: none."""
    for name in JOB_VARIABLES:
        if environ.get(name):
            return environ[name]
    match = CGROUP.search(cgroup)
    return (match[1] or match[2]).removesuffix(".slice") if match else ""


class Jobs:
    """Keeps ``host.ranks`` in step with the ranks among the node's processes. Each new process is looked at once."""

    def __init__(self, host: Host, shared_memory: Path = SHARED_MEMORY) -> None:
        self.shared_memory = shared_memory
        self._host = host
        self._known: set[int] = set()
        self._mine: dict[int, int] = {}
        self._due_ns = 0

    def look(self, now_ns: int) -> None:
        """Take on ranks that have started, leave those that ended; at most every ten seconds."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + PERIOD_NS
        proc, ranks = self._host.proc, self._host.ranks
        for pid, ticks in tuple(self._mine.items()):
            if start_ticks(proc, pid) != ticks:
                del self._mine[pid]
                ranks.remove(pid)
        pids = {int(path.name) for path in proc.iterdir() if path.name.isdigit()}
        for pid in sorted(pids - self._known):
            rank = self._rank(pid)
            if rank is not None and ranks.get(pid) is None:
                self._mine[pid] = rank.start_ticks
                ranks.put(rank)
        self._known = pids

    def _rank(self, pid: int) -> RankProcess | None:
        """The rank that a process is; a child of a rank (a DataLoader's worker) inherits its place and is none."""
        folder = self._host.proc / str(pid)
        try:
            environ = _pairs(read_once(folder / "environ", 1 << 20))
            argv = [
                part.decode("utf-8", "replace") for part in read_once(folder / "cmdline", 1 << 16).split(b"\0")[:-1]
            ]
            cgroup = read_once(folder / "cgroup", 1 << 16).decode("utf-8", "replace")
            parent = int(read_once(folder / "stat", 4096).rsplit(b")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended, or is another user's
            return None
        if not argv or Path(argv[0]).name in NO_RANKS or self._host.ranks.get(parent) is not None:
            return None
        # A plain process of a batch job is no rank: only a launcher's own variables make it one.
        found = identity.find({**environ, "HINDMOST_JOB_ID": job_id(environ, cgroup), "HINDMOST_LAUNCHER": "any"}, argv)
        ticks = start_ticks(self._host.proc, pid)
        if found is None or ticks is None:
            return None
        place = found.rank, found.world_size, found.local_rank
        return RankProcess(found.job_id, *place, pid, ticks, command=found.command)


def _pairs(data: bytes) -> dict[str, str]:
    entries = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, _, value in entries if name}
