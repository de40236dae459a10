"""The evidence of a verdict (WHY) in plain words: figures with units, nothing that was not measured."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from hindmost_judge import overview
from hindmost_judge.blocks import Blocks, Slowdown, SlowLink, SlowNetwork, Stalls
from hindmost_judge.causes.cpu_sharing import NEEDS, cpu_pace
from hindmost_judge.causes.table import FILES, MEASURES, NOW_AND_THEN, OFF, Cause
from hindmost_judge.model import OTHER, Job, Run
from hindmost_judge.stats import recurring_events
from hindmost_judge.stats.robust import average, mean, median, or_zero
from hindmost_judge.types import Array, Floats
from hindmost_judge.usage import CpuUse, used_by_others
from hindmost_judge.whatif.savings import StepTimeChange

#: What stands for a value that was not measured.
UNMEASURED = "\N{EN DASH}"


#: The word, not a part of a name or path.
_COLLECTIVES = re.compile(r"(?<![\w./-])collectives(?![\w/-]|\.\w)")

#: How a note on a stall begins, and how one on a wait before the first step.
STALL, START_UP = "stall ", "start-up: "
#: How checkpoints cost less.
SAVING = "in the background, less often, or to faster storage"
#: What is said of a job of one rank, in place of whether it is slow.
ALONE = "no other rank to compare it with"
#: How the evidence begins where there is no rank.
NONE_SEEN = "no rank was seen"
#: The note on a single answer of NCCL's RAS.
ONE_ANSWER = "one answer of NCCL's RAS shows no hang"


_START = " (start it with `hindmost run --job-id NAME`)"
#: What hindmost adds to the name of a script to have the id of a run: the time, and a random number.
_WHEN = re.compile(r"-\d{8}-\d{6}-[0-9a-f]{4}")


def attach(options: str = "--stacks ") -> str:
    """The command that shows where the ranks of a job are; :func:`for_job` says of which."""
    return f"`hindmost attach {options}--job NAME`{_START}"


def for_job(advice: str, run: Run) -> str:
    """The advice with the job in its commands: of one that is over, what to call it when it runs again."""
    if run.at_work:
        return advice.replace(_START, "").replace("--job NAME", f"--job {run.job.id}")
    own = run.job.source == Job.source
    name = _WHEN.sub("", run.job.id)
    return re.sub(r"(--job(?:-id)?) NAME", lambda option: f"{option[1]} {name}", advice) if own else advice


def duration(ms: float | None) -> str:
    """Milliseconds with as many digits as a reader can use; beyond ten thousand, seconds; a dash where unmeasured."""
    if ms is None:
        return UNMEASURED
    size = abs(ms)
    if size > 10_000:
        return f"{ms / 1000:.1f} s"
    return f"{ms:.0f} ms" if size >= 100 else f"{ms:.1f} ms" if size >= 0.05 or ms == 0 else f"{ms:.1g} ms"


def ms(ns: float) -> str:
    """The same of nanoseconds."""
    return duration(ns / 1e6)


#: Words of ranks that a sentence lists.
_LISTED = 6


def names(ranks: Sequence[int]) -> str:
    """``rank 2``, ``ranks 2 and 5``, ``ranks 1, 4 to 7 and 12``, ``ranks 1, 3, 5, 7, 9 and 40 more``."""
    listed: list[str] = []
    left, length = len(ranks), 0
    in_order = np.sort(np.asarray(ranks, dtype=np.int64))
    for span in np.split(in_order, np.flatnonzero(np.diff(in_order) > 1) + 1):
        for part in [span] if len(span) > 2 else span[:, None]:
            length += 3 if len(part) > 2 else 1
            if length <= _LISTED:
                listed.append(f"{part[0]} to {part[-1]}" if len(part) > 2 else str(part[0]))
                left -= len(part)
    *first, last = [*listed, f"{left} more"] if left else listed
    return f"rank{'s' * (len(ranks) != 1)} {', '.join(first)}{' and ' * bool(first)}{last}"


_OF_SEVERAL = {"is": "are", "has": "have", "waits": "wait", "takes": "take", "looks": "look", "stalls": "stall"}


def are(ranks: Sequence[int], does: str) -> str:
    """``rank 2 waits for input``, ``ranks 2 and 5 wait for input``: what one ``does``, of as many as there are."""
    verb, blank, what = does.partition(" ")
    return f"{names(ranks)} {verb if len(ranks) == 1 else _OF_SEVERAL.get(verb, verb)}{blank}{what}"


def percent(share: float) -> str:
    """``44 %``; below 10 with one decimal."""
    return f"{100 * share:.{1 if 0 < abs(share) < 0.0995 else 0}f} %"


def against(what: str, who: str, mine: float, theirs: float) -> str:
    """``input: rank 2 6.0 ms, others 1.9 ms``: a rank, or the median one of several, against the cohort; ns a step."""
    levels = f"{who} {ms(mine)}" if who.startswith("rank ") else f"{ms(mine)} on {who}"
    return f"{what}: {levels}, others {ms(theirs)}"


#: The parts of a step that show a cause, the most telling first, and what they are called: first as their column in
#: the table of ranks.
_SHOWN_BY = {
    "input": {"input": "input", "file_read": "file read"},
    "h2d": {"h2d": "copy to GPU"},
    "gc": {"gc": "gc"},
    "checkpoint": {"checkpoint": "checkpoint", "file_sync": "file sync"},
    "cpu_contention": {"self_runqueue": "CPU queue between collectives", "runqueue": "queue in step"},
    "compute": {
        "self_cpu": "CPU time between collectives",
        "gpu_forward": "GPU forward",
        "gpu_optimizer": "GPU optimizer",
        "forward": "forward",
        "optimizer": "optimizer",
        OTHER: "other (in no phase: logging, metrics, .item())",
    },
}
_SHOWN_BY |= dict.fromkeys(("gpu_throttle", "gpu_contention", "workload"), _SHOWN_BY["compute"])
#: The same of an unknown cause, which may be in any of them.
_ANYWHERE = {"self_blocked": "off CPU between collectives", OTHER: _SHOWN_BY["compute"][OTHER]}
_CALLED = {part: what for shown in (*_SHOWN_BY.values(), _ANYWHERE) for part, what in shown.items()}
_CALLED |= {"device_copy": "copy call", "device_wait": "GPU wait", "between": "time between steps"}
#: Parts that take longer where their rank waits for a CPU.
_WITH_QUEUE = frozenset({"forward", "optimizer", OTHER})
#: A part is longer if it is so by this factor, and by this share of the delay.
_LONGER, _OF_DELAY = 1.01, 0.5


def called(part: str) -> str:
    """A part of a step in words, as in evidence."""
    return _CALLED.get(part) or part.replace("gpu_", "GPU ")


def why(blocks: Blocks, slowdowns: list[Slowdown], cause: Cause) -> list[str]:
    """Evidence for a persistent delay, first what decided it: the cause's part or self time, against the cohort."""
    rows = list(dict.fromkeys(slowdown.row for slowdown in slowdowns))
    who = names([int(blocks.ranks[row]) for row in rows])
    first, stop = min(slowdown.first for slowdown in slowdowns), max(slowdown.stop for slowdown in slowdowns)
    others = np.delete(np.arange(len(blocks.ranks)), rows)
    span = slice(first, stop)
    delay = float(median(blocks.delay[rows, span]))
    parts = _part(blocks, rows, span, cause, delay)
    if slowdowns[0].phase is not None:
        phases = dict.fromkeys(slowdown.phase for slowdown in slowdowns if slowdown.phase is not None)
        parts = [_on_host(blocks, rows, others, span, phase) for phase in phases]
    shown = [against(what, who, mine, theirs) for what, mine, theirs in parts]
    found = ([cause.remark] if cause.remark and cause.cause != "unknown" else []) + shown
    if not np.isnan(blocks.self_time).all() and not blocks.overlapped and len(others):
        mine = float(median(blocks.self_time[rows, span]))
        theirs = float(median(median(blocks.self_time[others, span], axis=1)))
        what = {NEEDS: _needed(blocks), OFF: "off CPU"}.get(blocks.evidence, "self time")
        what = HOST_WORK if blocks.lanes is not None else what + " between collectives" * bool(blocks.collectives)
        repeated = any((ms(part), ms(other)) == (ms(mine), ms(theirs)) for _, part, other in parts)
        if blocks.works_alone(rows):
            found.append(f"{what}: {who} {ms(mine)}, usually {ms(mine - delay)}")
        elif mine > theirs and not repeated:
            found.append(against(what, who, mine, theirs))
            if blocks.lanes is not None and sum(part - other for _, part, other in parts) * _OF_DELAY > mine - theirs:
                found.insert(0, found.pop())  # it is faster in other phases: one phase shows more than it costs
    whose = f"rank {int(blocks.ranks[slowdowns[0].row])}: " if len(rows) > 1 else ""
    needs = blocks.evidence == NEEDS and cause.cause == "compute"  # all it needs is CPU time: no delay to take apart
    what = "more than its peers" if blocks.evidence == NEEDS else "delay"
    accounts = [] if needs else [whose + line for line in shares(slowdowns[0].delay, cause, what=what)]
    known = cause.cause != "unknown"  # what it accounts for decides more than how late the rank is
    if accounts and known and not shown and cause.cause in dict(cause.shares_ns):
        found.insert(0, accounts[0])
    elif not found:
        late = f"{who} {'arrives' if len(rows) == 1 else 'arrive'} {ms(delay)} later than the other ranks per step"
        found = [*accounts[:1], late] if known else [late]
    if blocks.collectives and blocks.evidence != NEEDS and blocks.pipeline is None:  # it waits in sends and receives
        most = np.isin(np.argmax(blocks.caused[:, span], axis=0), rows)
        if most.mean() > len(rows) / len(blocks.ranks):  # else it is no evidence: any rank does so as often
            found.append(f"others wait longest for {who} in {int(most.sum())} of {len(most)} steps")
    if slowdowns[0].outer is not None:
        found.append(f"in addition to its usual delay of {ms(slowdowns[0].outer.delay)} per step")
    if together(slowdowns[0].delay, cause):
        found = [*accounts, *found]
    left = [cause.remark] if cause.remark and cause.cause == "unknown" else []
    return list(dict.fromkeys([*found, *accounts])) + left


