"""The results as a table: rates with Wilson's 95 % intervals, medians with bootstrap ones."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Result = dict[str, Any]
Z = 1.959964


def wilson(hits: int, of: int) -> str:
    """``0.993 [0.981, 0.997] (404/407)``."""
    if not of:
        return "-"
    rate, spread = hits / of, Z * np.sqrt(hits * (of - hits) / of + Z * Z / 4)
    low, high = ((hits + Z * Z / 2 + sign * spread) / (of + Z * Z) for sign in (-1, 1))
    return f"{rate:.3f} [{low:.3f}, {high:.3f}] ({hits}/{of})"


def bootstrap(values: list[float], statistic: Callable[[Any], float], digits: int = 4) -> str:
    """A statistic of values with the interval of 1,000 resamples."""
    if not values:
        return "-"
    data = np.array(values)
    random = np.random.default_rng(0)
    again = [statistic(data[random.integers(0, len(data), len(data))]) for _ in range(1000)]
    low, high = np.percentile(again, [2.5, 97.5])
    return f"{statistic(data):.{digits}f} [{low:.{digits}f}, {high:.{digits}f}] (n={len(data)})"


def precision(results: Iterable[Result], named: Callable[[Result], list[int]]) -> str:
    """Of the ranks named, how many are at fault."""
    pairs = [(set(named(one)), set(one["true"])) for one in results]
    return wilson(sum(len(n & t) for n, t in pairs), sum(len(n) for n, _ in pairs))


def recall(results: Iterable[Result], named: Callable[[Result], list[int]]) -> str:
    """Of the ranks at fault, how many are named."""
    pairs = [(set(named(one)), set(one["true"])) for one in results]
    return wilson(sum(len(n & t) for n, t in pairs), sum(len(t) for _, t in pairs))


def exact_f1(results: list[Result], named: Callable[[Result], list[int]]) -> str:
    """F1 of whole sets: a set counts where it is named exactly."""
    hits = [float(set(named(one)) == set(one["true"])) for one in results]
    said = [float(bool(named(one))) for one in results]
    if not hits:
        return "-"
    pairs = np.stack([hits, said], axis=1)

    def f1(rows: Any) -> float:
        return float(2 * rows[:, 0].sum() / (rows[:, 1].sum() + len(rows)))

    return bootstrap(list(pairs), f1, 3)


def own(result: Result) -> list[int]:
    """Whom hindmost named."""
    return list(result["named"])


def lines(results: list[Result]) -> list[str]:
    """The whole table, a line a row."""
    by: dict[str, list[Result]] = {}
    for one in results:
        by.setdefault(one["family"], []).append(one)
    lone = [*by.get("single", []), *by.get("small", [])]
    strong = [one for one in lone if one["effect"] >= 0.05]
    weak = [one for one in by.get("small", []) if 0.02 <= one["effect"] < 0.05 and one["steps"] <= 100]
    multiple, big = by.get("sets", []), by.get("large", [])
    faulty = [*strong, *multiple]
    networks = [one for one in by.get("network", []) if one["effect"] >= 0.02]
    pipelines = [one for one in by.get("pipeline", []) if one["effect"] >= 0.02]
    uneven = [one for one in by.get("uneven", []) if one["effect"] >= 0.01]
    out = [
        *_hindmost(strong, weak, multiple, big),
        *_false_alarms(by.get("clean", []), by.get("hidden", [])),
        *_causes_and_costs(strong, faulty),
        f"intermittent: recall            {recall(by.get('intermittent', []), own)}",
        f"slow link: said so              {said(by.get('link', []), 'slow_link')}",
        f"slow network, 2 %: said so      {said(networks, 'slow_link')}",
        f"pipelines: precision            {precision(by.get('pipeline', []), own)}",
        f"pipelines: recall from 2 % on   {recall(pipelines, own)}",
        f"uneven work: precision          {precision(by.get('uneven', []), own)}",
        f"uneven work: recall from 1 % on {recall(uneven, own)}",
        "",
        "confidence      verdicts that name only ranks at fault",
        *(f"{low:.2f} to {high:.2f}    {share}" for low, high, share in reliability(results, BINS)),
        "",
        *_beside(strong, multiple, by.get("clean", [])),
    ]
    seeds = [one["seed"] for one in results]
    return [*out, "", f"{len(results)} simulated runs, seeds {min(seeds)} to {max(seeds)}, intervals of 95 %"]


def _hindmost(strong: list[Result], weak: list[Result], multiple: list[Result], big: list[Result]) -> list[str]:
    top = sum(one["top"] in one["true"] for one in big)
    return [
        f"single fault >= 5 %: precision  {precision(strong, own)}",
        f"single fault >= 5 %: recall     {recall(strong, own)}",
        f"2 to 5 % in 100 steps: recall   {recall(weak, own)}",
        f"2 to 5 %: precision             {precision(weak, own)}",
        f"sets of 2 to 8: exact-set F1    {exact_f1(multiple, own)}",
        f"8,192 ranks: top-1              {wilson(top, len(big))}",
    ]


def _false_alarms(clean: list[Result], hidden: list[Result]) -> list[str]:
    false, steps = false_alarms(clean)
    uneven = [one for one in clean if one["seed"] % 2]
    rate = f"{1e4 * false / steps:.2f}" if steps else "-"
    return [
        f"clean: false alarms             {false} in {steps} steps: {rate} in 10,000; runs {wilson(false, len(clean))}",
        f"  of them with varying lengths  {wilson(sum(bool(one['named']) for one in uneven), len(uneven))}",
        f"hidden slow input: named nobody {wilson(sum(not one['named'] for one in hidden), len(hidden))}",
    ]


def _causes_and_costs(strong: list[Result], faulty: list[Result]) -> list[str]:
    found = [one for one in strong if set(one["named"]) & set(one["true"])]
    right = sum(one["verdict_causes"] == one["causes"] for one in found)
    unknown = sum(one["verdict_causes"] == ["unknown"] for one in found)
    errors = [one["error"] for one in faulty]
    late = [abs((one["since"] or 0) - one["onset"]) for one in found if one["onset"]]
    return [
        f"cause right                     {wilson(right, len(found))}",
        f"cause right or unknown          {wilson(right + unknown, len(found))}",
        f"what-if error: median           {bootstrap(errors, lambda v: float(np.median(v)))}",
        f"what-if error: P90              {bootstrap(errors, lambda v: float(np.percentile(v, 90)))}",
        f"onset: steps off, median        {bootstrap(late, lambda v: float(np.median(v)), 1)}",
    ]


#: Of confidence: below 0.8 a name is a hint, from 0.95 on it is acted on.
BINS = (0.0, 0.8, 0.9, 0.95, 0.98, 1.01)


def reliability(results: list[Result], bins: tuple[float, ...]) -> list[tuple[float, float, str]]:
    """Confidence from, to, and the share of the verdicts said with it that name only ranks at fault."""
    told = [(float(sure), bool(right)) for one in results for _, sure, right in one["said"]]
    found = []
    for low, high in itertools.pairwise(bins):
        held = [right for sure, right in told if low <= sure < high]
        if held:
            found.append((low, min(high, 1.0), wilson(sum(held), len(held))))
    return found


def false_alarms(clean: list[Result]) -> tuple[int, int]:
    """Clean jobs in which somebody was named, or the network blamed, and the steps of all."""
    return sum(bool(one["named"]) or "slow_link" in one["kinds"] for one in clean), sum(one["steps"] for one in clean)


def said(results: list[Result], kind: str) -> str:
    """In how many runs a verdict is of this kind."""
    return wilson(sum(kind in one["kinds"] for one in results), len(results))


def _beside(strong: list[Result], multiple: list[Result], clean: list[Result]) -> list[str]:
    out = [
        f"{'on the same runs':<26} {'precision':<36} {'recall':<36} {'sets: exact F1':<34} false alarms in clean runs"
    ]
    rules: dict[str, Callable[[Result], list[int]]] = {"hindmost": own}
    for name in strong[0]["baselines"] if strong else []:
        rules[name] = lambda one, name=name: one["baselines"][name]  # type: ignore[misc]
    for name, named in rules.items():
        false = wilson(sum(bool(named(one)) for one in clean), len(clean))
        columns = (precision(strong, named), recall(strong, named), exact_f1(multiple, named))
        out.append(f"{name:<26} {columns[0]:<36} {columns[1]:<36} {columns[2]:<34} {false}")
    return out
