"""The results as tables, each figure with its interval and its goal; then confidence and simpler rules."""

import itertools
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from intervals import bootstrap, poisson, wilson

Result = dict[str, Any]
Row = tuple[str, str, str]

#: Of confidence: below 0.8 a name is a hint, from 0.95 on it is acted on.
BINS = (0.0, 0.8, 0.9, 0.95, 0.98, 1.01)
#: A cost this close to what the repair saves is right.
CLOSE = 0.2
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures: written by --readme -->", "<!-- end of figures -->"


def tables(results: list[Result]) -> list[str]:
    """All of it, in Markdown, a line a row."""
    by: dict[str, list[Result]] = {}
    for result in results:
        by.setdefault(result["family"], []).append(result)
    heads = ["| | measured | goal |", "| --- | --- | --- |"]
    rows = [*_single(by), *_several(by), *_others(by), *_kinds(by), *_costs(by)]
    measured = [f"| {what} | {found} | {goal} |" for what, found, goal in rows]
    return [*heads, *measured, "", *_reliability(results), "", *_beside(by)]


def write_readme(title: str, tables: list[str]) -> None:
    """Replace the README's figures by these tables and the line above them."""
    before, rest = README.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text("\n".join([before + BEGIN, f"{title}:", "", *tables, END + after]))


def _strong(by: dict[str, list[Result]]) -> list[Result]:
    return [one for one in [*by.get("single", []), *by.get("small", [])] if one["effect"] >= 0.05]


def _of(by: dict[str, list[Result]], family: str, least: float) -> list[Result]:
    """The jobs of a family in which the faults made steps longer by at least so much."""
    return [one for one in by.get(family, []) if one["effect"] >= least]


def _single(by: dict[str, list[Result]]) -> list[Row]:
    strong = _strong(by)
    weak = [result for result in _of(by, "small", 0.02) if result["effect"] < 0.05 and result["steps"] <= 100]
    found = [one for one in strong if set(one["named"]) & set(one["true"])]
    right = sum(one["verdict_causes"] == one["causes"] for one in found)
    unknown = sum(one["verdict_causes"] == ["unknown"] for one in found)
    late = [abs((one["since"] or 0) - one["onset"]) for one in found if one["onset"]]
    big = by.get("large", [])
    return [
        ("single fault of 5 % or more: precision", precision(strong, own), "0.995"),
        ("single fault of 5 % or more: recall", recall(strong, own), "0.99"),
        ("2 to 5 % within 100 steps: recall", recall(weak, own), "0.95"),
        ("2 to 5 % within 100 steps: precision", precision(weak, own), ""),
        ("8,192 ranks: top-1", wilson(sum(one["top"] in one["true"] for one in big), len(big)), "0.97"),
        ("cause right", wilson(right, len(found)), "0.95"),
        ('cause right or "unknown"', wilson(right + unknown, len(found)), "0.95"),
        ("onset: steps off, median", bootstrap(late, _median, 1), ""),
    ]


def _several(by: dict[str, list[Result]]) -> list[Row]:
    clean, hidden = by.get("clean", []), by.get("hidden", [])
    uneven = [one for one in clean if one["seed"] % 2]
    unnamed = sum(not one["named"] for one in hidden)
    return [
        ("sets of 2 to 8: exact-set F1", exact_f1(by.get("sets", []), own), "0.95"),
        ("clean jobs, half of them with varying sequence lengths: false alarms, steps", _alarms(clean), "1 in 10,000"),
        ("of them with varying sequence lengths", _alarms(uneven), ""),
        ("slow input that run-ahead hides: no rank named", wilson(unnamed, len(hidden)), ""),
    ]


def _others(by: dict[str, list[Result]]) -> list[Row]:
    slowed = _of(by, "network", 0.02)
    found: list[Row] = [
        ("slow link of one data-parallel group: said so", said(by.get("link", []), "slow_link"), ""),
        ("network that became slow for all, effect of 2 % or more: said so", said(slowed, "slow_link"), ""),
    ]
    for family, what, least in (
        ("intermittent", "intermittent stalls", 0.0),
        ("frequent", "stalls in 30 to 70 % of the steps, half of the jobs pipelines", 0.02),
        ("temporary", "a fault of 20 to 60 steps", 0.0),
        ("pipeline", "pipelines with replicas", 0.02),
        ("uneven", "a fault among varying sequence lengths", 0.01),
    ):
        from_on = f", effect of {least:.0%} or more".replace("%", " %") if least else ""
        found.append((f"{what}: precision", precision(by.get(family, []), own), ""))
        found.append((f"{what}{from_on}: recall", recall(_of(by, family, least), own), ""))
    return found


