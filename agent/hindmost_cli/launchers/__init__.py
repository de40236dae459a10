"""One file a launcher: how a command that starts ranks carries the probe's variables to them.

A launcher is a module here with

``NAME``
    what ``HINDMOST_LAUNCHER`` says;
``NATIVE``
    the C parts its ranks can use: ``pmpi``, ``nccl``;
``recognises(argv)``
    whether this command line is its own;
``carry(argv, names, environ)``
    ``argv`` changed so that the variables ``names``, which are set in the launcher's own environment, reach remote
    ranks too; everything else in it untouched;
``remote_hosts(argv, environ)``
    the hosts other than this one that the command names; empty where all ranks are here.

Files are found by being here; ``python``, which recognises everything, is asked last.
Below is what launchers share; which hosts there are decides which address agents get.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
import socket
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast

from hindmost_judge import job_command

RANGES = re.compile(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)")


def others(hosts: Iterable[str]) -> list[str]:
    """Those of ``hosts`` that are not this machine, each once, in order."""
    own = socket.gethostname()
    here = {own, own.partition(".")[0], "localhost", ""}
    found = dict.fromkeys(host.strip() for host in hosts)
    return [h for h in found if h not in here and h.partition(".")[0] not in here and not h.startswith("127.")]


def in_list(text: str) -> list[str]:
    """``a:2,b,[fd00::7]:2`` as mpirun and horovodrun write it: hosts, with or without slots."""
    return [_host(part) for part in text.split(",")]


def _host(word: str) -> str:
    """A host without its slots: what has several colons and no brackets is an address of IPv6."""
    inside, bracket, _ = word.strip().removeprefix("[").partition("]")
    return inside if bracket or inside.count(":") > 1 else inside.partition(":")[0].strip()


def in_file(path: str) -> list[str]:
    """The first word of each line of a host file; an unreadable file names none (the launcher will say so)."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = (line.partition("#")[0].split() for line in lines)
    return [_host(word[0]) for word in words if word]


def named(words: Sequence[str], arity: Mapping[str, int], lists: Collection[str], files: Collection[str]) -> list[str]:
    """The hosts that options of a command name, in ``lists`` or in ``files`` of them."""
    hosts: list[str] = []
    for _, option, value in job_command.options(words, arity):
        if option in lists:
            hosts += in_list(value)
        elif option in files:
            hosts += in_file(value)
    return hosts


def of_batch(environ: Mapping[str, str]) -> list[str]:
    """The hosts of the allocation that Slurm, PBS or LSF says this is; empty outside one."""
    for variable in ("SLURM_JOB_NODELIST", "SLURM_NODELIST"):
        if environ.get(variable):
            return expand(environ[variable])
    if environ.get("PBS_NODEFILE"):
        return in_file(environ["PBS_NODEFILE"])
    return environ.get("LSB_HOSTS", "").split()


def expand(nodelist: str) -> list[str]:
    """Slurm's compressed form: ``n[1-2,7],login`` is n1, n2, n7 and login."""
    hosts: list[str] = []
    for prefix, ranges, suffix in RANGES.findall(nodelist):
        for part in ranges.split(",") if ranges else [""]:
            first, _, last = part.partition("-")
            if not last.isdigit() or not first.isdigit():
                hosts.append(prefix + part + suffix)
                continue
            numbers = range(int(first), min(int(last), int(first) + 65536) + 1)
            hosts += [f"{prefix}{number:0{len(first)}d}{suffix}" for number in numbers]
    return hosts


def carry(argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """Nothing to add: ranks inherit the launcher's environment, on its own node."""
    return list(argv)


def remote_hosts(argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:  # noqa: ARG001
    """None: each node starts its own launcher."""
    return []


FALLBACK = "python"


class Launcher(Protocol):
    """What a module here offers."""

    NAME: str
    NATIVE: tuple[str, ...]
    #: Whether it passes variables on so that other users of a node cannot read them.
    ENVIRONMENT_IS_PRIVATE: bool

    def recognises(self, argv: Sequence[str]) -> bool:
        """Whether this command line is this launcher's."""

    def carry(self, argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """``argv`` so that ``names`` reach remote ranks."""

    def remote_hosts(self, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """Other hosts the command names."""


@functools.cache
def registry() -> tuple[Launcher, ...]:
    """Every launcher, the one that recognises everything last."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    names.sort(key=lambda name: (name == FALLBACK, name))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(cast("Launcher", module) for module in modules)


def find(argv: Sequence[str]) -> Launcher:
    """The launcher of this command line, looking past ``env``, ``nice``, ``numactl`` and their like."""
    return next(launcher for launcher in registry() if launcher.recognises(argv))
