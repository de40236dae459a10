"""The results as a table: a row a regime, then a row of all."""

from typing import Any

from intervals import poisson, share
from table import by_family

Result = dict[str, Any]

#: Onsets so many steps off, and costs so far from what the repair saves, are right.
STEPS, CLOSE = 3, 0.2
#: From this many ranks on a cohort has enough healthy ones to compare with.
COHORT = 8
HEADS = (
    "regime",
    "exact set, 8 ranks or more",
    "exact set, 2 to 4 ranks",
    "cause right",
    "right or unknown",
    "onset within 3 steps",
    "cost within 20 %",
    "one verdict a fault",
)


def tables(results: list[Result]) -> list[str]:
    """In Markdown, a line a row."""
    rows = [f"| {' | '.join(HEADS)} |", f"|{' --- |' * len(HEADS)}"]
    rows += [_row(name, found) for name, found in [*by_family(results).items(), ("all", results)]]
    clean = [result for result in results if not result["faults"]]
    alarms = poisson(sum(bool(result["named"]) for result in clean), sum(result["steps"] for result in clean), 40_000)
    return [*rows, "", f"False alarms of clean jobs, steps: {alarms}"]


def _row(name: str, found: list[Result]) -> str:
    large, small = ([result for result in found if (result["ranks"] >= COHORT) == many] for many in (True, False))
    named = [result for result in found if result["cause"] is not None]
    late = [result["late"] for result in found if result["late"] is not None]
    costs = [result["cost"] for result in found if result["cost"] is not None]
    shares = [
        share(one["exact"] for one in large),
        share(one["exact"] for one in small),
        share(one["cause"] == "right" for one in named),
        share(one["cause"] != "wrong" for one in named),
        share(abs(one) <= STEPS for one in late),
        share(abs(cost - 1) <= CLOSE for cost in costs),
        share(one["once"] for one in found),
    ]
    return f"| {name} | {' | '.join(shares)} |"


def misjudged(results: list[Result]) -> list[str]:
    """Jobs in which the set is wrong, a line each."""
    wrong = sorted((result for result in results if not result["exact"]), key=lambda one: (one["family"], one["seed"]))
    keys = ("ranks", "written", "faults", "effect", "must", "named", "kinds", "causes", "cost")
    return [f"{one['family']} {one['seed']} " + str({key: one[key] for key in keys}) for one in wrong]
