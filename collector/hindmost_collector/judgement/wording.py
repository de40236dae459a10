"""The sentences of a verdict: plain words, figures with units, nothing that was not measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.explain.causes import MEASURES
from hindmost_collector.explain.sharing import NEEDS, OFF
from hindmost_collector.model import AMOUNTS, OTHER, PHASES
from hindmost_collector.robust import median, spread

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.costs.whatif import Change
    from hindmost_collector.detectors.intermittent import Stalls
    from hindmost_collector.detectors.slow_link import SlowLink
    from hindmost_collector.detectors.slow_network import SlowNetwork
    from hindmost_collector.detectors.straggler import Habit
    from hindmost_collector.explain.causes import Cause
    from hindmost_collector.model import Run
    from hindmost_collector.timeline.blocks import Blocks

_ADVICE = {
    "compute": "compare {who}'s host and GPU with {its} peers (clocks, heat, other work);"
    " move {it} and see if {it_follows}",
    "input": "look at {who}'s data source: loader workers, shard size, the disk or mount that its node reads from",
    "h2d": "look at {who}'s PCIe link width and {its} pinned memory",
    "gpu_contention": "another process uses {who}'s GPU: stop it or move the {rank}",
    "gpu_throttle": "{who}'s GPU lowers its clock: look at its cooling and power limit",
    "cpu_contention": "something else uses {who}'s CPUs:"
    " look at {its} binding, {its} quota, {its} node's other processes",
    "gc": "garbage collection in {who}: gc.freeze() after start-up, or collect at the same step on all ranks",
    "checkpoint": "let every rank checkpoint at the same step, or write in the background",
    "network": "look at the link of {who}: counters, cables, what connects {its} GPU and node to the others",
    "memory": "{who}'s node is short of memory: look at what is reclaimed or swapped",
    "io": "look at the disk or mount that {who} reads and writes",
    "workload": "give {who} work of the same size as {its} peers",
    "unknown": "look at {who} first: {its} host, {its} GPU, {its} data",
}
_ONE = {"it": "it", "its": "its", "it_follows": "it follows", "rank": "rank"}
_SEVERAL = {"it": "them", "its": "their", "it_follows": "they follow", "rank": "ranks"}


def ms(ns: float) -> str:
    """Milliseconds for the eye: three figures; beyond ten thousand of them, seconds."""
    value = ns / 1e6
    if abs(value) > 10_000:
        return f"{value / 1000:.1f} s"
    return f"{value:.0f} ms" if abs(value) >= 100 else f"{value:.1f} ms" if abs(value) >= 1 else f"{value:.2g} ms"


def names(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 2 and 5``, ``ranks 1, 2, 3 and 40 more``."""
    shown = sorted(ranks)
    if len(shown) == 1:
        return f"rank {shown[0]}"
    if len(shown) > 8:
        return "ranks " + ", ".join(map(str, shown[:6])) + f" and {len(shown) - 6} more"
    return "ranks " + ", ".join(map(str, shown[:-1])) + f" and {shown[-1]}"