def as_exchanges(words: str) -> str:
    """What is said of collectives, of exchanges; names of files and functions stay as they are."""
    return _COLLECTIVES.sub("exchanges", words)


#: What the host of a rank does in a step, less its waits.
HOST_WORK = "work of its CPU per step"
#: Phases that hosts and GPUs have both.
_ON_BOTH = ("forward", "backward", "optimizer")


#: What is measured, and ns a step of these ranks and of the others.
_Part = tuple[str, float, float]


def _on_host(blocks: Blocks, rows: list[int], others: Array, span: slice, phase: str) -> _Part:
    assert blocks.lanes is not None  # noqa: S101 - phases of slowdowns come from these
    own = blocks.lanes.host[blocks.lanes.phases.index(phase)][:, span]
    what = f"CPU {phase}" if phase in _ON_BOTH else called(phase)
    return what, float(median(own[rows])), float(median(median(own[others], axis=1)))


def ranged(low: float, high: float) -> list[str]:
    """Between what a cost lies, ns a step, where that is not sure: what hosts that are ahead work is known in part."""
    if high - low <= _UNSURE * high:
        return []
    return [f"fixing it saves {ms(low)} to {ms(high)} per step: how long the other CPUs waited was not recorded"]


#: A cost that may be off by less than this share of it, in all, is taken as it is.
_UNSURE = 0.2


