"""A comparison of two runs, or of several with different ranks, for the eye."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_judge.verdict.schema import STOPS
from hindmost_judge.verdict.wording import UNMEASURED, duration
from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from hindmost_collector.report import columns, section_tables
from hindmost_collector.report.columns import number, ratio, title_of
from hindmost_collector.report.text import console, labelled, written
from hindmost_collector.report.verdict_lines import doing, of_verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_WORSE, _BETTER = "red", "green"
UNSET = "not set"
#: Measures below this share of the step, in both runs, that did not change: not shown.
_TINY = 0.02


def render(found: Mapping[str, Any], width: int = 100, color: bool = False) -> str:
    """``hindmost.compare/1`` as text: what changed first, then every measure, then the verdicts."""
    page = console(width, color)
    for label in ("a", "b"):
        page.print(labelled(label.upper(), columns.title({"job": found[label]}).removeprefix("hindmost · "), "bold"))
    page.print(labelled("RESULT", *_result(found)))
    for rate in found.get("rates") or ():
        if rate["name"] == "work_per_s" and rate["change"] is not None:
            page.print(labelled("PACE", *_pace(rate)))
    for label, style, sentence in _changes(found["verdicts"]):
        page.print(labelled(label, sentence, style))
    for one in found.get("settings") or ():
        page.print(labelled("SET", _setting(one)))
    for note in found["notes"]:
        page.print(labelled("NOTE", note, "dim"))
    shown = [one for one in found["measures"] if _matters(one, found["measures"])]
    if shown:
        page.print(_table(shown))
        page.print(Text("ms per step of the typical rank, medians; mean step: the mean", "dim"))
        page.print(Text("interval: from the scatter of each run's own steps; nodes and days can differ by more", "dim"))
    return written(page)


def _setting(one: Mapping[str, Any]) -> str:
    """``OMP_NUM_THREADS: 1 in A, 4 in B``."""
    values = (f"{UNSET if one[key] is None else one[key]} in {key.upper()}" for key in ("a", "b"))
    return f"{one['name']}: {', '.join(values)}"


def _result(found: Mapping[str, Any]) -> tuple[str, str]:
    """What happened to the job, then to the step, and its style."""
    steps, style = _of_steps(found)
    stopped = {label: said for label in ("A", "B") if (said := _stop(found["verdicts"], label))}
    ends = [f"{label} did not finish: {said}" for label, said in stopped.items()]
    signals = {label: found[label.lower()].get("interrupted_by") for label in ("A", "B")}
    ends += [f"{label} was interrupted by {name}" for label, name in signals.items() if name and label not in stopped]
    if not ends:
        return steps, style
    style = f"bold {_WORSE if 'B' in stopped else _BETTER if stopped else 'yellow'}"
    return f"{'; '.join(ends)}; up to there: {steps}", style


def _pace(rate: Mapping[str, Any]) -> tuple[str, str]:
    """Samples or tokens a second of both, which runs with other batches or ranks are to be compared by."""
    before, after = (section_tables.written(rate[name], "number") for name in "ab")
    both = f"{before} to {after} samples or tokens/s"
    if rate["changed"] is None:
        return f"{both}; too few steps to call it a change", ""
    if not rate["changed"]:
        return f"{both}: no change beyond noise", ""
    by = f"{'more' if rate['change'] > 0 else 'less'}, by {ratio(abs(rate['change']))}"
    return f"{both}: {by} ({_share(rate['low'])} to {_share(rate['high'])})", _BETTER if rate["change"] > 0 else _WORSE


def _share(value: float) -> str:
    return ("+" if value > 0 else "") + ratio(value)


#: Blocks of the longest bar.
_BAR = 20
_SCALING = (
    ("ranks", "ranks", "count"),
    ("nodes", "nodes", "count"),
    ("step_ms", "step", "ms"),
    ("steps_per_s", "steps/s", "number"),
    ("work_per_s", "work/s", "number"),
    ("speed_up", "speed-up", "number"),
    ("efficiency", "efficiency", "ratio"),
    ("load_balance", "load balance", "ratio"),
    ("communication", "communi- cation", "ratio"),
)
_SHARES = ("self", "input", "wait", "transfer")


def render_scaling(found: Mapping[str, Any], width: int = 100, color: bool = False) -> str:
    """``hindmost.scaling/1`` as text: a row a run, efficiency as bars, then where the typical rank's step goes."""
    page, runs = console(width, color), found["runs"]
    best = max((one for one in runs if one["efficiency"]), key=lambda one: one["ranks"], default=None)
    if best is None or best is runs[0]:
        page.print(
            labelled(
                "RESULT", "no comparison: the runs need recognised steps and different numbers of ranks", "bold yellow"
            )
        )
    else:
        more, fewer = best["ranks"] / runs[0]["ranks"], runs[0]["ranks"]
        by = "samples or tokens/s" if found["by"] == "work_per_s" else "steps/s (a step must be the same work in all)"
        text = f"{best['ranks']:,} ranks are {best['speed_up']:.2f} times as fast as {fewer:,}, by {by}"
        page.print(labelled("RESULT", f"{text}: {ratio(best['efficiency'])} of {more:.1f} times", "bold"))
    shown = [one for one in _SCALING if any(run[one[0]] is not None for run in runs)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for _, title, _ in shown:
        table.add_column(title.replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    for run in runs:
        table.add_row(*(section_tables.written(run[key], unit) for key, _, unit in shown))
    page.print(table)
    for run in runs:
        if run["efficiency"] is not None:
            bar = "█" * round(min(run["efficiency"], 1.0) * _BAR)
            page.print(Text(f"{run['ranks']:>7,} ranks  {bar:<{_BAR}}  {ratio(run['efficiency'])}"))
    page.print(_where(runs))
    page.print(Text("share of the mean step, of the typical rank; a fault of one rank: report that run", "dim"))
    return written(page)


def _where(runs: Sequence[Mapping[str, Any]]) -> Table:
    """Where the step goes, a row a run."""
    names = [name for name in _SHARES if any(run["shares"][name] is not None for run in runs)]
    table = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    table.add_column("ranks", justify="right", no_wrap=True, vertical="bottom")
    for name in names:
        table.add_column(title_of(name).replace(" ", "\n"), justify="right", no_wrap=True, vertical="bottom")
    table.add_column("first\nverdict", no_wrap=True, vertical="bottom")
    for run in runs:
        cells = (ratio(run["shares"][name]) for name in names)
        table.add_row(section_tables.written(run["ranks"], "count"), *cells, run["verdict"].replace("_", " "))
    return table


def _stop(verdicts: Mapping[str, Any], label: str) -> str | None:
    """That one of the two runs stopped for good, as its verdict says it."""
    own = verdicts["new" if label == "B" else "gone"]
    both = [one[label.lower()] for one in verdicts["kept"]]
    return next((of_verdict(one).sentence for one in [*own, *both] if one["kind"] in STOPS), None)


def _of_steps(found: Mapping[str, Any]) -> tuple[str, str]:
    """What happened to the step, and its style."""
    measures = {one["name"]: one for one in found["measures"]}
    step = measures.get("step")
    if step is None or step["change_ms"] is None:
        return "no comparison: one run has no recognised steps", "bold yellow"
    both = f"{duration(step['a_ms'])} to {duration(step['b_ms'])} per step"
    if step["changed"] is None:
        return f"{both}; too few steps to call it a change", "bold yellow"
    if not step["changed"]:
        return _in_part(measures["mean_step"]) or (f"no change beyond noise: {both}", "bold green")
    slower = step["change_ms"] > 0
    low, high = sorted((abs(step["low_ms"]), abs(step["high_ms"])))
    by = f"{'slower' if slower else 'faster'} by {ratio(abs(step['change_ms']) / step['a_ms'])}"
    return f"B is {by}: {both} (by {number(low)} to {number(high)} ms)", f"bold {_WORSE if slower else _BETTER}"


def _in_part(mean: Mapping[str, Any]) -> tuple[str, str] | None:
    """That some steps changed though the median one did not, where they did."""
    if not mean["changed"]:
        return None
    slower = mean["change_ms"] > 0
    by = f"{'slower' if slower else 'faster'} by {ratio(abs(mean['change_ms']) / mean['a_ms'])}"
    both = f"{duration(mean['a_ms'])} to {duration(mean['b_ms'])} per step"
    style = f"bold {_WORSE if slower else _BETTER}"
    return f"B is {by} on the mean: {both}; some steps changed, the median did not", style


def _changes(verdicts: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    new = [("NEW", _WORSE, _sentence(one)) for one in verdicts["new"]]
    gone = [("GONE", _BETTER, _sentence(one)) for one in verdicts["gone"]]
    kept = [("STILL", "", f"{_sentence(one['b'])}{_before(one)}") for one in verdicts["kept"]]
    return new + gone + kept


def _sentence(one: Mapping[str, Any]) -> str:
    shown = of_verdict(one)
    return f"{shown.sentence}; {shown.cost.partition(';')[0]}" if shown.cost else shown.sentence


def _before(one: Mapping[str, Any]) -> str:
    """What differs in A of a verdict that both runs have."""
    cost = one["a"].get("cost_ms_per_step")
    differs = [f"{duration(cost)} per step"] if cost is not None else []
    if one["a"].get("cause") != one["b"].get("cause"):
        differs.append(doing(one["a"]))
    return f"; in A {', '.join(differs)}" if differs else ""


def _matters(one: Mapping[str, Any], measures: list[Mapping[str, Any]]) -> bool:
    step = max((one[key] or 0.0) for one in measures if one["name"] == "step" for key in ("a_ms", "b_ms"))
    return bool(one["changed"]) or max(one["a_ms"] or 0.0, one["b_ms"] or 0.0) > _TINY * step


def _table(measures: list[Mapping[str, Any]]) -> Table:
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, header_style="bold")
    for title in ("", "A", "B", "change", "95 % interval"):
        shown.add_column(title, justify="right" if title else "left", no_wrap=True)
    for one in measures:
        style = None if not one["changed"] else _WORSE if one["change_ms"] > 0 else _BETTER
        interval = UNMEASURED if one["low_ms"] is None else f"{_signed(one['low_ms'])} to {_signed(one['high_ms'])}"
        cells = (number(one["a_ms"]), number(one["b_ms"]), _signed(one["change_ms"]), interval)
        shown.add_row(title_of(one["name"]), *cells, style=style)
    return shown


def _signed(value: float | None) -> str:
    return UNMEASURED if value is None else ("+" if value > 0 else "") + number(value)
