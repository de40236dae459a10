"""Slurm's srun: it passes its whole environment to the tasks unless ``--export`` says which part."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from functools import partial

from hindmost_judge import job_command

from hindmost_cli import launchers

NAME = "srun"
NATIVE = ("pmpi", "nccl")
ENVIRONMENT_IS_PRIVATE = True
PROGRAMS = job_command.SRUN
EXPORT = "--export"
#: What asks Slurm for the addresses of its nodes, wherever the job may go.
NODES = ("sinfo", "--noheader", "--Node", "--format=%o")
#: The job's start waits for the answer. A controller that is busy for longer is not waited for.
ANSWER_S = 1.5


def recognises(argv: Sequence[str]) -> bool:
    return job_command.starts(argv, PROGRAMS)


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Our names added to an ``--export`` list, on the command line or in ``SLURM_EXPORT_ENV``."""
    words = list(argv)
    at = (job_command.position(words, PROGRAMS) or 0) + 1
    for index in range(at, len(words)):
        if words[index] == EXPORT and index + 1 < len(words):
            words[index + 1] = _with(words[index + 1], names)
            return words
        if words[index].startswith(f"{EXPORT}="):
            words[index] = f"{EXPORT}={_with(words[index].removeprefix(f'{EXPORT}='), names)}"
            return words
    if environ.get("SLURM_EXPORT_ENV"):
        words.insert(at, f"{EXPORT}={_with(environ['SLURM_EXPORT_ENV'], names)}")
    return words


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The allocation's hosts. Without one, srun asks for hosts later: any may be chosen."""
    hosts = launchers.of_batch(environ)
    for index, word in enumerate(argv):
        if word in {"-w", "--nodelist"} and index + 1 < len(argv):
            hosts += launchers.expand(argv[index + 1])
        elif word.startswith("--nodelist="):
            hosts += launchers.expand(word.partition("=")[2])
    return launchers.others(hosts or _any_node(environ))


def _any_node(environ: Mapping[str, str]) -> list[str]:
    """The addresses of all nodes of this Slurm; empty where it does not say, or not at once."""
    ask = partial(subprocess.run, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=True)
    try:
        said = ask(NODES, env=dict(environ), timeout=ANSWER_S)
    except (OSError, subprocess.SubprocessError):
        return []
    return str(said.stdout).split()


def _with(export: str, names: Sequence[str]) -> str:
    """``NONE`` becomes our names alone; ``ALL`` has them already; a list gets them at its end."""
    parts = [part for part in export.split(",") if part]
    if "ALL" in parts:
        return export
    return ",".join([*(part for part in parts if part != "NONE"), *names])
