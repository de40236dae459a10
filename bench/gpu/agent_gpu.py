#!/usr/bin/env python3
"""What the agent's GPU part costs, and whether its readings are right. Needs NVIDIA GPUs.

    python bench/gpu/agent_gpu.py [--out results.json]     # about five minutes

Three parts, on every GPU that is visible; what the agent takes of a training step is measured by guest_parts.py:

1. cost: us a GPU of whole ticks at 1 Hz and at 10 Hz, GPM on, split by sampler and by call, idle and under load.
2. readings: the agent's values and nvidia-smi's, read within a second of each other, under a bf16 GEMM loop.
3. activity: GPM's tensor and DRAM activity for an idle GPU, a GEMM loop and a device-to-device copy loop.
   Neither uses NVLink, whose rates are 0 in the results.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import subprocess
import time
from pathlib import Path
from typing import Any

from gpu_load import load, stop  # first: puts the repository on the path
from hindmost_agent import samplers as folder
from hindmost_agent.sampler import Host
from nvml_ticks import show_ticks, ticks

#: What the agent's readings are compared with, and what of them does not stand still.
READ, COUNTED = ("nvidia", "nvidia_state"), ("nvidia_links", "nvidia_counters", "nvidia_health")
SMI = (
    "uuid,utilization.gpu,memory.used,power.draw.instant,power.draw.average,temperature.gpu,clocks.sm,clocks.mem,pstate"
)
SMI_METRIC = {
    "utilization.gpu": ("hindmost_gpu_utilization_ratio", 100.0),
    "memory.used": ("hindmost_gpu_memory_used_bytes", 1 / 2**20),
    "power.draw.average": ("hindmost_gpu_power_watts", 1.0),
    "power.draw.instant": ("hindmost_gpu_power_watts", 1.0),
    "temperature.gpu": ("hindmost_gpu_temperature_celsius", 1.0),
    "clocks.sm": ("hindmost_gpu_sm_clock_hertz", 1e-6),
    "clocks.mem": ("hindmost_gpu_memory_clock_hertz", 1e-6),
}


def samplers() -> dict[str, Any]:
    host, kinds = Host(), folder.load()
    return {name: kinds[name](host) for name in (*READ, *COUNTED, "nvidia_gpm")}


def cost(gpus: int) -> dict[str, Any]:
    """us a GPU of whole ticks at 1 Hz and 10 Hz, of each sampler and of each call."""
    found = {"1 Hz": ticks(1.0, 60, 0.5), "10 Hz": ticks(0.1, 10)}
    for rate, row in found.items():
        show_ticks(f"{rate}, {gpus} GPUs", row)
    return found


def values(*samplers: Any) -> dict[tuple[str, ...], float]:
    found = {}
    for sampler in samplers:
        read = sampler.sample()
        found.update(((one.metric.name, *one.values), value) for one, value in zip(sampler.series, read, strict=True))
    return found


def readings(made: dict[str, Any]) -> list[dict[str, Any]]:
    """Ours read before and after nvidia-smi: the span between the two shows what changes anyway."""
    before = values(*(made[name] for name in READ))
    query = ["nvidia-smi", f"--query-gpu={SMI}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(query, capture_output=True, text=True, check=True, timeout=60).stdout.splitlines()
    after = values(*(made[name] for name in READ))
    rows = []
    for line in lines:
        cells = dict(zip(SMI.split(","), (cell.strip() for cell in line.split(",")), strict=True))
        for column, (metric, unit) in SMI_METRIC.items():
            key = metric, cells["uuid"]
            ours = sorted((before[key] * unit, after[key] * unit))
            rows.append(
                {
                    "gpu": cells["uuid"][-4:],
                    "value": column,
                    "nvidia_smi": cells[column],
                    "agent": [round(v, 1) for v in ours],
                }
            )
    return rows


def activity(made: dict[str, Any], gpus: int) -> dict[str, dict[str, float]]:
    """Mean over the GPUs of each GPM value for three things that a GPU may do."""
    found = {}
    for kind in ("idle", "gemm", "copy"):
        processes = [] if kind == "idle" else load(kind, 30, gpus)
        try:
            values(made["nvidia_gpm"])
            time.sleep(4)
            read = values(made["nvidia_gpm"])
        finally:
            stop(processes)
        names = sorted({key[0] for key in read})
        found[kind] = {
            name.removeprefix("hindmost_gpu_"): round(
                statistics.fmean(v for key, v in read.items() if key[0] == name), 4
            )
            for name in names
        }
        time.sleep(2)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="also write the results here, as JSON")
    args = parser.parse_args()
    made = samplers()
    gpus = len(made["nvidia"].found)
    result = {"gpus": gpus, "unit": "us a GPU, side by side on one machine", **measured(made, gpus)}
    print(as_json(result), flush=True)
    if args.out:
        args.out.write_text(as_json(result) + "\n")


def as_json(result: dict[str, Any]) -> str:
    """What no GPU gave is null: JSON has no NaN, and most readers refuse it."""
    return json.dumps(_without_nan(result), indent=1, allow_nan=False)


def _without_nan(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def measured(made: dict[str, Any], gpus: int) -> dict[str, Any]:
    result: dict[str, Any] = {}
    result["cost_idle"] = cost(gpus)
    busy = load("gemm", 150, gpus)
    try:
        result["cost_under_load"] = cost(gpus)
        fields = values(*(made[name] for name in COUNTED))
        then = time.monotonic()
        result["readings_under_load"] = readings(made)
        time.sleep(3)
        later = values(*(made[name] for name in COUNTED))
        passed = time.monotonic() - then
        result["counters_per_second_under_load"] = {
            "/".join((key[0], *key[2:])): round((later[key] - value) / passed, 6)
            for key, value in fields.items()
            if key[0].endswith("_total") and key[1] == made["nvidia"].found[0].uuid and not math.isnan(value)
        }
    finally:
        stop(busy)
    result["activity"] = activity(made, gpus)
    return result


if __name__ == "__main__":
    main()
