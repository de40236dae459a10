"""Finds jobs on a node: rings that appear, and processes that a launcher made ranks.

Which rank a process is comes from its environment, its command line and its control group.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from hindmost import identity
from hindmost.bootstrap import ENTERED
from hindmost_proto import telemetry_pb2 as wire

from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import start_ticks
from hindmost_agent.kernel_files import numbers, read_once, text
from hindmost_agent.sampler import Host

log = logging.getLogger(__name__)

#: Variables that name the job, the most particular first.
JOB_VARIABLES = (
    "HINDMOST_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID",
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
#: What torchrun calls every job that was given no name.
UNNAMED = "none"
#: A job's number in the path of a control group, as Slurm and PBS name it, and Kubernetes with either of its drivers.
#: Slurm 26.05 has its SLUID there instead, unless cgroup.conf says CgroupJobIdPaths=yes.
CGROUP = re.compile(
    r"(?:/job_|slurmstepd\.scope/(?=s[0-9A-Z]{13}(?:/|$))|/pbs_jobs\.service/jobid/|/pbspro\.slice/pbspro-)([\w.-]+)"
    r"|[/-]kubepods.*?[/-]pod([0-9a-f_-]+)"
)
#: Programs that carry a rank's environment and are none: shells, launchers, what runs another program, what watches it.
NO_RANKS = frozenset(
    {"sh", "bash", "dash", "zsh", "csh", "tcsh", "ksh", "fish", "busybox",
     "slurmstepd", "srun", "mpirun", "mpiexec", "mpiexec.hydra", "orted", "prted", "prterun", "hydra_pmi_proxy",
     "hydra_bstrap_proxy", "pmi_proxy", "jsrun", "flux", "flux-shell", "palsd", "ssh", "sshd",
     "env", "time", "timeout", "nice", "ionice", "chrt", "nohup", "setsid", "stdbuf", "unbuffer", "script", "xargs",
     "numactl", "taskset", "hwloc-bind", "likwid-pin", "prlimit", "sudo", "su", "runuser", "setpriv", "unshare",
     "nsenter", "tini", "dumb-init", "catatonit", "pause",
     "apptainer", "singularity", "starter", "starter-suid", "Apptainer runtime parent", "Singularity runtime parent",
     "appinit", "sinit", "enroot", "podman", "docker", "conmon", "runc", "crun", "shifter",
     "conda", "mamba", "micromamba", "uv", "uvx", "poetry", "pipenv", "pixi",
     "nsys", "nsys-launcher", "ncu", "rocprof", "rocprofv2", "rocprofv3", "compute-sanitizer", "strace", "ltrace",
     "perf", "gdb", "py-spy", "vtune",
     "nvidia-smi", "dcgmi", "rocm-smi", "amd-smi", "sleep", "tail", "tee", "cat"}
)  # fmt: skip
#: Processes above a rank are followed this far.
DEEPEST = 64


def job_id(environ: Mapping[str, str], cgroup: str) -> str:
    """The job that a process belongs to, from its environment or else its control group; empty: none."""
    for name in JOB_VARIABLES:
        if environ.get(name, UNNAMED) not in ("", UNNAMED):
            return environ[name]
    match = CGROUP.search(cgroup)
    if match is None:
        return ""
    # systemd's names use hyphens for nesting: there Kubernetes writes a pod's as underscores.
    return match[1].removesuffix(".slice") if match[1] else match[2].replace("_", "-")


def command_line(proc: Path, pid: int) -> list[str]:
    """Program and arguments; empty for a thread of the kernel, and once the process has ended."""
    try:
        words = read_once(proc / str(pid) / "cmdline", 1 << 16).split(b"\0")[:-1]
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in words]


def carries(argv: Sequence[str]) -> bool:
    """Whether this program runs or watches another one, whose rank its environment is about."""
    name = Path(argv[0]).name.lstrip("-")  # a login shell is "-bash"
    script = Path(argv[1]).name if name.startswith("python") and len(argv) > 1 else ""
    return name in NO_RANKS or script in NO_RANKS


def rank_of(proc: Path, pid: int, argv: Sequence[str]) -> RankProcess | None:
    """The rank that a launcher made of this process; ``None`` of one that is none, or has ended.

    Raises ``PermissionError`` of a process that is out of reach.
    """
    if carries(argv):
        return None
    folder = proc / str(pid)
    try:
        environ = _pairs(read_once(folder / "environ", 1 << 20))
        cgroup = read_once(folder / "cgroup", 1 << 16).decode("utf-8", "replace")
    except PermissionError:
        raise
    except OSError:
        return None
    job = job_id(environ, cgroup) or _unnamed(proc, pid, environ)
    # A plain process of a batch job is no rank: only a launcher's own variables make it one.
    found = identity.find({**environ, "HINDMOST_JOB_ID": job, "HINDMOST_LAUNCHER": "any"}, argv)
    ticks = start_ticks(proc, pid)
    if found is None or ticks is None:
        return None
    place = found.rank, found.world_size, found.local_rank
    return RankProcess(found.job_id, *place, pid, ticks, command=found.command)


def ancestors(proc: Path, pid: int) -> Iterator[int]:
    """The processes above this one, the nearest first."""
    for _ in range(DEEPEST):
        try:
            pid = int(read_once(proc / str(pid) / "stat", 4096).rsplit(b")", 1)[1].split()[1])
        except (OSError, ValueError, IndexError):  # it has ended
            return
        if pid <= 0:
            return
        yield pid


def _unnamed(proc: Path, pid: int, environ: Mapping[str, str]) -> str:
    """A name for a job that torchrun was given none for, which tells it from others: the torchrun that started it."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return ""
    for above in ancestors(proc, pid):
        try:
            started_by_it = b"TORCHELASTIC_RUN_ID=" in read_once(proc / str(above) / "environ", 1 << 20)
        except OSError:
            return ""
        if not started_by_it:
            return f"torchrun-{above}-{start_ticks(proc, above)}"
    return ""


