"""What the results' file keeps of each run: a short row, of which the rest follows."""

import json
from collections.abc import Sequence
from typing import Any

from baselines import BASELINES
from grade import NAMING

Result = dict[str, Any]

#: Digits that are kept of what is measured: far below what any table shows.
DIGITS = {"effect": 6, "cost": 5, "error": 7, "judge_seconds": 3}
ASKED = ("seed", "ranks", "steps", "layout", "onset", "faults")
FOUND = ("kinds", "confidences", "right", "blamed", "top", "since", *DIGITS)
COLUMNS = (*ASKED, *FOUND, *BASELINES)


def text(facts: Result, results: list[Result]) -> str:
    """The file: facts, the columns' names, and a line a run."""
    rows = packed(results)
    each = (f"{json.dumps(family)}:[\n{_lines(rows[family])}\n]" for family in rows)
    head = json.dumps(facts | {"columns": COLUMNS}, separators=(",", ":"))
    return f'{head[:-1]},"runs":{{{",".join(each)}}}}}\n'


def read(content: str) -> list[Result]:
    """The runs of such a file."""
    found = json.loads(content)
    return unpacked(found["runs"], found["columns"])


def _lines(rows: list[list[Any]]) -> str:
    return ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)


def packed(results: list[Result]) -> dict[str, list[list[Any]]]:
    """Of each family a row a run: ``COLUMNS``."""
    rows: dict[str, list[list[Any]]] = {}
    for result in results:
        said = result["said"]
        said = {"confidences": [sure for _, sure, _ in said], "right": [int(right) for *_, right in said]}
        known = result | said | result["baselines"] | {name: _rounded(result[name], DIGITS[name]) for name in DIGITS}
        rows.setdefault(result["family"], []).append([known[name] for name in COLUMNS])
    return rows


def unpacked(rows: dict[str, list[list[Any]]], columns: Sequence[str] = COLUMNS) -> list[Result]:
    """The runs that :func:`packed` made these rows of, as :func:`grade.grade` tells them."""
    return [_whole(family, dict(zip(columns, row, strict=True))) for family, each in rows.items() for row in each]


def _whole(family: str, row: Result) -> Result:
    naming = [kind for kind in row["kinds"] if kind in NAMING]
    said = zip(naming, row.pop("confidences"), map(bool, row.pop("right")), strict=True)
    return row | {
        "family": family,
        "causes": sorted({cause for _, cause in row["faults"]}),
        "true": sorted({rank for rank, _ in row["faults"]}),
        "named": sorted({rank for rank, _ in row["blamed"]}),
        "verdict_causes": sorted({cause for _, cause in row["blamed"]}),
        "said": [list(one) for one in said],
        "baselines": {name: row.pop(name) for name in BASELINES},
    }


def _rounded(value: float | None, digits: int) -> float | None:
    return None if value is None else round(value, digits)
