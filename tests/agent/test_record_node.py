"""Recording a machine: the result can stand in its place, is small, and does not show whose it was."""

import ctypes
import json
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hindmost_agent import samplers
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host

from tests.agent.anonymous import Anonymous
from tests.agent.conftest import FakeNvml
from tests.agent.nvml_recording import PlayedNvml, RecordingNvml
from tests.agent.record_node import MOST, Kept, named

SCRIPT = Path(__file__).with_name("record_node.py")
CONTAINER = "4f1c9a0b77e2d3c4a5b6978810aa22bb33cc44dd55ee66ff7788990011223344"


def test_this_machine_can_be_recorded_and_read_again(tmp_path: Path) -> None:
    """The archive holds what the samplers need: on the recording none of them fails, and the rank is there."""
    target = tmp_path / "here.tar.xz"
    subprocess.run([sys.executable, str(SCRIPT), str(target)], check=True, capture_output=True)
    assert target.stat().st_size < 300 << 10
    shutil.unpack_archive(target, tmp_path)
    root = tmp_path / "here"
    (rank,) = json.loads((root / "recorded.json").read_text())["ranks"]
    assert f"{rank['pid']} (" in (root / f"proc/{rank['pid']}/stat").read_text()
    names = "".join((root / name).read_text() for name in ("proc/self/mounts", f"proc/{rank['pid']}/cgroup"))
    assert socket.gethostname() not in names.split()
    host = Host(proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup", dev=root / "dev")
    runner = Runner({name: kind for name, kind in samplers.load().items() if name != "node_info"}, host, NS)
    runner.run(0)
    assert +host.own.errors == {}
    assert {"cpu", "memory", "network"} <= set(runner.latest)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"0::/kubepods.slice/kubepods-pod3f.slice/cri-containerd-{CONTAINER}.scope", "0::/kubepods.slice/group1/"),
        ("4:memory:/slurm/uid_1000/job_77/step_0", "4:memory:/slurm/uid_1000/job_77/step_0\n"),
        (f"12:cpu,cpuacct:/docker/{CONTAINER}", f"12:cpu,cpuacct:/docker/{1:064x}\n"),
        ("0::/user.slice/acme-research.service", "0::/user.slice/group1\n"),
        ("0::/", "0::/\n"),
    ],
)
def test_groups_say_what_made_them_and_not_for_whom(line: str, expected: str) -> None:
    """Ids and a site's own names are replaced; the words of Slurm, Docker, Kubernetes and systemd stay."""
    assert Anonymous("gpu17.acme.org").groups(line + "\n").startswith(expected)


def test_a_file_s_place_in_a_group_keeps_its_name() -> None:
    """Else samplers would not find it: only the folders are called otherwise."""
    anonymous = Anonymous("gpu17")
    assert named(anonymous, "cgroup/acme/memory.max") == "cgroup/group1/memory.max"
    assert named(anonymous, "cgroup/cgroup.controllers/.keep") == "cgroup/cgroup.controllers/.keep"
    assert (
        named(anonymous, "cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us") == "cgroup/cpu,cpuacct/docker/cpu.cfs_quota_us"
    )
    assert named(anonymous, "cgroup/cgroup.controllers") == "cgroup/cgroup.controllers"


def test_a_mount_s_type_and_flags_stay_and_its_names_do_not() -> None:
    """The same server, export or place has the same stand-in in both files; addresses are gone."""
    anonymous = Anonymous("gpu17.acme.org")
    mounts = (
        "nas3.acme.org:/vol/alice /home/alice nfs4 rw,vers=4.2,rsize=1048576,addr=10.1.2.3 0 0\n"
        "overlay / overlay rw,lowerdir=/var/lib/acme/l1:/var/lib/acme/l2 0 0\n"
        "10.1.2.3@o2ib:10.1.2.4@o2ib:/acme /acme lustre rw,flock 0 0\n"
        "/dev/mapper/acme-root /boot xfs ro,logbsize=32k 0 0\n"
    )
    assert anonymous.mounts(mounts) == (
        "server1:/export1 /mount1 nfs4 rw,vers=4.2,rsize=1048576,addr=removed 0 0\n"
        "overlay / overlay rw,lowerdir=removed 0 0\n"
        "server2:/export2 /mount2 lustre rw,flock 0 0\n"
        "/dev/device1 /boot xfs ro,logbsize=32k 0 0\n"
    )
    stats = (
        "device nas3.acme.org:/vol/alice mounted on /home/alice with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2,clientaddr=10.1.2.9,proto=rdma\n\tbytes:\t1000000000000 2 0 0 3 4 5 6\n"
    )
    assert anonymous.mountstats(stats) == (
        "device server1:/export1 mounted on /mount1 with fstype nfs4 statvers=1.1\n"
        "\topts:\trw,vers=4.2,clientaddr=removed,proto=rdma\n\tbytes:\t1000000000000 2 0 0 3 4 5 6\n"
    )


