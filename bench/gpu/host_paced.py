#!/usr/bin/env python3
"""Jobs whose hosts set the pace, undisturbed and with a slow host, in turn: what hindmost says, and the ground truth.

    python bench/gpu/host_paced.py --out recordings --archive recordings.tar --limit 520   # on two GPUs
    python bench/gpu/host_paced.py --out recordings --only conv-none gpt-step              # two regimes
    python bench/gpu/host_paced.py --out recordings --grade host_paced.json                # a table of what is there

Each job is ``hindmost run -- torchrun … host_paced_job.py`` in a run directory of its own, with what the job's hosts
logged as ``host_log.json`` and the ground truth as ``truth.json``. A fault's delay is a share of the mean step of the
undisturbed job of the same regime that ran last. The next job's processes import what they need on the last CPUs while
one trains, and join when that one has trained.

There are two ground truths. By undisturbed jobs a fault costs what steps are longer with it; CPUs drift by more from
job to job than a small fault takes. By the job's own log its steps are replayed from its hosts' work, as it was and
without the fault: there a fault costs what the replay is longer by.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
from live_faults import keep
from numpy.typing import NDArray

Floats = NDArray[np.float64]

ROOT = Path(__file__).parents[2]
JOB = Path(__file__).with_name("host_paced_job.py")
#: Models and whether the loop synchronises.
REGIMES = [(model, sync) for model in ("gpt", "conv") for sync in ("none", "step")]
#: Steps in which a job settles, and steps around an onset, of which no mean is taken.
WARM, SETTLES = 40, 8
#: The steps of a job, and the one from which on a late fault acts.
STEPS, LATE = 260, 150
#: The part of a step in which a host that is ahead waits.
WAITS = {"gpt-none": "backward", "conv-none": "forward", "gpt-step": "read", "conv-step": "read"}
#: How long a job may take until it has trained, and hindmost until it has judged.
TRAINS_S, JUDGES_S = 90.0, 60.0
#: A right onset is so many steps off at most, or by what steps vary; a right cost by so much.
ONSET, COST = 3, 0.2
#: With 95 %, an onset is found within so many steps where it is as large as steps vary (Bai, 1997).
FOUND_WITHIN = 11.0
#: This share of a step is no difference between hosts.
LEAST = 0.02
#: CPUs on which processes wait for their turn, where there are twice as many.
WAITING_CPUS = 6


@dataclass(frozen=True)
class Case:
    """One job: no fault where ``share`` is 0."""

    model: str
    sync: str
    share: float = 0.0
    rank: int = -1
    from_step: int = 0
    again: int = 1

    @property
    def regime(self) -> str:
        return f"{self.model}-{self.sync}"

    @property
    def name(self) -> str:
        what = f"{self.share:.0%}-rank{self.rank}-from{self.from_step}" if self.share else "clean"
        return f"{self.regime}-{what.replace('%', 'pc')}-{self.again}"


#: Faults as share, rank and first step, a row for each time that all regimes are gone through.
ROWS: tuple[tuple[tuple[float, int, int], ...], ...] = (
    ((0.15, 1, 0), (0.30, 0, LATE)),
    ((0.30, 1, 0), (0.06, 1, LATE)),
    ((0.06, 0, 0), (0.15, 0, LATE)),
    ((0.15, 1, 0), (0.06, 1, LATE)),
)


def campaign(rows: list[int]) -> list[Case]:
    """The jobs in turn: those with a fault from the start between two undisturbed ones."""
    found = []
    for number in rows:
        for regime in REGIMES:
            faults = [Case(*regime, *one, again=1 + sum(one in row for row in ROWS[:number])) for one in ROWS[number]]
            early, late = ([one for one in faults if (one.from_step > 0) is after] for after in (False, True))
            found += [Case(*regime, again=2 * number + 1), *early, Case(*regime, again=2 * number + 2), *late]
    return found


class Running:
    """One ``hindmost run``, in a process group of its own."""

    def __init__(self, case: Case, out: Path, steps: int, ranks: int) -> None:
        self.case, self.delay_ms = case, 0.0
        self.directory, self.room = out / case.name, out / f".{case.name}"
        shutil.rmtree(self.directory, ignore_errors=True)
        shutil.rmtree(self.room, ignore_errors=True)
        self.room.mkdir(parents=True)
        self.ranks = ranks
        fault = f"--slow-rank {case.rank} --from-step {case.from_step} --steps {steps}"
        job = [str(JOB), "--model", case.model, "--sync", case.sync, "--room", str(self.room), *fault.split()]
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), *job]
        line = [sys.executable, "-m", "hindmost", "run", "--no-live", "--out", str(self.directory), "--", *launch]
        self.output = (self.room / "output").open("w")
        environ = {**os.environ, "NCCL_NVLS_ENABLE": "0", "OMP_NUM_THREADS": "1"}
        cpus = os.cpu_count() or 1
        if cpus >= 2 * WAITING_CPUS:
            line = ["taskset", "-c", f"{cpus - WAITING_CPUS}-{cpus - 1}", *line]
        self.process = subprocess.Popen(
            line, env=environ, stdout=self.output, stderr=self.output, start_new_session=True
        )
        self.began = time.monotonic()

    def go(self, delay_ms: float) -> None:
        """Let the ranks join, one of them slower by so much a step."""
        self.delay_ms = delay_ms
        part = self.room / "go.part"
        part.write_text(str(delay_ms))
        part.rename(self.room / "go")
        self.began = time.monotonic()

    def stop(self) -> None:
        """Its turn does not come."""
        os.killpg(self.process.pid, signal.SIGTERM)
        self.process.wait(JUDGES_S)
        self.output.close()

    def train(self) -> bool:
        """Wait until every rank has written its log."""
        end = time.monotonic() + TRAINS_S
        while time.monotonic() < end and self.process.poll() is None and not self._trained():
            time.sleep(0.05)
        return self._trained()

    def _trained(self) -> bool:
        return all((self.room / f"rank{rank}.json").exists() for rank in range(self.ranks))

    def finish(self) -> dict[str, Any] | None:
        """Wait for the report; keep the ground truth next to it. None where the job failed: prints its output."""
        try:
            self.process.wait(JUDGES_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait(10)
        self.output.close()
        said = (self.room / "output").read_text(errors="replace")
        if not (self._trained() and (self.directory / "report.json").exists()):
            print(f"{self.case.name} failed:\n{said[-3000:]}", flush=True)
            return None
        logs = [json.loads((self.room / f"rank{rank}.json").read_text()) for rank in range(self.ranks)]
        log = {"columns": logs[0]["columns"], "ranks": [one["rows"] for one in logs]}
        (self.directory / "host_log.json").write_text(json.dumps(log))
        (self.directory / "output.txt").write_text(said)
        truth = asdict(self.case) | {
            "name": self.case.name,
            "regime": self.case.regime,
            "delay_asked_ms": self.delay_ms,
            "unix_less_monotonic_ns": time.time_ns() - time.monotonic_ns(),
        }
        truth |= measured(log, self.case)
        (self.directory / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
        shutil.rmtree(self.room)
        return truth


def measured(log: dict[str, Any], case: Case) -> dict[str, Any]:
    """What the job's own log says: mean steps before and with the fault, the delay put in, each host's parts."""
    columns, ranks = log["columns"], log["ranks"]
    late = case.from_step if case.share else 0
    begun = [rows[0] for rows in ranks[0]]
    faulty = slice(max(late + SETTLES, WARM), len(begun) - 2)
    spun = [row[columns.index("spun")] / 1e6 for row in ranks[case.rank]] if case.share else [0.0]
    ends = columns[:-1]
    parts = [
        {name: median(row[at + 1] - row[at] for row in rows[faulty]) / 1e6 for at, name in enumerate(ends[1:])}
        for rows in ranks
    ]
    return {
        "steps": len(begun),
        "step_ms": pace(begun[faulty]),
        "step_before_ms": pace(begun[WARM:late]) if late > WARM else None,
        "delay_ms": fmean(spun[late:]),
        "host_median_ms": parts,
    }


@dataclass(frozen=True)
class Hosts:
    """What a job's hosts did, by its own log, in ms: ``work`` [R, S] without waits, and what the fault ``spun`` of it.

    A host begins a step once all hosts have ended the one ``ahead`` steps before it. The job really took ``step_ms``.
    """

    work: Floats
    spun: Floats
    ahead: int
    step_ms: float = 0.0

    def step(self, less: Floats | float = 0.0, about: slice = slice(None)) -> float:
        """The mean of these steps, replayed with so much ``less`` work [R, S]."""
        work = self.work - less
        ended, now = np.zeros(work.shape[1] + self.ahead), np.zeros(len(work))
        for step in range(work.shape[1]):
            now = np.maximum(now, ended[step]) + work[:, step]
            ended[step + self.ahead] = now.max()
        return float(np.diff(ended[self.ahead - 1 :])[about].mean())

    def longer(self, rank: int, about: slice) -> float:
        """By how much a rank's host works longer than its peers in these steps."""
        return float((self.work[rank] - np.delete(self.work, rank, axis=0).mean(axis=0))[about].mean())

    def onset_within(self, rank: int, about: slice) -> float:
        """The steps within which the fault's onset is found, by how much its host's work varies from step to step."""
        healthy = self.work[rank] - np.delete(self.work, rank, axis=0).mean(axis=0) - self.spun[rank]
        varies, delay = np.diff(healthy).std() / np.sqrt(2), self.spun[rank, about].mean()
        return max(ONSET, FOUND_WITHIN * float(varies / delay) ** 2) if about.start > WARM and delay else ONSET

    def saves(self, rank: int, about: slice) -> float:
        """By how much the mean of these steps would be shorter were a rank's host no slower than its peers in them."""
        less = np.zeros(self.work.shape)
        less[rank, about] = max(self.longer(rank, about), 0.0)
        return self.step(0.0, about) - self.step(less, about)


