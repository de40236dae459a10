#!/usr/bin/env python3
"""Whether a report says what bounds a job on a GPU, and how fast it computes. Needs an NVIDIA GPU since Hopper.

    python bench/gpu/quadrants.py [--seconds 25] [--write FILE] [--keep FOLDER]

Five loops, each bound by one thing by construction, run under ``hindmost run`` one after the other:

products   matrix products of bf16 that fill the GPU: tensor cores
copies     copies from the GPU's memory to itself: memory bandwidth
kernels    a deep model of tiny layers: launches of kernels
input      batches that take 30 ms to make: input
pageable   large batches of memory that is not pinned, copied to the GPU: copies

Each counts its own operations and bytes, and what it achieved is compared with the report's.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: What a report says of each.
BOUND = {"products": "gpu_compute", "copies": "gpu_memory", "kernels": "host", "input": "input", "pageable": "copies"}
TERA = 1e12


def products(torch: Any) -> tuple[Callable[[], None], float, float]:
    """Forward and backward of four linear layers; operations of a step are counted by hand."""
    width, batch, layers = 8192, 16384, 4
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    model = model.to("cuda", torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)
    x = torch.randn(batch, width, device="cuda", dtype=torch.bfloat16)

    def step() -> None:
        model(x).backward(x)
        optimizer.step()
        optimizer.zero_grad()

    one = 2.0 * batch * width * width  # of one product: forward, gradient of weights, gradient of the layer's input
    return step, one * (3 * layers - 1), 0.0


def copies(torch: Any) -> tuple[Callable[[], None], float, float]:
    """Each byte is read once and written once."""
    import hindmost  # noqa: PLC0415 - of the loop's process alone

    source = torch.randn(1 << 30, device="cuda")
    target = torch.empty_like(source)

    def step() -> None:
        with hindmost.step():
            for _ in range(10):
                target.copy_(source)
            torch.cuda.synchronize()

    return step, 0.0, 20.0 * source.numel() * 4


def kernels(torch: Any) -> tuple[Callable[[], None], float, float]:
    """Two hundred layers of 64 numbers each, and an optimizer that takes each tensor for itself."""
    model = torch.nn.Sequential(*(torch.nn.Linear(64, 64) for _ in range(200))).cuda()
    optimizer = torch.optim.Adam(model.parameters(), foreach=False)
    x = torch.randn(16, 64, device="cuda")

    def step() -> None:
        model(x).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, 0.0, 0.0


def _fed(torch: Any, batches: Iterator[Any]) -> Callable[[], None]:
    model = torch.nn.Linear(1024, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 1e-6)

    def step() -> None:
        x = next(batches).to("cuda")
        model(x.reshape(-1, 1024)[:4096]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _loader(torch: Any, rows: int, delay: float) -> Iterator[Any]:
    class Rows(torch.utils.data.Dataset):
        def __init__(self) -> None:
            self.batch = torch.rand(rows, 1024)

        def __len__(self) -> int:
            return 1 << 30

        def __getitem__(self, _: int) -> Any:
            time.sleep(delay)
            return self.batch

    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, shuffle=False)
    return iter(loader)


def starved(torch: Any) -> tuple[Callable[[], None], float, float]:
    """A batch takes 30 ms to make, in the training process itself."""
    return _fed(torch, _loader(torch, 4096, 0.03)), 0.0, 0.0


def pageable(torch: Any) -> tuple[Callable[[], None], float, float]:
    """A batch of 1 GiB is there at once, and is copied from pageable memory."""
    return _fed(torch, _loader(torch, 1 << 18, 0.0)), 0.0, 0.0


LOOPS = {"products": products, "copies": copies, "kernels": kernels, "input": starved, "pageable": pageable}


def loop(name: str, seconds: float, to: Path) -> None:
    """Run it for so long, and say what it achieved after its first two seconds."""
    import torch  # noqa: PLC0415 - of the loop's process alone

    step, operations, moved = LOOPS[name](torch)
    ends = [time.monotonic() + 2.0, time.monotonic() + 2.0 + seconds]
    done = [0, 0]
    took = [0.0, 0.0]
    for part, end in enumerate(ends):
        torch.cuda.synchronize()
        began = time.monotonic()
        while time.monotonic() < end:
            step()
            done[part] += 1
            if not done[part] % 8:  # a host that is thousands of launches ahead would count what has not been done
                torch.cuda.synchronize()
        torch.cuda.synchronize()
        took[part] = time.monotonic() - began
    pace = done[1] / took[1]
    said = {"steps_per_s": pace, "flops": operations * pace, "bytes": moved * pace, "gpu": torch.cuda.get_device_name()}
    to.write_text(json.dumps(said))


def observed(name: str, seconds: float, folder: Path) -> dict[str, Any]:
    """The loop under ``hindmost run``: its own count, and what the report says."""
    truth, runs = folder / f"{name}.json", folder / name
    hindmost = [sys.executable, "-m", "hindmost"]
    job = [sys.executable, __file__, "--loop", name, "--seconds", str(seconds), "--to", str(truth)]
    subprocess.run([*hindmost, "run", "--out", str(runs), "--", *job], check=True, stdout=subprocess.DEVNULL)
    command = [*hindmost, "report", str(runs), "--format", "json", "--sections", "limits,advice,throughput,gpus"]
    report = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    limits, advice = report["sections"]["limits"], report["sections"]["advice"]["settings"]
    (bound,) = limits["bound"] or [{"by": None, "evidence": ""}]
    (roof,) = limits.get("achieved") or [{}]
    counted = json.loads(truth.read_text())
    return {
        "loop": name,
        "expected": BOUND[name],
        "bound": bound["by"],
        "evidence": bound["evidence"],
        "counted_tflops": counted["flops"] / TERA,
        "said_tflops": (roof.get("flops") or 0.0) / TERA,
        "counted_tbytes": counted["bytes"] / TERA,
        "said_tbytes": (roof.get("bytes_per_s") or 0.0) / TERA,
        "advice": [one["name"] for one in advice],
        "gpu": counted["gpu"],
    }


def main() -> None:
    """Run the loops, print a line each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loop", choices=LOOPS, help=argparse.SUPPRESS)
    parser.add_argument("--to", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=LOOPS, action="append")
    parser.add_argument("--seconds", type=float, default=25.0)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep the recordings there")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    if args.loop:
        return loop(args.loop, args.seconds, args.to)
    with tempfile.TemporaryDirectory(prefix="hindmost-quadrants-") as name:
        folder = args.keep or Path(name)
        folder.mkdir(exist_ok=True, parents=True)
        found = []
        for one in args.only or LOOPS:
            found.append(observed(one, args.seconds, folder))
            print(json.dumps(found[-1]), flush=True)
    right = sum(one["bound"] == one["expected"] for one in found)
    print(f"{right} of {len(found)} in their quadrant, {os.uname().nodename}")
    if args.write:
        args.write.write_text(json.dumps({"made_by": "bench/gpu/quadrants.py", "loops": found}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
