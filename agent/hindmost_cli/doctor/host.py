"""What the machine lets a user see: GPUs, shared memory, limits, pressure, other processes, ports."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from typing import TYPE_CHECKING

from hindmost import requirements
from hindmost.errors import HindmostError
from hindmost_agent import stacks as attach_stacks

from hindmost_cli.doctor.finding import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from hindmost_cli.doctor.finding import Machine

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
        names = [
            pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(i)) for i in range(pynvml.nvmlDeviceGetCount())
        ]
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
        "no",
        "/proc/PID/schedstat is empty",
        lost,
        "a kernel with CONFIG_SCHED_INFO; sysctl kernel.sched_schedstats=1",
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


def perf(machine: Machine) -> Finding:
    """Hardware counters, which nothing in hindmost needs."""
    level = machine.text("/proc/sys/kernel/perf_event_paranoid")
    if level is None:
        return Finding("no", "no perf events in this kernel", "none for hindmost")
    if int(level) > 2 and os.geteuid() != 0:
        return Finding(
            "part",
            f"perf_event_paranoid is {level}",
            "none for hindmost",
            "sysctl kernel.perf_event_paranoid=2",
        )
    return Finding("yes", f"perf_event_paranoid is {level}")


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