def hosts(log: dict[str, Any], regime: str) -> Hosts:
    """Where one host waits, all of them are taken to work as long as the one that spends least there."""
    times = np.array(log["ranks"], float) / 1e6
    parts, began = np.diff(times[:, :, :-1], axis=2), times[:, :, 0]
    waits = log["columns"].index(WAITS[regime]) - 1
    work = parts.sum(axis=2) - parts[:, :, waits] + parts[:, :, waits].min(axis=0)
    number = np.arange(began.shape[1])
    leads = [int((number - np.searchsorted(one, other)).max()) for one in began for other in began]
    ended = times[:, WARM:-2, -2].max(axis=0)
    ahead = 1 if regime.endswith("step") else max(1, *leads)
    return Hosts(work, times[:, :, -1], ahead, float(np.diff(ended).mean()))


def pace(ends: list[int]) -> float:
    """The mean step in ms."""
    return (ends[-1] - ends[0]) / (len(ends) - 1) / 1e6


def run(cases: list[Case], out: Path, limit_s: float, steps: int, ranks: int) -> None:
    """All cases in turn, as long as there is time."""
    began = time.monotonic()
    usual: dict[str, float] = {}
    job: Running | None = None
    with ThreadPoolExecutor(2) as pool:
        for number, (case, upcoming) in enumerate(zip(cases, [*cases[1:], None], strict=True)):
            if time.monotonic() - began > limit_s:
                print(f"{case.name}: not begun, {limit_s:.0f} s are over", flush=True)
                continue
            job = job or Running(case, out, steps, ranks)
            current, job = job, None
            current.go(case.share * usual.get(case.regime, 0.0))
            if upcoming and time.monotonic() - began < limit_s - TRAINS_S / 8:
                job = Running(upcoming, out, steps, ranks)
            trained = current.train()
            at = time.monotonic()
            print(f"{at - began:5.0f} s  {case.name} took {at - current.began:.1f} s", flush=True)
            if not (trained or number):
                raise SystemExit((current.room / "output").read_text(errors="replace")[-3000:])
            if trained and not case.share:
                log = json.loads((current.room / "rank0.json").read_text())
                usual[case.regime] = pace([row[0] for row in log["rows"]][WARM:-2])
            pool.submit(current.finish)
        if job is not None:
            job.stop()