def why(blocks: Blocks, habits: list[Habit], cause: Cause) -> list[str]:
    """Evidence for a habit: how often last, own time beside the others', and what accounts for the difference."""
    found = []
    rows = [habit.row for habit in habits]
    who = names([int(blocks.ranks[row]) for row in rows])
    first, stop = min(habit.first for habit in habits), max(habit.stop for habit in habits)
    if (
        blocks.collectives and blocks.evidence != NEEDS and blocks.pipeline is None
    ):  # its waits are in sends and receives
        most = np.isin(np.argmax(blocks.caused[:, first:stop], axis=0), rows)
        which = "steps after warm-up" if stop - first == len(blocks.steps) else "steps in which this held"
        if most.mean() > len(rows) / len(blocks.ranks):  # else it is no evidence: anybody does so as often
            found.append(f"{who} kept the others waiting longest in {int(most.sum())} of the {len(most)} {which}")
    others = np.delete(np.arange(len(blocks.ranks)), rows)
    if not np.isnan(blocks.own).all() and not blocks.overlapped and len(others):
        mine = float(median(blocks.own[rows, first:stop]))
        theirs = median(blocks.own[others, first:stop], axis=1)
        between = "between collectives " if blocks.collectives else ""
        told = f"{ms(mine)} a step, the others' {ms(float(median(theirs)))} (spread {ms(spread(theirs))})"
        what = {NEEDS: "CPU and file time", OFF: "time off the CPU"}.get(blocks.evidence, "time")
        found.append(f"{'its' if len(rows) == 1 else 'their'} own {what} {between}is typically {told}")
    elif len(others):
        mine = float(median(blocks.excess[rows, first:stop]))
        arrives = "it typically arrives" if len(rows) == 1 else "they typically arrive"
        found.append(f"{arrives} {ms(mine)} a step later than {'its' if len(rows) == 1 else 'their'} peers")
    if habits[0].outer is not None:
        found.append(f"on top of the {ms(habits[0].outer.excess)} a step that it is late by anyway")
    phase = _phase(blocks, rows, slice(first, stop), cause.cause)
    whose = f"rank {int(blocks.ranks[habits[0].row])}'s " if len(rows) > 1 else ""
    return found + phase + shares(habits[0].excess, cause, whose) + ([cause.remark] if cause.remark else [])


def _phase(blocks: Blocks, rows: list[int], span: slice, why: str) -> list[str]:
    """The phase of computing that differs most, or that no phase differs as much, beside the others'."""
    others = np.delete(np.arange(len(blocks.ranks)), rows)
    if blocks.pipeline is not None:  # phases of another stage are of other layers, and of other waiting
        others = others[np.isin(blocks.role[others], blocks.role[rows])]
    levels = {
        name: (float(median(blocks.parts[name][rows, span])), float(median(blocks.parts[name][others, span])))
        for name in ("gpu_forward", "forward", "optimizer", "gpu_optimizer", OTHER)
        if name in blocks.parts and len(others)
    }
    if not levels:
        return []
    name, (mine, theirs) = max(levels.items(), key=lambda item: item[1][0] - item[1][1])
    if why not in (("compute", "unknown") if name == OTHER else ("compute",)):
        return []
    what = "time in no phase (logging, metrics, .item())" if name == OTHER else name.replace("gpu_", "GPU ")
    told = f"{what} takes {ms(mine)} against {ms(theirs)}"
    return [told] if mine > 1.01 * theirs and ms(mine) != ms(theirs) else []


def victims(ranks: Sequence[int], culprits: Sequence[int]) -> list[str]:
    """Who looks late and is not."""
    if not ranks:
        return []
    are = (
        "looks late too, but is a victim: it waits" if len(ranks) == 1 else "look late too, but are victims: they wait"
    )
    return [f"{names(ranks)} {are} for {names(culprits)} first"]


#: Two measurements of a rank without one cause, each of at least the first share of the excess and of the second
#: together, are two causes at once.
_EACH, _TOGETHER = 0.2, 0.8
#: Where computing is beyond the excess by this much it is told in full, for the cost is counted from it.
_MORE = 1.1


def together(excess: float, cause: Cause) -> list[str]:
    """The two causes that explain together what neither does alone; empty where there is one, or none."""
    if cause.cause != "unknown":
        return []
    known = [(name, min(ns, excess)) for name, ns in cause.shares_ns if name in _ADVICE and ns >= _EACH * excess][:2]
    enough = len(known) == 2 and sum(ns for _, ns in known) >= _TOGETHER * excess
    return [name for name, _ in known] if enough else []


#: What it means that one of these explains most.
_NOT_KNOWN = {
    "blocked": "it was asleep or blocked, not computing: what it waited for was not measured",
    "idle": "its GPU had nothing to do meanwhile: its host is what is late, and why was not measured",
}

#: Beyond this multiple of what the replay accounts for, what the job lost is told beside it.
_UNTOLD = 1.25


def longer_than_replayed(change: Change | None, saved: float) -> list[str]:
    """What an onset did to the step itself, where that is surely more than what the lateness accounts for."""
    if change is None or change.longer - 2 * change.noise < _UNTOLD * saved:
        return []
    return [f"steps became {ms(change.longer)} longer then, which its lateness accounts for only in part"]