def _part(blocks: Blocks, rows: list[int], span: slice, cause: Cause, delay: float) -> list[_Part]:
    """What the cause is measured by; empty where that is not longer."""
    others = np.delete(np.arange(len(blocks.ranks)), rows)
    if blocks.pipeline is not None:  # phases of another stage are of other layers, and of other waiting
        others = others[np.isin(blocks.cohort[others], blocks.cohort[rows])]
    queues = blocks.evidence == NEEDS and "self_cpu" in blocks.parts  # a phase there has waits for a CPU in it
    found = []
    for name, what in _SHOWN_BY.get(cause.cause, _ANYWHERE).items():
        if name in blocks.parts and len(others) and not (queues and name in _WITH_QUEUE):
            part = or_zero(blocks.parts[name]) if name in (*NOW_AND_THEN, *FILES) else blocks.parts[name]
            mine, theirs = (float(median(part[of, span])) for of in (rows, others))
            if mine > _LONGER * theirs and mine - theirs >= _OF_DELAY * delay and ms(mine) != ms(theirs):
                found.append((f"CPU {what}" if f"gpu_{name}" in blocks.parts else what, mine, theirs))
    return sorted(found, key=lambda one: one[2] - one[1])[:1]


def victims(ranks: Sequence[int], culprits: Sequence[int]) -> list[str]:
    """Who looks late and is not."""
    if not ranks:
        return []
    wait = "is a victim: it waits" if len(ranks) == 1 else "are victims: they wait"
    return [f"{names(ranks)} {wait} for {names(culprits)}"]


#: Two measurements of a rank without one cause, each of at least the first share of the delay and of the second
#: together, are two causes at once.
_EACH, _TOGETHER = 0.2, 0.8
#: Where computing is beyond the delay by this much it is given in full, for the cost is counted from it.
_MORE = 1.1


def together(delay: float, cause: Cause) -> list[str]:
    """The two causes that explain together what neither does alone; empty where there is one, or none."""
    if cause.cause != "unknown":
        return []
    known = [(name, min(ns, delay)) for name, ns in cause.shares_ns if name not in _NOT_KNOWN and ns >= _EACH * delay]
    enough = len(known[:2]) == 2 and sum(ns for _, ns in known[:2]) >= _TOGETHER * delay
    return [name for name, _ in known[:2]] if enough else []


#: What it means that one of these explains most.
_NOT_KNOWN = {
    "blocked": "what it waited for off the CPU was not measured",
    "idle": "its GPU was idle: its CPU launched work late (cause not measured)",
}

#: Sentences that say no more than that the cause is unknown.
_NO_CAUSE = (*_NOT_KNOWN.values(), "no measurement explains the delay")
_NO_SINGLE_CAUSE = "no single cause"


#: What stops a process.
STOPPED_BY = "SIGSTOP, or a debugger"


def stopped(seconds: dict[int, float]) -> str:
    """``rank 2 was stopped (SIGSTOP, or a debugger) for at least 12.3 s``, between the samples that show it."""
    least, each = min(seconds.values()), "" if len(seconds) == 1 else " each"
    lasted = f" for at least {least:.1f} s{each}" if least >= 0.05 else ""  # a single sample has no length
    was = "was" if len(seconds) == 1 else "were"
    return f"{names(list(seconds))} {was} stopped ({STOPPED_BY}){lasted}"


def stopped_in_samples(rank: int, often: int, samples: int) -> str:
    """The same of a rank that is stopped and let go again and again: in how many of the samples of its state."""
    return f"rank {rank} was stopped ({STOPPED_BY}) in {often} of {samples} samples of its state"


