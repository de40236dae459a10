"""The lines of a verdict, the same in every format: head word (SLOW) and finding, COST, WHY, DO.

``hindmost.report/1``, the contract for programs, is the report with these words as JSON.
"""

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

from hindmost_judge.verdict.schema import AT_LEAST, STOPS, unsure, waiting
from hindmost_judge.verdict.wording import ALONE, NONE_SEEN, RANKS_WAIT, REGULARLY, duration, names

from hindmost_collector.report import columns
from hindmost_collector.report.columns import part_of, ratio, without

#: Lines of advice of one verdict that are shown.
_ADVICE = 3
#: A named rank that is less sure than this is called likely.
_LIKELY = 0.75
#: A measurement that explains so much of a delay is named though it is not the cause; from the second on alone.
_MUCH, _NEARLY_ALL = 0.5, 0.8
#: Nodes that a head line lists.
_NODES = 2


@dataclass(frozen=True)
class RenderedVerdict:
    """A verdict in words. ``why`` has the evidence that decided first; ``sure``, ``cost`` and ``where`` may be empty.

    ``short_cost`` is for one line with the finding: without its steps, and what remains. ``also`` has other steps in
    which the same held, and what it cost in these.

    The kind of a balanced job that stopped for a while is ``stalled``, of one that became slower on all ranks
    ``slowed``.
    """

    kind: str
    head: str
    what: str
    sure: str
    cost: str
    why: tuple[str, ...]
    where: str
    do: tuple[str, ...]
    also: str = ""
    short_cost: str = ""

    @property
    def sentence(self) -> str:
        """Head word and the finding, in one line."""
        return f"{self.head} {self.what}"


def rendered(report: Mapping[str, Any], path: str = "RUN", program: str = "hindmost") -> list[RenderedVerdict]:
    """Each verdict of a report (``Report.to_dict()`` or a parsed report.json), in words, in its order.

    What to do is said once: a rank that was slow three times is to be looked at once. Its commands are of ``program``
    and on the recording at ``path``, as a shell takes it.
    """
    shown: list[RenderedVerdict] = []
    said: set[str] = set()
    for one in (_verdict(report, verdict) for verdict in report["verdicts"]):
        new = [text for text in one.do if text not in said]
        said |= {*one.do}
        of_run = (text.replace("hindmost report RUN", f"hindmost report {path}") for text in new)
        shown.append(replace(one, do=tuple(text.replace("`hindmost ", f"`{program} ") for text in of_run)))
    return shown


def in_short(report: Mapping[str, Any], path: str = "RUN", program: str = "hindmost") -> list[RenderedVerdict]:
    """The same, with the periods in which the same ranks were slow for the same reason in one verdict, the first."""
    again: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    first: dict[tuple[Any, ...], RenderedVerdict] = {}
    for at, (one, words) in enumerate(zip(report["verdicts"], rendered(report, path, program), strict=True)):
        key = (one["kind"], *one["ranks"], one.get("cause")) if one["kind"] in _OF_SOME and one["ranks"] else (at,)
        if key in first:
            again.setdefault(key, []).append(one)
        else:
            first[key] = words
    return [replace(words, also=_periods(again.get(key, ()))) for key, words in first.items()]


def decisive(one: RenderedVerdict) -> tuple[str, ...]:
    """The evidence that is shown first: what decided, how long ranks wait though none is slow, and where one hangs."""
    second = "".join(one.why[1:2])
    more = second.startswith(RANKS_WAIT) if one.head == "OK" else one.head == "HUNG" and " at " in second
    return one.why[: 2 if more else 1]


def _periods(verdicts: Iterable[Mapping[str, Any]]) -> str:
    in_order = sorted(verdicts, key=lambda one: one.get("since_step") or 0)
    return "; ".join(
        _interval({**one, "since_time_s": None}).removeprefix(", ") + f": {_amount(one)}" for one in in_order
    )


