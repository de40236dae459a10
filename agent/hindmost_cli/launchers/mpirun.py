"""mpirun and mpiexec of Open MPI 4 and 5, MPICH and Intel MPI.

Hydra (MPICH, Intel) passes its whole environment to every rank by default; Open MPI passes to other hosts
only what ``-x`` names, one application context at a time.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence

from hindmost_judge import job_command

from hindmost_cli import launchers

NAME = "mpirun"
NATIVE = ("pmpi", "nccl")
ENVIRONMENT_IS_PRIVATE = True

PROGRAMS = job_command.MPIRUN

#: What ``--version`` prints, and whose it is. Intel's is a Hydra too, so it is looked for first.
SIGNATURES = (
    ("Open MPI", "openmpi"),
    ("OpenRTE", "openmpi"),
    ("PRRTE", "openmpi"),
    ("PMIx Reference", "openmpi"),
    ("Intel(R) MPI", "intel"),
    ("HYDRA", "mpich"),
)

ARITY = job_command.MPIRUN_ARITY
HOST_LISTS = frozenset({"-H", "-host", "--host", "-hosts"})
HOST_FILES = frozenset({"-f", "-hostfile", "--hostfile", "-machinefile", "--machinefile", "--default-hostfile"})


def recognises(argv: Sequence[str]) -> bool:
    """``mpirun …``, ``mpiexec.hydra …``, ``env A=1 mpirun …``."""
    return job_command.starts(argv, PROGRAMS)


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """``-x NAME`` for Open MPI, in each application context; Hydra's lists completed where the user gave one."""
    at = _start(argv)
    family = kind(argv[: at + 1], environ)
    head, contexts = list(argv[: at + 1]), _contexts(argv[at + 1 :])
    if family == "openmpi":
        contexts = [_open_mpi(words, names, environ) for words in contexts]
    elif family in {"mpich", "intel"}:
        contexts = [_hydra(words, names) for words in contexts]
    for index, words in enumerate(contexts):
        head += [":", *words] if index else words
    return head


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Hosts from ``--host``, a host file, or else the batch allocation."""
    contexts = _contexts(argv[_start(argv) + 1 :])
    found = [host for words in contexts for host in launchers.named(words, ARITY, HOST_LISTS, HOST_FILES)]
    return launchers.others(found or launchers.of_batch(environ))


def kind(program: Sequence[str], environ: Mapping[str, str]) -> str:
    """``openmpi``, ``mpich``, ``intel``, or ``unknown``: what this mpirun says of itself."""
    return family(version(program, environ))


def version(program: Sequence[str], environ: Mapping[str, str]) -> str:
    """What ``PROGRAM --version`` prints; empty where it cannot be run."""
    try:
        said = subprocess.run(
            [*program, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return (said.stdout + said.stderr).decode(errors="replace")


def family(said: str) -> str:
    """Whose mpirun it is that says this for ``--version``."""
    return next((family for sign, family in SIGNATURES if sign in said), "unknown")


def _start(argv: Sequence[str]) -> int:
    return job_command.position(argv, PROGRAMS) or 0


def _contexts(words: Sequence[str]) -> list[list[str]]:
    """The application contexts, which ``:`` divides: ``-np 1 a : -np 3 b`` are two."""
    contexts: list[list[str]] = [[]]
    for word in words:
        if word == ":":
            contexts.append([])
        else:
            contexts[-1].append(word)
    return contexts


def _open_mpi(words: list[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """``-x NAME`` for each that the user does not pass; a value of the user's gets ours in front."""
    words, passed = list(words), set()
    for index, option, value in list(job_command.options(words, ARITY)):
        if option != "-x":
            continue
        name, equals, theirs = value.partition("=")
        passed.add(name)
        if equals and name in names and index + 1 < len(words):
            words[index + 1] = f"{name}={_joined(name, environ.get(name, ''), theirs)}"
    return [part for name in names if name not in passed for part in ("-x", name)] + words


def _joined(name: str, ours: str, theirs: str) -> str:
    """For the two search lists, ours then theirs; any other variable keeps what the user wrote."""
    if name not in {"PYTHONPATH", "LD_PRELOAD"}:
        return theirs
    return ":".join(dict.fromkeys([*ours.split(":")[:1], *theirs.split(":")]))


def _hydra(words: list[str], names: Sequence[str]) -> list[str]:
    """All of the environment is passed unless a list says which: then the list gets ours too."""
    words = list(words)
    for index, option, value in list(job_command.options(words, ARITY)):
        if option in {"-genvlist", "-envlist"}:
            words[index + 1] = ",".join([value, *names])
        elif option in {"-genvnone", "-envnone"}:
            words[index : index + 1] = [option.replace("none", "list"), ",".join(names)]
    return words