def with_cause(shown: Sequence[str], evidence: Sequence[str]) -> tuple[str, ...]:
    """Evidence of a cause, then what was said before, without the sentences that the cause is unknown."""
    left = [line for line in evidence if not line.endswith(_NO_CAUSE) and _NO_SINGLE_CAUSE not in line]
    return (*shown, *left)


#: Beyond this multiple of what the replay accounts for, what the job lost is said, too.
_MORE_LOST = 1.25


def longer_than_replayed(change: StepTimeChange | None, saved: float) -> list[str]:
    """What an onset did to the step itself, where that is surely more than what the delay accounts for."""
    if change is None or change.longer - 2 * change.noise < _MORE_LOST * saved:
        return []
    return [f"steps became {ms(change.longer)} longer then; the delay explains only a part of it"]


def estimated(cost: float, alone: float, change: StepTimeChange | None) -> list[str]:
    """That CPU time costs more than it takes, ns a step: its rank shares CPUs, so it delays the others' work, too."""
    if change is None or cost <= _MORE * alone:
        return []
    return [f"COST is an estimate: CPU time alone explains {ms(alone)}, and steps became {ms(change.longer)} longer"]


#: Where a repair saves less than this share of the delay, and work is uneven, evidence says what hides the rest.
_HIDDEN_BY_WORK = 0.5


def left_by_batches(delay: float, cost: float, *, uneven: bool) -> list[str]:
    """Why among uneven work a rank that is late by much costs little."""
    if not uneven or cost >= _HIDDEN_BY_WORK * delay:
        return []
    return [f"{ms(cost)} of its {ms(delay)} delay can be saved: longer batches elsewhere hide the rest"]


def held_up(longer: float) -> list[str]:
    """What transfers took longer by waiting for a CPU."""
    return [f"transfers take {ms(longer)} longer per step on all ranks while it waits for a CPU"] if longer > 0 else []


#: A measurement of less of the delay is not shown.
SHOWN = 0.05
#: What follows computing of which a part is waiting for a CPU.
_LENGTHENED = " ({} more CPU time; the rest is queueing)"


def _adding_up(parts: list[tuple[str, float]], whole: float) -> list[tuple[str, float]]:
    """Measurements that overlap, ns, as parts of a whole: computing in a file call counts as that call."""
    found = dict(parts)
    for name in sorted(found, key=lambda one: (one != "compute", found[one])):
        found[name] -= min(max(sum(found.values()) - whole, 0.0), found[name])
    return sorted(((name, ns) for name, ns in found.items() if ns >= SHOWN * whole), key=lambda one: -one[1])


def shares(delay: float, cause: Cause, per: str = "per step", what: str = "delay") -> list[str]:
    """What accounts for the delay of a rank, or of the one of several that has the largest; ``per`` step, or stall."""
    if cause.beyond > _MORE:
        longer = dict(cause.shares_ns)["compute"]
        took = [f"computing takes {ms(longer)} longer {per} than on its peers"]
        rest = f"{ms(delay)} of the longer computing shows as delay; the rest is inside backward"
        return [*took, rest] if longer > _MORE * delay else took
    # What a measurement took beyond the delay was hidden: it explains all of it, and no more. That a GPU idles is what
    # its host's cause looks like from there, and no second one; more samples lengthen what both do.
    named = cause.cause != "unknown"
    seen = named and cause.cause != "workload"
    shown = [(name, ns) for name, ns in cause.shares_ns if not (seen and name == "idle")]
    known = _adding_up([(name, min(ns, delay)) for name, ns in shown if ns >= SHOWN * delay][:3], delay)
    if not known:
        return ["no measurement explains the delay"]
    (first, most), *_ = known
    queues = first == "compute" and cause.queued >= SHOWN * delay
    need = min(max(dict(shown)[first] - cause.queued, 0.0), most)
    of_computing = _LENGTHENED.format(ms(need)) if queues else ""
    parts = [(MEASURES.get(name, name), ms(ns), of_computing * (name == "compute")) for name, ns in known]
    found = f"{ms(delay)} {what} {per}: " + ", ".join(f"{name} {took}{of}" for name, took, of in parts)
    if len(known) == 1 and parts[0][1] == ms(delay):
        found = f"{ms(delay)} {what} {per}, all of it {parts[0][0]}{of_computing}"
    if together(delay, cause):
        return [found]
    if named or cause.remark or cause.explained is None:
        return [found, *_covered(delay, cause, per)]
    little = f"{_NO_SINGLE_CAUSE}: the largest explains {percent(cause.explained)} of the delay"
    return [found, _NOT_KNOWN.get(cause.partial or "", little)]


def later_by(whose: str, late: float, need: float, queued: float) -> list[str]:
    """What a rank that needs more makes later by more than that: ns a step, of which it waits so long for a CPU."""
    if late <= _MORE * need:
        return []
    waits = min(queued, late - need)
    computing = f"computing {ms(need + waits)}{_LENGTHENED.format(ms(need))}"
    rest = late - need - waits
    return [
        f"{whose}{ms(late)} delay per step: {computing}" + (f", not measured {ms(rest)}" if rest >= 0.05 * late else "")
    ]