def of_verdict(one: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]] = ()) -> RenderedVerdict:
    """A verdict without its report in words; the report's rows of ``ranks`` know their nodes."""
    return _verdict({"job": {}, "ranks": ranks, "verdicts": (one,)}, one)


def in_change(
    before: Mapping[str, Any], after: Mapping[str, Any], ranks: Sequence[Mapping[str, Any]], detail: str
) -> str:
    """What is new of a verdict that was ``before``, with its cost or place in ``detail``; all, if of another kind, of
    other ranks, of none, or of an unknown cost."""
    words, who = of_verdict(after, ranks), _who({"ranks": ranks}, after)
    cost, now = (one.get("cost_ms_per_step") for one in (before, after))
    if who and all(before[name] == after[name] for name in ("kind", "ranks")):
        if after["kind"] in STOPS and detail:
            return f"{words.head}{detail}"
        if before.get("cause") != after.get("cause"):
            return f"{who}: {doing(after)}, before {doing(before)}{detail}"
        if cost is not None and now is not None:
            return f"{who} cost{'s' * (len(after['ranks']) == 1)} {words.short_cost}, before {duration(cost)}"
    return f"{words.sentence}{detail}"


def with_rendered(report: Mapping[str, Any], *, over: bool = False, path: str = "") -> dict[str, Any]:
    """The report as a page shows it: with its title, its verdicts in words, what limits the job before or after
    these, and settings to try.

    Of a job that is ``over`` it begins with the costliest verdict, though that had an end, too. ``path`` is the
    recording's in commands, as a shell takes it; where it is not known, that which ``hindmost run`` chooses.
    """
    path = path or f"hindmost-runs/{report['job']['id']}"
    words = {
        "title": columns.title(report),
        "bound": columns.bound(report),
        "bound_do": columns.on_bound(report),
        "settings": columns.settings(report),
        "bound_first": columns.limits_more(report),
        "waste": columns.waste(report),
        "path": path,
    }
    found = [*(() if over else _over(report)), *rendered(report, path)]
    return {**report, **words, "rendered": [asdict(one) for one in found], "overlap": overlap(report)}


def overlap(report: Mapping[str, Any]) -> str:
    """What is said below several costs of the same steps; empty where there are none."""
    ends = sorted(
        (verdict.get("since_step") or 0, verdict["until_step"] if verdict.get("until_step") is not None else math.inf)
        for verdict in report["verdicts"]
        if verdict.get("cost_ms_per_step") is not None
    )
    same = any(after[0] < before[1] for before, after in pairwise(ends))
    return "the costs overlap: do not add them" if same else ""


def _over(report: Mapping[str, Any]) -> list[RenderedVerdict]:
    """What the page of a running job begins with where every verdict has an end."""
    ends = [verdict.get("until_step") for verdict in report["verdicts"]]
    if not ends or None in ends:
        return []
    return [RenderedVerdict("balanced", "OK", f"no rank is slow since step {max(ends)}", "", "", (), "", ())]


def _verdict(report: Mapping[str, Any], one: Mapping[str, Any]) -> RenderedVerdict:
    stalls, slowed = report["job"].get("stalls") or (), report["job"].get("slowed")
    kind, (short, cost), sure = one["kind"], _cost(one), _sure(one)
    if kind in ("balanced", "insufficient_data") and stalls and not one["ranks"]:
        kind, (head, what), sure = "stalled", _stalled(stalls), ""
        short = cost = _cost_of_stalls(stalls, report["job"].get("duration_s"))
    elif kind in ("balanced", "insufficient_data") and slowed and slowed["until_step"] is None:
        kind, (head, what), sure = "slowed", ("SLOW", _slowed(slowed, len(report["ranks"]))), ""
        more = slowed["step_ms"] - slowed["was_ms"]
        amount, share = f"{part_of(more, slowed['step_ms'])} per step", f" ({ratio(more / slowed['step_ms'])})"
        short, cost = f"{amount}{share}", f"{amount} since then{share}"
    else:
        head, what = _HEADS[kind](one, _who(report, one))
        if kind == "balanced" and report["job"].get("ended"):
            what = f"no rank was {'clearly ' * (head == 'UNSURE')}slow until then"
    why, do = tuple(one.get("evidence") or ()), tuple(one.get("advice") or ())[:_ADVICE]
    if why and what.endswith(why[0]):  # the head says it already
        why = why[1:]
    if why and one["kind"] in _OF_SOME and one["ranks"] and (when := _when(one)):
        why = (f"{when}, {why[0]}", *why[1:])
    if do and one["ranks"] and _over(report):
        do = ("this is over. If it comes back:", *do)
    return RenderedVerdict(kind, head, what, sure, cost, why, columns.place(report, one), do, short_cost=short)


