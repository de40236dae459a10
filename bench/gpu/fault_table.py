#!/usr/bin/env python3
"""What ``live_faults.py`` measured, as the table of docs/explanation/accuracy.md.

python bench/gpu/fault_table.py bench/results/live_faults_*.json
python bench/gpu/fault_table.py --docs                       # the table there, in place
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/explanation/accuracy.md"
RESULTS = "bench/results/live_faults_*.json"
#: The table, below the comment that names its files.
TABLE = re.compile(rf"(<!-- {re.escape(RESULTS)} -->\n)(?:\|.*\n)*")
HEAD = ("fault", "expected", "right", "named after, s", "with its cause after, s", "onset off, steps", "cost off")
#: Which ranks were slow is another matter in each run.
_RANKS = re.compile(r" of rank \d( and \d)?( or of either)?")


def table(files: Iterable[Path]) -> str:
    """Markdown, a row a fault, over all runs of it; values are from the least to the largest."""
    faults: dict[str, list[dict[str, Any]]] = {}
    for file in files:
        for one in json.loads(file.read_text(encoding="utf-8"))["faults"]:
            faults.setdefault(re.sub(r"^clean-\d$", "clean", one["fault"]), []).append(one)
    rows = (HEAD, ["---"] * len(HEAD), *(_cells(name, runs) for name, runs in faults.items()))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def in_place(text: str) -> str:
    """The page, with the table as its files have it."""
    return TABLE.sub(lambda mark: mark[1] + table(sorted(ROOT.glob(RESULTS))), text)


def _cells(name: str, runs: list[dict[str, Any]]) -> tuple[str, ...]:
    right = sum(one["as_expected"] for one in runs)
    seconds = [_range([one[key]["seconds"] for one in runs if one[key]], "{:.1f}") for key in ("named", "right")]
    onset = _range([off for one in runs if (off := one.get("onset_off_steps")) is not None], "{:d}")
    cost = _range([100 * off for one in runs if (off := one.get("cost_off")) is not None], "{:+.0f} %")
    expected = _RANKS.sub("", runs[0]["expected"])
    shown = f"{right} of {len(runs)}"
    return name, expected, shown if right == len(runs) else f"**{shown}**", *seconds, onset, cost


def _range(values: list[Any], form: str) -> str:
    """``0.8 to 4.7``; one value where they are alike, nothing where there are none."""
    ends = [form.format(value) for value in (min(values), max(values))] if values else [""]
    return " to ".join(dict.fromkeys(ends))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"write the table of {DOCS.relative_to(ROOT)}")
    args = parser.parse_args()
    if args.files:
        print(table(args.files))
    if args.docs:
        DOCS.write_text(in_place(DOCS.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