#: Causes of which a part may be hidden: the host is at them while its GPU still works.
_HIDES = ("input", "h2d", "gc", "checkpoint")


def _covered(delay: float, cause: Cause, per: str) -> list[str]:
    """What of the cause costs nothing, where it takes clearly longer than it makes the rank late."""
    longer = dict(cause.shares_ns).get(cause.cause, 0.0)
    if cause.cause not in _HIDES or longer <= _MORE * delay:
        return []
    took = f"{MEASURES[cause.cause]} takes {ms(longer)} longer {per}, {ms(delay)} of it costs time"
    return [took, "queued work or a wait for others hides the rest"]


def slower(blocks: Blocks, slowdowns: list[Slowdown]) -> str:
    """``rank 2 is 1.1 ms slower than its peers per step``: of several ranks, as the first."""
    are, their = ("is", "its") if len(slowdowns) == 1 else ("are", "their")
    ranks = names([int(blocks.ranks[slowdown.row]) for slowdown in slowdowns])
    return f"{ranks} {are} {ms(slowdowns[0].delay)} slower than {their} peers per step"


def stalls(blocks: Blocks, found: Stalls, cause: Cause, cost: float, first: int) -> list[str]:
    """Evidence for an intermittent rank, or ranks that stall together: ``cost`` ns of all stalls since
    the ``first`` step, an index."""
    who = names([int(blocks.ranks[row]) for row in found.rows])
    verb = "stalls" if len(found.rows) == 1 else "stall, alone or together,"
    count = int(np.count_nonzero(found.stalled >= first))
    apart = recurring_events.pace(blocks.period, found.stalled)
    time = "" if apart is None else ms(apart) if apart < 1e9 else f"{apart / 1e9:.2g} s"
    steps = recurring_events.apart(blocks.steps[found.stalled])
    if steps is not None:  # as a script says it
        time = f"{steps} steps" + (f" ({time})" if time else "")
    pace = f", every {time}" if time else ""
    often, each = f"{who} {verb} in {count} of {len(blocks.steps) - first} steps", cost / count
    if abs(each - found.delay) <= _SAME * found.delay:
        often += f", {ms(found.delay)} each{pace}"
    else:
        often += f"{pace}. Each such step takes {ms(each)} longer"
    has = "has" if len(found.rows) == 1 else "have"
    whose = f"{who} {has} {percent(found.share)} of all stalls in the job" if found.share < _ALL else ""
    which = ", ".join(map(str, blocks.steps[found.stalled].tolist()))
    events = [f"only {count} stalls so far: steps {which}"] if count < _FEWEST else []
    return [often, *shares(found.delay, cause, per="in such a step"), whose or "no other rank stalls", *events]


#: Fewer stalls are events: they do not show that a rank stalls persistently.
_FEWEST = 5


#: From this share of the stalls on a rank has all of them.
_ALL = 0.995
#: Stalls cost their length, as far as a reader who multiplies can tell, up to this share of it.
_SAME = 0.1


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
    return [f"these are all ranks of {which}: suspect the node{'s' if len(whole) > 1 else ''}"]


def link(ranks: Sequence[int], found: SlowLink) -> list[str]:
    """Evidence for a slow link."""
    others = "others" if found.sisters else "others, before and after"
    took = f"{ms(found.usual + found.delay)} in the group of {names(ranks)}, {ms(found.usual)} in {others}"
    lines = [f"transfers per step: {took}", "the ranks of the group arrive together"]
    if found.hidden:
        lines.append(f"{ms(found.shown)} of the extra {ms(found.delay)} cost time; computing hides the rest")
    return lines


def pair(ranks: Sequence[int], waits: float, others: float, late: float) -> tuple[str, str]:
    """Evidence for two ranks that share a slow link."""
    wait = f"{names(ranks)} wait {ms(waits)} per step in messages, other ranks {ms(others)}"
    return wait, f"they come to collectives together, {ms(late)} later than any rank's work takes"


def neighbours(ranks: Sequence[int], travel: float, others: float, cost: float) -> tuple[str, str]:
    """Evidence for two neighbours whose messages travel long."""
    took = f"messages between {names(ranks)} are there {ms(travel)} after both have sent, those of others {ms(others)}"
    return took, f"neither's work explains it; steps are {ms(cost)} longer by them"


def network(found: SlowNetwork, *, late: bool = False) -> list[str]:
    """Evidence for transfers that became slow everywhere."""
    when = "afterwards" if found.early else "before"
    who = f"no rank is later than {when}" if late else "no rank is late"
    return [
        f"transfers of equal size: {ms(found.took)} per step, {when} {ms(found.usual)}",
        f"{who}; steps are {ms(found.cost)} longer by them",
    ]


#: How a line begins on a verdict that may have begun before the steps that a window holds.
OLDER = "steps before"


