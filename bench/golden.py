"""What the judge decides on recordings, as JSON, and what differs between two such files.

    python -m bench.golden judge --out before.json [--corpus DIR]... [--only PATTERN]...
    python -m bench.golden compare before.json after.json

``judge`` reads every recording in ``tests/fixtures/recordings`` and in each ``--corpus``: archives, Parquet files, run
directories. ``compare`` pairs the verdicts of each recording: same kind, ranks and cause, onset within 3 steps, cost
within 20 %. It prints one difference a line and exits with 1 where there is any. Sentences are not compared.
"""

import argparse
import json
import sys
import time
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from hindmost_judge.judge import judge
from hindmost_judge.verdict.schema import Verdict

from bench.commit import write

ROOT = Path(__file__).resolve().parents[1]
OURS = ROOT / "tests/fixtures/recordings"
#: Onsets this many steps apart, and costs this share of the larger apart, are the same decision.
STEPS_APART, COST_APART = 3, 0.2

Decision = dict[str, Any]


def main() -> int:
    """Judge or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    judging = commands.add_parser("judge", help="write the decisions on every recording")
    judging.add_argument("--out", type=Path, required=True)
    judging.add_argument("--corpus", type=Path, action="append", default=[], help="a further folder of recordings")
    judging.add_argument("--only", action="append", default=[], metavar="PATTERN", help="names such as 'mpi-*'")
    comparing = commands.add_parser("compare", help="print what differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    args = parser.parse_args()
    if args.command == "judge":
        return _judge_all([OURS, *args.corpus], args.only, args.out)
    found = differences(*(json.loads(path.read_text())["recordings"] for path in (args.before, args.after)))
    print("\n".join([*found, f"{len(found)} differences"]))
    return int(bool(found))


def _judge_all(folders: list[Path], only: list[str], out: Path) -> int:
    found: dict[str, list[Decision]] = {}
    for name, path in recordings(folders).items():
        if only and not any(fnmatch(name, pattern) for pattern in only):
            continue
        begun = time.perf_counter()
        found[name] = decisions(path)
        print(f"{time.perf_counter() - begun:6.1f} s  {name}: {_shown(found[name])}", file=sys.stderr, flush=True)
    if not found:
        print(f"no recording in {', '.join(map(str, folders))} matches {only}", file=sys.stderr)
        return 2
    write(out, {"recordings": found})
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


def decisions(path: Path) -> list[Decision]:
    """What is decided on one recording, in the order of the report; an exception is a decision too, and never right."""
    from hindmost_collector.recordings.load import load  # noqa: PLC0415 - its formats need packages that judging does not

    try:
        report = judge(load(path))
    except Exception as error:  # noqa: BLE001 - one recording that fails must not hide the others
        return [{"kind": f"raised {type(error).__name__}: {error}"[:200], "ranks": []}]
    return [as_decision(one) for one in report.verdicts]


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
