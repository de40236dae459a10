"""Puts the measured figures into the README, beside the goals: what lies between two comments is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from suite import HELD_OUT
from table import BINS, Result, bootstrap, exact_f1, false_alarms, own, precision, recall, reliability, said, wilson

README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures: written by --readme -->", "<!-- end of figures -->"


def write(results: list[Result], commit: str) -> None:
    """Replace the README's figures by those of these results."""
    text = README.read_text()
    before, rest = text.split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text("\n".join([before + BEGIN, *figures(results, commit), END + after]))


def figures(results: list[Result], commit: str) -> list[str]:
    """The lines between the comments."""
    by: dict[str, list[Result]] = {}
    for one in results:
        by.setdefault(one["family"], []).append(one)
    seeds = [one["seed"] for one in results]
    held_out = "held out" if min(seeds) >= HELD_OUT else "not held out"
    told = (
        f"{len(results):,} runs, seeds {min(seeds):,} to {max(seeds):,} ({held_out}), 95 % intervals, commit {commit}:"
    )
    heads = ["| | measured | goal |", "| --- | --- | --- |"]
    return [told, "", *heads, *_goals(by), "", *_reliability(results), "", *_beside(by)]


def _goals(by: dict[str, list[Result]]) -> list[str]:
    lone = [*by.get("single", []), *by.get("small", [])]
    strong = [one for one in lone if one["effect"] >= 0.05]
    weak = [one for one in by.get("small", []) if 0.02 <= one["effect"] < 0.05 and one["steps"] <= 100]
    found = [one for one in strong if set(one["named"]) & set(one["true"])]
    right = sum(one["verdict_causes"] == one["causes"] for one in found)
    unknown = sum(one["verdict_causes"] == ["unknown"] for one in found)
    errors = [100 * one["error"] for one in [*strong, *by.get("sets", [])]]
    clean, big = by.get("clean", []), by.get("large", [])
    pipelines = [one for one in by.get("pipeline", []) if one["effect"] >= 0.02]
    costs = [one["cost"] for one in pipelines if one.get("cost") is not None]
    close = sum(0.8 <= cost <= 1.2 for cost in costs)
    late = [abs((one["since"] or 0) - one["onset"]) for one in found if one["onset"]]
    networks = [one for one in by.get("network", []) if one["effect"] >= 0.02]
    uneven = [one for one in by.get("uneven", []) if one["effect"] >= 0.01]
    rows: list[tuple[str, str, str]] = [
        ("single fault of 5 % or more: precision", precision(strong, own), "0.995"),
        ("single fault of 5 % or more: recall", recall(strong, own), "0.99"),
        ("2 to 5 % within 100 steps: recall", recall(weak, own), "0.95"),
        ("2 to 5 % within 100 steps: precision", precision(weak, own), ""),
        ("sets of 2 to 8: exact-set F1", exact_f1(by.get("sets", []), own), "0.95"),
        ("clean jobs, half of them with varying sequence lengths: false alarms", _alarms(clean), "1 in 10,000"),
        ("slow input that run-ahead hides: named nobody", _nobody(by.get("hidden", [])), ""),
        ("cause right", wilson(right, len(found)), "0.95"),
        ('cause right or "unknown"', wilson(right + unknown, len(found)), "0.95"),
        ("8,192 ranks: top-1", wilson(sum(one["top"] in one["true"] for one in big), len(big)), "0.97"),
        ("onset: steps off, median", bootstrap(late, _median, 1), ""),
        ("slow link of one data-parallel group: said so", said(by.get("link", []), "slow_link"), ""),
        ("network that became slow for all, effect of 2 % or more: said so", said(networks, "slow_link"), ""),
        ("intermittent stalls: recall", recall(by.get("intermittent", []), own), ""),
        ("pipelines with replicas: precision", precision(by.get("pipeline", []), own), "0.995"),
        ("pipelines with replicas, effect of 2 % or more: recall", recall(pipelines, own), ""),
        ("the same: cost within 20 % of what the repair saves", wilson(close, len(costs)), ""),
        ("a fault among varying sequence lengths: precision", precision(by.get("uneven", []), own), ""),
        ("the same, effect of 1 % or more: recall", recall(uneven, own), ""),
        ("what-if error, %: median", bootstrap(errors, _median, 2), "1"),
        ("what-if error, %: P90", bootstrap(errors, lambda v: float(np.percentile(v, 90)), 2), "4"),
    ]
    return [f"| {what} | {measured} | {goal} |" for what, measured, goal in rows]


def _median(values: Any) -> float:
    return float(np.median(values))


def _alarms(clean: list[Result]) -> str:
    false, steps = false_alarms(clean)
    return f"{false} in {steps:,} steps"


def _nobody(hidden: list[Result]) -> str:
    return wilson(sum(not one["named"] for one in hidden), len(hidden))


def _reliability(results: list[Result]) -> list[str]:
    """Of the verdicts said with some confidence, the share that names only ranks at fault."""
    rows = [f"| {low:.2f} to {high:.2f} | {share} |" for low, high, share in reliability(results, BINS)]
    return ["| confidence said | names only ranks at fault |", "| --- | --- |", *rows]


def _beside(by: dict[str, list[Result]]) -> list[str]:
    lone = [one for one in [*by.get("single", []), *by.get("small", [])] if one["effect"] >= 0.05]
    clean, sets = by.get("clean", []), by.get("sets", [])
    rows = [
        "| on the same runs | precision | recall | sets: exact F1 | clean jobs in which somebody is named |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ["hindmost", *(lone[0]["baselines"] if lone else [])]:

        def named(one: Result, name: str = name) -> list[int]:
            return own(one) if name == "hindmost" else list(one["baselines"][name])

        false = f"{sum(bool(named(one)) for one in clean)} of {len(clean)}"
        columns = (precision(lone, named), recall(lone, named), exact_f1(sets, named), false)
        rows.append(f"| {name} | {' | '.join(columns)} |")
    return rows