#: Share of a step from which on transfers are mentioned though no rank is slow.
_MANY_TRANSFERS = 0.05
#: A smaller typical delay, as a share of the step, is negligible.
_NOTHING = 0.02
#: Of a smaller one no rank is named, however large a part of its own work it is.
_UNNAMED = 0.01
#: A larger one is too much to call the job balanced.
_MUCH = 0.05
#: CPUs that two threads share give one of them up to a third less: a rank that needs more does not for its CPU.
_FOR_ITS_CPU = 0.33
#: Rare steps that are twice as long, or more, and in which ranks wait for so much of the time, clear no rank: these may
#: be stalls, planned or not.
DEAR = 0.1
#: The least share of a step that is shown as more than 0.0 %.
_SHOWN = 0.0005
#: A rank is last as often as another if it is in this share of the other's collectives.
_AS_OFTEN = 0.95
#: Share of all waiting that one rank must have caused for the report to name it there.
_MOSTLY = 0.5
#: Ranks are last in turn if none is waited for this many times as long as the mean one.
_UNEVEN = 2.0
#: Steps are counted where this share of what others wait beyond the usual is in this share of the steps.
_MOST_OF_IT, _RARELY = 0.9, 0.2
#: Share of the collectives that such a rank enters last where no scheduler makes it late.
_NEARLY_ALWAYS = 0.75
#: What a rank does that pauses as the script may have it do.
REGULARLY = "at regular intervals, as for checkpoints"
#: What would say whether ranks wait for chance, and whether the one that is suspected is slow, and why.
MORE_STEPS = ("let the job run for more steps",)
TELLING = (f"{MORE_STEPS[0]}; while it runs, see where each rank is: {attach()}",)
#: What to do about CPUs that other processes use.
STOP_OTHERS = "stop the other processes (the system's `top` lists them), or reserve whole nodes"
#: … where they leave open which rank is slow.
WITHOUT_OTHERS = (f"{STOP_OTHERS}; then see which rank comes last",)


def telling_on_shared_cpus(use: Mapping[str, CpuUse], fewer: str) -> tuple[str, ...]:
    """What would say which rank is slow on shared CPUs, by who uses those of each node: else start ``fewer`` ranks."""
    node = used_by_others(use)
    if node is not None and use[node].others > use[node].ranks:
        return WITHOUT_OTHERS
    return (f"start {fewer}, or use nodes with more CPUs; then see which rank comes last",)


#: How the evidence begins that says what ranks wait though none is slow.
RANKS_WAIT = "ranks wait"


def balanced(
    blocks: Blocks, wasted: float, least: float, needs: Blocks | None = None, *, queued: bool = False
) -> tuple[list[str], tuple[str, ...]]:
    """How even the ranks are, and what would say so for sure; with what they ``needs``, where they share CPUs.

    A rank is named from ``least`` of a step on. ``queued``: the rank that is waited for most was seen to wait for a CPU
    for as long as it was late.
    """
    row, most = _most(blocks)
    share = most / blocks.step_ns
    levels = {
        "negligible": _NOTHING,
        f"below the threshold of {percent(least)}": least,
        "small, and may be chance": _MUCH,
    }
    judged = next((words for words, level in levels.items() if share < level), "suspected, not proven")
    sure = share < max(_NOTHING, least, _MUCH)
    unequal = wasted > 0.05 * blocks.step_ns
    last = f"rank {int(blocks.ranks[row])} typically comes last, {percent(share)} of a step after its peers"
    lasts = or_zero(mean(blocks.last))
    as_often = bool(lasts.any() and (np.delete(lasts, row) >= _AS_OFTEN * lasts[row]).any())  # another rank is last
    last = "" if sure and (share < _SHOWN or as_often) else last
    pace = "ranks keep pace: " if share < _NOTHING and not unequal else ""
    found = [f"{pace}{last}: {judged}" if last else "no rank typically comes last"]
    caused, written = or_zero(mean(blocks.caused)), overview.saves(blocks.parts)
    if written is not None:  # waits that are mostly for files are said of these
        caused = or_zero(mean(np.where(written >= blocks.caused / 2, 0.0, blocks.caused)))
    dear = max(_MUCH, least) * average(blocks.period)
    latest = np.flatnonzero((lasts > _MOSTLY) & (caused >= dear)).tolist()
    known = needs is None and blocks.pipeline is None and sure and not blocks.works_alone(latest)
    if known and caused[latest].sum() > max(_MOSTLY, 1.5 / len(caused)) * caused.sum():  # of two, one always has half
        last, it = ("it is last in", "it") if len(latest) == 1 else ("each is last in at least", "each")
        waits = f"others wait {ms(float(median(caused[latest])))} per step for {it}, typically less"
        often = f"{last} {percent(lasts[latest].min())} of collectives"
        found, sure = [are(blocks.ranks[latest].tolist(), f"is suspected: {often}; {waits}")], False
    compare: tuple[str, ...] = ()
    if blocks.alone is not None and blocks.alone.any():
        among, cleared, compare = _among_alone(blocks, blocks.alone, max(_MUCH, least))
        found, sure = [*found, *among] if cleared else among, sure and cleared
    if needs is not None:
        row, most = _most(needs)
        usual, each = float(median(needs.self_time)), median(needs.self_time, axis=1)
        beyond = most / max(usual, 1.0)
        who, work = f"rank {int(needs.ranks[row])}", _needed(needs)
        needy = f"ranks need the same {work}, within {ms(np.ptp(each))}"
        if beyond >= _SAME and most >= _UNNAMED * blocks.step_ns:
            needy = f"{who} needs {percent(beyond)} more {work} than its peers: negligible"
        on_shared, sure = _last_on_shared_cpus(blocks, last, queued=queued)
        found = [needy, *([on_shared] if on_shared else [])]
        takes = most * (np.fmax(cpu_pace(blocks), 1.0) if row == waited_for_most(blocks) else 1.0)
        if beyond >= _FOR_ITS_CPU and takes >= _NOTHING * blocks.step_ns:  # a large part of nothing costs nothing
            took = f"{work} {ms(each[row])}, others {ms(float(median(np.delete(each, row))))}"
            found, sure = [f"{who} is suspected ({took})"], False
    transfers = float(median(blocks.transfer[:1])) / blocks.step_ns
    if transfers >= _MANY_TRANSFERS:
        overlapped = ", overlapped with computing" if blocks.overlapped else ""
        found.append(f"transfers: {ms(transfers * blocks.step_ns)} per step ({percent(transfers)}{overlapped})")
    if (stalls := _few_stalls(blocks)) or unequal:
        line, dear = (stalls, True) if stalls else _waiting(blocks, wasted, alike=needs is not None)
        found.insert(not dear, line)
        return found, () if sure and not dear else MORE_STEPS if sure else compare or TELLING
    return found, () if sure else compare or TELLING