#: Where a repair saves less than this share of the lateness, and work is uneven, it is told what hides the rest.
_HIDDEN_BY_WORK = 0.5


def left_by_batches(excess: float, cost: float, *, uneven: bool) -> list[str]:
    """Why among uneven work a rank that is late by much costs little."""
    if not uneven or cost >= _HIDDEN_BY_WORK * excess:
        return []
    return [f"longer batches elsewhere leave {ms(cost)} of its {ms(excess)} to be saved"]


def held_up(longer: float) -> list[str]:
    """What transfers took longer for want of a CPU."""
    return [f"transfers take {ms(longer)} a step longer for all while it waits for a CPU"] if longer > 0 else []


def shares(excess: float, cause: Cause, whose: str = "", per: str = "a step") -> list[str]:
    """What accounts for the excess of a rank, or of the one of several that has the largest; ``per`` step, or stall."""
    if cause.beyond > _MORE:
        longer = dict(cause.shares_ns)["compute"]
        return [f"computing takes {ms(longer)} longer {per}, of which {ms(excess)} shows as lateness"]
    # What a measurement took beyond the excess was hidden: it explains all of it, and no more. That a GPU idles is what
    # its host's cause looks like from there, and no second one.
    named = cause.cause != "unknown"
    shown = [(name, ns) for name, ns in cause.shares_ns if not (named and name == "idle")]
    known = [(name, min(ns, excess)) for name, ns in shown if ns >= 0.05 * excess]
    told = [f"{MEASURES.get(name, name)} {ms(ns)}" for name, ns in known][:3]
    if not told:
        return ["nothing measured accounts for the difference"]
    two = " and ".join(MEASURES[name] for name in together(excess, cause))
    found = f"of {whose}{ms(excess)} excess {per}: " + ", ".join(told)
    if two:
        return [found, f"two causes at once: {two}"]
    if cause.cause != "unknown" or cause.remark or cause.explained is None:
        return [found, *_covered(excess, cause, per)]
    few = f"the most that one of these explains is {cause.explained:.0%}, too little to call it the cause"
    return [found, _NOT_KNOWN.get(cause.partial or "", few)]


#: Causes of which a part may be hidden: the host is at them while its GPU still works.
_HIDES = ("input", "h2d", "gc", "checkpoint")


def _covered(excess: float, cause: Cause, per: str) -> list[str]:
    """What of the cause costs nothing, where it takes clearly longer than it makes the rank late."""
    longer = dict(cause.shares_ns).get(cause.cause, 0.0)
    if cause.cause not in _HIDES or longer <= _MORE * excess:
        return []
    told = f"{MEASURES[cause.cause]} takes {ms(longer)} longer {per}: {ms(excess)} of it costs time"
    return [
        f"{told}, {ms(longer - excess)} costs nothing while work queued on the GPU, or a wait for others, covers it"
    ]


#: What every note of a slow rank without a verdict says.
SLOWER = "a step slower than"


def hidden(blocks: Blocks, habit: Habit) -> str:
    """A slow rank whose repair alone would save nothing."""
    slower = f"rank {int(blocks.ranks[habit.row])} is {ms(habit.excess)} {SLOWER} its peers"
    return f"{slower}, but that costs nothing: others are later"


def too_little(blocks: Blocks, habits: list[Habit]) -> str:
    """Slow ranks whose repair would save too little to be told from the noise of all."""
    who = names([int(blocks.ranks[habit.row]) for habit in habits])
    late = f"{who} {'is' if len(habits) == 1 else 'are'} {ms(habits[0].excess)} {SLOWER} their peers"
    return f"{late.replace('their peers', 'its peers') if len(habits) == 1 else late}, which costs too little to act on"