def _sure(one: Mapping[str, Any]) -> str:
    """``99 % sure``; empty where nothing says how sure, or where the head says that it is not."""
    sure = one.get("confidence")
    return "" if sure is None or unsure(one) else f"{ratio(min(sure, 0.99))} sure"


def _who(report: Mapping[str, Any], one: Mapping[str, Any]) -> str:
    """``rank 2 on vm``: with its node, or their nodes where they are few."""
    nodes = {row["rank"]: row.get("node") for row in report["ranks"] if row["rank"] in one["ranks"]}
    where = list(dict.fromkeys(node for node in nodes.values() if node))
    known = 0 < len(where) <= _NODES and None not in nodes.values()
    return names(one["ranks"]) + (f" on {' and '.join(where)}" if known else "") if one["ranks"] else ""


#: What a cause says that a rank does, or has.
_DOING = {
    "compute": "computing",
    "input": "waiting for input",
    "h2d": "copying to its GPU",
    "gpu_contention": "another process on its GPU",
    "gpu_throttle": "low GPU clock",
    "cpu_contention": "waiting for a CPU",
    "gc": "garbage collection",
    "checkpoint": "writing checkpoints or other files",
    "memory": "waiting for memory",
    "io": "file I/O",
    "stopped": "stopped by a signal or a debugger",
    "workload": "more work than its peers",
    "unknown": "cause unknown",
}


#: What is known of a cause, where it says more than that.
_FINER = {"quota": "stopped by its CPU quota", "small_reads": "making many small reads"}
#: The same of an unknown cause, by the measurement that explains most of the delay.
_PARTLY = {"blocked": "off the CPU, cause unknown", "idle": "launching GPU work late, cause unknown"}


def doing(one: Mapping[str, Any]) -> str:
    """What a verdict's cause says that its ranks do."""
    causes = one.get("causes") or (one.get("cause") or "unknown",)
    words = _FINER.get(one.get("partial") or "") or " and ".join(_DOING.get(cause, cause) for cause in causes)
    if words == _DOING["unknown"]:
        words = _unknown(one.get("partial"), one.get("explained") or 0.0)
    return words if len(one["ranks"]) < 2 else words.replace("its ", "their ").replace("their GPU", "their GPUs")


def _unknown(most: str | None, explained: float) -> str:
    """What is known of an unknown cause: the measurement that explains most, if that is much."""
    if most in _PARTLY:
        return _PARTLY[most]
    if most in _DOING and explained >= _MUCH:
        return (
            f"{_DOING[most]}, cause unknown" if explained >= _NEARLY_ALL else f"no single cause, mostly {_DOING[most]}"
        )
    return _DOING["unknown"]


def _interval(one: Mapping[str, Any]) -> str:
    since, until, time_s = one.get("since_step"), one.get("until_step"), one.get("since_time_s")
    if since is None:
        return ""
    at = f" ({clock(time_s)})" if time_s else ""
    return f", since step {since}{at}" if until is None else f", steps {since}{at} to {until}"


def clock(unix_s: float, seconds: str = "") -> str:
    """``Nov 29 02:14``, with ``:%S`` also seconds, of this machine's time zone."""
    return time.strftime(f"%b %d %H:%M{seconds}", time.localtime(unix_s))