def _kinds(by: dict[str, list[Result]]) -> list[Row]:
    """What is no single slow rank: jobs that stop, stages of uneven work, two causes at once."""
    stops, stages = by.get("stops", []), _of(by, "stages", 0.02)
    two, changes = by.get("two_causes", []), by.get("handover", [])
    right = sum(stop["kinds"] == stop["causes"] and stop["named"] == stop["true"] for stop in stops)
    uneven = sum("uneven_workload" in stage["kinds"] and not stage["named"] for stage in stages)
    both = sum(one["named"] == one["true"] for one in two)
    causes, in_turn = (sum(job["blamed"] == job["faults"] for job in jobs) for jobs in (two, changes))
    slow = "a pipeline's stage slow on all replicas, effect of 2 % or more: uneven work said, no rank named"
    return [
        ("hang or desync: the right one of both, and that rank named", wilson(right, len(stops)), ""),
        (slow, wilson(uneven, len(stages)), ""),
        ("two ranks, two causes: both named, no other rank", wilson(both, len(two)), ""),
        ("two ranks, two causes: each with its cause", wilson(causes, len(two)), ""),
        ("one rank, one cause after another: both reported, and no other rank", wilson(in_turn, len(changes)), ""),
    ]


def _costs(by: dict[str, list[Result]]) -> list[Row]:
    strong, sets = _strong(by), by.get("sets", [])
    errors = [100 * one["error"] for one in [*strong, *sets]]
    found: list[Row] = [
        ("what-if error, %: median", bootstrap(errors, _median, 2), "1"),
        ("what-if error, %: P90", bootstrap(errors, lambda v: float(np.percentile(v, 90)), 2), "4"),
    ]
    for what, jobs in (
        ("a single fault of 5 % or more", strong),
        ("sets of 2 to 8", sets),
        ("intermittent stalls", by.get("intermittent", [])),
        ("stalls in 30 to 70 % of the steps, effect of 2 % or more", _of(by, "frequent", 0.02)),
        ("a fault of 20 to 60 steps", by.get("temporary", [])),
        ("pipelines with replicas, effect of 2 % or more", _of(by, "pipeline", 0.02)),
        ("a fault among varying sequence lengths, effect of 1 % or more", _of(by, "uneven", 0.01)),
        ("two ranks, two causes, both together", by.get("two_causes", [])),
        ("one rank, one cause after another, both together", by.get("handover", [])),
    ):
        costs = [job["cost"] for job in jobs if job.get("cost") is not None]
        close = sum(abs(cost - 1) <= CLOSE for cost in costs)
        found.append((f"cost within 20 % of what the repair saves: {what}", wilson(close, len(costs)), ""))
    return found


def _median(values: Any) -> float:
    return float(np.median(values))


def precision(results: Iterable[Result], named: Callable[[Result], list[int]]) -> str:
    """Of the ranks named, how many are at fault."""
    pairs = [(set(named(result)), set(result["true"])) for result in results]
    return wilson(sum(len(n & t) for n, t in pairs), sum(len(n) for n, _ in pairs))


def recall(results: Iterable[Result], named: Callable[[Result], list[int]]) -> str:
    """Of the ranks at fault, how many are named."""
    pairs = [(set(named(result)), set(result["true"])) for result in results]
    return wilson(sum(len(n & t) for n, t in pairs), sum(len(t) for _, t in pairs))


def exact_f1(results: list[Result], named: Callable[[Result], list[int]]) -> str:
    """F1 of whole sets: a set counts where it is named exactly.

    Where all are, or none, resamples are all alike, and Wilson's interval of that share stands in.
    """
    hits = [float(set(named(result)) == set(result["true"])) for result in results]
    said = [float(bool(named(result))) for result in results]
    if all(hits) or not any(hits):
        return wilson(round(sum(hits)), len(hits))
    pairs = np.stack([hits, said], axis=1)

    def f1(rows: Any) -> float:
        return float(2 * rows[:, 0].sum() / (rows[:, 1].sum() + len(rows)))

    return bootstrap(list(pairs), f1, 3)


def own(result: Result) -> list[int]:
    """Whom hindmost named."""
    return list(result["named"])


def said(results: list[Result], kind: str) -> str:
    """In how many runs a verdict is of this kind."""
    return wilson(sum(kind in result["kinds"] for result in results), len(results))


def _alarms(clean: list[Result]) -> str:
    """Clean jobs in which a rank or the network was blamed, by the steps of all."""
    false = sum(bool(result["named"]) or "slow_link" in result["kinds"] for result in clean)
    return poisson(false, sum(result["steps"] for result in clean), 10_000)


def _reliability(results: list[Result]) -> list[str]:
    """Of the verdicts said with some confidence, the share that names only ranks at fault."""
    graded = [(float(sure), bool(right)) for result in results for _, sure, right in result["said"]]
    rows = []
    for low, high in itertools.pairwise(BINS):
        held = [right for sure, right in graded if low <= sure < high]
        if held:
            rows.append(f"| {low:.2f} to {min(high, 1.0):.2f} | {wilson(sum(held), len(held))} |")
    return ["| confidence said | names only ranks at fault |", "| --- | --- |", *rows]


def _beside(by: dict[str, list[Result]]) -> list[str]:
    lone, clean, sets = _strong(by), by.get("clean", []), by.get("sets", [])
    rows = [
        "| on the same runs | precision | recall | sets: exact F1 | clean jobs in which a rank is named |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ["hindmost", *(lone[0]["baselines"] if lone else [])]:

        def named(one: Result, name: str = name) -> list[int]:
            return own(one) if name == "hindmost" else list(one["baselines"][name])

        false = wilson(sum(bool(named(one)) for one in clean), len(clean))
        columns = (precision(lone, named), recall(lone, named), exact_f1(sets, named), false)
        rows.append(f"| {name} | {' | '.join(columns)} |")
    return rows
