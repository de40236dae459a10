# ruff: noqa: N802, N815 - the stand-in is called as the real library is
"""Stand-ins for what a test machine has not: NVIDIA's management library, with GPUs that behave as set."""

import gc
import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.sampler import Host

from tests.agent import typical_nodes
from tests.agent.nvml_recording import PlayedNvml

NVMLError = PlayedNvml.NVMLError


def ns(**fields: Any) -> SimpleNamespace:
    return SimpleNamespace(**fields)


#: What a busy GPU answers.
ANSWERS: dict[str, Callable[..., Any]] = {
    "nvmlInit": lambda: None,
    "nvmlSystemGetDriverVersion": lambda: "580.159",
    "nvmlDeviceGetHandleByIndex": lambda index: index,
    "nvmlDeviceGetUUID": lambda gpu: gpu if isinstance(gpu, str) else f"GPU-{gpu:08x}",
    "nvmlDeviceGetName": lambda _: b"NVIDIA H200",
    "nvmlDeviceGetPciInfo": lambda gpu: ns(busId=f"00000000:{gpu + 0x10:02X}:00.0"),
    "nvmlDeviceGetUtilizationRates": lambda _: ns(gpu=100, memory=42),
    "nvmlDeviceGetMemoryInfo": lambda _, version=None: ns(used=70 << 30, total=140 << 30),
    "nvmlDeviceGetPowerUsage": lambda gpu: 689_000 + gpu,
    "nvmlDeviceGetTemperature": lambda gpu, _: 60 + gpu,
    "nvmlDeviceGetClockInfo": lambda _, kind: 1440 if kind == 1 else 3201,
    "nvmlDeviceGetMaxClockInfo": lambda _, kind: 1980 if kind == 1 else 3201,
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetPerformanceState": lambda _: 0,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda _: 0x4,
    "nvmlDeviceGetTotalEccErrors": lambda _, kind, __: 5 if kind == 0 else 0,
    "nvmlDeviceGetRemappedRows": lambda _: (1, 0, 0, 0),
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 5,
    "nvmlDeviceGetMaxMigDeviceCount": lambda _: 7,
    "nvmlGpmSampleAlloc": lambda: ns(taken=0),
    "c_nvmlGpmMetricsGet_t": lambda: ns(metrics=[ns(metricId=0, nvmlReturn=0, value=0.0) for _ in range(333)]),
}


