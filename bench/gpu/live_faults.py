#!/usr/bin/env python3
"""How soon a running job's trouble is named: from the moment a rank goes wrong to the live verdict that says so.

    python bench/gpu/live_faults.py --out live_faults.json --keep runs.tar    # 4 GPUs: under four minutes
    python bench/gpu/live_faults.py --case compute-25 hang                    # without a GPU: gloo, one after another

Each fault has a job of its own: ``hindmost run -- torchrun … faulty_job.py``, real probes and, on GPUs, the NCCL
plugin. The job trains undisturbed for a few seconds, in which every verdict is a false alarm; then the fault strikes
one rank. What is graded is ``verdicts.jsonl``, which the collector writes while the job runs: the first verdict that
names exactly that rank (``named``), and the first that also has the right kind and cause, or a hang's source line
(``right``). On GPUs the next job's processes start while this one runs, and join when it has been told to stop. Exit
code 0: all as expected. A case that fails is told as that, and the next one begins.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fault_grade
from fault_cases import CASES, Case, right
from fault_run import JobError, Running

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
#: Steps, and then seconds, without any fault.
WARM_STEPS, QUIET_S = 40, 4.0
#: After a right verdict, one more judgement: does it stand?
STANDS_S = 2.2


def observe(job: Running) -> tuple[int, int]:
    """A job up to a right verdict, or until patience ends: Unix ns of the strike and of the end. Raises JobError."""
    job.train(WARM_STEPS)
    time.sleep(QUIET_S)
    struck = time.time_ns()
    job.strike()
    end = time.monotonic() + job.case.patience_s
    while time.monotonic() < end and not job.over():
        time.sleep(0.1)
        if any(right(job.case, event["verdict"]) for event in job.events() if event["event"] != "closed"):
            time.sleep(STANDS_S)
            break
    return struck, time.time_ns()


def finished(job: Running, observed: tuple[int, int] | JobError) -> dict[str, Any]:
    """The result of a job that has been told to end, once hindmost has sealed it."""
    report = job.finish()
    if isinstance(observed, JobError):
        return fault_grade.failed(job.case, str(observed), job.last_words())
    return fault_grade.grade(job, *observed, report)


def measure(cases: list[Case], ranks: int, folder: Path, limit_s: float, overlap: bool) -> Iterator[dict[str, Any]]:
    """All cases in turn. With ``overlap`` each is sealed and graded, and the next one's processes start, while another
    runs; without, as few cores need it, one is over before the next begins."""
    began = time.monotonic()
    waiting: list[Future[dict[str, Any]]] = []
    upcoming: Running | None = None
    with ThreadPoolExecutor(2) as pool:
        for number, case in enumerate(cases):
            if time.monotonic() - began > limit_s:
                yield fault_grade.failed(case, f"not begun: {limit_s:.0f} s were over", "")
                continue
            job, upcoming = upcoming or Running(case, ranks, folder), None
            observed: tuple[int, int] | JobError
            try:
                job.go()
                job.train(1)
                if overlap and number + 1 < len(cases):
                    upcoming = Running(cases[number + 1], ranks, folder)
                observed = observe(job)
            except JobError as error:
                observed = error
            job.end()
            print(f"{time.monotonic() - began:5.0f} s  {case.name}", flush=True)
            waiting.append(pool.submit(finished, job, observed))
            while waiting and (waiting[0].done() or not overlap):
                yield waiting.pop(0).result()
        for last in waiting:
            yield last.result()
    if upcoming is not None:
        upcoming.end()
        upcoming.finish()


def made_by(ranks: int, gpu: bool) -> str:
    """What the results are of."""
    on = f"{os.cpu_count()} CPU cores, gloo"
    if gpu:
        ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
        names = subprocess.run(ask, capture_output=True, text=True, check=False).stdout.splitlines()
        on = f"{names[0] if names else 'NVIDIA GPUs'}, NCCL"
    day = time.strftime("%Y-%m-%d", time.gmtime())
    return f"bench/gpu/live_faults.py, {ranks} ranks on {on}, PyTorch {version('torch')}, live, one run on {day}"


def keep(archive: Path, folder: Path, case: str) -> None:
    """Append a case's recording, its job's output and what its ranks were told to an archive."""
    with tarfile.open(archive, "a") as tar:
        for name in (f"run-{case}", f"{case}.log", case):
            with contextlib.suppress(OSError):
                tar.add(folder / name, name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--case", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=Path("live_faults.json"))
    parser.add_argument("--keep", type=Path, metavar="TAR", help="keep the recordings and the jobs' output in here")
    parser.add_argument("--limit", type=float, default=230, help="seconds after which no further case is begun")
    args = parser.parse_args()
    gpu = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("hindmost") is None:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [*(str(ROOT / part) for part in ("agent", "collector", "proto")), os.environ.get("PYTHONPATH", "")]
        )
    cases = [case for case in CASES if (case.name in args.case if args.case else gpu or not case.needs_gpu)]
    cases = [replace(case, rank=case.rank % args.ranks) for case in cases]
    found: list[dict[str, Any]] = []
    good = 0
    about = {"made_by": made_by(args.ranks, gpu), "ranks": args.ranks}
    with tempfile.TemporaryDirectory(prefix="hindmost-faults-", ignore_cleanup_errors=True) as folder:
        for one in measure(cases, args.ranks, Path(folder), args.limit, overlap=gpu):
            found.append(one)
            good = sum(one["as_expected"] for one in found)
            result = {**about, "as_expected": good, "of": len(found), "faults": found}
            args.out.write_text(json.dumps(result, indent=1) + "\n")  # what is measured is kept, whatever comes
            print(fault_grade.table([one]).splitlines()[2], flush=True)
            if args.keep:
                keep(args.keep, Path(folder), one["fault"])
    print(f"\n{fault_grade.table(found)}\n{good} of {len(found)} as expected")
    return 0 if good == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