def _pairs(data: bytes) -> dict[str, str]:
    entries = (entry.decode("utf-8", "replace").partition("=") for entry in data.split(b"\0"))
    return {name: value for name, _, value in entries if name}


#: Variables that a pod's template sets by the downward API, to fields of the message.
POD_VARIABLES = {
    "HINDMOST_POD_NAMESPACE": "namespace",
    "HINDMOST_POD_NAME": "name",
    "HINDMOST_POD_UID": "uid",
    "HINDMOST_WORKLOAD": "workload",
    "HINDMOST_QUEUE": "queue",
}
#: Characters of a name in Kubernetes, at most; a workload is KIND/NAME.
LONGEST = 320


def pod_of(proc: Path, pid: int) -> wire.Pod | None:
    """The pod of a process; ``None`` where its environment names no namespace, or cannot be read."""
    try:
        environ = _pairs(read_once(proc / str(pid) / "environ", 1 << 20))
    except OSError:
        return None
    found = {field: environ[name][:LONGEST] for name, field in POD_VARIABLES.items() if name in environ}
    return wire.Pod(**found) if found.get("namespace") else None


NS = 1_000_000_000
PERIOD_NS = 10 * NS
#: A process that ran the same program for so many scans is then read once in so many scans: it rarely execs by then,
#: and a node has thousands of processes.
YOUNG = 6
SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where rings live
#: A folder without rings that did not change for this long belongs to a job that is over.
QUIET_S = 60.0
#: In the place of a program's name, which is never that long.
KERNEL = "a thread of the kernel"


def ring_folders(base: Path = SHARED_MEMORY) -> list[Path]:
    """Folders of rings that no job's own agent reads: a job's agent holds the folder's lock."""
    try:
        # ``isdir`` says no of what is out of reach: one user's folders must not hide those of all others.
        return sorted(one for one in base.glob("hindmost-*/*") if os.path.isdir(one) and not _taken(one))  # noqa: PTH112
    except OSError:
        return []


#: What is in a job's folder besides its rings.
_LEFT = {"agent.lock", ENTERED}


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
        gone = sum(_removed(ring) for ring in dead)
        removed += gone
        if rings and gone == len(rings):
            with contextlib.suppress(OSError):  # it contains something else
                for name in _LEFT:
                    (folder / name).unlink(missing_ok=True)
                folder.rmdir()
    return removed


def _removed(ring: Path) -> bool:
    try:
        ring.unlink(missing_ok=True)
    except OSError as error:  # a folder of that name
        log.info("cannot remove %s: %s", ring, error.strerror)
        return False
    return True


def tidy(folders: Iterable[Path], now_s: float) -> None:
    """Remove folders of jobs that are over, whose rings were read and removed: each job would leave one.

    ``now_s``: Unix time.
    """
    for folder in folders:
        with contextlib.suppress(OSError):  # another user's, or already removed
            if now_s - folder.stat().st_mtime > QUIET_S:
                left = [entry.name for entry in os.scandir(folder)]
                if not set(left) - _LEFT:
                    for name in left:
                        (folder / name).unlink()
                    folder.rmdir()