def _needed(needs: Blocks) -> str:
    """What ranks were compared by where they share CPUs."""
    files = any(or_zero(needs.parts[name]).any() for name in FILES if name in needs.parts)
    return "CPU and file I/O time" if files else "CPU time"


def _among_alone(blocks: Blocks, alone: Array, least: float) -> tuple[list[str], bool, tuple[str, ...]]:
    """Which of the ranks that alone do their work takes longest beyond one that makes the same calls.

    And whether all are cleared: the repair of none saves a share ``least`` of the step. It saves at most a rank's own
    work, or what the busiest other rank leaves. And what to do about the one that is not.
    """
    assert blocks.kind is not None  # noqa: S101 - comes with alone
    own, kind = or_zero(median(blocks.self_time, axis=1)), blocks.kind
    second, busiest = np.sort(own)[-2:]
    left = blocks.step_ns - np.where(np.arange(len(own)) == np.argmax(own), second, busiest)
    saves = float(np.maximum(np.minimum(own, left), 0.0)[alone].max()) / blocks.step_ns
    if saves < least:
        return [f"ranks differ in work, but making any of them faster saves {percent(saves)} at most"], True, ()
    fastest = np.array([np.flatnonzero(kind == one)[np.argmin(own[kind == one])] for one in kind])
    row = int(np.argmax(np.where(alone, own - own[fastest], 0.0)))
    if own[row] - own[fastest[row]] < least * blocks.step_ns:
        return ["ranks differ in work: which is slow is not known"], False, ()
    slow, fast = (f"{ms(float(own[one]))}" for one in (row, fastest[row]))
    who, other = int(blocks.ranks[row]), int(blocks.ranks[fastest[row]])
    do = f"see whether rank {who} has more work than rank {other} by design; if not, run it on another core or node"
    return [f"rank {who} is suspected: it works {slow} per step, rank {other} with the same calls {fast}"], False, (do,)


#: How a sentence begins that says that the job's CPUs are mostly used by others.
OTHERS_USE = "Other processes use"


def who_uses_cpus(node: str, cpus: float, ranks: float, others: float) -> str:
    """``Ranks use 1.6 of the 2 CPUs of node17, other processes 0.3``: who uses more of them comes first."""
    of = f"of the {cpus:.0f} CPUs of {node}"
    if others > ranks:
        return f"{OTHERS_USE} {others:.1f} {of}, ranks {ranks:.1f}"
    return f"Ranks use {ranks:.1f} {of}, other processes {others:.1f}"


def _last_on_shared_cpus(blocks: Blocks, last: str, *, queued: bool) -> tuple[str, bool]:
    """Who comes last there, and whether the scheduler may be the cause: it delays one rank now and another then.

    Of one rank that is late by much and was not seen to be ``queued`` the cause is not known.
    """
    row = waited_for_most(blocks)
    often = float(np.nanmean(blocks.last[row])) if row is not None else 0.0
    unsure = row is not None and not queued and float(median(blocks.delay[row])) >= _MUCH * blocks.step_ns
    if row is None or (often < _NEARLY_ALWAYS and not unsure):
        return f"{last}: the scheduler's doing, since ranks share CPUs" if last else "", True
    late = f"rank {int(blocks.ranks[row])} is last to arrive in {percent(often)} of the collectives"
    if queued:
        return f"{late}, waiting for a CPU: check its binding, quota and priority", True
    return f"{late}; the cause was not measured", not unsure


