#!/usr/bin/env python3
"""What the agent costs a node: CPU share of one core and resident memory.

    python -m bench.agent_cost [--seconds 60] [--rounds 3] [--out bench/results/agent_cost.json]

The agent streams once a second to a collector in a process of its own, and reads the rings of four training processes
(10 steps a second each, 7 phases and a collective a step). With --also DIR the agent of another checkout of hindmost
does the same at the same time, with four such processes of its own.

CPU time is the scheduler's, in ns, all threads (/proc/PID/task/*/schedstat), so short runs are exact.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from bench.checkout import packages, write

ROOT = Path(__file__).resolve().parents[1]
#: What the agent may cost at 1 Hz with four training processes and no GPU.
AIM_PERCENT, AIM_MIB = 0.2, 45.0

RANK = """
import sys, time
from hindmost import ring
from hindmost.identity import Identity
folder, rank = sys.argv[1], int(sys.argv[2])
writer = ring.Writer.create(folder, Identity("bench", rank, 4, rank, "node", "torch", "train.py"), "py")
train, reduce_ = writer.name("train"), writer.name("all_reduce")
phases = [writer.name(name) for name in ("input", "h2d", "forward", "backward", "sync", "optimizer", "gc")]
comm = writer.communicator(77, rank, 4, "world")
step = 0
while True:
    start = time.monotonic_ns()
    time.sleep(0.1)
    took = time.monotonic_ns() - start
    for place, phase in enumerate(phases):
        writer.event(ring.PHASE, phase, start + place * took // 8, took // 8)
    writer.event(ring.COLLECTIVE, reduce_, start + took // 2, took // 8, seq=step, comm=comm, value=1 << 20)
    writer.event(ring.STEP, train, start, took, seq=step, value=32)
    step += 1
"""


class Watched:
    """A process whose CPU time and memory are measured from ``mark`` on."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self._cpu_ns = self._then_ns = 0

    def cpu_ns(self) -> int:
        """CPU time of all its threads, ns."""
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")
        return sum(int(task.read_text().split()[0]) for task in tasks)

    def mark(self) -> None:
        self._cpu_ns, self._then_ns = self.cpu_ns(), time.monotonic_ns()

    def result(self) -> dict[str, float]:
        share = 100 * (self.cpu_ns() - self._cpu_ns) / (time.monotonic_ns() - self._then_ns)
        status = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kib = {line.split(":")[0]: int(line.split()[1]) for line in status if line.startswith(("VmRSS", "VmHWM"))}
        return {
            "cpu_percent_of_a_core": round(share, 4),
            "rss_mib": round(kib["VmRSS"] / 1024, 1),
            "peak_rss_mib": round(kib["VmHWM"] / 1024, 1),
        }


class Bench:
    """Starts everything below one folder, and ends it all."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environ = {**os.environ, "PYTHONPATH": packages(ROOT)}
        self.started: list[subprocess.Popen[str]] = []

    def start(self, *command: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            command, env=self.environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.started.append(process)
        return process

    def hindmost(self, *args: str) -> tuple[subprocess.Popen[str], dict[str, str]]:
        """A service, and what it says of itself once it is ready."""
        process = self.start(sys.executable, "-m", "hindmost", *args, "--exit-when-stdin-closes")
        assert process.stdout is not None
        return process, json.loads(process.stdout.readline())

    def agent_of(self, checkout: Path, collector: str, name: str) -> Watched:
        """An agent of a checkout, and four training processes of its own: it owns the rings that it reads."""
        self.environ = {**os.environ, "PYTHONPATH": packages(checkout)}
        rings = self.folder / name
        rings.mkdir()
        for rank in range(4):
            self.start(sys.executable, "-c", RANK, str(rings), str(rank))
        words = ["--collector", collector, "--ring-dir", str(rings), "--spool", str(self.folder / f"spool-of-{name}")]
        return Watched(self.hindmost("agent", *words, "--interval", "1s")[0])

    def end(self) -> None:
        for process in self.started:
            process.kill()
        for process in self.started:
            process.wait()


def measure(seconds: float, also: Path | None = None) -> dict[str, dict[str, float]]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as name:
        bench = Bench(Path(name))
        try:
            _, said = bench.hindmost("collector", "--listen", "127.0.0.1:0", "--out", str(bench.folder / "run"))
            watched = {"agent 1 Hz": bench.agent_of(ROOT, said["grpc"], "rings-1")}
            if also:
                watched["also 1 Hz"] = bench.agent_of(also, said["grpc"], "rings-also")
            time.sleep(5)  # start-up is not what is asked for
            for one in watched.values():
                one.mark()
            time.sleep(seconds)
            return {name: one.result() for name, one in watched.items()}
        finally:
            bench.end()


def spread(values: list[float]) -> dict[str, float]:
    """Lowest, median and highest of some rounds."""
    return {"min": min(values), "median": round(statistics.median(values), 4), "max": max(values)}


def summary(rounds: list[dict[str, dict[str, float]]]) -> dict[str, Any]:
    """Each process's cost over all rounds, and the agent's CPU time as a multiple of the others' in the same round."""
    cost = "cpu_percent_of_a_core"
    names = list(rounds[0])
    found: dict[str, Any] = {
        name: {
            cost: spread([one[name][cost] for one in rounds]),
            "rss_mib": max(one[name]["rss_mib"] for one in rounds),
        }
        for name in names
    }
    others = [name for name in names if not name.startswith("agent")]
    found["ratios"] = {
        f"agent 1 Hz / {other}": spread([round(one["agent 1 Hz"][cost] / one[other][cost], 3) for one in rounds])
        for other in others
    }
    mine = found["agent 1 Hz"]
    found["aims"] = {
        "cpu_percent_of_a_core": [AIM_PERCENT, mine[cost]["median"] <= AIM_PERCENT],
        "rss_mib": [AIM_MIB, mine["rss_mib"] <= AIM_MIB],
    }
    return found


def show(found: dict[str, Any]) -> None:
    for name, one in found.items():
        if name not in {"ratios", "aims"}:
            low, middle, high = one["cpu_percent_of_a_core"].values()
            print(f"{name:<20} {middle:7.3f} % ({low:.3f} to {high:.3f}) {one['rss_mib']:6.1f} MiB")
    for name, ratio in found["ratios"].items():
        print(f"{name:<32} {ratio['median']:.2f} ({ratio['min']:.2f} to {ratio['max']:.2f})")
    for name, (aim, reached) in found["aims"].items():
        print(f"aim {name} <= {aim}: {'reached' if reached else 'not reached'}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=3, help="repeated, to see the spread")
    parser.add_argument("--out", type=Path, help="also write the results here, as JSON")
    parser.add_argument("--also", type=Path, help="another checkout of hindmost, to compare with")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    rounds = [measure(args.seconds, args.also) for _ in range(args.rounds)]
    found = summary(rounds)
    python, protobuf = sys.version.split()[0], metadata.version("protobuf")
    machine = f"{os.cpu_count()} cores, no GPU, Python {python}, protobuf {protobuf}"
    print(f"{args.rounds} x {args.seconds:.0f} s on {machine}; load {before:.1f} before; % of a core, median (range)")
    show(found)
    if args.out:
        what = "bench/agent_cost.py: all of them at once, 4 training processes of 10 steps a second for each agent"
        result = {"what": what, "machine": machine, "load_before": before, "seconds": args.seconds, "rounds": rounds}
        write(args.out, {**result, "summary": found})


if __name__ == "__main__":
    main()
