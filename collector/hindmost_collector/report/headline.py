"""A report's sentences, alike in text and HTML: the title line, and each verdict in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost.script import script, split

from hindmost_collector.judgement.wording import AHEAD, PARTLY, SLOWER, names
from hindmost_collector.judgement.wording_balanced import ASKED, SLOW_OR_NOT, UNSURE, WAITED_FOR
from hindmost_collector.report.columns import duration, ratio

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

_CAUSES = {
    "gpu_contention": "GPU contention",
    "gpu_throttle": "GPU throttling",
    "cpu_contention": "CPU contention",
    "h2d": "copies to the GPU",
    "gc": "garbage collection",
    "io": "I/O",
}


def title(report: Mapping[str, Any]) -> str:
    """``hindmost · train.py · 4 ranks on 1 node · 150 steps of 21.4 ms · 3.2 s``, as far as known."""
    job = report["job"]
    name = _called(job.get("command"))
    found = ["hindmost", name if name and name != "hindmost" else job["id"]]  # a simulation's command is our own
    if job.get("world_size"):
        found.append(_ranks(report) + (f" on {_count(job['nodes'], 'node')}" if job.get("nodes") else ""))
    if job.get("steps"):
        found.append(_count(job["steps"], "step") + _of_length(job.get("step_ms") or {}))
    if job.get("duration_s"):
        found.append(f"{job['duration_s']:.1f} s")
    return " · ".join(found)


_BOUNDS = {
    "input": "by its input",
    "host": "by its hosts, which launch too slowly",
    "gpu_compute": "by the computing of its GPUs",
    "gpu_memory": "by the memory bandwidth of its GPUs",
    "communication": "by communication",
}


def bound(report: Mapping[str, Any]) -> str:
    """``by the computing of its GPUs: SMs active 92% of the time, …``; empty where nothing of it was measured."""
    found = report["job"].get("bound")  # reports of earlier versions have none
    return f"{_BOUNDS.get(found['by'], found['by'])}: {found['evidence']}" if found else ""


#: Rows of each table of waste that are told in text, and from which share of the step on.
_TOLD, _WORTH = 3, 0.01


def waste(report: Mapping[str, Any]) -> str:
    """Where the time goes that ranks lose by not being alike; empty where the verdicts' own lines say it all."""
    found = report["what_if"].get("waste")  # reports of earlier versions have none
    if not found:
        return ""
    rows = {name: [row for row in found[name] if row["ratio"] >= _WORTH][:_TOLD] for name in _TABLES}
    if not rows["by_cause"] or max(len(rows["by_cause"]), len(rows["by_phase"])) < 2:  # one verdict says its cost
        return ""
    step = report["what_if"]["step_ms"]
    if (report["job"].get("nodes") or 1) < 2:
        rows["by_node"] = []
    told = [_TABLES[name](some) for name, some in rows.items() if some]
    lost = f"{duration(found['lost_ms'])} of each step ({ratio(found['lost_ms'] / step)}), as ranks are not alike"
    rest = [f"{duration(found['rest_ms'])} of no verdict"] if found["rest_ms"] >= _WORTH * step else []
    return f"{lost}: {'; '.join([*told, *rest])}"


def _each(rows: Iterable[Mapping[str, Any]], called: Callable[[str], str]) -> str:
    return ", ".join(f"{called(row['name'])} {duration(row['ms_per_step'])}" for row in rows)


_TABLES: dict[str, Callable[[Iterable[Mapping[str, Any]]], str]] = {
    "by_cause": lambda rows: _each(rows, lambda name: _CAUSES.get(name, name)),
    "by_phase": lambda rows: "in " + _each(rows, lambda name: name.replace("gpu_", "GPU ")),
    "by_rank": lambda rows: _each(rows, lambda name: f"rank {name}"),
    "by_node": lambda rows: _each(rows, str),
}


#: Mean and median are told apart where they differ by more than this.
_ALIKE = 0.01


