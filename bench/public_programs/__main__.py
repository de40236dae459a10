"""Verdicts on public programs that are disturbed from outside, and what was done to them.

    python bench/public_programs --programs DIR run --runs DIR [--only miniFE] [--seconds 270]
    python bench/public_programs --programs DIR table --runs DIR --write

``run`` starts each program under each disturbance, undisturbed ones three times, and keeps the run directories. It
goes on where it was stopped, and stops itself after ``--seconds``. A job has two cores; on more, jobs run side by side.
``costs`` runs disturbances that take CPU time, each between two undisturbed runs, on a machine without other work.
``table`` judges all of them with the code as it is, prints what is right, and with ``--write`` stores it in
``bench/results/public_programs.json`` and in ``docs/explanation/accuracy.md``. Rank 1 of two is disturbed. Other work
on a job's two cores meanwhile is given in cores.
"""

import argparse
import contextlib
import json
import multiprocessing
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from disturbances import DISTURBANCES, Disturbance, Job
from page import DOCUMENT, NOT_RUN, RESULTS, document, printed, results
from programs import PROGRAMS, Program
from truth import graded

#: Undisturbed runs of each program, and the longest that a run may take.
CLEAN, LONGEST_S = 3, 90.0
#: Disturbances whose cost is measured, too.
COSTS = ("half a core by quota", "core shared with stress-ng", "both ranks on one core")
#: What launchers call a process's rank.
RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|HOROVOD_RANK|RANK)=(\d+)(?=\0|$)")
SHELLS = {"sh", "bash", "dash"}
ENVIRON = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "PYTHONUNBUFFERED": "1",
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
}


