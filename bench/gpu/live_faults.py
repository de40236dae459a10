#!/usr/bin/env python3
"""How soon a running job's trouble is named: from the moment a rank goes wrong to the live verdict that says so.

    python bench/gpu/live_faults.py --ranks 4 --out live_faults.json      # 4 GPUs: under four minutes
    python bench/gpu/live_faults.py --ranks 2 --fault compute-25 hang     # without a GPU: gloo

Each fault has a job of its own: ``hindmost run -- torchrun … faulty_job.py``, real probes and, on GPUs, the NCCL
plugin. The job trains undisturbed for a few seconds, in which every verdict is a false alarm; then the fault strikes
one rank. What is graded is ``verdicts.jsonl``, which the collector writes while the job runs: the first verdict that
names exactly that rank (``named``), and the first that also has the right kind and cause (``right``). The next job's
processes start while this one runs, and wait.
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
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("faulty_job.py")


@dataclass(frozen=True)
class Case:
    """A fault: what strikes which rank, and what a right verdict says. No kinds: a right log stays empty."""

    name: str
    fault: str
    rank: int
    share: float = 0.0
    kinds: tuple[str, ...] = ("straggler", "intermittent")
    causes: tuple[str, ...] = ()
    patience_s: float = 12.0
    needs_gpu: bool = False


CASES = (
    Case("compute-25", "compute", 3, 0.25, causes=("compute",), patience_s=10),
    Case("compute-6", "compute", 1, 0.06, causes=("compute",)),
    Case("compute-3", "compute", 2, 0.03, causes=("compute",), patience_s=16),
    Case("gpu-contended", "neighbour", 2, causes=("gpu_contention",), needs_gpu=True),
    Case("cpu-starved", "starve", 1, causes=("cpu_contention",)),
    Case("slow-input", "input", 3, 1.0, causes=("input",), patience_s=10),
    Case("hidden-input", "input", 1, 0.3, kinds=(), patience_s=10, needs_gpu=True),
    Case("hang", "hang", 2, kinds=("hang",), patience_s=14),
    Case("mismatch", "mismatch", 1, kinds=("desync",), patience_s=14),
)
QUIET_S = 5.0
#: Where a rank is when it hangs; its verdict must quote it.
HANGS_IN = "wait_for_the_lost_file"


class Running:
    """One ``hindmost run`` of the faulty job, its processes waiting from the start on for ``go``."""

    def __init__(self, case: Case, ranks: int, folder: Path) -> None:
        self.case, self.ranks = case, ranks
        self.room, self.out = folder / case.name, folder / f"run-{case.name}"
        self.room.mkdir()
        self.culprit = case.rank % ranks
        fault = ["--fault", case.fault, "--share", str(case.share), "--rank", str(self.culprit)]
        fault += ["--room", str(self.room)]
        launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
        line = [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(self.out), "--", sys.executable]
        self.log = (folder / f"{case.name}.log").open("w")
        self.started = [self._start([*line, *launch, str(JOB), *fault])]
        if case.fault == "neighbour":
            self.started.append(self._start([sys.executable, str(JOB), "--burn", *fault]))

    def _start(self, line: list[str]) -> subprocess.Popen[bytes]:
        environ = {**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(line, env=environ, stdout=self.log, stderr=self.log)

    def wait_for(self, what: str, seconds: float) -> bool:
        """Until a file is in the room; false after so long, or when the job is over."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and self.started[0].poll() is None:
            if (self.room / what).exists():
                return True
            time.sleep(0.02)
        return (self.room / what).exists()

    def steps(self) -> list[tuple[int, int]]:
        """Step and ns of Unix time at which rank 0 was through with it (its GPU may be some steps behind)."""
        with contextlib.suppress(FileNotFoundError):
            lines = (self.room / "steps").read_text().splitlines()
            return [(int(words[0]), int(words[1])) for line in lines if len(words := line.split()) == 2]
        return []

    def events(self) -> list[dict[str, Any]]:
        """What the collector has said so far."""
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line) for line in (self.out / "verdicts.jsonl").read_text().splitlines()]
        return []

    def strike(self) -> None:
        """Let the fault begin."""
        if self.case.fault == "starve":
            self.starve()
        (self.room / "strike").touch()

    def starve(self) -> None:
        """Put the rank on one CPU, and six busy processes beside it."""
        pid = int((self.room / f"pid.{self.culprit}").read_text())
        cpu = max(os.sched_getaffinity(0))
        for task in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {cpu})
        code = f"import os\nos.sched_setaffinity(0, {{{cpu}}})\nwhile True: pass"
        self.started += [subprocess.Popen([sys.executable, "-S", "-c", code]) for _ in range(6)]

    def end(self) -> None:
        """Stop training after the next steps, or at once where it cannot; leave the sealing to hindmost."""
        known = self.steps()
        if self.case.kinds in (("hang",), ("desync",)):
            (self.room / "quit").touch()
        else:
            part = self.room / "stop.part"
            part.write_text(str((known[-1][0] if known else 0) + 40))
            part.rename(self.room / "stop")
        for neighbour in self.started[1:]:
            if self.case.fault == "starve":
                neighbour.kill()
            neighbour.wait(30)
        deadline = time.monotonic() + 20
        while self.ranks_left() and time.monotonic() < deadline:
            time.sleep(0.05)
        (self.room / "quit").touch()

    def ranks_left(self) -> bool:
        """Whether any rank still runs."""
        pids = [int(path.read_text()) for path in self.room.glob("pid.*")]
        return any(Path(f"/proc/{pid}/cmdline").exists() and is_rank(pid) for pid in pids)

    def finish(self) -> dict[str, Any] | None:
        """The sealed report; None where there is none."""
        try:
            self.started[0].wait(60)
        except subprocess.TimeoutExpired:
            self.started[0].terminate()
        self.log.close()
        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads((self.out / "report.json").read_text())
            return report
        return None


