"""What the judge makes of recordings, as JSON, and what differs between two such files.

    python -m bench.golden judge --out after.json [--corpus DIR]... [--only PATTERN]... [--simulated 200]
    python -m bench.golden judge --out before.json --tree ../before
    python -m bench.golden compare before.json after.json [--exact]

``judge`` reads every recording in ``tests/fixtures/recordings`` and in each ``--corpus``: archives, Parquet files, run
directories. ``--simulated`` adds so many jobs: of all layouts, with faults of all causes, a quarter without one. Every
tenth is written and read again, too, as a run directory and as traces. ``--tree`` takes another tree's packages.

``compare`` pairs the verdicts of each recording: same kind, ranks and cause, onset within 3 steps, cost within 20 %. It
prints one difference a line and exits with 1 where there is any. Sentences are not compared. With ``--exact`` it names
each report whose JSON or text is not byte for byte the same.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

from hindmost_cli.report import render
from hindmost_cli.simulate import parse_fault
from hindmost_collector.recordings.load import load
from hindmost_collector.simulate import Scenario, simulate
from hindmost_collector.simulate.write import write as record
from hindmost_judge.judge import judge
from hindmost_judge.model import Run
from hindmost_judge.verdict.schema import Verdict

from bench.checkout import packages, write

ROOT = Path(__file__).resolve().parents[1]
OURS = ROOT / "tests/fixtures/recordings"
#: Onsets this many steps apart, and costs this share of the larger apart, are the same decision.
STEPS_APART, COST_APART = 3, 0.2
#: What else the bytes of a report depend on.
SURROUNDINGS = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "TZ": "UTC",
    "COLUMNS": "100",
}
#: One simulated job in so many is written and read again.
WRITTEN = 10
LAYOUTS = {"dp": (1, 1), "fsdp": (1, 1), "tp_dp": (2, 1), "pp_dp": (1, 2)}
STOPS = ("hang", "desync")
CAUSES = (
    *("compute", "gpu_throttle", "gpu_contention", "workload", "h2d", "input", "cpu_contention", "gc"),
    *("checkpoint", "memory", "io", "network", *STOPS),
)

Decision = dict[str, Any]


def main() -> int:
    """Judge or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge", help="write the decisions and reports on every recording")
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--corpus", type=Path, action="append", default=[], help="a further folder of recordings")
    judging.add_argument("--only", action="append", default=[], metavar="PATTERN", help="names such as 'mpi-*'")
    judging.add_argument("--simulated", type=int, default=0, metavar="N", help="jobs to simulate, too (default: 0)")
    judging.add_argument("--tree", type=Path, default=ROOT, help="whose packages judge (default: this tree's)")
    comparing = commands.add_parser("compare", help="print what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--exact", action="store_true", help="every byte of the reports")
    args = parser.parse_args()
    if args.command == "judge":
        if not (args.tree / "collector/hindmost_judge").is_dir():
            parser.error(f"{args.tree}: no tree of hindmost; make one with `git worktree add {args.tree} COMMIT`")
        _judge_with(args.tree.resolve())
        folders = [one.resolve() for one in (OURS, *args.corpus)]
        return _judge_all(folders, args.only, args.simulated, args.out.resolve())
    before, after = (json.loads(path.read_text()) for path in (args.before, args.after))
    if args.exact:
        found = different(before["reports"], after["reports"])
    else:
        found = differences(before["recordings"], after["recordings"])
    print("\n".join([*found, f"{len(found)} differences"]))
    return int(bool(found))


def _judge_with(tree: Path) -> None:
    """Start again where this process has other packages or surroundings."""
    needed = {**SURROUNDINGS, "PYTHONPATH": packages(tree)}
    if any(os.environ.get(name) != value for name, value in needed.items()):
        again = [sys.executable, "-m", "bench.golden", *sys.argv[1:]]
        os.execve(sys.executable, again, {**os.environ, **needed})  # noqa: S606 - itself


def _judge_all(folders: list[Path], only: list[str], simulated: int, out: Path) -> int:
    found: dict[str, list[Decision]] = {}
    reports: dict[str, str] = {}
    read = {name: partial(load, path) for name, path in recordings(folders).items()}
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # reports name their recording
        for name, run in (*read.items(), *jobs(simulated)):
            if only and not any(fnmatch(name, pattern) for pattern in only):
                continue
            begun = time.perf_counter()
            found[name], reports[name] = judged(run)
            print(f"{time.perf_counter() - begun:6.1f} s  {name}: {_shown(found[name])}", file=sys.stderr, flush=True)
    if not found:
        print(f"no recording in {', '.join(map(str, folders))} matches {only}", file=sys.stderr)
        return 2
    write(out, {"recordings": found, "reports": reports})
    return 0


