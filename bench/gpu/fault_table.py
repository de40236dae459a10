#!/usr/bin/env python3
"""What ``live_faults.py`` measured, as the tables of docs/explanation/accuracy.md.

python bench/gpu/fault_table.py bench/results/live_faults_h200x4.json
python bench/gpu/fault_table.py --docs                       # all tables there, in place
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs/explanation/accuracy.md"
#: A table, below the comment that names its file.
TABLE = re.compile(r"(<!-- (bench/results/\S+\.json) -->\n)(?:\|.*\n)*")
HEAD = (
    "fault",
    "expected",
    "named after",
    "cause or line after",
    "onset off, steps",
    "cost reported, ms",
    "ground truth, ms",
    "right",
)


def table(found: dict[str, Any]) -> str:
    """Markdown, a row a case."""
    rows = (HEAD, ["---"] * len(HEAD), *(_cells(one) for one in found["faults"]))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def in_place(text: str) -> str:
    """The page, each of its tables as its file has it."""
    return TABLE.sub(lambda mark: mark[1] + table(json.loads((ROOT / mark[2]).read_text())), text)


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    named, right = (f"{it['seconds']:.1f} s" if (it := one[key]) else "" for key in ("named", "right"))
    off = one.get("onset_off_steps")
    onset = "" if off is None else f"{off:+d}" if off else "0"
    told, cost_off = one.get("cost_told_ms"), one.get("cost_off")
    cost = "" if told is None or cost_off is None else f"{told:.1f}"
    truth = f"{told / (1 + cost_off):.1f}" if cost else ""
    expected = one["expected"].replace("nobody", "no rank")
    return one["fault"], expected, named, right, onset, cost, truth, "yes" if one["as_expected"] else "**no**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--docs", action="store_true", help=f"write the tables of {DOCS.relative_to(ROOT)}")
    args = parser.parse_args()
    for file in args.files:
        print(table(json.loads(file.read_text())))
    if args.docs:
        DOCS.write_text(in_place(DOCS.read_text()))


if __name__ == "__main__":
    main()