def _later(one: Mapping[str, Any]) -> str:
    """The same of what holds for the whole job, where it does not."""
    return _interval(one) if one.get("since_step") or one.get("until_step") is not None else ""


def _intermittent(one: Mapping[str, Any], who: str) -> tuple[str, str]:
    if one.get("cause") == "workload":
        return "SLOW", f"{who}: {doing(one)}, in some steps{_later(one)}"
    stall = "stalls" if len(one["ranks"]) == 1 else "stall"
    return "SLOW", f"{who}: {stall} now and then ({doing(one)}){_later(one)}"


def _hung(one: Mapping[str, Any], who: str) -> tuple[str, str]:
    step = f"in step {one['since_step']}: " if one.get("since_step") is not None else ""
    if one.get("cause") == "stopped":
        return "HUNG", f"{step}{who or 'the job'} {'was' if len(one['ranks']) < 2 else 'were'} {_DOING['stopped']}"
    if one.get("cause") == "deadlock":
        return "HUNG", f"{step}{one['evidence'][0]}"
    if not one["victims"]:
        return "HUNG", f"{step}no rank makes progress"
    if not who:
        return "HUNG", f"{step}{columns.count(len(one['victims']), 'rank')} wait in one operation"
    likely = "" if (one.get("confidence") or 1.0) >= _LIKELY else ", likely,"
    return "HUNG", f"{step}{who}{likely} did not arrive"


def _diverged(one: Mapping[str, Any], who: str) -> tuple[str, str]:
    step = f"in step {one['since_step']}: " if one.get("since_step") is not None else ""
    ran = f"{who or 'ranks'} ran {'another operation than the rest' if who else 'unlike operations'}"
    return "DESYNC", f"{step}{next(iter(one['evidence']), ran)}"


def _balanced(one: Mapping[str, Any], _: str) -> tuple[str, str]:
    return _unsure(one, "") if unsure(one) else ("OK", "no rank is slow")


def _unsure(one: Mapping[str, Any], _: str) -> tuple[str, str]:
    first = next(iter(one.get("evidence") or ()), "")
    said = ALONE in first or first.startswith(NONE_SEEN) or REGULARLY in first
    return "UNSURE", first if said else "cannot say whether a rank is slow"


_HEADS: dict[str, Callable[[Mapping[str, Any], str], tuple[str, str]]] = {
    "straggler": lambda one, who: ("SLOW", f"{who}: {doing(one)}{_interval(one)}"),
    "intermittent": _intermittent,
    "hang": _hung,
    "desync": _diverged,
    "slow_link": lambda one, who: ("SLOW", (f"link of {who}" if who else "network of all ranks") + _interval(one)),
    "input_bound": lambda one, _: ("LIMITED BY", f"input: the job waits for it{_later(one)}"),
    "host_bound": lambda one, _: (
        "LIMITED BY",
        f"CPUs: {_DOING[one['cause']] if one.get('cause') else 'GPUs wait for kernel launches'}{_later(one)}",
    ),
    "uneven_workload": lambda one, _: ("UNEVEN", f"ranks have work of unequal size{_later(one)}"),
    "oversubscribed": lambda one, who: ("SLOW", f"{who}: share too few CPUs{_later(one)}"),
    "balanced": _balanced,
    "insufficient_data": _unsure,
}


