"""The results as a file, and as a table in the page on accuracy."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench/accuracy"))

from intervals import wilson  # noqa: E402 - lies next to the script that it was written for

RESULTS = ROOT / "bench/results/strangers.json"
DOCUMENT = ROOT / "docs/explanation/accuracy.md"
NOT_RUN = "not run"
#: What a disturbance did is known where the undisturbed runs differ by less than this part of it.
KNOWN = 0.2
#: Nothing stands where there is nothing to judge.
_RIGHT = {True: "yes", False: "**no**", None: ""}
BEGIN, END = "<!-- public programs: written by the bench -->", "<!-- end of public programs -->"


def results(rows: list[dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
    """All rows, what is missing, and how many are right."""
    ran = [row for row in rows if "missing" not in row]
    commit = subprocess.run(["git", "describe", "--always"], cwd=ROOT, capture_output=True, text=True, check=False)
    clean = [row for row in ran if row["disturbance"] == "none"]
    disturbed = [row for row in ran if row["disturbance"] != "none"]
    judged = [row for row in disturbed if row["names_right"] and row["cause_right"] is not None]
    return {
        "commit": commit.stdout.strip(),
        "combinations": len({(row["program"], row["disturbance"]) for row in ran}),
        "runs": len(ran),
        "undisturbed": len(clean),
        "undisturbed_right": sum(row["names_right"] for row in clean),
        "disturbed": len(disturbed),
        "disturbed_right": sum(row["names_right"] for row in disturbed),
        "causes": len(judged),
        "causes_right": sum(row["cause_right"] for row in judged),
        "causes_unknown": sum(any(one["cause"] == "unknown" for one in row["verdicts"]) for row in judged),
        "missing": missing,
        "rows": rows,
    }


def _verdict(row: dict[str, Any]) -> str:
    said = [
        f"{one['kind']} {', '.join(map(str, one['ranks']))} {one['cause'] or ''}".replace("  ", " ").strip()
        for one in row["verdicts"]
    ]
    first = re.search(r"(rank \d+) on \S+ died first", row["said"] or "")
    died = [f"{first[1]} died first"] if first else []
    return "; ".join([*died, *said])


def _left(rows: list[dict[str, Any]]) -> list[str]:
    """Which disturbances were not run, of each program."""
    left: dict[str, list[str]] = {}
    for row in rows:
        if row.get("missing") == NOT_RUN:
            left.setdefault(row["program"], []).append(row["disturbance"])
    return [f"- not run: {name}, {', '.join(dict.fromkeys(what))}" for name, what in left.items()]


def _lines(found: dict[str, Any]) -> list[str]:
    causes = wilson(found["causes_right"], found["causes"])
    head = [
        f"{found['combinations']} combinations, {found['runs']} runs, commit {found['commit']}.",
        "",
        f"- undisturbed runs without a named rank: {wilson(found['undisturbed_right'], found['undisturbed'])}",
        f"- disturbed runs with these ranks named, no others: {wilson(found['disturbed_right'], found['disturbed'])}",
        f"- of these with a cause to name, cause right or unknown: {causes}, unknown in {found['causes_unknown']}",
        *_left(found["rows"]),
        "",
        "| program | disturbance | verdict | other work, cores | names | cause |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    head += [_row(rows) for rows in _alike(found["rows"])]
    head += [f"| {name} | | missing: {why} | | | |" for name, why in found["missing"].items()]
    return [*head, *_costs(found.get("costs", []))]


def _alike(rows: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """The rows that were run, those together that say the same of one program under one disturbance."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows:
        said = row["missing"] if "missing" in row else (_verdict(row), row["names_right"], row["cause_right"])
        if said != NOT_RUN:
            groups.setdefault((row["program"], row["disturbance"], said), []).append(row)
    return list(groups.values())


def _row(rows: list[dict[str, Any]]) -> str:
    first = rows[0]
    runs = f", {len(rows)} runs" if len(rows) > 1 else ""
    line = f"| {first['program']} | {first['disturbance']}{runs} | "
    if "missing" in first:
        return f"{line}missing: {first['missing']} | | | |"
    work = sorted({row["other_work_cores"] for row in rows})
    cores = f"{work[0]} to {work[-1]}" if len(work) > 1 else work[0]
    names, cause = (_RIGHT[first[key]] for key in ("names_right", "cause_right"))
    return f"{line}{_verdict(first)} | {cores} | {names} | {cause} |"


def _costs(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        "| program | disturbance | mean step before and after, ms | it did, ms | the verdicts say, ms | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in rows:
        before, after = one["clean_ms"]
        did, about = one["did_ms"], abs(before - after) / 2
        error = f"{one['cost_ms'] / did - 1:+.0%}" if about <= KNOWN * did else "unknown: undisturbed runs differ"
        first = f"| {one['program']} | {one['disturbance']} | {before:.1f} and {after:.1f} | {did:.1f} ± {about:.1f} "
        lines.append(f"{first}| {one['cost_ms']:.1f} | {error} |")
    return lines


def printed(found: dict[str, Any]) -> str:
    """The table, for a terminal."""
    return "\n".join(_lines(found))


def document(found: dict[str, Any], text: str) -> str:
    """The page with the table in it, between its two marks."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([f"{before.rstrip()}\n", BEGIN, *_lines(found), f"{END}{after}"])