def again(out: Path) -> None:
    """Write the reports of all recordings anew, as this version judges them."""
    for path in sorted(out.glob("*/truth.json")):
        report = [sys.executable, "-m", "hindmost", "report", "--format", "json", str(path.parent)]
        said = subprocess.run(report, capture_output=True, text=True, check=True).stdout
        (path.parent / "report.json").write_text(said)


def costs(out: Path) -> list[dict[str, Any]]:
    """The truth of each recording, in the order of the runs, with ``cost_ms`` and its uncertainty ``doubt_ms``.

    A late fault's cost is how much longer the job's own steps became. One from the start is compared with the
    undisturbed jobs before and after it, which differ by what a machine's CPUs do from minute to minute: the doubt.
    """
    paths = {
        path: json.loads((path.parent / "meta.json").read_text())["started_ns"] for path in out.glob("*/truth.json")
    }
    truths = [json.loads(path.read_text()) for path in sorted(paths, key=paths.__getitem__)]
    for at, truth in enumerate(truths):
        same = [(abs(other - at), other) for other, one in enumerate(truths) if one["regime"] == truth["regime"]]
        clean = [truths[other]["step_ms"] for _, other in sorted(same) if not truths[other]["share"] and other != at][
            :2
        ]
        if not truth["share"]:
            continue
        if clean:
            truth["clean_step_ms"] = clean
        if truth["step_before_ms"] is not None:
            truth |= {"cost_ms": truth["step_ms"] - truth["step_before_ms"], "doubt_ms": 0.0}
        elif clean:
            truth |= {"cost_ms": truth["step_ms"] - fmean(clean), "doubt_ms": (max(clean) - min(clean)) / 2}
        (out / truth["name"] / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")
    return truths


def said_live(directory: Path, truth: dict[str, Any]) -> list[dict[str, Any]]:
    """Which verdicts with a rank were opened while the job trained, and how many steps it had done by then."""
    log = json.loads((directory / "host_log.json").read_text())
    ended = [row[-2] + truth.get("unix_less_monotonic_ns", 0) for row in log["ranks"][0]]
    path = directory / "verdicts.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    keys = ("kind", "ranks", "cause", "since_step", "cost_ms_per_step")
    return [
        {"by_step": sum(ns <= one["time_ns"] for ns in ended)} | {key: one["verdict"].get(key) for key in keys}
        for one in events
        if one["event"] != "closed" and one["verdict"]["ranks"] and one["time_ns"] <= ended[-1]
    ]


def grade(truth: dict[str, Any], report: dict[str, Any], live: list[dict[str, Any]], log: Hosts) -> dict[str, Any]:
    """A verdict against both ground truths. Of an undisturbed job: which rank was named, and at what cost."""
    named = [one for one in report["verdicts"] if one["ranks"]]
    keys = ("kind", "ranks", "cause", "since_step", "until_step", "cost_ms_per_step", "confidence", "evidence")
    about = {
        key: truth.get(key)
        for key in ("name", "share", "rank", "from_step", "delay_ms", "cost_ms", "doubt_ms", "step_ms")
    }
    replayed = log.step(0.0, slice(WARM, -2))
    said = about | {"verdicts": [{key: one.get(key) for key in keys} for one in named], "live": live}
    said |= {"ahead": log.ahead, "replay_off": round(replayed / log.step_ms - 1, 4) if log.step_ms else None}
    true = [_works_longer(log, one) for one in named]
    if not truth["share"]:
        return said | {"right": all(true)}
    mine = [one for one in named if one["ranks"] == [truth["rank"]]]
    first = mine[0] if mine else {}
    wanted = "input" if truth["model"] == "conv" else "compute"  # in the host's lane: see the evidence
    onset = first.get("since_step") - truth["from_step"] if first.get("since_step") is not None else None
    told = first.get("cost_ms_per_step")
    doubt = truth["doubt_ms"] + COST * abs(truth["cost_ms"])
    acts = _steps(log, truth["from_step"], None)
    fault, host = log.step(0.0, acts) - log.step(log.spun, acts), log.saves(truth["rank"], acts)
    least = LEAST * log.step_ms
    marks = {
        "named": len(mine) > 0 and all(true),
        "once": len(mine) == 1,
        "cause": first.get("cause") == wanted,
        "onset": onset is not None and abs(onset) <= log.onset_within(truth["rank"], acts),
        "cost": told is not None and (1 - COST) * min(fault, host) - least <= told <= (1 + COST) * max(fault, host),
    }
    return said | {
        "wanted": wanted,
        "onset_off_steps": onset,
        "longer_by_log_ms": round(log.longer(truth["rank"], acts), 3),
        "fault_by_log_ms": round(fault, 3),
        "host_by_log_ms": round(host, 3),
        "marks": marks,
        "cost_by_clean_jobs": told is not None and abs(told - truth["cost_ms"]) <= doubt,
        "shows": host >= least,
        "right": all(marks.values() if host >= least else true),
    }


def _steps(log: Hosts, since: int | None, until: int | None) -> slice:
    """The steps that a verdict or a fault is about, without those in which a job settles or ends."""
    last = log.work.shape[1] - 2
    first = min(max(since or 0, WARM), last - 1)
    return slice(first, max(min(until or last, last), first + 1))


def _works_longer(log: Hosts, verdict: dict[str, Any]) -> bool:
    """Whether a verdict costs no more than the replay is shorter by without what the named hosts work longer."""
    about = _steps(log, verdict.get("since_step"), verdict.get("until_step"))
    saves = sum(log.saves(rank, about) for rank in verdict["ranks"])
    return bool(verdict["cost_ms_per_step"] <= (1 + COST) * saves + LEAST * log.step_ms)


def table(graded: list[dict[str, Any]]) -> str:
    """Markdown, a row a job."""
    head = ("job", "step, ms", "delay put in, ms", "cost, ms", "by the log, ms", "said", "onset off", "right")
    rows = ["| " + " | ".join(head) + " |", "| " + " | ".join(["---"] * len(head)) + " |"]
    for one in graded:
        said = "; ".join(_said(verdict) for verdict in one["verdicts"]) or "no rank"
        off, log = one.get("onset_off_steps"), [one.get(f"{what}_by_log_ms") for what in ("fault", "host")]
        cells = [one["name"], _number(one["step_ms"]), _number(one["delay_ms"]) if one["share"] else ""]
        doubt = f" ± {_number(one['doubt_ms'])}" if one["doubt_ms"] else ""
        cells += [_number(one["cost_ms"]) + doubt if one["cost_ms"] is not None else ""]
        cells += [f"fault {_number(log[0])}, host {_number(log[1])}" if log[0] is not None else "", said]
        cells += ["" if off is None else f"{off:+d}", "yes" if one["right"] else "**no**"]
        rows.append("| " + " | ".join(cells) + " |")
    return "\n".join(rows)


def _said(verdict: dict[str, Any]) -> str:
    cost = verdict["cost_ms_per_step"]
    ranks = ", ".join(map(str, verdict["ranks"]))
    much = "?" if cost is None else _number(cost)
    return f"{verdict['kind']} {ranks}: {verdict['cause']}, {much} ms since {verdict['since_step']}"


def _number(milliseconds: float) -> str:
    return f"{milliseconds:.1f}"


def summary(graded: list[dict[str, Any]]) -> dict[str, Any]:
    """How many were right, and of faults in what; and how far the replay of the log is off in undisturbed jobs."""
    faults, clean = ([one for one in graded if bool(one["share"]) is slow] for slow in (True, False))
    off = [abs(one["replay_off"]) for one in clean]
    return {
        "faults": len(faults),
        "faults_right": sum(one["right"] for one in faults),
        **{mark: sum(one["marks"][mark] for one in faults) for mark in ("named", "once", "cause", "onset", "cost")},
        "cost_by_clean_jobs": sum(one["cost_by_clean_jobs"] for one in faults),
        "host_not_slower": sum(not one["shows"] for one in faults),
        "clean": len(clean),
        "clean_right": sum(one["right"] for one in clean),
        "replay_off_median": median(off) if off else None,
        "replay_off_most": max(off, default=None),
    }


def made_by() -> str:
    ask = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    found = (
        subprocess.run(ask, capture_output=True, text=True, check=False).stdout.splitlines()
        if shutil.which("nvidia-smi")
        else []
    )
    on = f"{len(found)} x {found[0]}, NCCL" if found else f"{os.cpu_count()} CPU cores, gloo"
    return f"bench/gpu/host_paced.py on {on}, PyTorch {version('torch')}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def judged_again(graded: list[dict[str, Any]]) -> str:
    return f"bench/gpu/host_paced.py --grade, {len(graded)} recordings, {time.strftime('%Y-%m-%d', time.gmtime())}"


def archive(out: Path, target: Path) -> None:
    """Every run directory, packed alone, in as many files as keep each one small."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for packed in pool.map(_packed, sorted(path.parent for path in out.glob("*/truth.json"))):
            keep(target, packed)
            packed.unlink()


def _packed(directory: Path) -> Path:
    packed = directory.with_name(f"{directory.name}.tar.xz")
    with tarfile.open(packed, "w:xz") as tar:
        tar.add(directory, directory.name)
    return packed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a folder for the run directories")
    parser.add_argument("--only", nargs="+", metavar="REGIME", help="such as gpt-none, conv-step")
    parser.add_argument("--rows", nargs="+", type=int, choices=range(len(ROWS)), default=list(range(len(ROWS))))
    parser.add_argument("--limit", type=float, default=520, help="seconds after which no further job is begun")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--archive", type=Path, metavar="TAR", help="add the run directories to TAR, TAR-2 …")
    parser.add_argument("--grade", type=Path, metavar="JSON", help="run nothing, judge again what --out holds")
    args = parser.parse_args()
    if find_spec("hindmost") is None:
        paths = [str(ROOT / part) for part in ("agent", "collector", "proto")]
        os.environ["PYTHONPATH"] = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", "")])
    if args.grade:
        again(args.out)
    else:
        cases = [case for case in campaign(args.rows) if not args.only or case.regime in args.only]
        run(cases, args.out, args.limit, args.steps, args.ranks)
    graded = [
        grade(truth, json.loads((directory / "report.json").read_text()), said_live(directory, truth), log)
        for truth in costs(args.out)
        for directory in (args.out / truth["name"],)
        for log in (hosts(json.loads((directory / "host_log.json").read_text()), truth["regime"]),)
    ]
    result = {"made_by": judged_again(graded) if args.grade else made_by(), **summary(graded), "jobs": graded}
    (args.grade or args.out / "host_paced.json").write_text(json.dumps(result, indent=1) + "\n")
    print(table(graded))
    print(", ".join(f"{key} {value}" for key, value in summary(graded).items()))
    if args.archive:
        archive(args.out, args.archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
