"""Ranks as launchers make them: what a process's environment, command line and control group say of it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from hindmost import identity

from hindmost_agent.files import read_once
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import start_ticks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

#: Variables that name the job, the most particular first.
JOB_VARIABLES = (
    "HINDMOST_JOB_ID", "SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID",
    "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "TORCHELASTIC_RUN_ID",
)  # fmt: skip
#: What torchrun calls every job that was given no name.
UNNAMED = "none"
#: A job's number in the path of a control group, as Slurm and PBS name it, and Kubernetes with either of its drivers.
CGROUP = re.compile(
    r"/(?:job_|pbs_jobs\.service/jobid/|pbspro\.slice/pbspro-)([\w.-]+)|[/-]kubepods.*?[/-]pod([0-9a-f_-]+)"
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
