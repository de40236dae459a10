#!/usr/bin/env python3
"""What each call into NVML costs, and what a tick of the agent's GPU samplers is made of. Needs NVIDIA GPUs.

    python bench/gpu/nvml_cost.py [--out results.json] [--pace 1.0] [--skip-calls]

Two parts, every GPU under a bf16 GEMM loop:

1. calls: each candidate alone, ten times a second, in turning order, so that none is always the first of its tick.
2. ticks: the agent's own runner with its GPU samplers: us a GPU of whole ticks and of each call, over the ticks of a
   minute at 1 Hz, so that every sampler is due in it, and of 20 s at 10 Hz. With --pace the former follow each other
   so many seconds apart instead of one: a quick look.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_load import load, stop  # first: puts the repository on the path
from hindmost_agent import samplers as folder
from hindmost_agent.gpu import GpuSampler
from hindmost_agent.nvml import opened
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import Host

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NS = 1_000_000_000
#: Field values by number and scope (all links); names as in nvml.h, without NVML_FI_DEV_.
ALL_LINKS = 0xFFFFFFFF
FIELDS = {
    "MEMORY_TEMP": (82, 0), "TOTAL_ENERGY_CONSUMPTION": (83, 0), "POWER_INSTANT": (186, 0), "POWER_AVERAGE": (185, 0),
    "PCIE_REPLAY_COUNTER": (94, 0), "PCIE_COUNT_TX_BYTES": (197, 0), "PCIE_COUNT_RX_BYTES": (198, 0),
    "NVLINK_THROUGHPUT_DATA_TX": (138, ALL_LINKS), "NVLINK_THROUGHPUT_DATA_RX": (139, ALL_LINKS),
    "NVLINK_REPLAY_TOTAL": (52, 0), "NVLINK_CRC_FLIT_TOTAL": (38, 0), "NVLINK_CRC_DATA_TOTAL": (45, 0),
    "CLOCKS_EVENT_SW_POWER_CAP": (74, 0), "CLOCKS_EVENT_SYNC_BOOST": (76, 0), "CLOCKS_EVENT_SW_THERM": (269, 0),
    "CLOCKS_EVENT_HW_THERM": (270, 0), "CLOCKS_EVENT_HW_BRAKE": (271, 0),
}  # fmt: skip


def candidates(lib: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    """Every call that a sampler makes or could make."""
    found: dict[str, Callable[[], Any]] = {
        "UtilizationRates": lambda: lib.nvmlDeviceGetUtilizationRates(gpu),
        "MemoryInfo v2": lambda: lib.nvmlDeviceGetMemoryInfo(gpu, version=lib.nvmlMemory_v2),
        "PowerUsage": lambda: lib.nvmlDeviceGetPowerUsage(gpu),
        "Temperature": lambda: lib.nvmlDeviceGetTemperature(gpu, 0),
        "ClockInfo SM": lambda: lib.nvmlDeviceGetClockInfo(gpu, lib.NVML_CLOCK_SM),
        "ClockInfo MEM": lambda: lib.nvmlDeviceGetClockInfo(gpu, lib.NVML_CLOCK_MEM),
        "PerformanceState": lambda: lib.nvmlDeviceGetPerformanceState(gpu),
        "CurrentClocksEventReasons": lambda: lib.nvmlDeviceGetCurrentClocksEventReasons(gpu),
        "EnforcedPowerLimit": lambda: lib.nvmlDeviceGetEnforcedPowerLimit(gpu),
        "TotalEccErrors": lambda: lib.nvmlDeviceGetTotalEccErrors(gpu, 0, 0),
        "RemappedRows": lambda: lib.nvmlDeviceGetRemappedRows(gpu),
        "CurrPcieLinkWidth": lambda: lib.nvmlDeviceGetCurrPcieLinkWidth(gpu),
        "CurrPcieLinkGeneration": lambda: lib.nvmlDeviceGetCurrPcieLinkGeneration(gpu),
        "ComputeRunningProcesses": lambda: lib.nvmlDeviceGetComputeRunningProcesses(gpu),
        "MigMode": lambda: lib.nvmlDeviceGetMigMode(gpu),
        "UUID": lambda: lib.nvmlDeviceGetUUID(gpu),
    }
    for name, field in FIELDS.items():
        found[f"field {name}"] = lambda field=field: lib.nvmlDeviceGetFieldValues(gpu, [field])
    found["fields MEMORY_TEMP and both powers"] = lambda: lib.nvmlDeviceGetFieldValues(gpu, [82, 185, 186])
    if lib.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
        found.update(_gpm(lib, gpu))
    return found


def _gpm(lib: Any, gpu: Any) -> dict[str, Callable[[], Any]]:
    first, second = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
    lib.nvmlGpmSampleGet(gpu, first)
    time.sleep(0.2)
    lib.nvmlGpmSampleGet(gpu, second)

    def metrics(numbers: tuple[int, ...]) -> Callable[[], Any]:
        request = lib.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = lib.NVML_GPM_METRICS_GET_VERSION, len(numbers)
        request.sample1, request.sample2 = first, second
        for slot, number in zip(request.metrics, numbers, strict=False):
            slot.metricId = number
        return lambda: lib.nvmlGpmMetricsGet(request)

    third = lib.nvmlGpmSampleAlloc()
    return {
        "GPM sample": lambda: lib.nvmlGpmSampleGet(gpu, third),
        "GPM 4 metrics": metrics((2, 3, 5, 10)),
        "GPM 11 metrics": metrics((2, 3, 5, 10, 11, 12, 13, 20, 21, 60, 61)),
    }


def quantiles(times: list[float]) -> dict[str, float]:
    times = sorted(times)
    return {
        "mean_us": round(statistics.fmean(times), 1),
        "p50_us": round(statistics.median(times), 1),
        "p99_us": round(times[min(int(len(times) * 0.99), len(times) - 1)], 1),
        "max_us": round(times[-1], 1),
        "count": len(times),
    }


def calls(host: Host, seconds: float) -> dict[str, Any]:
    """Part 1, on the first GPU."""
    nvml = opened(host)
    offered = candidates(nvml.lib, nvml.devices[0].handle)
    asked = {name: call for name, call in offered.items() if _there(nvml.lib, name, call)}
    times: defaultdict[str, list[float]] = defaultdict(list)
    names = list(asked)
    for tick in pacing(0.1, seconds):
        turn = tick % len(names)
        for name in names[turn:] + names[:turn]:
            began = time.perf_counter_ns()
            asked[name]()
            times[name].append((time.perf_counter_ns() - began) / 1e3)
    return {name: quantiles(took) for name, took in times.items()}


def _there(lib: Any, name: str, call: Callable[[], Any]) -> bool:
    try:
        call()
    except lib.NVMLError as error:
        print(f"  not here: {name} ({error})")
        return False
    return True


def pacing(period_s: float, seconds: float) -> Iterator[int]:
    """0, 1, 2, … once a period until the time is spent."""
    start = time.monotonic()
    for tick in range(max(int(seconds / period_s), 1)):
        time.sleep(max(start + tick * period_s - time.monotonic(), 0))
        yield tick


class Split:
    """The time of each call that the cards of a sampler make, taken around it."""

    def __init__(self) -> None:
        self.us: defaultdict[str, list[float]] = defaultdict(list)

    def timed(self, name: str, call: Callable[[], Any]) -> Callable[[], Any]:
        def read() -> Any:
            began = time.perf_counter_ns()
            try:
                return call()
            finally:
                self.us[name].append((time.perf_counter_ns() - began) / 1e3)

        return read

    def watch(self, kind: type[GpuSampler]) -> type[GpuSampler]:
        """The same sampler, whose cards' calls are timed."""
        split = self

        class Watched(kind):  # type: ignore[misc, valid-type]
            def cards(self) -> Any:
                cards = super().cards()
                for card in cards:
                    named = zip(card._names, card._calls, strict=True)
                    card._calls = [split.timed(f"{kind.name}: {name}", call) for name, call in named]
                return cards

        return Watched


