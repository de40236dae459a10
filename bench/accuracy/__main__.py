"""How often the judge is right, on simulated jobs whose faults are known: ``python bench/accuracy --edition 3``.

Results are appended to a file as they come; started again it goes on where it stopped. Seeds of an edition are held
out: none of them was looked at while thresholds were chosen. ``--tuning`` takes seeds that may be.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import kept
import numpy as np
import readme
from grade import graded
from suite import EDITIONS, FAMILIES, SHARES
from table import tables

TUNING = 1_000


def main() -> None:
    """Run what is missing, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=sum(SHARES.values()), help="of all families together")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--out", type=Path, default=Path("accuracy.jsonl"))
    seeds = parser.add_mutually_exclusive_group()
    seeds.add_argument("--edition", type=int, choices=EDITIONS, default=max(EDITIONS), help="of held-out seeds")
    seeds.add_argument("--tuning", action="store_true", help="seeds that may be looked at")
    seeds.add_argument("--base", type=int, help="first seed of the first family, that may be looked at, instead")
    parser.add_argument("--family", choices=FAMILIES, action="append", help="only these")
    parser.add_argument("--write", type=Path, metavar="FILE", help="the table, and each run's result, as JSON")
    parser.add_argument("--from", dest="kept", type=Path, metavar="FILE", help="only the tables of such a file")
    parser.add_argument("--readme", action="store_true", help="write the figures into README.md next to this file")
    parser.add_argument("--minutes", type=float, default=60.0, help="stop after so long; start again to go on")
    args = parser.parse_args()
    if args.kept:
        print("\n".join(tables(kept.read(args.kept.read_text()))))
        return
    looked_at = args.base if args.base is not None else TUNING if args.tuning else None
    base = EDITIONS[args.edition] if looked_at is None else looked_at
    edition = args.edition if looked_at is None else None
    wanted = _wanted(args.runs, base, args.family or [name for name in FAMILIES if SHARES[name]])
    results = {key: one for key, one in _read(args.out).items() if key in wanted}
    missing = [key for key in wanted if key not in results]
    if missing:
        results |= _run(missing, args.out, args.jobs, time.monotonic() + 60 * args.minutes)
    found = list(results.values())
    told = _told(len(found), len(wanted), base, edition)
    print("\n".join([f"{told}:", "", *tables(found)]))
    if len(results) < len(wanted):
        print(f"{len(wanted) - len(results)} of {len(wanted)} runs left: start again to go on")
    if args.write:
        _write(args.write, found, base, edition)
    if args.readme:
        readme.write(told, tables(found))
    if edition is None:
        _print_misjudged(found)


def _told(found: int, wanted: int, base: int, edition: int | None) -> str:
    """Which runs these are, and of how many where some are still to come."""
    runs = f"{found:,} runs" if found == wanted else f"{found:,} of {wanted:,} runs"
    seeds = f"edition {edition} of held-out seeds" if edition else "seeds that may be looked at, not held out"
    return f"{runs}, {seeds} (from {base:,} on), intervals of 95 %, commit {_commit()}"


def _write(path: Path, results: list[dict[str, Any]], base: int, edition: int | None) -> None:
    """The tables and what they were made from."""
    machine = {"cores": os.cpu_count(), "python": platform.python_version(), "numpy": np.__version__}
    facts = {"commit": _commit(), "edition": edition, "first_seed": base, "machine": machine}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(kept.text(facts | {"table": tables(results)}, results))


def _commit() -> str:
    git = ["git", "rev-parse", "--short", "HEAD"]
    return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def _wanted(runs: int, base: int, families: list[str]) -> list[tuple[str, int]]:
    """Families in turn, so that a run stopped early has some of each."""
    whole = sum(SHARES.values())  # a family that has no share is run as often as is asked for
    counts = {family: max(1, round(runs * (SHARES[family] or whole) / whole)) for family in families}
    first = {family: base + 10_000 * place for place, family in enumerate(FAMILIES)}
    keys = [(i / counts[family], family, first[family] + i) for family in families for i in range(counts[family])]
    return [(family, seed) for _, family, seed in sorted(keys)]


def _read(path: Path) -> dict[tuple[str, int], dict[str, Any]]:
    if not path.exists():
        return {}
    results = [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")]
    return {(one["family"], one["seed"]): one for one in results}


def _run(keys: list[tuple[str, int]], out: Path, jobs: int, deadline: float) -> dict[tuple[str, int], dict[str, Any]]:
    done: dict[tuple[str, int], dict[str, Any]] = {}
    with multiprocessing.get_context("spawn").Pool(jobs) as pool, out.open("a") as stream:
        for one in pool.imap_unordered(graded, keys):
            stream.write(json.dumps(one) + "\n")
            stream.flush()
            done[one["family"], one["seed"]] = one
            if time.monotonic() > deadline:
                break
    return done


def _print_misjudged(results: list[dict[str, Any]]) -> None:
    nobody = ("link", "network", "stages")  # judged by their kind
    wrong = [one for one in results if one["family"] not in nobody and one["named"] not in _right(one)]
    wrong += [one for one in results if one["family"] in nobody and (one["named"] or "balanced" in one["kinds"])]
    wrong += [one for one in results if one["family"] in ("two_causes", "handover") and one["blamed"] != one["faults"]]
    for one in sorted(wrong, key=lambda one: (one["family"], one["seed"])):
        shown = {key: one[key] for key in ("ranks", "layout", "causes", "onset", "true", "named", "kinds", "blamed")}
        print(f"{one['family']} {one['seed']} effect {one['effect']:.3f} {shown}")


def _right(one: dict[str, Any]) -> list[list[int]]:
    """Whom to name; below 2 % either way is right."""
    if one["family"] in ("clean", "hidden") or not one["true"]:
        return [[]]
    return [list(one["true"]), []] if one["effect"] < 0.02 else [list(one["true"])]


if __name__ == "__main__":
    main()
