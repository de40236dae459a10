"""How often the verdict is right: real jobs, with and without a slow rank, again and again: k of n, and its interval.

    python bench/verdict_repeat.py --times 10 --write bench/results/verdict_repeat.json

Each run is a real ``hindmost run`` of real ranks on this machine. With the fault the verdict must name the slow rank
and its cause and no other rank; without it the verdict must be ``balanced``. Tests hold that such jobs run and are
recorded, and that recordings of them are judged right; how often that is so on a shared machine is measured here.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(Path(__file__).parent / "accuracy"))

from intervals import wilson  # noqa: E402 - lies next to the script that it was written for

MPI = ["mpirun", "--bind-to", "none", "-np", "4", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "4"]
ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
    "OMP_NUM_THREADS": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}

JOBS: dict[str, list[str]] = {
    "train_mpi, mpirun": [*MPI, str(ROOT / "examples/train_mpi.py"), "--steps", "600"],
    "train_torch_ddp, torchrun": [*TORCHRUN, str(ROOT / "examples/train_torch_ddp.py"), "--steps", "300"],
    "train_torch_ddp, mpirun": [*MPI, str(ROOT / "examples/train_torch_ddp.py"), "--steps", "300"],
}
SLOW_MS = {"train_mpi": 4, "train_torch_ddp": 20, "awaited": 5}
#: Ranks meet in a collective that no single call waits for; rank 2 sleeps longer before it, which has no known cause.
AWAITED = """
import sys, time, numpy
from mpi4py import MPI
data, total = numpy.ones(100), numpy.empty(100)
slow = "--slow-rank" in sys.argv and MPI.COMM_WORLD.rank == 2
for step in range(420):
    time.sleep(0.002 + 0.005 * slow)
    {meet}
"""
MEETINGS = {
    "awaited": "MPI.COMM_WORLD.Iallreduce(data, total).Wait()",
    "polled": "request = MPI.COMM_WORLD.Iallreduce(data, total)\n    while not request.Test(): time.sleep(0.0002)",
    "gathered": "MPI.COMM_WORLD.allreduce(1.0)",
    "twice": "MPI.COMM_WORLD.Allreduce(data, total); MPI.COMM_WORLD.Allreduce(data, total)",
}
JOBS |= {f"awaited, {name}": [*MPI, "-c", AWAITED.format(meet=meet)] for name, meet in MEETINGS.items()}


def one(job: str, command: list[str], fault: str | None) -> dict[str, Any]:
    """One run: what was asked, what the first verdict says, whether it is right, and how long it took."""
    slow = ["--slow-rank", "2", "--slow-ms", str(SLOW_MS[job.partition(",")[0]]), "--slow-what", fault] if fault else []
    with tempfile.TemporaryDirectory() as directory:
        out = Path(directory) / "run"
        started = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(out), "--", *command, *slow],
            env={**os.environ, **ENVIRON},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        took = time.monotonic() - started
        try:
            report = json.loads((out / "report.json").read_text())
        except OSError:
            sys.exit(f"{job}: no report; the job said:\n{done.stderr}")
    verdicts = report["verdicts"]
    cause = "unknown" if fault and job.startswith("awaited") else fault
    return {"job": job, "fault": fault or "none", "right": right(verdicts, cause), "seconds": round(took, 1)} | {
        "verdicts": [
            {key: v[key] for key in ("kind", "ranks", "cause", "cost_ms_per_step", "evidence")} for v in verdicts
        ],
        "load": os.getloadavg()[0],
    }


def right(verdicts: list[dict[str, Any]], cause: str | None) -> bool:
    """Whether exactly the injected fault, or exactly nothing, was found."""
    said = [(v["kind"], v["ranks"], v["cause"]) for v in verdicts]
    if cause is None:
        return [kind for kind, _, _ in said] == ["balanced"]
    return len(said) == 1 and said[0][1:] == ([2], cause)


def summary(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of each job and fault: how many runs were right, of how many, and the interval of 95 % of that rate."""
    rows = []
    for job, fault in dict.fromkeys((r["job"], r["fault"]) for r in results):
        found = [r["right"] for r in results if (r["job"], r["fault"]) == (job, fault)]
        rows.append({"job": job, "fault": fault, "right": sum(found), "of": len(found)})
    return [row | {"rate": wilson(row["right"], row["of"])} for row in rows]


def main() -> None:
    """Run all jobs in turn, so that a quiet or a noisy hour meets all of them alike."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--job", choices=JOBS, action="append", help="only this job")
    parser.add_argument("--fault", choices=["compute", "input", "none"], action="append", help="default: compute, none")
    parser.add_argument("--write", type=Path, metavar="FILE")
    args = parser.parse_args()
    faults = [None if fault == "none" else fault for fault in args.fault or ["compute", "none"]]
    results = []
    for number in range(args.times):
        for job in args.job or JOBS:
            for fault in faults:
                result = one(job, JOBS[job], fault)
                results.append(result)
                said = "; ".join(f"{v['kind']} {v['ranks']} {v['cause']}" for v in result["verdicts"])
                mark = "right" if result["right"] else "WRONG"
                print(
                    f"{number:3d}  {job:<28} {result['fault']:<8} {mark}  {result['seconds']:5.1f} s  {said}",
                    flush=True,
                )
    print()
    for row in summary(results):
        print(f"{row['job']:<28} {row['fault']:<8} right {row['rate']}")
    if args.write:
        args.write.parent.mkdir(parents=True, exist_ok=True)
        machine = {"cores": os.cpu_count(), "python": platform.python_version(), "kernel": platform.release()}
        args.write.write_text(
            json.dumps({"machine": machine, "rates": summary(results), "runs": results}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
