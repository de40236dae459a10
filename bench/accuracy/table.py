"""The results as tables, each figure with its interval and its goal; then confidence and simpler rules."""

import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from baselines import BASELINES
from intervals import bootstrap, poisson, share, wilson

Result = dict[str, Any]
Families = defaultdict[str, list[Result]]
Row = tuple[str, str, str]

#: Of confidence: below 0.8 a name is a hint, from 0.95 on it is acted on.
BINS = (0.0, 0.8, 0.9, 0.95, 0.98, 1.01)
#: A cost this close to what the repair saves is right.
CLOSE = 0.2
README = Path(__file__).parent / "README.md"
BEGIN, END = "<!-- figures: written by --readme -->", "<!-- end of figures -->"


def tables(results: list[Result]) -> list[str]:
    """All of it, in Markdown, a line a row."""
    by = by_family(results)
    heads = ["| | measured | goal |", "| --- | --- | --- |"]
    rows = [*_single(by), *_several(by), *_others(by), *_kinds(by), *_costs(by)]
    measured = [f"| {what} | {found} | {goal} |" for what, found, goal in rows]
    return [*heads, *measured, "", *_reliability(results), "", *_beside(by)]


def by_family(results: list[Result]) -> Families:
    """The runs of each family, in the order in which families came."""
    by: Families = defaultdict(list)
    for result in results:
        by[result["family"]].append(result)
    return by


def misjudged(results: list[Result]) -> list[str]:
    """Jobs of which a rank, the kind or a cause is wrong, a line each."""
    shown = ("ranks", "layout", "causes", "onset", "true", "named", "kinds", "blamed")
    return [
        f"{one['family']} {one['seed']} effect {one['effect']:.3f} " + str({key: one[key] for key in shown})
        for one in sorted(results, key=lambda one: (one["family"], one["seed"]))
        if not _is_right(one)
    ]


def _is_right(one: Result) -> bool:
    """Whom to name and, of several causes, for what; below 2 % no name is right, too."""
    family = one["family"]
    if family in ("link", "network", "stages"):  # judged by their kind
        return not one["named"] and "balanced" not in one["kinds"]
    if family in ("two_causes", "handover") and one["blamed"] != one["faults"]:
        return False
    if not one["named"]:
        return family in ("clean", "hidden") or not one["true"] or one["effect"] < 0.02
    return family not in ("clean", "hidden") and one["named"] == one["true"]


def write_readme(title: str, tables: list[str]) -> None:
    """Replace the README's figures by these tables and the line above them."""
    before, rest = README.read_text().split(BEGIN, 1)
    after = rest.split(END, 1)[1]
    README.write_text("\n".join([before + BEGIN, f"{title}:", "", *tables, END + after]))


def _strong(by: Families) -> list[Result]:
    return [*_of(by, "single", 0.05), *_of(by, "small", 0.05)]


def _of(by: Families, family: str, least: float) -> list[Result]:
    """The jobs of a family in which the faults made steps longer by at least so much."""
    return [one for one in by[family] if one["effect"] >= least]


def _single(by: Families) -> list[Row]:
    strong = _strong(by)
    weak = [result for result in _of(by, "small", 0.02) if result["effect"] < 0.05 and result["steps"] <= 100]
    found = [one for one in strong if set(one["named"]) & set(one["true"])]
    late = [abs((one["since"] or 0) - one["onset"]) for one in found if one["onset"]]
    return [
        ("single fault of 5 % or more: precision", precision(strong), "0.995"),
        ("single fault of 5 % or more: recall", recall(strong), "0.99"),
        ("2 to 5 % within 100 steps: recall", recall(weak), "0.95"),
        ("2 to 5 % within 100 steps: precision", precision(weak), ""),
        ("8,192 ranks: top-1", share(one["top"] in one["true"] for one in by["large"]), "0.97"),
        ("cause right", share(one["verdict_causes"] == one["causes"] for one in found), "0.95"),
        (
            'cause right or "unknown"',
            share(one["verdict_causes"] in (one["causes"], ["unknown"]) for one in found),
            "0.95",
        ),
        ("onset: steps off, median", bootstrap(late, _median, 1), ""),
    ]


def _several(by: Families) -> list[Row]:
    uneven = [one for one in by["clean"] if one["seed"] % 2]
    alarms = "clean jobs, half of them with varying sequence lengths: false alarms, steps"
    return [
        ("sets of 2 to 8: exact-set F1", exact_f1(by["sets"]), "0.95"),
        (alarms, _alarms(by["clean"]), "1 in 10,000"),
        ("of them with varying sequence lengths", _alarms(uneven), ""),
        ("slow input that run-ahead hides: no rank named", share(not one["named"] for one in by["hidden"]), ""),
    ]