def _of_length(step_ms: Mapping[str, float | None]) -> str:
    """`` of 8.2 ms``: the mean, which costs are shares of, with the median where that is another length."""
    typical = step_ms.get("p50")
    mean = step_ms.get("mean") or typical  # reports of earlier versions have no mean
    if not mean or not typical:
        return ""
    if abs(mean - typical) <= _ALIKE * mean or duration(mean) == duration(typical):
        return f" of {duration(mean)}"
    return f" of {duration(mean)} (median {duration(typical)})"


def _ranks(report: Mapping[str, Any]) -> str:
    """``4 ranks``; ``1 of 4 ranks`` where files of the others are not there."""
    all_ranks, seen = report["job"]["world_size"], len(report.get("ranks") or ())
    return f"{seen:,} of {_count(all_ranks, 'rank')}" if 0 < seen < all_ranks else _count(all_ranks, "rank")


def _called(command: str | None) -> str | None:
    """The training script's name in a command line; where there is none, the program's."""
    found = script(split(command or ""))
    return found.rpartition("/")[2] if found else None


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def verdict(
    one: Mapping[str, Any],
    notes: Iterable[str] = (),
    stalls: Sequence[Mapping[str, Any]] = (),
    *,
    others_named: bool = False,
) -> str:
    """A verdict in one plain sentence, which notes, the job's stalls and other verdicts' names do not contradict."""
    sentence = _KINDS[one["kind"]](one)
    if stalls and one["kind"] == "balanced":
        return f"{_stood_still(stalls)}; its other steps are {sentence}"
    if one["kind"] == "balanced" and any(AHEAD in line for line in one.get("evidence") or ()):
        sentence = "no rank is named, but some are ahead of most: whether these are slow cannot be told"
    elif one["kind"] == "balanced" and any(line.startswith(PARTLY) for line in one.get("evidence") or ()):
        sentence += " in the steps that were read"
    elif one["kind"] == "balanced" and any(line.endswith(UNSURE) for line in one.get("evidence") or ()):
        sentence = "no rank can be named surely"
    elif one["kind"] == "balanced" and any(line.endswith(ASKED) for line in one.get("evidence") or ()):
        sentence = "no rank is late enough to be named"
    elif one["kind"] == "insufficient_data" and any(WAITED_FOR in line for line in one.get("evidence") or ()):
        sentence = "nobody is named: somebody is waited for, and why cannot be told"
    unsure = any(line.endswith(SLOW_OR_NOT) for line in one.get("evidence") or ())
    if others_named or unsure or any(SLOWER in note for note in notes):
        sentence = sentence.removeprefix(_NOBODY)
    return sentence + _interval(one)


def _stood_still(stalls: Sequence[Mapping[str, Any]]) -> str:
    """For how long the job did, and for whom, as far as known."""
    seconds = sum(one["until_s"] - one["since_s"] for one in stalls)
    ranks = sorted({rank for one in stalls for rank in one["ranks"]})
    nodes = {one["node"] for one in stalls}
    often = "" if len(stalls) == 1 else f" {len(stalls)} times,"
    whom = f", waiting for {names(ranks)}" if ranks else ", for whom is not known"
    whole = f", all ranks of {nodes.pop()}" if len(nodes) == 1 and None not in nodes else ""
    return f"the job stood still{often} for {seconds:.1f} s{' in all' if often else ''}{whom}{whole}"


#: What a cost is a share of, and what its repair makes shorter, by how much of the run the verdict is about.
_SHARE_OF = {"all": "of the job's time", "since": "of the time since", "while": "of those steps' time"}
_SHORTER = {"all": "the job", "since": "the steps since then", "while": "those steps"}


def _held(one: Mapping[str, Any]) -> str:
    """How much of the run a cost is about."""
    return "while" if one.get("until_step") is not None else "since" if one.get("since_step") else "all"


