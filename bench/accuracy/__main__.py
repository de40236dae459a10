"""How often the judge is right, on simulated jobs whose faults are known: ``python bench/accuracy --edition 3``.

Results are appended to a file as they come; started again it goes on where it stopped. Seeds of an edition are held
out: none of them was looked at while thresholds were chosen. ``--tuning`` takes seeds that may be. ``--suite lanes``
takes the jobs of ``two_lanes``, whose hosts and GPUs are lanes of their own; ``--suite injected`` takes real clean
recordings into which faults are put.
"""

import argparse
import json
import multiprocessing
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import grade
import injected
import numpy as np
import results_file
import suite
import table
from suite import EDITIONS
from two_lanes import families as lanes
from two_lanes import grade as lanes_grade
from two_lanes import table as lanes_table

sys.path.append(str(Path(__file__).resolve().parents[2]))  # a script has its own folder there only
from bench.checkout import commit

TUNING = 1_000

Result = dict[str, Any]


class Suite(NamedTuple):
    """How many runs of each family, how one is graded, the tables, and what was misjudged."""

    shares: Mapping[str, int]
    grade: Callable[[str, int], Result]
    tables: Callable[[list[Result]], list[str]]
    misjudged: Callable[[list[Result]], list[str]]


SUITES = {
    "cohorts": Suite(suite.SHARES, grade.grade, table.tables, table.misjudged),
    "lanes": Suite(lanes.SHARES, lanes_grade.grade, lanes_table.tables, lanes_table.misjudged),
    "injected": Suite(injected.SHARES, injected.grade, lanes_table.tables, lanes_table.misjudged),
}


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=SUITES, default="cohorts", help="which simulator's jobs")
    parser.add_argument("--runs", type=int, help="of all families together; default: as many as the suite has")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, help="default: SUITE.jsonl")
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--edition", type=int, choices=EDITIONS, default=max(EDITIONS), help="of held-out seeds")
    seeds.add_argument("--tuning", action="store_true", help="seeds for tuning, not held out")
    seeds.add_argument("--base", type=int, help="first seed of the first family, for tuning")
    parser.add_argument("--family", action="append", help="only these")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the tables, and results of runs, as JSON")
    parser.add_argument("--from", dest="results", type=Path, metavar="FILE", help="only the tables of such a file")
    parser.add_argument("--readme", action="store_true", help="write the figures into README.md next to this file")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long; start again to go on")
    args = parser.parse_args()
    chosen = SUITES[args.suite]
    if args.results:
        print("\n".join(table.tables(results_file.read(args.results.read_text()))))
        return
    for name in set(args.family or []) - set(chosen.shares):
        parser.error(f"--family {name}: use one of {', '.join(chosen.shares)}")
    out = args.out or Path(f"{args.suite}.jsonl")
    looked_at = args.base if args.base is not None else TUNING if args.tuning else None
    base = EDITIONS[args.edition] if looked_at is None else looked_at
    edition = args.edition if looked_at is None else None
    wanted = _wanted(chosen, args.runs, base, args.family)
    results = {key: one for key, one in _read(out).items() if key in wanted}
    missing = [key for key in wanted if key not in results]
    if missing:
        results |= _run(chosen, missing, out, args.jobs, time.monotonic() + 60 * args.minutes)
    found = list(results.values())
    title = _title(len(found), len(wanted), base, edition)
    print("\n".join([f"{title}:", "", *chosen.tables(found)]))
    if len(results) < len(wanted):
        print(f"{len(wanted) - len(results)} of {len(wanted)} runs left: start again to go on")
    if args.write:
        _write(args.write, chosen, found, base, edition)
    if args.readme and args.suite == "cohorts":
        table.write_readme(title, chosen.tables(found))
    if edition is None:
        print("\n".join(chosen.misjudged(found)))


def _title(found: int, wanted: int, base: int, edition: int | None) -> str:
    """Which runs these are, and of how many where some are still to come."""
    runs = f"{found:,} runs" if found == wanted else f"{found:,} of {wanted:,} runs"
    seeds = f"edition {edition} of held-out seeds" if edition else "seeds for tuning, not held out"
    return f"{runs}, {seeds} (from {base:,} on), intervals of 95 %, commit {commit()}"


def _write(path: Path, chosen: Suite, results: list[Result], base: int, edition: int | None) -> None:
    """The tables and what they were made from: each run, or of the other suites those that were misjudged."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    facts = {"commit": commit(), "edition": edition, "first_seed": base, "machine": machine}
    facts |= {"table": chosen.tables(results)}
    path.parent.mkdir(parents=True, exist_ok=True)
    if chosen is SUITES["cohorts"]:
        path.write_text(results_file.text(facts, results))
    else:
        path.write_text(json.dumps(facts | {"misjudged": chosen.misjudged(results)}, indent=1) + "\n")


def _wanted(chosen: Suite, runs: int | None, base: int, named: list[str] | None) -> list[tuple[str, int]]:
    """Families in turn, so that a run stopped early has some of each."""
    whole = sum(chosen.shares.values())  # a family that has no share is run as often as is asked for
    families = named or [name for name, share in chosen.shares.items() if share]
    each = {family: (runs or whole) * (chosen.shares[family] or whole) / whole for family in families}
    counts = {family: max(1, round(count)) for family, count in each.items()}
    first = {family: base + 10_000 * place for place, family in enumerate(chosen.shares)}
    keys = [(i / counts[family], family, first[family] + i) for family in families for i in range(counts[family])]
    return [(family, seed) for _, family, seed in sorted(keys)]


def _read(path: Path) -> dict[tuple[str, int], Result]:
    if not path.exists():
        return {}
    results = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {(result["family"], result["seed"]): result for result in results}


def _run(
    chosen: Suite, keys: list[tuple[str, int]], out: Path, jobs: int, deadline: float
) -> dict[tuple[str, int], Result]:
    done: dict[tuple[str, int], Result] = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, out.open("a") as stream:
        for one in pool.imap_unordered(partial(grade.graded, chosen.grade), keys):
            stream.write(json.dumps(one) + "\n")
            stream.flush()
            done[one["family"], one["seed"]] = one
            if time.monotonic() > deadline:
                break
    return done


if __name__ == "__main__":
    main()