def _others(by: Families) -> list[Row]:
    slowed = _of(by, "network", 0.02)
    found: list[Row] = [
        ("slow link of one data-parallel group: said so", said(by["link"], "slow_link"), ""),
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
        found.append((f"{what}: precision", precision(by[family]), ""))
        found.append((f"{what}{from_on}: recall", recall(_of(by, family, least)), ""))
    return found


def _kinds(by: Families) -> list[Row]:
    """What is no single slow rank: jobs that stop, stages of uneven work, two causes at once."""
    stops = share(one["kinds"] == one["causes"] and one["named"] == one["true"] for one in by["stops"])
    uneven = share("uneven_workload" in one["kinds"] and not one["named"] for one in _of(by, "stages", 0.02))
    both = share(one["named"] == one["true"] for one in by["two_causes"])
    causes, in_turn = (share(one["blamed"] == one["faults"] for one in by[of]) for of in ("two_causes", "handover"))
    slow = "a pipeline's stage slow on all replicas, effect of 2 % or more: uneven work said, no rank named"
    return [
        ("hang or desync: the right one of both, and that rank named", stops, ""),
        (slow, uneven, ""),
        ("two ranks, two causes: both named, no other rank", both, ""),
        ("two ranks, two causes: each with its cause", causes, ""),
        ("one rank, one cause after another: both reported, and no other rank", in_turn, ""),
    ]


def _costs(by: Families) -> list[Row]:
    strong, sets = _strong(by), by["sets"]
    errors = [100 * one["error"] for one in [*strong, *sets]]
    found: list[Row] = [
        ("what-if error, %: median", bootstrap(errors, _median, 2), "1"),
        ("what-if error, %: P90", bootstrap(errors, lambda v: float(np.percentile(v, 90)), 2), "4"),
    ]
    for what, jobs in (
        ("a single fault of 5 % or more", strong),
        ("sets of 2 to 8", sets),
        ("intermittent stalls", by["intermittent"]),
        ("stalls in 30 to 70 % of the steps, effect of 2 % or more", _of(by, "frequent", 0.02)),
        ("a fault of 20 to 60 steps", by["temporary"]),
        ("pipelines with replicas, effect of 2 % or more", _of(by, "pipeline", 0.02)),
        ("a fault among varying sequence lengths, effect of 1 % or more", _of(by, "uneven", 0.01)),
        ("two ranks, two causes, both together", by["two_causes"]),
        ("one rank, one cause after another, both together", by["handover"]),
    ):
        costs = [job["cost"] for job in jobs if job.get("cost") is not None]
        close = share(abs(cost - 1) <= CLOSE for cost in costs)
        found.append((f"cost within 20 % of what the repair saves: {what}", close, ""))
    return found


def _median(values: Any) -> float:
    return float(np.median(values))


def precision(results: list[Result]) -> str:
    """Of the ranks named, how many are at fault."""
    return share(rank in one["true"] for one in results for rank in one["named"])


def recall(results: list[Result]) -> str:
    """Of the ranks at fault, how many are named."""
    return share(rank in one["named"] for one in results for rank in one["true"])


def exact_f1(results: list[Result]) -> str:
    """F1 of whole sets: a set counts where it is named exactly.

    Where all are, or none, resamples are all alike, and Wilson's interval of that share stands in.
    """
    hits = [float(one["named"] == one["true"]) for one in results]
    said = [float(bool(one["named"])) for one in results]
    if all(hits) or not any(hits):
        return wilson(round(sum(hits)), len(hits))
    pairs = np.stack([hits, said], axis=1)

    def f1(rows: Any) -> float:
        return float(2 * rows[:, 0].sum() / (rows[:, 1].sum() + len(rows)))

    return bootstrap(list(pairs), f1, 3)


def said(results: list[Result], kind: str) -> str:
    """In how many runs a verdict is of this kind."""
    return share(kind in result["kinds"] for result in results)


def _alarms(clean: list[Result]) -> str:
    """Clean jobs in which a rank or the network was blamed, by the steps of all."""
    false = sum(bool(result["named"]) or "slow_link" in result["kinds"] for result in clean)
    return poisson(false, sum(result["steps"] for result in clean), 10_000)


def _reliability(results: list[Result]) -> list[str]:
    """Of the verdicts said with some confidence, the share that names only ranks at fault."""
    graded = [pair for one in results for pair in zip(one["confidences"], one["right"], strict=True)]
    rows = []
    for low, high in itertools.pairwise(BINS):
        held = [right for sure, right in graded if low <= sure < high]
        if held:
            rows.append(f"| {low:.2f} to {min(high, 1.0):.2f} | {share(held)} |")
    return ["| confidence said | names only ranks at fault |", "| --- | --- |", *rows]


def _beside(by: Families) -> list[str]:
    lone = _strong(by)
    rows = [
        "| on the same runs | precision | recall | sets: exact F1 | clean jobs in which a rank is named |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name in ["hindmost", *(BASELINES if lone else [])]:
        jobs, clean, sets = (
            [one if name == "hindmost" else one | {"named": one[name]} for one in held]
            for held in (lone, by["clean"], by["sets"])
        )
        columns = (precision(jobs), recall(jobs), exact_f1(sets), share(bool(one["named"]) for one in clean))
        rows.append(f"| {name} | {' | '.join(columns)} |")
    return rows
