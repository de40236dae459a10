#!/usr/bin/env python3
"""What `hindmost run` takes of a job that leaves no core idle, in pairs of runs with and without it.

    python -m bench.guest --job hpl --pairs 10        # HPCC's HPL (Debian: apt-get install hpcc); about four minutes
    python -m bench.guest --job numpy --pairs 10      # an all-reduce of NumPy arrays with mpi4py
    python -m bench.guest --job hpl --pairs 10 --add  # further pairs, to those in the results file
    python -m bench.guest --job hpl --size 6000       # a longer job: start-up is a smaller part of it
    python -m bench.guest --job numpy --size 40000 --within  # agent and collector are stopped half of the time
    python -m bench.guest --job hpl --size 4000 --within     # likewise, for every other two of up to 400 solves

One rank a core. Runs go with, without, without, with: a drift that is even over four runs cancels. The wall time is
that of the job's own mpirun, and next to it stands what the job itself timed, without its start. What hindmost does
before and after mpirun is no time of the ranks, and is given as the seconds that the whole command takes longer. The
ratio is the geometric mean over pairs with its 95 % bootstrap interval. The ranks poll while they wait, so they want
their cores all the time: the share of these that they did not get shows what others took, whatever the cores' clock
does meanwhile. Of observed runs: events that were lost, of how
many; and of collector, agent and ``hindmost run`` itself what they used, in cores, and how often a second they were
put on one, while the job ran.

Runs differ by more than what is measured where other machines share the cores. ``--within`` compares slices of one
run, in which agent and collector go on, with the slices next to them, in which they are stopped (SIGSTOP); a slice of
HPL is one solve, with its matrix made and its result checked. What was
left undone then is done in the slices that count for them. So the CPU time of both is counted, in these slices and,
before, in ``USUAL_S`` of which none is stopped: ``percent_as_usual`` is what was measured times the ratio of the two.
Start-up and the probes are in both.

Results are written after each pair, and each half minute of ``--within``: a time limit loses nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import itertools
import json
import math
import os
import platform
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import duckdb
import numpy as np

from bench.checkout import commit

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "bench" / "results" / "guest.json"
HPCC_INPUT = Path("/usr/share/doc/hpcc/examples/_hpccinf.txt")
#: Order of HPL's matrix, and steps of the other job: about seven seconds on two cores.
SIZES = {"hpl": 2400, "numpy": 2400}
PRODUCTS = 4
DRAWS = 4000
#: HPL solves with each of as many stopping criteria and panels in recursion; its output is read so often (s).
HPL_TIMES, HPL_LOOK_S = 20, 0.02
HPL_BEGINS, HPL_RESULT = b"Begin of HPL", re.compile(rb"^W[RC]\w+ ", re.MULTILINE)
#: Of one run that is compared with itself: when it is under way (s), for how long it then goes on as usual, for how
#: long agent and collector are stopped, and after how many such slices results are written.
SETTLED_S, USUAL_S, SLICE_S, WRITTEN = 8.0, 32.0, 0.25, 128
#: Stands in for mpirun: notes the times of its start and end, and what our parent and its children have used by then.
TIMED = """#!/bin/sh
note() {
    echo "$1 $(date +%s.%N)"
    for process in $PPID $(cat /proc/$PPID/task/$PPID/children); do
        for task in /proc/$process/task/*/schedstat; do
            read used waited times <"$task" && echo "$process $used $times"
        done 2>/dev/null
    done
}
note begin >"$BENCH_TIMES"
"$BENCH_MPIRUN" "$@"
code=$?
note end >>"$BENCH_TIMES"
times >>"$BENCH_TIMES"
exit $code
"""


class Bench:
    """One job in a folder of its own, run again and again."""

    def __init__(self, job: str, size: int, products: int, folder: Path, ranks: int, *, repeat: bool = False) -> None:
        self.folder, self.times, self.ranks = folder, folder / "times", ranks
        self.hpl = folder / "hpccoutf.txt" if job == "hpl" else None
        self.solved: list[float] = []
        mpirun = shutil.which("mpirun", path="/usr/bin" if job == "hpl" else None)
        if mpirun is None or (job == "hpl" and not shutil.which("hpcc")):
            raise SystemExit(f"{job} needs mpirun{' and hpcc: apt-get install hpcc' if job == 'hpl' else ''}")
        timed = folder / "mpirun"
        timed.write_text(TIMED)
        timed.chmod(0o755)
        self.environ = {**os.environ, "BENCH_TIMES": str(self.times), "BENCH_MPIRUN": mpirun}
        self.environ |= dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
        if job == "hpl":
            text = HPCC_INPUT.read_text()
            for old, new in (("1000  ", f"{size}  "), ("2            Ps", "1            Ps")):
                text = text.replace(old, new, 1)
            text = re.sub(r"^2( +Qs)", rf"{ranks}\1", text, flags=re.MULTILINE)
            if repeat:  # by what PTRANS, which comes first, does not repeat as well
                for value, name, count in (
                    ("4", "NBMINs", "recursive stopping criterium"),
                    ("2", "NDIVs", "panels in recursion"),
                ):
                    text = re.sub(
                        rf"^{value} +{name}", f"{' '.join([value] * HPL_TIMES)} {name}", text, flags=re.MULTILINE
                    )
                    text = re.sub(rf"^1( +# of {count})", rf"{HPL_TIMES}\1", text, flags=re.MULTILINE)
            (folder / "hpccinf.txt").write_text(text)
            program = ["hpcc"]
        else:
            file = str(self.folder / "steps")
            program = [sys.executable, str(Path(__file__).with_name("all_reduce.py")), str(size), str(products), file]
        self.line = [str(timed), "-np", str(ranks), *program]
        self.observed = [sys.executable, "-m", "hindmost", "run", "--out", str(folder / "run"), "--", *self.line]

    def run(self, observed: bool) -> dict[str, Any]:
        out, line = self.folder / "run", self.observed if observed else self.line
        began = time.monotonic()
        done = subprocess.run(line, cwd=self.folder, env=self.environ, capture_output=True, text=True, check=False)
        command_s = time.monotonic() - began
        if done.returncode:
            raise SystemExit(f"{' '.join(line)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found = self._noted() | {"command_s": command_s}
        if (self.folder / "hpccoutf.txt").exists():
            said = (self.folder / "hpccoutf.txt").read_text()
            found["hpl_s"] = float(re.findall(r"HPL_time=([\d.]+)", said)[0])
            (self.folder / "hpccoutf.txt").unlink()
        else:
            ended = np.fromfile(self.folder / "steps")
            found["steps_s"] = ended[-1] - ended[0]
        if observed:
            found |= events(out)
            shutil.rmtree(out)
        else:
            del found["cores"], found["wakes_a_second"]
        return found

    def pairs(self, most: int, seconds: float) -> Iterator[dict[str, Any]]:
        """Pairs of runs; none begins later than that."""
        self.run(observed=True)  # caches, and the native parts are built
        end = time.monotonic() + seconds
        for number in range(most):
            if time.monotonic() > end:
                break
            order = (True, False) if number % 2 == 0 else (False, True)
            pair = {("with" if observed else "without"): self.run(observed) for observed in order}
            wall = {name: one["wall_s"] for name, one in pair.items()}
            print(f"{wall['with']:.2f} s with, {wall['without']:.2f} s without; {pair['with']}", flush=True)
            yield pair

    def within(self, seconds: float) -> Iterator[dict[str, Any]]:
        """How much slower steps were while agent and collector went on, by pairs of slices of one run."""
        switched: list[float] = []
        used: list[float] = []
        said = self.folder / "stderr"
        with (
            said.open("wb") as stderr,
            subprocess.Popen(self.observed, cwd=self.folder, env=self.environ, stderr=stderr) as run,
        ):
            while not self._works():  # the first run builds native parts
                if run.poll() is not None:
                    line, last = " ".join(self.observed), said.read_text()[-2000:]
                    raise SystemExit(f"{line} ended with {run.returncode}:\n{last}")
                time.sleep(SLICE_S)
            time.sleep(SETTLED_S)
            guests = [pid for pid in children(run.pid) if is_guest(pid)]
            usual = [(time.monotonic(), used_by(guests))]
            time.sleep(USUAL_S)
            usual.append((time.monotonic(), used_by(guests)))
            end = time.monotonic() + seconds
            for stopped in itertools.cycle((False, True, True, False)):
                switched.append(self._slice_ends(run))
                used.append(used_by(guests).cpu_s)
                if run.poll() is not None or not ranks_run(run.pid) or time.monotonic() > end:
                    break
                for pid in guests:
                    os.kill(pid, signal.SIGSTOP if stopped else signal.SIGCONT)
                if len(switched) % WRITTEN == 0:
                    yield self._compared(usual, switched, used)
            for pid in guests:
                os.kill(pid, signal.SIGCONT)
            run.terminate()
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        yield self._compared(usual, switched, used)

    def _works(self) -> bool:
        """Whether the job has begun what is measured."""
        if self.hpl is None:
            return (self.folder / "steps").exists()
        return self.hpl.exists() and HPL_BEGINS in self.hpl.read_bytes()

    def _slice_ends(self, run: subprocess.Popen[bytes]) -> float:
        """Waits for the end of a slice, and says when it was: of HPL, when the next solve was written down."""
        if self.hpl is None:
            time.sleep(SLICE_S)
            return time.monotonic()
        results = len(HPL_RESULT.findall(self.hpl.read_bytes()))
        while len(HPL_RESULT.findall(self.hpl.read_bytes())) == results and run.poll() is None:
            time.sleep(HPL_LOOK_S)
        self.solved.append(self.hpl.stat().st_mtime - time.time() + time.monotonic())
        return self.solved[-1]

    def _compared(self, usual: list[tuple[float, Used]], switched: list[float], used: list[float]) -> dict[str, Any]:
        ended = np.fromfile(self.folder / "steps") if self.hpl is None else np.array(self.solved)
        ended_by = np.interp(switched, ended, np.arange(len(ended)))  # how many steps, and parts of one
        rounds = range(0, len(switched) - 4, 4)
        whole = [at for at in rounds if ended[0] <= switched[at] and switched[at + 4] <= ended[-1]]
        rates, cores = np.diff(ended_by) / np.diff(switched), np.diff(used) / np.diff(switched)
        logs = [math.log(rates[at + 1 + two] / rates[at + 3 * two]) for at in whole for two in (0, 1)]
        (began, before), (until, after) = usual
        as_usual = (after.cpu_s - before.cpu_s) / (until - began)
        in_slices = statistics.fmean(cores[at + 3 * two] for at in whole for two in (0, 1))
        low, high = interval(logs, statistics.fmean)
        mean, ratio = statistics.fmean(logs), as_usual / in_slices
        return {
            "pairs": len(logs),
            "slice_s": round(float(np.median(np.diff(switched))), 3),
            "step_ms_without": round(1e3 / statistics.median(rates[at + 1 + two] for at in whole for two in (0, 1)), 2),
            "percent": percent(mean),
            "percent_95": [percent(low), percent(high)],
            "cores": {"in_slices": round(in_slices, 4), "as_usual": round(as_usual, 4)},
            "wakes_a_second": round((after.times - before.times) / (until - began), 1),
            "percent_as_usual": percent(ratio * mean),
            "percent_as_usual_95": [percent(ratio * low), percent(ratio * high)],
        }

    def _noted(self) -> dict[str, Any]:
        """Wall time, and of ``hindmost run`` and its other children, first the collector, then the agent, what each
        used while it passed."""
        at: dict[str, float] = {}
        cpu = math.nan
        used: dict[str, dict[int, Used]] = {"begin": {}, "end": {}}
        for text in self.times.read_text().splitlines():
            word, *rest = text.split()
            if word in used:
                when, at[word] = word, float(rest[0])
            elif word.endswith("s"):  # 0m1.5s, user and system: the shell's own, then its children's
                cpu = sum(60 * float(m) + float(s) for m, _, s in (one[:-1].partition("m") for one in (word, *rest)))
            else:
                before = used[when].get(int(word), Used())
                used[when][int(word)] = Used(before.cpu_s + int(rest[0]) / 1e9, before.times + int(rest[1]))
        wall = at["end"] - at["begin"]
        first, *others = used["begin"]
        both = [first, *(pid for pid in sorted(others) if pid in used["end"])]
        taken = [used["end"][pid].since(used["begin"][pid]) for pid in both]
        without_cpu = 100 * (1 - cpu / wall / self.ranks)
        of_guests = dict(zip(("run", "collector", "agent"), taken, strict=False))
        return {
            "wall_s": wall,
            "ranks_without_cpu_percent": without_cpu,
            "cores": {name: one.cpu_s / wall for name, one in of_guests.items()},
            "wakes_a_second": {name: one.times / wall for name, one in of_guests.items()},
        }


class Used(NamedTuple):
    """CPU time, and how often it was put on a core, of all threads of a process."""

    cpu_s: float = 0.0
    times: int = 0

    def since(self, before: Used) -> Used:
        return Used(self.cpu_s - before.cpu_s, self.times - before.times)


def used_by(pids: list[int]) -> Used:
    """What processes have used so far, but for threads that have ended."""
    ns = times = 0
    for task in [task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")]:
        with contextlib.suppress(OSError):
            used, _, count = task.read_text().split()
            ns, times = ns + int(used), times + int(count)
    return Used(ns / 1e9, times)


def children(pid: int) -> list[int]:
    """The processes that a process has started and that still run."""
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


def is_guest(pid: int) -> bool:
    """Whether a child of ``hindmost run`` is its collector or its agent."""
    try:
        return not {b"collector", b"agent"}.isdisjoint(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0"))
    except OSError:
        return False


def ranks_run(pid: int) -> bool:
    """Whether the job of ``hindmost run`` goes on."""
    return any(not is_guest(child) for child in children(pid))


def events(run: Path) -> dict[str, int]:
    """Events that the ranks of a run have written, and how many of them were lost."""
    files = [str(path) for path in (run / "segments" / "rank_states").rglob("*.parquet")]
    rows = duckdb.execute(
        "select sum(n), sum(lost) from (select max(events_total) n, max(events_lost_total) lost"
        " from read_parquet(?) group by rank)",
        [files],
    ).fetchall()
    return {"events": int(rows[0][0]), "lost": int(rows[0][1])}


def summary(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    observed = [pair["with"] for pair in pairs]
    found: dict[str, Any] = {"pairs": len(pairs), "runs": pairs}
    for what in ("wall_s", "hpl_s", "steps_s"):
        if all(what in pair["with"] for pair in pairs):
            logs = [math.log(pair["with"][what] / pair["without"][what]) for pair in pairs]
            found[what] = {
                "without": round(statistics.median(pair["without"][what] for pair in pairs), 3),
                "percent": percent(statistics.fmean(logs)),
                "percent_95": [percent(one) for one in interval(logs, statistics.fmean)],
                "median_percent": percent(statistics.median(logs)),
                "median_percent_95": [percent(one) for one in interval(logs, statistics.median)],
            }
    kept_off = "ranks_without_cpu_percent"
    more = [pair["with"][kept_off] - pair["without"][kept_off] for pair in pairs]
    found[kept_off] = {
        "without": round(statistics.fmean(pair["without"][kept_off] for pair in pairs), 2),
        "more": round(statistics.fmean(more), 2),
        "more_95": [round(one, 2) for one in interval(more, statistics.fmean)],
    }
    longer = [pair["with"]["command_s"] - pair["without"]["command_s"] for pair in pairs]
    found["command_longer_s"] = round(statistics.fmean(longer), 2)
    found["command_longer_s_95"] = [round(one, 2) for one in interval(longer, statistics.fmean)]
    found["events"] = sum(one["events"] for one in observed)
    found["lost"] = sum(one["lost"] for one in observed)
    for what, digits in (("cores", 4), ("wakes_a_second", 1)):
        known = [one[what] for one in observed if what in one]
        found[what] = {
            name: round(statistics.fmean(one.get(name, math.nan) for one in known), digits)
            for name in ("run", "collector", "agent")
        }
    return found


def percent(logarithm: float) -> float:
    return round(100 * math.expm1(logarithm), 2)


def interval(values: list[float], of: Any) -> tuple[float, float]:
    """95 % bootstrap interval."""
    draw = random.Random(5)  # noqa: S311 - a bootstrap
    drawn = sorted(of(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--job", choices=SIZES, required=True)
    parser.add_argument("--size", type=int, help="order of HPL's matrix, or steps of the other job; default: 2400")
    parser.add_argument(
        "--products", type=int, default=PRODUCTS, help="of matrices in a step of the other job; default: %(default)s"
    )
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="begin no pair later than this; end --within then"
    )
    parser.add_argument("--add", action="store_true", help="to the pairs that are in the results file")
    parser.add_argument("--within", action="store_true", help="stop agent and collector half of the time of one run")
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args()
    result: dict[str, Any] = json.loads(args.out.read_text()) if args.out.exists() else {}
    size = args.size or SIZES[args.job]
    name = args.job if size == SIZES[args.job] else f"{args.job} {size}"
    options = f" --products {args.products}" if args.products != PRODUCTS else ""
    options += " --within" if args.within else ""
    name += options.replace(" --", " ")
    before: list[dict[str, Any]] = result.get(name, {}).get("runs", []) if args.add else []
    ranks = len(os.sched_getaffinity(0))
    made_by = f"bench/guest --job {args.job} --size {size}{options}"
    machine = {"machine_cores": ranks, "kernel": platform.release(), "python": platform.python_version()}
    when = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    with tempfile.TemporaryDirectory(prefix="hindmost-bench-") as folder:
        bench = Bench(args.job, size, args.products, Path(folder), ranks, repeat=args.within)
        pairs = itertools.accumulate(
            bench.pairs(args.pairs, args.seconds), lambda all_, one: [*all_, one], initial=before
        )
        for found in bench.within(args.seconds) if args.within else (summary(all_) for all_ in pairs if all_):
            result[name] = {"commit": commit(), "made_by": made_by, "when": when, **machine, **found}
            args.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({one: value for one, value in result[name].items() if one != "runs"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