def recordings(folders: list[Path]) -> dict[str, Path]:
    """Each recording by its name; the second of a name has its folder before it."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(folder.iterdir()):
            archive = path.name.endswith((".tar.xz", ".tar.gz", ".parquet"))
            if archive or (path.is_dir() and (path / "meta.json").exists()):
                name = path.name.split(".tar.")[0]
                found[name if name not in found else f"{folder.name}/{name}"] = path
    return found


def jobs(number: int) -> Iterator[tuple[str, Callable[[], Run]]]:
    """So many simulated jobs by their names, and what is read of those that are written."""
    for seed in range(number):
        name = f"job-{seed:03}"
        run = simulate(drawn(seed)).run
        yield name, lambda run=run: run
        for kind in ("run", "traces") if seed % WRITTEN == 0 else ():
            record(run, Path(f"{name}-{kind}"), kind)
            yield f"{name}-{kind}", partial(load, Path(f"{name}-{kind}"))


def judged(read: Callable[[], Run]) -> tuple[list[Decision], str]:
    """What is decided on one recording, in the order of the report, and the report as JSON and text.

    An exception is a decision too, and never right.
    """
    try:
        report = judge(read())
    except Exception as error:  # noqa: BLE001 - one recording that fails must not hide the others
        refused = f"{type(error).__name__}: {error}"
        return [{"kind": f"raised {refused}"[:200], "ranks": []}], refused
    plain = report.to_dict()
    text = json.dumps(plain, indent=1, sort_keys=True, default=str) + render(plain, "text", None, False, True)
    return [as_decision(one) for one in report.verdicts], text


def drawn(seed: int) -> Scenario:
    """A job drawn by its seed: with a persistent, late or intermittent fault, or two, or with none."""
    draw = random.Random(seed)  # noqa: S311 - any numbers will do
    layout, ranks, steps = draw.choice(list(LAYOUTS)), draw.choice([2, 3, 4, 8, 16]), draw.choice([60, 80, 120])
    tensor, pipeline = LAYOUTS[layout]
    if ranks % (tensor * pipeline) or ranks <= tensor * pipeline:
        layout, tensor, pipeline = "dp", 1, 1
    faults: tuple[Any, ...] = ()
    if draw.random() > 0.25:
        cause, rank = draw.choice(CAUSES), draw.randrange(ranks)
        text = f"{cause}:{rank}:{draw.choice([3, 6, 10, 20, 40])}%"
        text += draw.choice(["", "", f"@{steps // 3}", f"@{steps // 3}-{steps - 10}"])
        text += draw.choice(["", "", "~30%"])
        faults = tuple(parse_fault(f"{cause}:{rank}:0%@{steps // 2}" if cause in STOPS else text))
        if cause not in STOPS and draw.random() < 0.2:
            faults += tuple(parse_fault(f"input:{(rank + 1) % ranks}:12%"))
    return Scenario(
        ranks=ranks,
        steps=steps,
        seed=seed,
        layout=layout,
        tensor=tensor,
        pipeline=pipeline,
        faults=faults,
        run_ahead=draw.choice([0, 0, 0, 2]),
        varying_lengths=draw.choice([0.0, 0.0, 0.3]),
        gpu_bound=draw.choice(["", "", "compute", "memory"]),
    )


def as_decision(one: Verdict) -> Decision:
    """What a verdict decides, without its sentences."""
    return {
        "kind": one.kind,
        "ranks": list(one.ranks),
        "victims": list(one.victims),
        "cause": one.cause,
        "since": one.since_step,
        "until": one.until_step,
        "cost_ms": None if one.cost_ms_per_step is None else round(one.cost_ms_per_step, 4),
        "cost_ratio": None if one.cost_ratio is None else round(one.cost_ratio, 4),
        "confidence": None if one.confidence is None else round(one.confidence, 3),
    }


def different(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """Names of the reports that only one has, or that differ in any byte."""
    return sorted(name for name in before | after if before.get(name) != after.get(name))


def differences(before: dict[str, list[Decision]], after: dict[str, list[Decision]]) -> list[str]:
    """One line a difference."""
    found = []
    for name in sorted(before | after):
        if name not in before or name not in after:
            found.append(f"{name}: only {'after' if name in after else 'before'}")
            continue
        missing, added = list(before[name]), []
        for one in after[name]:
            twin = next((other for other in missing if _same_fault(other, one)), None)
            if twin is None:
                added.append(one)
                continue
            missing.remove(twin)
            if not _same_cost(twin.get("cost_ms"), one.get("cost_ms")):
                found.append(f"{name}: cost {_words(twin)}, now {_words(one)}")
        if missing or added:
            found.append(f"{name}: {_shown(missing)}, now {_shown(added)}")
    return found


def _same_fault(one: Decision, other: Decision) -> bool:
    same = all(one.get(key) == other.get(key) for key in ("kind", "ranks", "cause"))
    return same and abs((one.get("since") or 0) - (other.get("since") or 0)) <= STEPS_APART


def _same_cost(one: float | None, other: float | None) -> bool:
    if one is None or other is None:
        return one is other
    return abs(one - other) <= COST_APART * max(abs(one), abs(other))


def _shown(verdicts: list[Decision]) -> str:
    return "; ".join(_words(one) for one in verdicts) or "nothing"


def _words(one: Decision) -> str:
    ranks = ",".join(map(str, one["ranks"]))
    parts = [one["kind"], f"[{ranks}]" if ranks else "", one.get("cause") or ""]
    parts += [f"since {one['since']}" if one.get("since") is not None else ""]
    parts += [f"{one['cost_ms']:.2f} ms" if one.get("cost_ms") is not None else ""]
    parts += [f"{one['confidence']:.0%}" if one.get("confidence") is not None else ""]
    return " ".join(part for part in parts if part)


if __name__ == "__main__":
    sys.exit(main())