def ticks(interval_s: float, seconds: float, pace_s: float | None = None) -> dict[str, Any]:
    """Part 2: us a GPU of whole ticks and of samplers, and then, in as much time again, of each call."""
    split = Split()
    kinds = {name: kind for name, kind in folder.load().items() if name.startswith("nvidia")}
    watched = {name: split.watch(kind) if issubclass(kind, GpuSampler) else kind for name, kind in kinds.items()}
    when = interval_s, round(seconds / interval_s), pace_s or interval_s
    found = _ticks(kinds, *when)
    _ticks(watched, *when, warm=split.us.clear)
    found["calls"] = {name: quantiles(took) for name, took in split.us.items()}
    periods = {name: max(kinds[name].period, interval_s) for name in found["samplers"]}
    found["mean_a_tick_us"] = round(
        sum(row["mean_us"] * interval_s / periods[name] for name, row in found["samplers"].items()), 1
    )
    return found


def _ticks(
    kinds: Any, interval_s: float, count: int, pace_s: float, warm: Callable[[], None] = lambda: None
) -> dict[str, Any]:
    """The first tick makes everything, and is left out; ``warm`` is called after it."""
    host = Host()
    runner = Runner(kinds, host, int(interval_s * NS))
    runner.run(0)
    warm()
    gpus, times, read = len(opened(host).devices), list[float](), defaultdict[str, list[float]](list)
    for tick in pacing(pace_s, count * pace_s):
        began = time.perf_counter_ns()
        readings = runner.run(int((tick + 1) * interval_s * NS))
        times.append((time.perf_counter_ns() - began) / 1e3 / gpus)
        for reading in readings:
            read[reading.sampler].append(host.own.duration_s[reading.sampler] * 1e6 / gpus)
    return {"tick": quantiles(times), "samplers": {name: quantiles(took) for name, took in read.items()}}