def _taken(folder: Path) -> bool:
    try:
        # It may be any file, even a FIFO: opening it must not block.
        lock = os.open(folder / "agent.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:  # never locked, or another user's and out of reach
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(lock)
    return False


class Jobs:
    """Keeps ``host.ranks`` in step with the ranks among the node's processes: each is looked at when it is new, and
    again when it runs another program, as a shell does that ends in ``exec``."""

    def __init__(
        self, host: Host, shared_memory: Path = SHARED_MEMORY, unix_s: Callable[[], float] = time.time
    ) -> None:
        self.shared_memory = shared_memory
        self._unix_s = unix_s
        self._host = host
        self._known: dict[int, str] = {}
        #: By process, the scan at which its program was new, and the number of scans.
        self._since: dict[int, int] = {}
        self._looks = 0
        #: What launchers named the node's processes, those below ranks included.
        self._named: dict[int, RankProcess] = {}
        self._mine: dict[int, int] = {}
        self._due_ns = self._tidy_ns = 0
        self._said = False

    def look(self, now_ns: int) -> None:
        """Take on ranks that have started, leave those that ended; at most every ten seconds."""
        if now_ns < self._due_ns:
            return
        self._due_ns = now_ns + PERIOD_NS
        for pid, ticks in tuple(self._mine.items()):
            if start_ticks(self._host.proc, pid) != ticks:
                self._known.pop(pid, None)
                self._leave(pid)
        changed = self._changed()
        found = {pid: rank for pid in changed if (rank := self._rank(pid)) is not None}
        unchanged = {pid: rank for pid, rank in self._named.items() if pid in self._known and pid not in changed}
        self._named = {**unchanged, **found}
        for pid in tuple(self._mine.keys() - self._named.keys()):
            self._leave(pid)
        if found:
            self._sort_out()

    def folders(self, now_ns: int) -> list[Path]:
        """Folders of rings that are for this agent to read; those of jobs that are over are removed now and then."""
        found = ring_folders(self.shared_memory)
        if now_ns >= self._tidy_ns:
            self._tidy_ns = now_ns + PERIOD_NS
            tidy(found, self._unix_s())
        return found

    def _changed(self) -> set[int]:
        """Processes that are new, or run another program than before."""
        proc, before = str(self._host.proc), self._known
        self._looks += 1
        self._known = {
            pid: text(f"{proc}/{pid}/comm") if self._may_differ(pid) else before[pid] for pid in numbers(proc)
        }
        changed = {pid for pid, program in self._known.items() if before.get(pid) != program}
        self._since = {pid: self._looks if pid in changed else self._since[pid] for pid in self._known}
        return changed

    def _may_differ(self, pid: int) -> bool:
        """Whether to ask for a process's program at this look."""
        program = self._known.get(pid)
        if program is None or program == KERNEL:
            return program is None
        return self._looks - self._since[pid] <= YOUNG or not (pid + self._looks) % YOUNG

    def _rank(self, pid: int) -> RankProcess | None:
        argv = command_line(self._host.proc, pid)
        if not argv:  # a thread of the kernel, which changes its name with what it works on, and never execs
            self._known[pid] = KERNEL
            return None
        try:
            return rank_of(self._host.proc, pid, argv)
        except PermissionError as error:
            self._say(error)
            return None

    def _say(self, error: PermissionError) -> None:
        """One line, of the first process that is out of reach: on most nodes there are hundreds, or none."""
        if not self._said:
            self._said = True
            log.info("%s: in unreadable processes the agent finds only jobs with rings; give it CAP_SYS_PTRACE", error)

    def _sort_out(self) -> None:
        """Take on all that are named and are below no process of the same name."""
        for pid, rank in self._named.items():
            known = self._host.ranks.get(pid)
            if known is not None and known.framework:  # its ring says more than is found here
                continue
            if self._inherits(rank):
                self._leave(pid)
            else:
                self._mine[pid] = rank.start_ticks
                self._host.ranks.put(rank)

    def _inherits(self, rank: RankProcess) -> bool:
        """Whether a process has its name from a rank above it, as a loader's worker and any tool have that it runs.

        One that a launcher below a rank has named anew is a rank itself.
        """
        for above in ancestors(self._host.proc, rank.pid):
            named = self._named.get(above)
            if named is None and self._host.ranks.get(above) is not None:  # its rank is in its ring only
                return True
            if named is not None and named[:4] == rank[:4]:
                return True
        return False

    def _leave(self, pid: int) -> None:
        known = self._host.ranks.get(pid)
        if self._mine.pop(pid, None) is not None and known is not None and not known.framework:
            self._host.ranks.remove(pid)
