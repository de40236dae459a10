"""Whether another tree's reports are byte for byte those of this one: for changes that must change no report.

    git worktree add ../before origin/main
    python bench/equal_reports.py ../before

Each tree reports on every recording in this tree's ``tests/fixtures/recordings``, and on 200 jobs that it simulates: of
all layouts, with faults of all causes, a quarter without one. A tenth of these jobs is written and read again, too, as
a run directory and as traces. Prints the names of reports that differ, and exits with 1 where there are any. It takes
about half a minute a tree.
"""

import argparse
import filecmp
import json
import os
import random
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hindmost_collector.simulate import Scenario

ROOT = Path(__file__).resolve().parents[1]
RECORDINGS = ROOT / "tests/fixtures/recordings"
JOBS = 200
#: One job in so many is written and read again.
WRITTEN = 10
LAYOUTS = {"dp": (1, 1), "fsdp": (1, 1), "tp_dp": (2, 1), "pp_dp": (1, 2)}
STOPS = ("hang", "desync")
CAUSES = (
    *("compute", "gpu_throttle", "gpu_contention", "workload", "h2d", "input", "cpu_contention", "gc"),
    *("checkpoint", "memory", "io", "network", *STOPS),
)


def main() -> int:
    """Compare two trees, or write the reports of the tree that PYTHONPATH names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("other", type=Path, help="the other tree, or with --write the folder to write into")
    parser.add_argument("--jobs", type=int, default=JOBS, help=f"simulated jobs (default: {JOBS})")
    parser.add_argument("--write", action="store_true", help="write this tree's reports into a folder")
    args = parser.parse_args()
    if args.write:
        write(args.other, args.jobs)
        return 0
    if not (args.other / "collector/hindmost_judge").is_dir():
        parser.error(f"{args.other}: no tree of hindmost; make one with `git worktree add {args.other} COMMIT`")
    with tempfile.TemporaryDirectory() as folder:
        outs = [Path(folder, name) for name in ("here", "other")]
        for tree, out in zip((ROOT, args.other.resolve()), outs, strict=True):
            run_in(tree, out, args.jobs)
        found = different(*outs)
        reports = len(list(outs[0].iterdir()))
    print("\n".join([*found, f"{len(found)} of {reports} reports differ"]))
    return int(bool(found))


def run_in(tree: Path, out: Path, jobs: int) -> None:
    """Write the reports of a tree's own packages, all else being the same."""
    path = os.pathsep.join(str(tree / one) for one in ("agent", "collector", "proto"))
    same = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONHASHSEED": "0", "TZ": "UTC", "COLUMNS": "100"}
    command = [sys.executable, __file__, "--write", str(out), "--jobs", str(jobs)]
    subprocess.run(command, env={**os.environ, **same, "PYTHONPATH": path}, check=True)


def different(here: Path, other: Path) -> list[str]:
    """Names of the files that only one folder has, or that differ."""
    names = sorted({path.name for folder in (here, other) for path in folder.iterdir()})
    same, _, _ = filecmp.cmpfiles(here, other, names, shallow=False)
    return [name for name in names if name not in same]


def write(out: Path, jobs: int) -> None:
    """Every report as JSON and as text."""
    from hindmost_cli.report import judged  # noqa: PLC0415 - of the tree that PYTHONPATH names
    from hindmost_collector.simulate import simulate  # noqa: PLC0415
    from hindmost_collector.simulate.write import write as record  # noqa: PLC0415
    from hindmost_judge.judge import judge  # noqa: PLC0415

    out = out.resolve()
    out.mkdir(parents=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)  # reports name their recording
        for path in sorted(RECORDINGS.glob("*.tar.xz")):
            name = path.name.removesuffix(".tar.xz")
            with tarfile.open(path) as archive:
                archive.extractall(name, filter="data")
            keep(out, name, lambda name=name: judged(Path(name)))
        for seed in range(jobs):
            made = simulate(drawn(seed))
            keep(out, f"job-{seed:03}", lambda made=made: judge(made.run).to_dict())
            for kind in ("run", "traces") if seed % WRITTEN == 0 else ():
                record(made.run, Path(f"{kind}-{seed}"), kind)
                keep(out, f"job-{seed:03}-{kind}", lambda kind=kind, seed=seed: judged(Path(f"{kind}-{seed}")))


def keep(out: Path, name: str, report: Callable[[], dict[str, Any]]) -> None:
    """Write one report; what is refused is an outcome, too."""
    from hindmost_cli.report import render  # noqa: PLC0415 - see write

    try:
        found = report()
    except Exception as error:  # noqa: BLE001 - whatever the tree raises
        (out / f"{name}.json").write_text(f"{type(error).__name__}: {error}\n")
        return
    (out / f"{name}.json").write_text(json.dumps(found, indent=1, sort_keys=True, default=str) + "\n")
    (out / f"{name}.txt").write_text(render(found, "text", None, False, True))


def drawn(seed: int) -> Scenario:
    """A job drawn by its seed: with a persistent, late or intermittent fault, or two, or with none."""
    from hindmost_cli.simulate import parse_fault  # noqa: PLC0415 - see write
    from hindmost_collector.simulate import Scenario  # noqa: PLC0415

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


if __name__ == "__main__":
    sys.exit(main())
