"""What the results' file keeps of each run: a short row, of which the rest follows."""

import json
from typing import Any

from baselines import BASELINES
from grade import whole
from table import by_family

Result = dict[str, Any]

#: Digits that are kept of what is measured: far below what any table shows.
DIGITS = {"effect": 6, "cost": 5, "error": 7, "judge_seconds": 3}
ASKED = ("seed", "ranks", "steps", "layout", "onset", "faults")
FOUND = ("kinds", "confidences", "right", "blamed", "top", "since", *DIGITS)
COLUMNS = (*ASKED, *FOUND, *BASELINES)


def text(facts: Result, results: list[Result]) -> str:
    """The file: facts, the columns' names, and a line a run."""
    each = []
    for family, runs in by_family(results).items():
        lines = ",\n".join(json.dumps(_row(run), separators=(",", ":")) for run in runs)
        each.append(f"{json.dumps(family)}:[\n{lines}\n]")
    head = json.dumps(facts | {"columns": COLUMNS}, separators=(",", ":"))
    return f'{head[:-1]},"runs":{{{",".join(each)}}}}}\n'


def read(content: str) -> list[Result]:
    """The runs of such a file, as :func:`grade.grade` has them."""
    found = json.loads(content)
    named = (
        {"family": family, **dict(zip(found["columns"], row, strict=True))}
        for family, rows in found["runs"].items()
        for row in rows
    )
    return [whole(run) for run in named]


def _row(run: Result) -> list[Any]:
    """``COLUMNS`` of a run."""
    rounded = {name: round(run[name], digits) for name, digits in DIGITS.items() if run[name] is not None}
    return [(run | rounded)[name] for name in COLUMNS]