def test_a_gpu_s_identity_is_replaced_wherever_it_stands() -> None:
    """One GPU keeps one stand-in, two GPUs have two."""
    first, second = ("GPU-3a5f7c11-2222-4b3c-9d8e-0011223344%02x" % number for number in (1, 2))  # noqa: UP031
    text = Anonymous("gpu17").words(f"{first} {second} {first} gpu17 12345678901234567890")
    one, two = (f"GPU-00000000-0000-0000-0000-{number:012x}" for number in (1, 2))
    assert text == f"{one} {two} {one} node1 12345678901234567890"
    assert Anonymous("gpu17").uuids(f"[1.2345678901234e-05, {first}]") == f"[1.2345678901234e-05, {one}]"


def test_of_many_cores_and_threads_the_first_few_are_kept_whole() -> None:
    """Each with all of its files; how many were left out is said."""
    names = [f"sys/devices/system/cpu/cpu{core}/cpufreq/{name}" for core in range(192) for name in ("a", "b")]
    kept = Kept([*names, "proc/9/task/9/stat", "proc/stat"])
    assert [name for name in names if kept.keeps(name)] == names[: 2 * MOST]
    assert kept.keeps("proc/9/task/9/stat")
    assert kept.left_out == {"sys/devices/system/cpu/cpu*": 192 - MOST}
    long = "version 17\n" + "".join(f"cpu{core} {'0 ' * 99}\ndomain0 {'0 ' * 99}\n" for core in range(192))
    assert kept.shortened("proc/schedstat", long) == long[: long.index(f"cpu{MOST} ")]
    assert kept.shortened("proc/schedstat", "cpu0 1\ncpu9 1\n") == "cpu0 1\ncpu9 1\n"


class Rates(ctypes.Structure):
    """As NVML's utilisation."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class PointerNvml(FakeNvml):
    """GPUs, samples and event sets as the real library hands them out: pointers; utilisation as a C structure."""

    HANDLES = ("nvmlDeviceGetHandleByIndex", "nvmlGpmSampleAlloc", "nvmlEventSetCreate")

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._objects: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        call = super().__getattr__(name)

        def through(*args: Any, **kwargs: Any) -> Any:
            plain = [self._objects[arg.contents.value] if isinstance(arg, ctypes._Pointer) else arg for arg in args]
            answer = call(*plain, **kwargs)
            if name not in self.HANDLES:
                return answer
            self._objects.append(answer)
            return ctypes.pointer(ctypes.c_int(len(self._objects) - 1))

        return through

    def _nvmlDeviceGetUtilizationRates(self, gpu: int) -> Any:  # noqa: N802 - as the library has it
        return Rates(90 + gpu, 42)


def gpu_values(lib: Any) -> dict[str, Any]:
    runner = Runner(
        {name: kind for name, kind in samplers.load().items() if name.startswith("nvidia")}, Host(nvml_library=lib), NS
    )
    for second in (0, 100):
        runner.run(second * NS)
    assert +runner.host.own.errors == {}
    return {name: (reading.series, repr(reading.values)) for name, reading in runner.latest.items()}


def test_gpus_that_were_recorded_are_played_back() -> None:
    """Through JSON: every sampler reads of the recording what it read of the library, errors and pointers included."""
    real = PointerNvml(3)
    real.fails["nvmlDeviceGetRemappedRows"] = {1: 3}
    lib = RecordingNvml(real)
    expected = gpu_values(lib)
    played = PlayedNvml(json.loads(json.dumps({"constants": lib.constants, "answers": lib.answers})))
    assert gpu_values(played) == expected
    assert {"nvidia", "nvidia_gpm", "nvidia_health", "nvidia_links", "nvidia_counters", "nvidia_state"} <= set(expected)


def test_a_call_that_was_not_recorded_is_one_that_this_driver_lacks() -> None:
    """A sampler that asks for more than one did when the machine was recorded has that missing, and goes on."""
    played = PlayedNvml({"constants": {}, "answers": {}})
    with pytest.raises(played.NVMLError) as error:
        played.nvmlDeviceGetFanSpeed(1)
    assert error.value.value == 13
    assert played.nvmlDeviceGetFieldValues(1, [(82, 0)])[0].nvmlReturn == 3
