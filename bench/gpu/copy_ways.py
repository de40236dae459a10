"""Ways to time a copy to the GPU from outside, compared with the PyTorch profiler's times of the same copies.

    python bench/gpu/copy_ways.py [--out FILE]

The GPU is idle when each copy begins, as it is in front of a loop that waits for its input. Of each kind of copy (size,
pinned or pageable, blocking or not), with the profiler off and on, medians in ms and the 10th and 90th percentile:

events          between two CUDA events around the call
held_30 …       the same where a kernel that spins for so many us was launched first: the GPU comes to the copy when
                the host has launched it
call            what the host was in the call
memcpy          the profiler's copy (gpu_memcpy); runtime: from the begin of its cudaMemcpyAsync to the end of the last
                runtime call in the same copy, cudaStreamSynchronize where it blocks
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import tempfile
import time
from itertools import product
from pathlib import Path
from typing import Any

REPEATS = 40
SIZES = (16_384, 1 << 20, 1 << 25)
HOLDS_US = (0, 30, 60, 120)
CYCLES_A_US = 1980  # an H200 at its highest clock: a hold is this long or longer
SOON_US = 50  # a call that waits for a copy follows it within this
RUNTIME = ("cudaMemcpyAsync", "cudaStreamSynchronize")


def copy(torch: Any, x: Any, blocks: bool, hold_us: int) -> tuple[float, float]:
    """ms between the events and of the call."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    time.sleep(0.001)
    if hold_us:
        torch.cuda._sleep(hold_us * CYCLES_A_US)
    begin.record()
    started = time.perf_counter()
    x.to("cuda", non_blocking=not blocks)
    call = time.perf_counter() - started
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end), call * 1e3


def spread(values: list[float]) -> list[float]:
    """Median, 10th and 90th percentile."""
    ranked = sorted(values)
    return [round(statistics.median(ranked), 4), *(round(ranked[len(ranked) * part // 10], 4) for part in (1, 9))]


def traced(profile: Any) -> tuple[list[float], list[float]]:
    """ms of each copy to the GPU, in order, and of its runtime calls."""
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        profile.export_chrome_trace(file.name)
        events = json.loads(Path(file.name).read_text())["traceEvents"]
    copies = sorted((one for one in events if one.get("cat") == "gpu_memcpy" and "HtoD" in one["name"]), key=start)
    calls = sorted((one for one in events if one.get("cat") == "cuda_runtime" and one["name"] in RUNTIME), key=start)
    spans = []
    for call, after in zip(calls, [*calls[1:], None], strict=True):
        if call["name"] == RUNTIME[0]:
            waits = after is not None and after["name"] == RUNTIME[1] and start(after) < end(call) + SOON_US
            spans.append((end(after if waits else call) - start(call)) / 1e3)
    return [float(one["dur"]) / 1e3 for one in copies], spans


def start(event: Any) -> float:
    return float(event["ts"])


def end(event: Any) -> float:
    return float(event["ts"]) + float(event["dur"])


def measure(torch: Any, size: int, pinned: bool, blocks: bool) -> dict[str, Any]:
    x = torch.rand(size // 4, pin_memory=pinned)
    found: dict[str, Any] = {"bytes": size, "pinned": pinned, "blocks": blocks}
    for hold in HOLDS_US:
        name = f"held_{hold}" if hold else "events"
        took = [copy(torch, x, blocks, hold) for _ in range(REPEATS)]
        found[name], found[f"call {name}"] = (spread([one[part] for one in took]) for part in (0, 1))
        with torch.profiler.profile() as profile:
            took = [copy(torch, x, blocks, hold) for _ in range(REPEATS)]
        copies, spans = traced(profile)
        found[f"{name} profiled"], found[f"call {name} profiled"] = (
            spread([one[part] for one in took]) for part in (0, 1)
        )
        found[f"memcpy {name}"], found[f"runtime {name}"] = spread(copies), spread(spans)
        if len(copies) == REPEATS:
            pairs = zip(took, copies, strict=True)
            found[f"difference {name}"] = spread([ours[0] / theirs - 1 for ours, theirs in pairs])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("copy_ways.json"))
    args = parser.parse_args()
    torch = importlib.import_module("torch")
    torch.zeros(1, device="cuda")
    with torch.profiler.profile():
        torch.zeros(1, device="cuda")
    found = []
    for size, pinned, blocks in product(SIZES, (True, False), (True, False)):
        found.append(measure(torch, size, pinned, blocks))
        print(json.dumps(found[-1]), flush=True)
        args.out.write_text(json.dumps({"device": torch.cuda.get_device_name(), "copies": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
