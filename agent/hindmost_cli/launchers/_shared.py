"""What launchers share: the other hosts that a command or a batch system names, and ranks that inherit it all.

The hosts decide which address agents get.
"""

from __future__ import annotations

import re
import socket
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

RANGES = re.compile(r"([^,\[\]]+)(?:\[([^\]]*)\])?([^,\[\]]*)")


def others(hosts: Iterable[str]) -> list[str]:
    """Those of ``hosts`` that are not this machine, each once, in order."""
    own = socket.gethostname()
    here = {own, own.partition(".")[0], "localhost", ""}
    found = dict.fromkeys(host.strip() for host in hosts)
    return [h for h in found if h not in here and h.partition(".")[0] not in here and not h.startswith("127.")]


def in_list(text: str) -> list[str]:
    """``a:2,b`` as mpirun and horovodrun write it: hosts, with or without slots."""
    return [part.partition(":")[0].strip() for part in text.split(",")]


def in_file(path: str) -> list[str]:
    """The first word of each line of a host file; an unreadable file names none (the launcher will say so)."""
    try:
        lines = Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []
    words = (line.partition("#")[0].split() for line in lines)
    return [word[0].partition(":")[0] for word in words if word]


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
