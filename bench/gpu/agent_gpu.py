#!/usr/bin/env python3
"""What the agent's GPU part costs, whether its readings are right, what it does to a training job. Needs NVIDIA GPUs.

    python bench/gpu/agent_gpu.py [--out results.json] [--minutes 7] [--only-training]

Four parts, on every GPU that is visible:

1. cost: us a GPU of whole ticks at 1 Hz and at 10 Hz, GPM on, split by sampler and by call, idle and under load.
2. readings: the agent's values and nvidia-smi's, read within a second of each other, under a bf16 GEMM loop.
3. activity: GPM's tensor and DRAM activity for an idle GPU, a GEMM loop and a device-to-device copy loop.
   Neither uses NVLink, whose rates are 0 in the results.
4. training: step time of a DDP transformer without an agent, with one at 1 Hz and one at 10 Hz, interleaved.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from gpu_load import load, stop  # first: puts the repository on the path
from hindmost_agent import samplers as folder
from hindmost_agent.sampler import Host
from nvml_ticks import show_ticks, ticks

#: Length of one block of training steps.
BLOCK_MS = 2_000
#: What the agent's readings are compared with, and what of them does not stand still.
READ, COUNTED = ("nvidia", "nvidia_state"), ("nvidia_links", "nvidia_counters", "nvidia_health")
TRAIN = """
import os, sys, time, torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP
rank = int(os.environ["RANK"]); torch.cuda.set_device(rank)
dist.init_process_group("nccl")
layer = nn.TransformerEncoderLayer(1024, 16, 4096, batch_first=True, device="cuda", dtype=torch.bfloat16)
model = DDP(nn.TransformerEncoder(layer, 6).to("cuda", torch.bfloat16), device_ids=[rank])
optimizer = torch.optim.AdamW(model.parameters(), fused=True)
x = torch.randn(16, 512, 1024, device="cuda", dtype=torch.bfloat16)
def step():
    model(x).float().pow(2).mean().backward(); optimizer.step(); optimizer.zero_grad()
for _ in range(30):
    step()
torch.cuda.synchronize(); dist.barrier()
if rank == 0:
    print("warm", flush=True)
while True:
    line = torch.zeros(1, dtype=torch.int64, device="cuda")
    if rank == 0:
        word = sys.stdin.readline().strip()
        line[0] = int(word) if word else 0
    dist.broadcast(line, 0)
    steps = int(line.item())
    if not steps:
        break
    torch.cuda.synchronize(); started = time.perf_counter()
    for _ in range(steps):
        step()
    torch.cuda.synchronize()
    if rank == 0:
        print((time.perf_counter() - started) / steps * 1e3, flush=True)
dist.destroy_process_group()
"""

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


class Agent:
    """A real agent process without a collector: its spool takes everything.

    It stands still (SIGSTOP) but for the blocks that it is wanted in: rounds are short, and many.
    """

    def __init__(self, interval: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        path = self._folder.name
        command = [
            sys.executable, "-m", "hindmost", "agent", "--collector", "127.0.0.1:9", "--interval", interval,
            "--exit-when-stdin-closes",
            "--ring-dir", f"{path}/rings", "--spool", f"{path}/spool",
        ]  # fmt: skip
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            raise SystemExit("the agent ended at once: start it by hand to see why")
        time.sleep(3)  # the first tick makes everything
        self._ran_s = self._used_s = 0.0
        self._process.send_signal(signal.SIGSTOP)

    def __enter__(self) -> None:
        self._process.send_signal(signal.SIGCONT)
        time.sleep(0.1)  # what it makes up for is not the block's
        self._cpu0, self._then = self._cpu(), time.monotonic()

    def __exit__(self, *_: object) -> None:
        self._used_s += self._cpu() - self._cpu0
        self._ran_s += time.monotonic() - self._then
        self._process.send_signal(signal.SIGSTOP)

    def _cpu(self) -> float:
        tasks = Path(f"/proc/{self._process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def stop(self) -> dict[str, float]:
        """CPU share of one core in per cent, and RSS in MiB."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        resident = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS")) / 1024
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()
        return {
            "agent_cpu_percent": round(100 * self._used_s / self._ran_s, 3),
            "agent_rss_mib": round(resident, 1),
        }