def main() -> int:
    """Run what has not run, or judge what has."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=Path, required=True, help="folder of the programs that no package has")
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("run", "costs", "table"):
        command = commands.add_parser(name)
        command.add_argument("--runs", type=Path, required=True, help="folder of the run directories")
        command.add_argument("--only", action="append", choices=PROGRAMS, help="only this program")
    commands.choices["run"].add_argument("--disturbance", action="append", choices=DISTURBANCES)
    commands.choices["run"].add_argument("--seconds", type=float, default=float("inf"), help="stop after so long")
    commands.choices["table"].add_argument("--write", action="store_true", help="to the results file and the document")
    args = parser.parse_args()
    programs = args.programs.resolve()
    missing: dict[str, str] = {}
    for name, program in PROGRAMS.items():
        why = program.lacks(programs)
        missing |= {name: why} if why else {}
    if args.command == "table":  # what was run before can be judged without its program
        missing = {name: why for name, why in missing.items() if not any(args.runs.glob(f"{name}-*/truth.json"))}
    chosen = [PROGRAMS[name] for name in args.only or PROGRAMS if name not in missing]
    if args.command == "costs":
        return _run_costs(chosen, programs, args.runs.resolve())
    if args.command == "run":
        print("".join(f"missing: {name}: {why}\n" for name, why in missing.items()), end="")
        return _run_all(chosen, args.disturbance or list(DISTURBANCES), programs, args.runs.resolve(), args.seconds)
    runs = args.runs.resolve()
    rows = [row for one in chosen for row in _judged(one, runs)]
    later = {one.name: _judged_between_clean(one, runs) for one in chosen}
    found = results(rows, [row for each in later.values() for row in each.values()], missing)
    found["costs"] = [row for name, each in later.items() for row in _costs(name, each)]
    print(printed(found))
    if args.write:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        DOCUMENT.write_text(document(found, DOCUMENT.read_text()))
    return 0


def _cases(program: Program, names: list[str]) -> list[tuple[Disturbance, int]]:
    disturbances = [DISTURBANCES[name] for name in names if DISTURBANCES[name].applies_to(program)]
    return [
        (disturbance, number)
        for disturbance in disturbances
        for number in range(CLEAN if disturbance.name == "none" else 1)
    ]


def _folder(runs: Path, program: Program, disturbance: Disturbance, number: int) -> Path:
    return runs / f"{program.name}-{disturbance.name.replace(' ', '-').replace('/', '-')}-{number}"


def _run_all(programs: list[Program], names: list[str], files: Path, runs: Path, seconds: float) -> int:
    left = [
        (program.name, disturbance.name, files, _folder(runs, program, disturbance, number))
        for program in programs
        for disturbance, number in _cases(program, names)
        if not disturbance.lacks()
    ]
    done = _side_by_side(_run_until, [(time.monotonic() + seconds, *one) for one in left])
    if not all(done):
        print("more is left: run again")
    return not all(done)


def _run_until(end: float, program: str, disturbance: str, files: Path, folder: Path) -> bool:
    """Whether this run is there; none is begun after ``end``."""
    if not (folder / "truth.json").exists():
        if time.monotonic() > end:
            return False
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        truth = run(PROGRAMS[program], DISTURBANCES[disturbance], files, folder)
        (folder / "truth.json").write_text(json.dumps(truth) + "\n")
        print(f"{folder.name}: {disturbance}, {truth['wall_s']:.0f} s, exit code {truth['exit_code']}", flush=True)
    return True


def _side_by_side(function: Callable[..., bool], calls: list[tuple[Any, ...]]) -> list[bool]:
    """The calls in their order, one for each two cores at a time, each in a process that has these cores only."""
    cores = sorted(os.sched_getaffinity(0))
    fork = multiprocessing.get_context("fork")
    pairs = fork.SimpleQueue()
    for first in range(0, max(len(cores) - 1, 1), 2):
        pairs.put(cores[first : first + 2])
    with fork.Pool(max(len(cores) // 2, 1), lambda: os.sched_setaffinity(0, pairs.get())) as pool:
        return pool.starmap(function, calls, chunksize=1)


def _between_clean(program: Program, runs: Path) -> list[tuple[Disturbance, Path]]:
    """The disturbances whose costs are known, each between two undisturbed runs, and where each run is kept."""
    disturbed = [DISTURBANCES[name] for name in COSTS]
    order = [DISTURBANCES["none"], *(one for each in disturbed for one in (each, DISTURBANCES["none"]))]
    return [(one, runs / f"{program.name}-cost-{number}") for number, one in enumerate(order)]


def _run_costs(programs: list[Program], files: Path, runs: Path) -> int:
    _side_by_side(_run_between_clean, [(one.name, files, runs) for one in programs])
    return 0


def _run_between_clean(program: str, files: Path, runs: Path) -> bool:
    between = _between_clean(PROGRAMS[program], runs)
    return all(_run_until(float("inf"), program, one.name, files, folder) for one, folder in between)


def _judged_between_clean(program: Program, runs: Path) -> dict[int, dict[str, Any]]:
    """The runs for costs that are there, by their place in the order in which they ran."""
    return {
        place: {"disturbance": disturbance.name}
        | json.loads((folder / "truth.json").read_text())
        | graded(disturbance, folder / "run")
        for place, (disturbance, folder) in enumerate(_between_clean(program, runs))
        if (folder / "truth.json").exists()
    }


def _costs(program: str, judged: dict[int, dict[str, Any]]) -> list[dict[str, Any]]:
    """What disturbances did to the mean step, by the undisturbed runs before and after, and what the verdicts say."""
    steps = {place: row["step_ms"] for place, row in judged.items() if row.get("step_ms")}
    return [
        {
            "program": program,
            "disturbance": row["disturbance"],
            "did_ms": round(steps[place] - (steps[place - 1] + steps[place + 1]) / 2, 2),
            "clean_ms": [steps[place - 1], steps[place + 1]],
            "cost_ms": row["cost_ms"],
            "queued_s": row["queued_s"],
        }
        for place, row in judged.items()
        if row["disturbance"] != "none" and {place - 1, place, place + 1} <= steps.keys()
    ]


def run(program: Program, disturbance: Disturbance, files: Path, folder: Path) -> dict[str, Any]:
    """One job under ``hindmost run``, disturbed; what was done and how it went."""
    command = [*disturbance.before(), *program.command(files, folder)]
    line = [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(folder / "run"), "--", *command]
    began, busy, used = time.monotonic(), _busy_s(), _children_s()
    with (folder / "output.txt").open("w") as output:
        process = subprocess.Popen(
            line, cwd=folder, env=os.environ | ENVIRON, stdout=output, stderr=output, start_new_session=True
        )
        job = Job(
            {}, folder, lambda: process.poll() is None, lambda: os.killpg(process.pid, signal.SIGINT), program.settle
        )
        try:
            _disturb(job, program, disturbance, process.pid)
            process.wait(max(LONGEST_S - (time.monotonic() - began), 1.0))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)
        finally:
            _end(process, job)
    wall = time.monotonic() - began
    foreign = (_busy_s() - busy - (_children_s() - used)) / wall
    return {
        "exit_code": process.returncode,
        "wall_s": round(wall, 1),
        "other_work_cores": round(max(foreign, 0.0), 2),
        "queued_s": job.queued_s,
    }


def _disturb(job: Job, program: Program, disturbance: Disturbance, root: int) -> None:
    while job.runs() and len(job.ranks) < 2:
        time.sleep(0.05)
        job.ranks = ranks_below(root)
    if not job.runs():
        return
    with disturbance.start(job) if disturbance.start else contextlib.nullcontext():
        began = time.monotonic()
        if disturbance.act is not None:
            time.sleep(program.after)
            while job.runs() and program.begins not in (job.folder / "output.txt").read_text():
                time.sleep(0.02)
            disturbance.act(job)
        while job.runs() and time.monotonic() - began < LONGEST_S:
            job.look()
            time.sleep(0.05)


def _end(process: subprocess.Popen[bytes], job: Job) -> None:
    """End what is left of the job, after the time in which it should have written its report."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for processes in job.ranks.values():
        for one in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)