def _stalled(stalls: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """For how long the job stopped, and for whom, as far as known."""
    seconds = sum(stall["until_s"] - stall["since_s"] for stall in stalls)
    ranks = sorted({rank for stall in stalls for rank in stall["ranks"]})
    nodes = {stall["node"] for stall in stalls}
    often = "" if len(stalls) == 1 else f" in {len(stalls)} stalls"
    whom = f"{names(ranks)} did not arrive" if ranks else "not known which rank was late"
    if ranks and {int(rank) for stall in stalls for rank in stall.get("stopped_s") or ()} >= set(ranks):
        whom = f"{names(ranks)} {'was' if len(ranks) == 1 else 'were'} {_DOING['stopped']}"
    whole = f" (all ranks of {nodes.pop()})" if len(nodes) == 1 and None not in nodes else ""
    return "HUNG", f"for {seconds:.1f} s{often}, then went on: {whom}{whole}"


def stalled(job: Mapping[str, Any]) -> str:
    """The stalls of a job in one line, with what they cost."""
    stalls = job["stalls"]
    return f"{' '.join(_stalled(stalls))}; {_cost_of_stalls(stalls, job.get('duration_s'))}"


def _cost_of_stalls(stalls: Sequence[Mapping[str, Any]], lasted: float | None) -> str:
    seconds = sum(stall["until_s"] - stall["since_s"] for stall in stalls)
    return f"{seconds:.1f} of {lasted:.1f} s ({ratio(seconds / lasted)})" if lasted else f"{seconds:.1f} s"


def _slowed(slowed: Mapping[str, Any], ranks: int) -> str:
    levels = f"steps take {duration(slowed['step_ms'])}, before {duration(slowed['was_ms'])}"
    return f"{'all ranks, ' if ranks > 1 else ''}since step {slowed['since_step']}: {levels}"


#: Verdicts whose numbers are of some steps, where the table's are of all.
_OF_SOME = ("straggler", "intermittent", "slow_link")


def _when(one: Mapping[str, Any]) -> str:
    """Of which steps the numbers of a verdict are; empty where it held in all."""
    since = one.get("since_step")
    return "in these steps" if one.get("until_step") is not None else f"since step {since}" if since else ""


def _amount(one: Mapping[str, Any]) -> str:
    """``3.9 of 8.9 ms``; empty where it is not known."""
    cost, share = one.get("cost_ms_per_step"), one.get("cost_ratio")
    return "" if cost is None else part_of(cost, cost / share) if share else duration(cost)


def _cost(one: Mapping[str, Any]) -> tuple[str, str]:
    """``3.9 of 8.9 ms per step (44 %)``, and the same with the steps in which the fault acted and with what remains."""
    cost, share, before = one.get("cost_ms_per_step"), one.get("cost_ratio"), one.get("given") or ()
    if cost is None:
        return "", waited(one)
    least = "at least " if one.get("cost_is") == AT_LEAST else ""
    amount, when = f"{least}{_amount(one)} per step", f" {_when(one)}".rstrip()
    if not share:
        return amount, f"{amount}{when}"
    left, after = without(cost, cost / share), f" ({ratio(share)})"
    if before:  # a step with these fixed, and this one too, is another length
        after += f", saved only after {names(before)} {'is' if len(before) == 1 else 'are'} fixed"
    remain = f"; {'at most ' if least else ''}{left} remain" if left and not before else ""
    return f"{amount}{after}", f"{amount}{when}{after}{remain}"


def waited(one: Mapping[str, Any]) -> str:
    """``7 ranks waited 5.2 min on average, since Nov 29 02:14:05``: what a stop costs, as far as it is known."""
    seconds, ranks = one.get("waited_s"), waiting(one)
    if not seconds or not ranks:
        return ""
    since = f", since {clock(one['since_time_s'], ':%S')}" if one.get("since_time_s") else ""
    mean = f"{lasting(seconds / len(ranks))}{' on average' * (len(ranks) > 1)}"
    return f"{columns.count(len(ranks), 'rank')} waited {mean}{since}"


def lasting(seconds: float, digits: int = 1) -> str:
    """``12.3 s``, ``5.2 min``, ``3.1 h``, ``34.7 days``."""
    for unit, size, longest in (("s", 1, 120), ("min", 60, 7200), ("h", 3600, 172800)):
        if seconds < longest:
            return f"{seconds / size:.{digits}f} {unit}"
    return f"{seconds / 86400:.{digits}f} days"


def render_json(report: Mapping[str, Any]) -> str:
    """The report as indented JSON with a final newline. NaN is refused: unmeasured is ``null``."""
    return json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