def is_rank(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return JOB.name.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False


def named(case: Case, culprit: int, verdict: dict[str, Any]) -> bool:
    """Whether a verdict names exactly the rank that went wrong."""
    return verdict["kind"] in case.kinds and verdict["ranks"] == [culprit]


def right(case: Case, culprit: int, verdict: dict[str, Any]) -> bool:
    """Whether it also has the cause; of a hang, whether it quotes the line."""
    if not named(case, culprit, verdict):
        return False
    if case.kinds == ("hang",):
        return HANGS_IN in " ".join(verdict["evidence"])
    return not case.causes or verdict["cause"] in case.causes


def observe(job: Running) -> int:
    """Run a job up to a right verdict or until patience ends; Unix ns of the strike, 0 where it never came."""
    if not job.wait_for("steps", 60):
        return 0
    deadline = time.monotonic() + 60
    while len(job.steps()) < 40 and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(QUIET_S)
    struck = time.time_ns()
    job.strike()
    end = time.monotonic() + job.case.patience_s
    while time.monotonic() < end:
        time.sleep(0.1)
        if any(right(job.case, job.culprit, event["verdict"]) for event in job.events() if event["event"] != "closed"):
            time.sleep(2.5)  # one more judgement: does it stand?
            break
    job.end()
    return struck


def grade(job: Running, struck: int, report: dict[str, Any] | None) -> dict[str, Any]:
    """What was said when, against what was so."""
    case, steps = job.case, job.steps()
    told: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        told = json.loads((job.room / "struck").read_text())
    struck = told.get("time_ns", struck)
    events = job.events()
    opened = [event for event in events if event["event"] != "closed"]
    after = [event for event in opened if event["time_ns"] >= struck]
    wrong = [e["verdict"] for e in after if e["event"] == "opened" and not named(case, job.culprit, e["verdict"])]
    final = report["verdicts"] if report else []
    before = [ns for _, ns in steps if ns < struck]
    return {
        "fault": case.name,
        "rank": job.culprit,
        "step_ms": 1e-6 * (before[-1] - before[-31]) / 30 if len(before) > 30 else None,
        "struck_step": told.get("step", len(before)),
        "named": first(after, steps, struck, lambda v: named(case, job.culprit, v)),
        "right": first(after, steps, struck, lambda v: right(case, job.culprit, v)),
        "false_alarms": [brief(e["verdict"]) for e in opened if e["time_ns"] < struck and e["event"] == "opened"],
        "others": [brief(verdict) for verdict in wrong],
        "final": [brief(verdict) for verdict in final],
        "evidence": final[0]["evidence"] if final else [],
        "notes": report["notes"] if report else [],
        "log": [{"after_s": (e["time_ns"] - struck) / 1e9, "event": e["event"]} | brief(e["verdict"]) for e in events],
    }


def first(events: list[dict[str, Any]], steps: list[tuple[int, int]], struck: int, holds: Any) -> dict[str, Any] | None:
    """Seconds and steps from the strike to the first event that holds; None where none does."""
    for event in events:
        if holds(event["verdict"]):
            at = event["time_ns"]
            passed = sum(struck < ns <= at for _, ns in steps)
            return {"seconds": (at - struck) / 1e9, "steps": passed} | brief(event["verdict"])
    return None


def brief(verdict: dict[str, Any]) -> dict[str, Any]:
    keys = ("kind", "ranks", "cause", "since_step", "until_step", "cost_ms_per_step", "cost_ratio", "partial")
    return {key: verdict.get(key) for key in keys}


def line(one: dict[str, Any]) -> str:
    """One fault as a row to read."""

    def when(found: dict[str, Any] | None) -> str:
        return "never" if found is None else f"{found['seconds']:.1f} s / {found['steps']} steps"

    final = ", ".join(f"{v['kind']} {v['ranks']} {v['cause']}" for v in one["final"]) or "no report"
    extra = f"{len(one['false_alarms'])} before, {len(one['others'])} after"
    step = f"{one['step_ms']:.1f}" if one["step_ms"] else "-"
    return (
        f"{one['fault']:<14} rank {one['rank']}  step {step:>6} ms  named {when(one['named']):<20} "
        f"right {when(one['right']):<20} other verdicts {extra}; at the end: {final}"
    )


def measure(cases: list[Case], ranks: int, folder: Path, limit_s: float) -> Iterator[dict[str, Any]]:
    """All cases in turn, each graded while the next one runs, whose processes were started while it ran."""
    began = time.monotonic()
    upcoming = Running(cases[0], ranks, folder)
    previous: tuple[Running, int] | None = None
    for number in range(len(cases)):
        job = upcoming
        for rank in range(ranks):
            job.wait_for(f"pid.{rank}", 90)
        (job.room / "go").touch()
        more = number + 1 < len(cases) and time.monotonic() - began < limit_s
        if job.wait_for("steps", 60) and more:
            upcoming = Running(cases[number + 1], ranks, folder)
        struck = observe(job)
        print(f"{time.monotonic() - began:5.0f} s  {job.case.name}", flush=True)
        if previous is not None:
            yield finished(*previous)
        previous = job, struck
        if not more:
            break
    if previous is not None:
        yield finished(*previous)


def finished(job: Running, struck: int) -> dict[str, Any]:
    """The grade of a job that is over, once hindmost has sealed it."""
    (job.room / "quit").touch()
    return grade(job, struck, job.finish())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--fault", nargs="+", choices=[case.name for case in CASES])
    parser.add_argument("--out", type=Path, default=Path("live_faults.json"))
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the recordings and the jobs' output here")
    parser.add_argument("--limit", type=float, default=220, help="seconds after which no further fault is begun")
    args = parser.parse_args()
    gpu = shutil.which("nvidia-smi") is not None
    if importlib.util.find_spec("hindmost") is None:
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [*(str(ROOT / part) for part in ("agent", "collector", "proto")), os.environ.get("PYTHONPATH", "")]
        )
    cases = [case for case in CASES if (case.name in args.fault if args.fault else gpu or not case.needs_gpu)]
    told: dict[str, Any] = {"ranks": args.ranks, "what": "NCCL on GPUs" if gpu else "gloo on CPU", "faults": []}
    with tempfile.TemporaryDirectory(prefix="hindmost-faults-") as folder:
        for one in measure(cases, args.ranks, Path(folder), args.limit):
            told["faults"].append(one)
            args.out.write_text(json.dumps(told, indent=1) + "\n")  # what is measured is kept, whatever comes
            print(line(one), flush=True)
        if args.keep:
            shutil.copytree(folder, args.keep, dirs_exist_ok=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