def ranks_below(root: int) -> dict[int, list[int]]:
    """The processes of each rank below this process, the uppermost first; shells are none."""
    children: dict[int, list[int]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            children.setdefault(parent, []).append(int(folder.name))
    found: dict[int, list[int]] = {}
    left = [root]
    while left:
        one = left.pop(0)
        left += sorted(children.get(one, []))
        with contextlib.suppress(OSError):
            name = Path(f"/proc/{one}/comm").read_text().strip()
            rank = RANK.search(Path(f"/proc/{one}/environ").read_bytes())
            if rank and name not in SHELLS:
                found.setdefault(int(rank[1]), []).append(one)
    return found


def _busy_s() -> float:
    """CPU seconds that the cores which the bench may use have worked."""
    own = {f"cpu{core}" for core in os.sched_getaffinity(0)}
    lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    ticks = [[int(one) for one in fields] for name, *fields in lines if name in own]
    return sum(sum(each[:3]) + sum(each[5:8]) for each in ticks) / os.sysconf("SC_CLK_TCK")


def _children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _judged(program: Program, runs: Path) -> list[dict[str, Any]]:
    found = []
    for disturbance, number in _cases(program, list(DISTURBANCES)):
        folder = _folder(runs, program, disturbance, number)
        row = {"program": program.name, "disturbance": disturbance.name}
        why = disturbance.lacks()
        if not (folder / "truth.json").exists():
            found.append(row | {"missing": why or NOT_RUN})
            continue
        truth = json.loads((folder / "truth.json").read_text())
        if disturbance.ended and truth["exit_code"] == 0:
            found.append(row | {"missing": "the job went on"})
            continue
        if disturbance.disappeared(truth.get("queued_s", {})):
            found.append(row | {"missing": "other work made rank 0 wait for a CPU about as long"})
            continue
        found.append(row | truth | graded(disturbance, folder / "run"))
    return found


if __name__ == "__main__":
    sys.exit(main())