class FakeNvml:
    """The part of ``pynvml`` that is used, over busy GPUs. ``fails[call]`` maps a GPU's number to an error code."""

    NVMLError = NVMLError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, nvmlMemory_v2, NVML_GPM_METRICS_GET_VERSION = 1, 2, 0x2000028, 1

    def __init__(self, count: int = 1, *, gpm: bool = True) -> None:
        self.count = count
        self.gpm = gpm
        self.fails: dict[str, dict[int, int]] = {}
        #: ``blocks[call]``: the number of the GPU of which it does not return before the event is set.
        self.blocks: dict[str, tuple[int, threading.Event]] = {}
        self.blocked = threading.Event()
        self.calls: list[str] = []
        self.xids: list[tuple[int, int]] = []
        self.listened: list[Any] = []
        self.events_break: list[int] = []
        self.processes: dict[int, list[tuple[int, int | None]]] = {}
        self.latency_us: dict[int, int] = {}
        self.instances: dict[int, list[str]] = {}
        #: Fields that these GPUs lack, and values of fields that are not their number times a thousand.
        self.lacks: set[int] = set()
        self.fields: dict[int, int] = {165: 1}

    def __getattr__(self, name: str) -> Any:
        answer = ANSWERS.get(name) or object.__getattribute__(self, f"_{name}")

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            self._block(name, args)
            code = self.fails[name].get(args[0] if args else -1, 0) if name in self.fails else 0
            if code:
                raise NVMLError(code)
            return answer(*args, **kwargs)

        return call

    def _block(self, name: str, args: tuple[Any, ...]) -> None:
        number, event = self.blocks.get(name, (0, None))
        if event is not None and number == (args[0] if args else 0):
            self.blocked.set()
            assert event.wait(300), "the test did not release the driver"

    def _nvmlDeviceGetCount(self) -> int:
        return self.count

    def _nvmlDeviceGetFieldValues(self, _: int, fields: list[Any]) -> list[Any]:
        numbers = [field[0] if isinstance(field, tuple) else field for field in fields]
        return [
            ns(
                nvmlReturn=3 if number in self.lacks else 0,
                latencyUsec=self.latency_us.get(number, 3),
                valueType=3 if number != 82 else 1,
                value=ns(ullVal=self.fields.get(number, number * 1000), uiVal=71),
            )
            for number in numbers
        ]

    def _nvmlDeviceGetComputeRunningProcesses(self, gpu: int) -> list[Any]:
        return [ns(pid=pid, usedGpuMemory=used) for pid, used in self.processes.get(gpu, [])]

    def _nvmlDeviceGetMigMode(self, gpu: int) -> tuple[int, int]:
        return (1, 1) if gpu in self.instances else (0, 0)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: int, index: int) -> str:
        if index >= len(self.instances[gpu]):
            raise NVMLError(6)  # not found
        return self.instances[gpu][index]

    def _nvmlEventSetCreate(self) -> Any:
        self.listened.append(ns(gpus=set()))
        return self.listened[-1]

    def _nvmlDeviceRegisterEvents(self, gpu: int, _: int, events: Any) -> None:
        events.gpus.add(gpu)

    def _nvmlEventSetFree(self, events: Any) -> None:
        events.gpus.clear()

    def _nvmlEventSetWait_v2(self, events: Any, timeout_ms: int) -> Any:
        assert timeout_ms == 0, "the agent never waits for the driver"
        if self.events_break:
            raise NVMLError(self.events_break.pop())
        heard = next((xid for xid in self.xids if xid[0] in events.gpus), None)
        if heard is None:
            raise NVMLError(10)
        self.xids.remove(heard)
        return ns(device=heard[0], eventData=heard[1])

    def _nvmlGpmQueryDeviceSupport(self, _: int) -> Any:
        return ns(isSupportedDevice=int(self.gpm))

    def _nvmlGpmSampleGet(self, _: int, sample: Any) -> None:
        sample.taken += 1

    def _nvmlGpmMetricsGet(self, request: Any) -> None:
        assert request.sample1 is not request.sample2
        for slot in request.metrics[: request.numMetrics]:
            slot.value = 93.6


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drivers that answer do so within the tick, however busy the machine is that tests run on."""
    monkeypatch.setattr("hindmost_agent.runner.patience", lambda _: 30.0)


@pytest.fixture(autouse=True)
def unfrozen() -> Iterator[None]:
    """An agent that a test runs in this process freezes what it finds, as if alone: its open files would stay so."""
    before = gc.get_threshold()
    yield
    if gc.get_freeze_count():
        gc.set_threshold(*before)
        gc.unfreeze()
        gc.collect()


@pytest.fixture
def nvml() -> FakeNvml:
    """A node with two H200s under load."""
    return FakeNvml(2)


@pytest.fixture
def gpu_host(nvml: FakeNvml) -> Host:
    return Host(nvml_library=nvml)


class FakePsutil:
    """The part of ``psutil`` that is used, of a node with two threads a core; it knows of no process."""

    class Error(Exception): ...

    PROCFS_PATH = "/proc"

    def boot_time(self) -> float:
        return 1_700_000_000.0

    def cpu_count(self, *, logical: bool) -> int:
        return 192 if logical else 96

    def Process(self, pid: int) -> Any:
        raise self.Error(pid)


def local_statvfs(path: str) -> os.statvfs_result:
    return os.statvfs_result((4096, 4096, 1000, 600, 500, 100, 50, 40, 0, 255))


def whole_node(root: Path, gpus: FakeNvml) -> Host:
    """The host whose files ``typical_nodes`` wrote below ``root``, and one rank on it."""
    host = Host(
        proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup", dev=root / "dev", statvfs=local_statvfs,
        nvml_library=gpus, psutil=FakePsutil(),
    )  # fmt: skip
    gpus.instances[gpus.count - 1] = ["MIG-c0ffee00"]
    gpus.processes[0] = [(typical_nodes.PID, 5 << 30)]
    host.ranks.put(RankProcess("job", 0, 8, 0, typical_nodes.PID, typical_nodes.START))
    return host


@pytest.fixture
def node(tmp_path: Path) -> Host:
    """A whole node: 64 cores, 8 GPUs, adapters of three makers, Lustre, NFS, and one rank on it."""
    return whole_node(typical_nodes.build("whole", tmp_path / "node"), FakeNvml(8))


NODES = Path(__file__).resolve().parents[1] / "fixtures/nodes"
#: Machines that were recorded, both virtual ones with Linux 6.18. ``vm``: two cores, control groups of
#: version 1. ``h200x4``: 64 cores, control groups of version 2, four H200s with driver 580, four ranks of a DDP job;
#: the errors of the first GPU's links (fields 161 to 178) were asked for in a later session.
RECORDED = ("vm", "h200x4")


def recorded_node(name: str, dev: Path) -> Host:
    """A host that reads a recording instead of this machine; ``dev`` is an empty folder."""
    root = NODES / name
    answers = root / "nvml.json"
    gpus = PlayedNvml(json.loads(answers.read_text())) if answers.exists() else None
    host = Host(
        proc=root / "proc", sys=root / "sys", cgroup=root / "cgroup", dev=dev, statvfs=local_statvfs, nvml_library=gpus,
        psutil=FakePsutil(),
    )  # fmt: skip
    for rank in json.loads((root / "recorded.json").read_text())["ranks"]:
        host.ranks.put(RankProcess(**rank))
    return host


@pytest.fixture(params=RECORDED)
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> Host:
    return recorded_node(request.param, tmp_path)
