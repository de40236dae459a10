"""Who this process is in its job: read from the environment that launchers set, before anything is initialised."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: What a launcher did not say.
UNKNOWN = -1


class Identity(NamedTuple):
    """One rank of one job. ``world_size`` and ``local_rank`` are -1 where the launcher does not say."""

    job_id: str
    rank: int
    world_size: int
    local_rank: int
    node: str
    framework: str
    command: str


class Dialect(NamedTuple):
    """The variables by which one launcher tells a process its place; ``needs`` must be set for the others to count."""

    rank: str
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...]
    needs: str = ""


#: First match wins. Launchers nest, and the inner one names the rank: torchrun and horovodrun are started by srun or
#: mpirun, never the other way round. SLURM_PROCID counts only inside a step: in a batch script it is always 0.
DIALECTS = (
    Dialect("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",), needs="TORCHELASTIC_RUN_ID"),
    Dialect("HOROVOD_RANK", ("HOROVOD_SIZE",), ("HOROVOD_LOCAL_RANK",)),
    Dialect("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",), ("OMPI_COMM_WORLD_LOCAL_RANK",)),
    Dialect("PMI_RANK", ("PMI_SIZE",), ("MPI_LOCALRANKID", "SLURM_LOCALID")),
    Dialect("PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)),
    Dialect("SLURM_PROCID", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",), needs="SLURM_STEP_ID"),
    Dialect("RANK", ("WORLD_SIZE",), ("LOCAL_RANK",)),
)

#: Programs that start ranks and are none, by the name of their script and of their module.
LAUNCHER_SCRIPTS = frozenset(
    {"torchrun", "horovodrun", "accelerate", "deepspeed", "mpirun", "mpiexec", "srun", "ray", "hindmost"}
)
LAUNCHER_MODULES = (
    "torch.distributed.run.",
    "torch.distributed.launch.",
    "torch.distributed.launcher.",
    "horovod.runner.",
    "accelerate.commands.",
    "deepspeed.launcher.",
    "hindmost.",
)

#: Launchers that leave a lone process without a rank: ``accelerate launch`` names those of several processes only.
UNNAMING = ("python", "accelerate")

#: What the command line of a child of ``multiprocessing`` holds: DataLoader workers and their helpers.
WORKER_SIGNS = (
    "--multiprocessing-fork",
    "multiprocessing.spawn",
    "multiprocessing.forkserver",
    "multiprocessing.resource_tracker",
    "multiprocessing.semaphore_tracker",
    "torch/_inductor/compile_worker",
)


def find(environ: Mapping[str, str], argv: Sequence[str] | None = None) -> Identity | None:
    """This process's place in the job, or ``None`` where it is no rank.

    ``argv`` is the command line with its interpreter, ``sys.orig_argv`` unless given. A launcher, a worker of
    ``multiprocessing``, and a process of a job that was started by a launcher which gave it no rank, are no ranks. A
    plain ``python`` (``HINDMOST_LAUNCHER`` is ``python`` or not set) without any launcher's variables is rank 0 of 1.
    """
    line = list(sys.orig_argv if argv is None else argv)
    job_id = environ.get("HINDMOST_JOB_ID", "")
    if not job_id or is_launcher(line) or is_worker(line):
        return None
    place = _place(environ)
    if place is None:
        if environ.get("HINDMOST_LAUNCHER", "python") not in UNNAMING:
            return None
        place = (0, 1, 0)
    return Identity(job_id, *place, os.uname().nodename, "python", " ".join(line[1:]))


def late(environ: Mapping[str, str], rank: int, world_size: int) -> Identity:
    """A rank that learned its place from its process group."""
    job_id, command = environ.get("HINDMOST_JOB_ID", ""), " ".join(sys.orig_argv[1:])
    return Identity(job_id, rank, world_size, local_rank(environ), os.uname().nodename, "python", command)


def local_rank(environ: Mapping[str, str]) -> int:
    """What ``LOCAL_RANK`` says, or -1."""
    return _number(environ, ("LOCAL_RANK",))


def is_named(environ: Mapping[str, str]) -> bool:
    """Whether a launcher named this process's rank; otherwise rank 0 of 1 is only what it looks like."""
    return _place(environ) is not None


def is_launcher(argv: Sequence[str]) -> bool:
    """Whether this command line starts ranks rather than being one: ``torchrun``, ``python -m horovod.runner``."""
    for index, argument in enumerate(argv[1:4], start=1):
        if argument == "-m":
            module = argv[index + 1] if index + 1 < len(argv) else ""
            return f"{module}.".startswith(LAUNCHER_MODULES)
        if not argument.startswith("-"):
            return os.path.basename(argument) in LAUNCHER_SCRIPTS
    return False


def is_worker(argv: Sequence[str]) -> bool:
    """Whether this is a helper process of a rank: started by ``multiprocessing``, or a compile worker."""
    return any(sign in argument for argument in argv[1:8] for sign in WORKER_SIGNS)


def token(identity: Identity) -> str:
    """What ``HINDMOST_ATTACHED`` holds: a descendant of this rank that finds its own token there stays out."""
    return f"{identity.job_id}/{identity.rank}/{identity.world_size}"


def _place(environ: Mapping[str, str]) -> tuple[int, int, int] | None:
    """Rank, world size and local rank as the innermost launcher says them."""
    for dialect in DIALECTS:
        rank = _number(environ, (dialect.rank,))
        if rank != UNKNOWN and (not dialect.needs or dialect.needs in environ):
            return rank, _number(environ, dialect.world_size), _number(environ, dialect.local_rank)
    return None


def _number(environ: Mapping[str, str], names: Sequence[str]) -> int:
    """The first of these variables that holds a number, or -1."""
    for name in names:
        text = environ.get(name, "")
        if text.isascii() and text.isdigit():
            return int(text)
    return UNKNOWN