def stalls(blocks: Blocks, found: Stalls, cause: Cause, cost: float) -> list[str]:
    """Evidence for an intermittent rank, or ranks that stall in turn or together; ``cost`` ns of all stalls."""
    who = names([int(blocks.ranks[row]) for row in found.rows])
    verb, whose = ("stalls", "its own") if len(found.rows) == 1 else ("stall, one or another,", "theirs")
    verb = "stall, alone or together," if found.together else verb
    most = "up to " if found.together else ""
    each = f"which makes such a step {ms(cost / len(found.stalled))} longer"
    often = (
        f"{who} {verb} in {len(found.stalled)} of {len(blocks.steps)} steps, by {most}{ms(found.excess)} each, {each}"
    )
    accounts = shares(found.excess, cause, per="in such a step")
    return [often, f"{found.share:.0%} of all stalls in the job are {whose}", *accounts]


def nodes_of(run: Run, ranks: Sequence[int]) -> list[str]:
    """The nodes, not all there are, of which these are all the ranks; nothing where they are not."""
    if len(ranks) < 2:
        return []
    nodes = {int(rank): str(node) for rank, node in zip(run.ranks["rank"], run.ranks["node"], strict=True)}
    of_node: dict[str, set[int]] = {}
    for rank, node in nodes.items():
        of_node.setdefault(node, set()).add(rank)
    whole = sorted(node for node, members in of_node.items() if node and len(members) > 1 and members <= set(ranks))
    return whole if len(whole) < len(of_node) else []


def whole_nodes(run: Run, ranks: Sequence[int]) -> list[str]:
    """That these are all the ranks of a node, which then is what to look at."""
    whole = nodes_of(run, ranks)
    if not whole:
        return []
    which = f"{', '.join(whole[:4])}{f' and {len(whole) - 4} more' if len(whole) > 4 else ''}"
    return [f"these are all ranks of {which}: what they share is the node"]


def link(ranks: Sequence[int], found: SlowLink) -> list[str]:
    """Evidence for a slow link."""
    took = f"{ms(found.usual + found.excess)} a step, in groups alike {ms(found.usual)}"
    if not found.sisters:
        took = f"{ms(found.usual + found.excess)} a step, before and after, beside other groups', {ms(found.usual)}"
    told = [f"transfers in the group of {names(ranks)} take {took}, though its members arrive together"]
    if found.hidden:
        told.append(f"others' work hides all but {ms(found.shown)} of {ms(found.excess)} that they take longer")
    return told


def network(found: SlowNetwork, *, late: bool = False) -> list[str]:
    """Evidence for transfers that became slow everywhere."""
    longer = found.took / found.usual - 1
    when = "after that" if found.early else "before"
    who = f"nobody is later than {when}" if late else "nobody is late"
    return [
        f"transfers take {ms(found.took)} a step, {when} {ms(found.usual)}: {longer:.0%} longer for messages alike",
        f"{who}, and a step is {ms(found.cost)} longer than {when} by them",
    ]


def advice(cause: str, ranks: list[int]) -> list[str]:
    """What to do next."""
    return [_ADVICE.get(cause, _ADVICE["unknown"]).format(who=names(ranks), **(_ONE if len(ranks) == 1 else _SEVERAL))]


#: What lateness of next to nothing is, unless something else happened in the job.
ALL_CLEAR = ": nothing to act on"
#: How a line begins that tells which part of a large recording was read.
PARTLY = "not all of the recording was read"
#: How a line begins on a verdict that may have begun before the steps that a window holds.
OLDER = "steps before"
#: What a line on ranks that are ahead of most, nobody knows why, has in it.
AHEAD = "ahead of the other"


def without_all_clear(evidence: Sequence[str]) -> tuple[str, ...]:
    """The same lines where something else did happen in the job."""
    return tuple(line.removesuffix(ALL_CLEAR) for line in evidence)


def no_measure(blocks: Blocks) -> tuple[str, str]:
    """Who was waited for most, where nobody knows whether that is much."""
    most = int(np.argmax(np.nan_to_num(blocks.caused).mean(axis=1)))
    waited = f"rank {int(blocks.ranks[most])} came last most often"
    return (
        f"{waited}, but how long a step takes is not recorded: whether its lateness matters cannot be told",
        "record when operations start, too, or put a log of the steps beside it",
    )