def show(title: str, rows: dict[str, dict[str, float]]) -> None:
    print(f"{title:<58}     mean      p50      p99      max  count")
    for name, row in sorted(rows.items(), key=lambda item: -item[1]["mean_us"]):
        cells = "".join(f"{row[key]:9.1f}" for key in ("mean_us", "p50_us", "p99_us", "max_us"))
        print(f"  {name:<56}{cells}{row['count']:7.0f}")


def show_ticks(rate: str, found: dict[str, Any]) -> None:
    show(f"{rate}: whole tick, us a GPU", {"tick": found["tick"]})
    print(f"  of samplers, each spread over its period: {found['mean_a_tick_us']} us a GPU and tick")
    show(f"{rate}: samplers when they are due, us a GPU", found["samplers"])
    show(f"{rate}: calls, us", found["calls"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--pace", type=float, default=1.0, help="seconds between two ticks of the 1 Hz part")
    parser.add_argument("--skip-calls", action="store_true", help="only part 2")
    args = parser.parse_args()
    gpus = len(opened(Host()).devices)
    result: dict[str, Any] = {"gpus": gpus, "under": "bf16 GEMM loop", "unit": "us a GPU"}
    busy = load("gemm", math.ceil(args.pace * 140 + 120), gpus)
    try:
        if not args.skip_calls:
            result["calls"] = calls(Host(), 20)
            show("one call, us", result["calls"])
        for rate, interval_s, seconds, pace_s in (("1 Hz", 1.0, 60, args.pace), ("10 Hz", 0.1, 20 * args.pace, 0.1)):
            result[rate] = ticks(interval_s, seconds, pace_s)
            show_ticks(rate, result[rate])
    finally:
        stop(busy)
    if args.out:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