def training(gpus: int, seconds: float) -> dict[str, Any]:
    """Step times (ms) of one running job in blocks: none, 1 Hz, 10 Hz, none, … until the time is spent."""
    with tempfile.NamedTemporaryFile("w", suffix=".py") as script:
        script.write(TRAIN)
        script.flush()
        environ = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29617", "WORLD_SIZE": str(gpus)}
        ranks = [
            subprocess.Popen(
                [sys.executable, script.name], env={**environ, "RANK": str(rank)}, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(gpus)
        ]  # fmt: skip
        try:
            return _blocks(ranks[0], seconds)
        finally:
            for process in ranks:
                process.kill()
                process.wait()


def _blocks(first: subprocess.Popen[str], seconds: float) -> dict[str, Any]:
    assert first.stdin is not None
    assert first.stdout is not None
    while first.stdout.readline().strip() != "warm":
        if first.poll() is not None:
            raise SystemExit("the training job ended before it was warm")

    def block(steps: int) -> float:
        assert first.stdin is not None
        assert first.stdout is not None
        print(steps, file=first.stdin, flush=True)
        return float(first.stdout.readline())

    steps = max(int(BLOCK_MS / block(50)), 20)
    agents = {"1 Hz": Agent("1s"), "10 Hz": Agent("100ms")}
    times: dict[str, list[float]] = {"none": [], **{mode: [] for mode in agents}}
    end, order = time.monotonic() + seconds, list(times)
    while time.monotonic() < end or not times["10 Hz"]:
        for mode in order:
            with agents.get(mode, contextlib.nullcontext()):
                times[mode].append(block(steps))
        order.reverse()  # so that a drift of clocks or temperature favours no mode
    print("", file=first.stdin, flush=True)
    return summary(times, {mode: agent.stop() for mode, agent in agents.items()}, steps)


def summary(times: dict[str, list[float]], agents: dict[str, dict[str, float]], steps: int) -> dict[str, Any]:
    """Medians, and the mean ratio of each mode to none in its own round with its 95 % interval."""
    found: dict[str, Any] = {"steps_a_block": steps, "rounds": len(times["none"]), "step_ms": {}}
    for mode, took in times.items():
        row: dict[str, Any] = {"median": round(statistics.median(took), 3), "all": [round(t, 3) for t in took]}
        if mode != "none":
            ratios = [with_ / without for with_, without in zip(took, times["none"], strict=True)]
            mean = statistics.fmean(ratios)
            half = 1.96 * statistics.stdev(ratios) / math.sqrt(len(ratios)) if len(ratios) > 1 else math.nan
            row["ratio_mean"] = round(mean, 5)
            row["ratio_95_interval"] = [round(mean - half, 5), round(mean + half, 5)]
            row |= agents[mode]
        found["step_ms"][mode] = row
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=None, help="also write the results here, as JSON")
    parser.add_argument("--minutes", type=float, default=7.0, help="for everything")
    parser.add_argument("--only-training", action="store_true", help="only part 4")
    args = parser.parse_args()
    end = time.monotonic() + args.minutes * 60
    made = samplers()
    gpus = len(made["nvidia"].found)
    result: dict[str, Any] = {"gpus": gpus, "unit": "us a GPU, side by side on one machine"}
    if not args.only_training:
        result |= parts_1_to_3(made, gpus)
        print(as_json(result), flush=True)
    result["training"] = training(gpus, max(end - time.monotonic() - 20, 30))
    print(as_json({"training": result["training"]}), flush=True)
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


def parts_1_to_3(made: dict[str, Any], gpus: int) -> dict[str, Any]:
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