def little_inside(blocks: Blocks, share: float) -> tuple[str, str]:
    """Why phases that are a small part of the steps clear nobody."""
    seen = ", ".join(name for name in blocks.parts if name in PHASES and name not in AMOUNTS)
    took = f"of a step of {ms(blocks.step_ns)} as little as {share:.0%} is in phases that were seen ({seen})"
    found = f"{took}, in which no rank is slow; who works and who waits in the rest cannot be told"
    return found, "record what the rest consists of: `hindmost run -- COMMAND` does, `hindmost.phase(NAME)` marks it"


def idle_inside(blocks: Blocks, share: float) -> tuple[str, str]:
    """Why phases in which a rank did nothing clear nobody."""
    took = f"no wait for others was seen, and for {share:.0%} of a step of {ms(blocks.step_ns)} a rank used no CPU"
    found = f"{took} in what it did: it may have waited there, so nobody is cleared though no rank's phases are longer"
    remedy = "see where ranks stand with `hindmost attach --stacks`, and mark where they meet: `hindmost.phase('sync')`"
    return found, remedy


def exchanging_inside(often: float) -> tuple[str, str]:
    """Why phases in which ranks send to and receive from each other clear nobody."""
    waits = f"ranks wait for each other in {often:.0f} sends and receives a step and rank, inside their phases of work"
    found = f"{waits}: whoever is slow makes these longer on all ranks alike, so nobody is cleared"
    return found, "record how long ranks wait in collectives beside them: a profiler's trace of some steps does"


def hosts_unmarked(blocks: Blocks, row: int, lead: float) -> tuple[str, str]:
    """Why a rank whose GPU waits for its host is neither named nor cleared where hosts marked no steps."""
    who = f"rank {int(blocks.ranks[row])}"
    told = f"{who}'s GPU runs what its host launches as soon as that is launched, and arrives {ms(lead)} a step late"
    unknown = "whether its host is slow, or the others' are a step ahead of it and as slow, cannot be told"
    remedy = "put a log of the steps beside it (when each begins, has its input and is launched)"
    if blocks.joined is not None and not (blocks.joined.enqueue[row] > 0).any():
        told = f"GPUs wait for their hosts, {who}'s launches were not recorded, and it arrives {ms(lead)} a step late"
        remedy = "record of every rank when each operation was enqueued"
    return f"{told}: {unknown}", f"{remedy}; `hindmost run -- COMMAND` records that"


def without_starts() -> tuple[str, str]:
    """Why nobody is cleared where ranks meet in several groups, of which only durations are known."""
    told = "ranks meet in several groups, and only how long each operation took is known, not when it began"
    found = f"{told}: who waits in one may be late for it since it waited in another"
    return (
        found,
        "record starts too: `hindmost run -- COMMAND` does, or NCCL_INSPECTOR_DUMP_VERBOSE=1 of NCCL Inspector",
    )


def passed_on(blocks: Blocks) -> tuple[str, str]:
    """Why nobody is cleared where ranks only send to each other."""
    only = f"all {len(blocks.ranks)} ranks meet in sends and receives only, as stages of one pipeline"
    found = f"{only}: each waits for the others in its phases, and none has another's layers to be compared with"
    return found, "compare the computing of stages: a profiler shows their kernels without the receives"


def nothing_inside(blocks: Blocks) -> tuple[str, str]:
    """Why bare steps name nobody, and what would."""
    own = median(blocks.own, axis=1)
    least, most = int(np.argmin(own)), int(np.argmax(own))
    took = f"all {len(own)} ranks take about {ms(float(median(own)))} a step"
    if own[most] > 1.05 * own[least]:
        slowest, fastest = int(blocks.ranks[most]), int(blocks.ranks[least])
        took = f"a step takes rank {slowest} {ms(float(own[most]))} and rank {fastest} {ms(float(own[least]))}"
    unseen = "no collective and no phase was seen that would tell who works and who waits in it"
    mark = 'mark what a step consists of, `with hindmost.phase("input"):` and so on'
    return f"{took}; {unseen}", f"{mark}; `hindmost doctor` says which collectives can be seen here"
