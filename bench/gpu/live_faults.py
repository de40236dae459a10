#!/usr/bin/env python3
"""How soon a running job's trouble is named: from the moment a rank goes wrong to the live verdict that says so.

    python bench/gpu/live_faults.py --ranks 2 --limit 440 --out live_faults.json --save-to runs.tar    # two GPUs
    python bench/gpu/live_faults.py --ranks 2 --case compute-25 hang    # without a GPU: gloo, one after another

Each fault has a job of its own: ``hindmost run -- torchrun … faulty_job.py``, real probes and, on GPUs, the NCCL
plugin. The job trains undisturbed for a few seconds, in which every verdict is a false alarm; then the fault strikes
one rank. What is graded is ``verdicts.jsonl``, which the collector writes while the job runs: the first verdict that
names exactly that rank (``named``), and the first that also has the right kind and cause, or a hang's source line
(``right``). Onset and cost are what the report says in the end; they are held against the step of the strike and
against how much longer the mean step has become since, in this job and against the job without a fault. On GPUs the
next job's processes start while this one runs, and join when it is asked to stop; a case takes 20 s. Exit code 0:
all as expected. A case that fails is reported as failed, and the next one begins; what is known is written after each.
"""

import argparse
import contextlib
import importlib.util
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import fault_grade
from fault_cases import CASES, Case, all_right, behind, placed
from fault_run import JobError, Running

ROOT = Path(__file__).parents[2]
#: Steps, and then seconds, without any fault.
WARM_STEPS, QUIET_S = 40, 4.0
#: How long the culprit may take to begin.
BEGINS_S = 5.0
#: After a right verdict, one more judgement: does it stand?
STANDS_S = 2.2
#: Bytes of an archive above which another is begun.
ARCHIVE = 12 << 20


def observe(job: Running) -> tuple[int, int]:
    """A job up to a right verdict, or until patience ends: Unix ns of the strike and of the end. Raises JobError."""
    job.train(WARM_STEPS)
    time.sleep(QUIET_S)
    struck = time.time_ns()
    job.strike()
    end = time.monotonic() + BEGINS_S
    while not (job.struck() or job.over()) and time.monotonic() < end:
        time.sleep(0.05)
    end = time.monotonic() + job.case.patience_s
    while time.monotonic() < end and not job.over():
        time.sleep(0.1)
        if all_right(job.case, (event["verdict"] for event in job.events() if event["event"] != "closed")):
            time.sleep(STANDS_S)
            break
    return struck, time.time_ns()


def finished(job: Running, observed: tuple[int, int] | JobError) -> dict[str, Any]:
    """The result of a job after its end, once hindmost has sealed it; its folders are packed then."""
    report = job.finish()
    if isinstance(observed, JobError):
        found = fault_grade.failed(job.case, str(observed), job.last_words())
    else:
        found = fault_grade.grade(job, *observed, report)
    pack(job.room.parent, job.case.name)
    return found


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


def pack(folder: Path, case: str) -> None:
    """A case's recording, its job's output and the requests to its ranks, in an archive of its own."""
    with tarfile.open(folder / f"{case}.tar.xz", "w:xz") as tar:
        for name in (f"run-{case}", f"{case}.log", case):
            with contextlib.suppress(OSError):
                tar.add(folder / name, name)


def keep(archive: Path, packed: Path) -> None:
    """Append what was packed to an archive, or to a second one where it has grown large."""
    number = 1
    while archive.exists() and archive.stat().st_size > ARCHIVE:
        number += 1
        archive = archive.with_name(f"{archive.stem.removesuffix(f'-{number - 1}')}-{number}{archive.suffix}")
    content = packed.read_bytes()
    with tarfile.open(archive, "a") as tar:
        entry = tarfile.TarInfo(packed.name)
        entry.size = len(content)
        tar.addfile(entry, io.BytesIO(content))


def beside_clean(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same, each with how much longer its mean step is than that of the first job without a fault."""
    clean = next((one.get("step_ms_after") for one in found if one["fault"].startswith("clean")), None)
    if clean is None:
        return found
    known = {one["fault"]: one.get("step_ms_after") for one in found}
    return [one | {"beside_clean_ms": None if (ms := known[one["fault"]]) is None else ms - clean} for one in found]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--case", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=Path("live_faults.json"))
    parser.add_argument("--save-to", type=Path, metavar="TAR", help="keep the recordings and the jobs' output in here")
    parser.add_argument("--behind", type=Path, metavar="SO", help="each case again with this NCCL profiler set, too")
    parser.add_argument("--limit", type=float, default=230, help="seconds after which no further case is begun")
    args = parser.parse_args()
    gpu = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("hindmost") is None:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [*(str(ROOT / part) for part in ("agent", "collector", "proto")), os.environ.get("PYTHONPATH", "")]
        )
    wanted = args.case or [case.name for case in CASES if gpu or not case.needs_gpu]
    cases = [placed(case, args.ranks) for case in CASES if case.name in wanted]
    if args.behind:
        cases = [one for case in cases for one in (case, behind(case, args.behind.resolve()))]
    found: list[dict[str, Any]] = []
    about = {"made_by": made_by(args.ranks, gpu), "ranks": args.ranks}
    with tempfile.TemporaryDirectory(prefix="hindmost-faults-", ignore_cleanup_errors=True) as folder:
        for one in measure(cases, args.ranks, Path(folder), args.limit, overlap=gpu):
            found.append(one)
            result = {**about, **fault_grade.summary(found), "faults": beside_clean(found)}
            args.out.write_text(json.dumps(result, indent=1) + "\n")  # what is measured is kept, whatever comes
            print("\n".join(fault_grade.table([one]).splitlines()[2:]), flush=True)
            packed = Path(folder) / f"{one['fault']}.tar.xz"
            if args.save_to and packed.exists():
                keep(args.save_to, packed)
    told = fault_grade.summary(found)
    print(f"\n{fault_grade.table(found)}\n" + ", ".join(f"{name} {count}" for name, count in told.items()))
    return 0 if told["as_expected"] == len(cases) else 1


if __name__ == "__main__":
    sys.exit(main())
