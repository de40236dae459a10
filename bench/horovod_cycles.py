#!/usr/bin/env python3
"""Cycles and negotiation as the shim sees them, compared with Horovod's own timeline of the same run.

    python bench/horovod_cycles.py [mpirun|horovodrun]     # needs Horovod (make horovod); half a minute

Two ranks, rank 1 slow by 20 ms a step, and HOROVOD_TIMELINE on rank 0 with its cycles marked. Printed as JSON: cycles
in the same periods by both, and how far the end of each negotiation on rank 0 is from the end of the last
``NEGOTIATE_`` phase that the timeline has in that wait. The timeline changes the job (its writer takes a core, cached
tensors are negotiated by name): only the two views of one run are compared, nothing is said of the job.
"""

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import hindmost
from hindmost import ring
from hindmost.native import build
from horovod_jobs import OPENING

TRAIN = """
for step in range(200):
    time.sleep(0.02 * hvd.rank())
    optimizer.zero_grad()
    model(torch.rand(16, 64)).sum().backward()
    optimizer.step()
hvd.shutdown()
"""

CROWDED = ("--bind-to", "none", "--map-by", ":OVERSUBSCRIBE", "--mca", "mpi_yield_when_idle", "1")


def run(by: str, directory: Path) -> None:
    """Train on two ranks with the probe, the shim and the timeline."""
    script = directory / "train.py"
    script.write_text(OPENING + TRAIN)
    environ = {
        **os.environ,
        "PYTHONPATH": str(Path(hindmost.__file__).parent / "inject"),
        "LD_PRELOAD": str(build.library("pmpi")),
        "HINDMOST_JOB_ID": "job",
        "HINDMOST_RING_DIR": str(directory / "rings"),
        "HINDMOST_LAUNCHER": by,
        "HOROVOD_TIMELINE": str(directory / "timeline.json"),
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "OMP_NUM_THREADS": "1",
    }
    program = shutil.which(by) or sys.exit(f"no {by} on PATH")
    options = CROWDED if by == "mpirun" else ("--gloo",)
    command = [program, *options, "-np", "2", sys.executable, str(script)]
    subprocess.run(command, env=environ, check=True, timeout=300)


def timeline(path: Path) -> tuple[list[int], list[int]]:
    """Unix times (ns) at which cycles began, and at which negotiations ended."""
    events: list[dict[str, Any]] = json.loads(path.read_text())
    zero = events[0]["args"]["start_time_since_epoch_in_micros"]
    cycles, ended, open_phases = [], [], dict[Any, list[str]]()
    for event in events:
        at = (zero + event.get("ts", 0)) * 1000
        if event.get("name") == "CYCLE_START":
            cycles.append(at)
        elif event["ph"] == "B":
            open_phases.setdefault(event["pid"], []).append(event["name"])
        elif event["ph"] == "E" and (open_phases.get(event["pid"]) or [""]).pop().startswith("NEGOTIATE_"):
            ended.append(at)
    return cycles, ended


def compare(directory: Path) -> dict[str, Any]:
    """What both say of rank 0."""
    (path,) = (directory / "rings").glob("0.py.*.ring")
    reader = ring.Reader(path)
    offset, events = reader.header.realtime_ns - reader.header.monotonic_ns, reader.poll()
    cycles, ended = timeline(directory / "timeline.json")
    counts = []
    for event in (event for event in events if event.name == "horovod_cycle"):
        start = event.start_ns + offset
        marked = sum(start <= at < start + event.duration_ns for at in cycles)
        counts.append({"ms": event.duration_ns / 1e6, "shim": event.value, "timeline": marked})
    waits = {event.start_ns: event.duration_ns for event in events if event.kind == ring.COLLECTIVE}
    apart = []
    for event in (event for event in events if event.name == "negotiation" and event.start_ns in waits):
        start = event.start_ns + offset
        inside = [at for at in ended if start <= at <= start + waits[event.start_ns]]
        if inside:
            apart.append((inside[-1] - start - event.duration_ns) / 1e6)
    quantiles = statistics.quantiles(apart, n=20)
    apart_ms = {"waits": len(apart), "p5": quantiles[0], "p50": quantiles[9], "p95": quantiles[18]}
    return {"cycles": counts, "timeline_ends_later_ms": apart_ms}


def main() -> None:
    by = sys.argv[1] if len(sys.argv) > 1 else "mpirun"
    with tempfile.TemporaryDirectory(prefix="hindmost-cycles-") as name:
        run(by, Path(name))
        print(json.dumps({"by": by, **compare(Path(name))}, indent=2))


if __name__ == "__main__":
    main()