def saving(one: Mapping[str, Any]) -> str:
    """``repairing it makes the job 15% shorter``, or only those steps in which the fault acted."""
    several = len(one["ranks"]) > 1 and one["kind"] != "slow_link"  # a link of several ranks is one
    who = "them" if several else "it" if one["ranks"] else "this"
    return (
        f"repairing {who} makes {_SHORTER[_held(one)]} {ratio(one['cost_ratio'])} shorter{given(one) or _lengths(one)}"
    )


def _lengths(one: Mapping[str, Any]) -> str:
    """The mean step with the repair and as it was, of which the cost is the difference and the ratio a share."""
    cost, share = one["cost_ms_per_step"], one.get("cost_ratio")
    if not share or cost >= (was := cost / share):
        return ""
    return f" ({duration(was - cost)} instead of {duration(was)} a step on average)"


def _cost(one: Mapping[str, Any]) -> str:
    if one.get("cost_ms_per_step") is None:
        return ""
    of_what = _SHARE_OF[_held(one)]
    return f": +{duration(one['cost_ms_per_step'])} a step ({ratio(one.get('cost_ratio'))} {of_what}){given(one)}"


def given(one: Mapping[str, Any]) -> str:
    """Whose repair a cost takes for granted; reports of earlier versions do not say."""
    ranks = one.get("given") or ()
    return f" once {names(ranks)} {'is' if len(ranks) == 1 else 'are'} repaired" if ranks else ""


def _cause(one: Mapping[str, Any]) -> str:
    found = cause(one)
    return ", cause unknown" if found == "unknown" else f", {found}"


def cause(one: Mapping[str, Any]) -> str:
    """A verdict's cause in plain words; ``unknown`` where there is none."""
    found = one.get("cause") or "unknown"
    return _CAUSES.get(found, found)


def _interval(one: Mapping[str, Any]) -> str:
    since, until = one.get("since_step"), one.get("until_step")
    if since is None or one["kind"] == "hang":
        return ""
    return f", since step {since}" if until is None else f", from step {since} to {until}"


def _who(one: Mapping[str, Any]) -> str:
    return names(one["ranks"]) if one["ranks"] else "nobody"


def _holds(one: Mapping[str, Any]) -> str:
    return f"{_who(one)} {'holds' if len(one['ranks']) == 1 else 'hold'} the job back{_cost(one)}{_cause(one)}"


#: A name that is less sure than this is said to be likely.
_SURE = 0.75


def _stopped(one: Mapping[str, Any]) -> str:
    hangs = "the job hangs" + (f" in step {one['since_step']}" if one.get("since_step") is not None else "")
    waiting = _count(len(one["victims"]), "rank")
    if not one["victims"]:
        return f"{hangs}: nothing moves any more"
    if not one["ranks"]:
        return f"{hangs}: {waiting} waiting in the same operation"
    likely = "" if (one.get("confidence") or 1.0) >= _SURE else "likely "
    return f"{hangs}: {likely}{_who(one)} did not come, {waiting} waiting"


def _parted(one: Mapping[str, Any]) -> str:
    if not one["ranks"]:
        return "the ranks diverge: they entered different operations, and wait for each other"
    return f"the ranks diverge: {_who(one)} entered another operation than the rest"


def _link(one: Mapping[str, Any]) -> str:
    return f"the link of {_who(one)} is slow" if one["ranks"] else "the network is slower than it was"


_NOBODY = "nobody is slow: "
_KINDS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "straggler": _holds,
    "intermittent": lambda one: (
        f"{_who(one)} {'stalls' if len(one['ranks']) == 1 else 'stall'} now and then{_cost(one)}{_cause(one)}"
    ),
    "hang": _stopped,
    "desync": _parted,
    "slow_link": lambda one: f"{_link(one)}{_cost(one)}",
    "input_bound": lambda one: f"all ranks wait for their input{_cost(one)}",
    "host_bound": lambda one: f"the GPUs wait for the host to launch work{_cost(one)}",
    "uneven_workload": lambda one: f"{_NOBODY}the work is uneven{_cost(one)}",
    "balanced": lambda _: "balanced: no rank holds the job back",
    "insufficient_data": lambda _: "not enough data to judge",
}
