"""The results as a file, and as a table in the page on accuracy."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "bench/accuracy"))

from intervals import wilson  # noqa: E402 - lies next to the script that it was written for

RESULTS = ROOT / "bench/results/public_programs.json"
DOCUMENT = ROOT / "docs/explanation/accuracy.md"
NOT_RUN = "not run"
#: What a disturbance did is known where the undisturbed runs differ by less than this part of it.
KNOWN = 0.2
GRADES = ("right", "unknown", "wrong")
BEGIN, END = "<!-- public programs: written by the bench -->", "<!-- end of public programs -->"


def results(rows: list[dict[str, Any]], later: list[dict[str, Any]], missing: dict[str, str]) -> dict[str, Any]:
    """All rows, what is missing, and how many are right; of runs made ``later`` than the rules, only how many."""
    return {
        "commit": _judge_commit(),
        **_counts([row for row in rows if "missing" not in row]),
        "later": _counts(later),
        "missing": missing,
        "rows": rows,
    }


def _judge_commit() -> str:
    """The last commit that changed the code which judges; marked where that was changed since."""
    git, judge = ["git", "-C", str(ROOT)], ["--", "collector"]
    last = subprocess.run([*git, "log", "-1", "--format=%h", *judge], capture_output=True, text=True, check=False)
    changed = subprocess.run([*git, "diff", "--quiet", "HEAD", *judge], check=False).returncode
    return last.stdout.strip() + ("-dirty" if changed else "")


def _counts(ran: list[dict[str, Any]]) -> dict[str, int]:
    """How many runs were undisturbed and disturbed, and of how many ranks and causes are right."""
    clean = [row for row in ran if row["disturbance"] == "none"]
    disturbed = [row for row in ran if row["disturbance"] != "none"]
    causes = {f"cause_{grade}": sum(row["cause"] == grade for row in disturbed) for grade in GRADES}
    return {
        "undisturbed": len(clean),
        "undisturbed_right": sum(row["names_right"] for row in clean),
        "disturbed": len(disturbed),
        "disturbed_right": sum(row["names_right"] for row in disturbed),
    } | causes


def _verdict(row: dict[str, Any]) -> str:
    said = [
        f"{verdict['kind']} {', '.join(map(str, verdict['ranks']))} {verdict['cause'] or ''}".replace("  ", " ").strip()
        for verdict in row["verdicts"]
    ]
    first = [f"rank {row['died']['rank']} died first ({row['died']['how']})"] if row.get("died") else []
    return "; ".join([*first, *said])


def _left(rows: list[dict[str, Any]]) -> list[str]:
    """Which disturbances were not run, of each program."""
    left: dict[str, list[str]] = {}
    for row in rows:
        if row.get("missing") == NOT_RUN:
            left.setdefault(row["program"], []).append(row["disturbance"])
    return [f"- not run: {name}, {', '.join(dict.fromkeys(what))}" for name, what in left.items()]


def _lines(found: dict[str, Any]) -> list[str]:
    later = found["later"]
    cause = f"{wilson(found['cause_right'], found['disturbed'])}; unknown in {found['cause_unknown']}"
    runs = f"{found['undisturbed']} undisturbed and {found['disturbed']} disturbed runs"
    lines = [
        f"{runs}, judged by commit {found['commit']}.",
        "",
        f"- undisturbed, no rank named: {wilson(found['undisturbed_right'], found['undisturbed'])}",
        f"- disturbed, exactly the right ranks named: {wilson(found['disturbed_right'], found['disturbed'])}",
        f"- disturbed, the right cause, too: {cause}, wrong in {found['cause_wrong']}",
    ]
    if later["undisturbed"] + later["disturbed"]:
        lines.append(
            f"- later runs, for costs: no rank named in {later['undisturbed_right']} of {later['undisturbed']} "
            f"undisturbed, the right ranks in {later['disturbed_right']} of {later['disturbed']} disturbed"
        )
    rows = [row for row in found["rows"] if row.get("missing") != NOT_RUN]
    lines += [*_left(found["rows"]), "", *_undisturbed(rows), "", *_disturbed(rows)]
    lines += [f"| {name} | | missing: {why} | | | |" for name, why in found["missing"].items()]
    return [*lines, *_costs(found.get("costs", []))]


def _all_right(row: dict[str, Any]) -> bool:
    return "missing" not in row and row["names_right"] and row["cause"] == "right"


def _undisturbed(rows: list[dict[str, Any]]) -> list[str]:
    """The table of undisturbed runs: a row is all runs of one program."""
    lines = [
        "| undisturbed program | runs with a named rank | verdicts | other work, cores |",
        "| --- | --- | --- | --- |",
    ]
    clean = [row for row in rows if row["disturbance"] == "none" and "missing" not in row]
    for program in dict.fromkeys(row["program"] for row in clean):
        runs = [row for row in clean if row["program"] == program]
        wrong = sum(not row["names_right"] for row in runs)
        named = f"{wrong} of {len(runs)} named"
        verdicts = [f"{verdict}: {count}" for verdict, count in Counter(map(_verdict, runs)).items()]
        work = sorted({row["other_work_cores"] for row in runs})
        cores = f"{work[0]} to {work[-1]}" if len(work) > 1 else work[0]
        lines.append(f"| {program} | {f'**{named}**' if wrong else named} | {'; '.join(verdicts)} | {cores} |")
    return lines


def _disturbed(rows: list[dict[str, Any]]) -> list[str]:
    """How many disturbances of each program had the right ranks and cause, and a table of all others."""
    disturbed = [row for row in rows if row["disturbance"] != "none"]
    known = Counter(row["program"] for row in disturbed if "missing" not in row)
    right = Counter(row["program"] for row in disturbed if _all_right(row))
    lines = ["| program | ranks and cause right |", "| --- | --- |"]
    lines += [f"| {program} | {right[program]} of {count} |" for program, count in known.items()]
    lines += [
        "",
        "| program | disturbance | verdict | other work, cores | ranks | cause |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in disturbed:
        if _all_right(row):
            continue
        line = f"| {row['program']} | {row['disturbance']} | "
        if "missing" in row:
            lines.append(f"{line}missing: {row['missing']} | | | |")
            continue
        ranks = "right" if row["names_right"] else "**wrong**"
        cause = "**wrong**" if row["cause"] == "wrong" else row["cause"] or ""
        lines.append(f"{line}{_verdict(row)} | {row['other_work_cores']} | {ranks} | {cause} |")
    return lines


def _costs(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return []
    lines = [
        "",
        "| program | disturbance | mean step before and after, ms | it did, ms | the verdicts say, ms | error |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        before, after = row["clean_ms"]
        did, about = row["did_ms"], abs(before - after) / 2
        error = f"{row['cost_ms'] / did - 1:+.0%}" if about <= KNOWN * did else "unknown: undisturbed runs differ"
        first = f"| {row['program']} | {row['disturbance']} | {before:.1f} and {after:.1f} | {did:.1f} ± {about:.1f} "
        lines.append(f"{first}| {row['cost_ms']:.1f} | {error} |")
    return lines


def printed(found: dict[str, Any]) -> str:
    """The table, for a terminal."""
    return "\n".join(_lines(found))


def document(found: dict[str, Any], text: str) -> str:
    """The page with the table in it, between its two marks."""
    before, _, rest = text.partition(BEGIN)
    after = rest.partition(END)[2]
    return "\n".join([f"{before.rstrip()}\n", BEGIN, *_lines(found), f"{END}{after}"])
