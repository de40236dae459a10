"""What can be seen on this machine and what cannot: one function a question, grouped by what it asks about.

A check takes a ``Machine`` and returns a ``Finding``. It only looks: it starts no job, writes nothing, and needs no
privileges. ``CHECKS`` is the order in which they are shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost_cli.doctor import host, jobs
from hindmost_cli.doctor.finding import Finding, Machine

if TYPE_CHECKING:
    from collections.abc import Callable

CHECKS: dict[str, Callable[[Machine], Finding]] = {
    "python": jobs.python,
    "agent": jobs.agent,
    "collector": jobs.collector,
    "mpi": jobs.mpi,
    "compiler": jobs.compiler,
    "hooks": jobs.hooks,
    "torch": jobs.torch,
    "horovod": jobs.horovod,
    "slurm": jobs.slurm,
    "gpu": host.gpu,
    "shared memory": host.shared_memory,
    "cgroup": host.cgroup,
    "pressure": host.pressure,
    "run queue": host.run_queue,
    "stacks": host.stacks,
    "perf": host.perf,
    "ports": host.ports,
}


def examine(machine: Machine) -> dict[str, Finding]:
    """Every check's finding. A check that itself fails is a finding too."""
    return {name: _ask(check, machine) for name, check in CHECKS.items()}


def _ask(check: Callable[[Machine], Finding], machine: Machine) -> Finding:
    try:
        return check(machine)
    except Exception as error:  # noqa: BLE001 - the doctor never fails: what it could not find out is an answer
        return Finding("no", f"check failed: {type(error).__name__}: {error}")