def _waiting(blocks: Blocks, wasted: float, *, alike: bool) -> tuple[str, bool]:
    """What ranks wait for the last, ``wasted`` ns a step, and whether much of the time is waits in rare, long steps.

    Those are hiccups where a few steps have not most of them, and no rank has. Ranks that need ``alike`` are cleared.
    """
    each, stalled = average(blocks.period), average(_stalled(blocks))
    last, part = last_in_turn(blocks)
    dear = min(part * wasted, stalled) >= DEAR * each
    share = f" ({percent(wasted / each)})" if dear else ""
    caused = np.sort(or_zero(blocks.caused).sum(axis=0))
    hiccups = caused[-_FEWEST:].sum() < _MOSTLY * caused.sum() and waited_for_most(blocks) is None
    return f"{RANKS_WAIT} {ms(wasted)} per step{share} for the last to arrive, {last}", dear and not (hiccups or alike)


def _stalled(blocks: Blocks) -> Floats:
    """[S] ns by which steps are longer than usual that are twice as long or more; what is for files is no stall."""
    longer = or_zero(blocks.period - blocks.step_ns)
    if (written := overview.saves(blocks.parts)) is not None:  # what is mostly for files is said of these
        longer[or_zero(overview.lengthened(written, blocks.period)) >= longer / 2] = 0.0
    return np.where(longer >= blocks.step_ns, longer, 0.0)


def _few_stalls(blocks: Blocks) -> str:
    """What the few stalls of one rank cost, if that is much of the time and others have hardly any; else empty."""
    row, longer, caused = waited_for_most(blocks), _stalled(blocks), or_zero(blocks.caused)
    if row is None or len(longer) != caused.shape[1]:
        return ""
    own = np.where(caused[row] >= _MOSTLY * caused.sum(axis=0), longer, 0.0)
    often, each, cost = len(recurring_events.begins(np.flatnonzero(own))), average(blocks.period), average(own)
    if not 0 < often < _FEWEST or own.sum() < _MOST_OF_IT * longer.sum() or cost < DEAR * each:
        return ""
    lasted = f"{often} times, {ms(own.sum() / often)} each" if often > 1 else f"once, {ms(own.sum())}"
    costs = f"{ms(cost)} per step ({percent(cost / each)})"
    return f"rank {int(blocks.ranks[row])} stalled {lasted}: {costs}, too few to tell a fault from chance"


def last_in_turn(blocks: Blocks) -> tuple[str, float]:
    """Who is waited for most, in how many steps if in few, and the part of all waiting that is in these few."""
    caused, row = or_zero(blocks.caused), waited_for_most(blocks)
    by_step, by_rank = caused.sum(axis=0), caused.sum(axis=1)
    beyond = np.sort(np.maximum(by_step - np.median(by_step), 0.0))[::-1]
    often = int(np.searchsorted(np.cumsum(beyond), _MOST_OF_IT * beyond.sum())) + 1
    rare = beyond.any() and often <= max(_RARELY * len(by_step), 1)
    part, most = float(beyond.sum() / by_step.sum()) if rare else 0.0, float(by_rank.max() / max(by_rank.sum(), 1.0))
    uneven = most * len(by_rank) >= _UNEVEN
    who = f"{percent(most)} of it for rank {blocks.ranks[by_rank.argmax()]}" if uneven else "a different rank each time"
    who = f"mostly rank {int(blocks.ranks[row])}" if row is not None else who
    of_it = "" if part >= _MOST_OF_IT else f"{percent(part)} of it "
    return who + (f", {of_it}in {often} of {len(by_step)} steps" if part >= _MOSTLY else ""), part


def waited_for_most(blocks: Blocks) -> int | None:
    """The row of the rank that caused most of all waiting; ``None``: now one rank is last and now another."""
    caused = or_zero(blocks.caused).sum(axis=1)
    least = max(_MOSTLY, 1.5 / max(len(caused), 1)) * caused.sum()  # of two, one always has half
    return int(np.argmax(caused)) if least > 0 and caused.max() >= least else None


def _most(blocks: Blocks) -> tuple[int, float]:
    """The row of the largest typical delay, and that delay; 0 where no rank has one."""
    typical = median(blocks.delay, axis=1)
    row = int(np.nanargmax(typical)) if not np.isnan(typical).all() else 0
    return row, max(float(np.nan_to_num(typical[row])), 0.0)


def waited_for(blocks: Blocks, row: int, shared: str, late: float, cause: Cause) -> list[str]:
    """Who is waited for where ranks share CPUs, with no known cause; it is ``late`` by so many ns a step."""
    caused = or_zero(blocks.caused).mean(axis=1)
    last = f"rank {int(blocks.ranks[row])} is last to arrive in {percent(float(np.nanmean(blocks.last[row])))}"
    waits = f"others wait {ms(caused[row])} per step for it ({percent(caused[row] / average(blocks.period))})"
    share = f"that is {percent(caused[row] / caused.sum())} of all waiting in the job"
    lines = [f"{last} of the collectives: {waits}", share, f"{shared}: it may have waited for one"]
    if cause.cause == "cpu_contention":  # by its process: of its main thread that is known where it is said elsewhere
        return [*lines, "threads of its process waited for a CPU, perhaps not while it was late"]
    return [*lines, *shares(late, cause)]
