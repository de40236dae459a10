"""The sentences of a verdict on a job that stopped, or whose ranks ran different operations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from hindmost.attach.stacks import UNREAD

from hindmost_collector.judgement.wording import names, whole_nodes
from hindmost_collector.model import FINISHED, RUNNING, VANISHED, Job

if TYPE_CHECKING:
    from hindmost_collector.detectors.hang import Hang
    from hindmost_collector.detectors.mismatch import Mismatch
    from hindmost_collector.model import Run

#: Ranks of which each is told what it does.
_TOLD = 8


def hang(stop: Hang, run: Run) -> list[str]:
    """Evidence for a stop."""
    where = f"{stop.op} number {stop.seq} of communicator {stop.comm:#x}"
    if not stop.seen:
        return [
            f"nothing moved for {stop.waited_ns / 1e9:.1f} s before a signal ended the job",
            f"the last that anybody did was {where}; what was open then was not seen",
        ]
    found = [_waited(stop, run, where)]
    if stop.kind == "desync":
        instead = sorted(stop.doing.items())[:_TOLD]
        found += [f"rank {rank} entered {name} there instead{_called_from(rank, stop, run)}" for rank, name in instead]
        return found if stop.ranks else [*found, *_either(stop, run)]
    found.append(_absent(stop, run))
    found += [f"rank {rank} is inside {name}" for rank, name in sorted(stop.doing.items())]
    found += _gone(stop, run)
    stacks = stacks_of(run)
    found += [_standing(rank, stacks[rank]) for rank in stop.ranks if rank in stacks]
    return found + whole_nodes(run, stop.ranks)


def _either(stop: Hang, run: Run) -> list[str]:
    """What is known where as many ranks entered one operation as another."""
    others = [(rank, _called_from(rank, stop, run)) for rank in stop.victims if rank not in stop.doing]
    known = [f"rank {rank} entered {stop.op}{called}" for rank, called in others[:_TOLD] if called]
    return [*known, "which of them took the wrong branch cannot be told"]


def _called_from(rank: int, stop: Hang, run: Run) -> str:
    """From where a rank called what it did in place of the others' operation, if a dump tells."""
    texts = run.stacks["text"][run.stacks["rank"] == rank].tolist()
    calls = ((text, _CALLED.match(text)) for text in texts)
    lines = [source_line(text) for text, call in calls if call is not None and call[1].endswith(f" #{stop.seq}")]
    return f", called from {lines[0]}" if lines else ""


def _waited(stop: Hang, run: Run, where: str) -> str:
    """For how long the others waited; of a job that is over, what bounds that."""
    waited = "1 rank" if len(stop.victims) == 1 else f"{len(stop.victims)} ranks"
    if stop.waited_ns < 0:
        return f"{waited} {'waits' if len(stop.victims) == 1 else 'wait'} in {where}; for how long is not recorded"
    seconds = f"{stop.waited_ns / 1e9:.1f} s"
    if _at_work(run):
        return f"{waited} {'has' if len(stop.victims) == 1 else 'have'} waited {seconds} in {where}"
    return f"{waited} waited {seconds} in {where}, {_end(run)}"


def _end(run: Run) -> str:
    """What ended a wait that had no end of its own."""
    if run.job.source != Job.source or run.job.abandoned:
        return "as far as the recording goes: a time-out may have ended it"
    if run.job.interrupted_by:
        return f"until the job was interrupted by {run.job.interrupted_by}"
    if run.killed_by is not None:
        return "until a signal ended the job"
    return "until the job ended, as a time-out makes it" if run.job.exit_code else "until the job ended"


def _at_work(run: Run) -> bool:
    """Whether the job may still be there to be looked at."""
    job, life = run.job, run.rank_states["life"]
    over = job.ended_ns is not None or job.exit_code is not None or job.abandoned
    return job.source == Job.source and not over and (len(life) == 0 or bool((life == RUNNING).any()))


def _absent(stop: Hang, run: Run) -> str:
    """Who did not come, or may not have."""
    if not stop.unproven:
        return f"{names(stop.ranks)} never entered it" if stop.ranks else "every member entered it and none leaves"
    own = run.job.source == Job.source
    unknown = (
        f"of {names(stop.unproven)} nothing was heard since"
        if own
        else f"{names(stop.unproven)} left no readable dump of what it had open"
        if stop.ranks
        else f"{names(stop.unproven)} left no readable dump"
    )
    if stop.ranks:
        return f"all other members entered it, and {unknown}"
    return f"{unknown}: which of them did not come cannot be told"


_GONE = {FINISHED: "has finished", VANISHED: "is gone: its process ended without a word"}


def _gone(stop: Hang, run: Run) -> list[str]:
    """Which culprits were gone while the others still waited."""
    seen = run.in_flight["observed_ns"].max(initial=0)
    columns = (run.rank_states[name].tolist() for name in ("rank", "life", "time_ns"))
    return [
        f"rank {rank} {_GONE[life]}"
        for rank, life, when in zip(*columns, strict=True)
        if rank in stop.ranks and life in _GONE and when < seen
    ]


def mismatch(found: Mismatch) -> list[str]:
    """Evidence for operations that differ between ranks though nobody hangs."""
    where = f"number {found.seq} of communicator {found.comm:#x}"
    told = f"{names(found.ranks)} ran {found.ran} as {where}, where {the_others(found)} ran {found.op}"
    often = "once" if found.places == 1 else f"at {found.places} places since then"
    return [told, f"ranks differ {often}; the job went on, with what belongs to other operations"]


def the_others(found: Mismatch) -> str:
    """Who ran what most ran; by name where they are no more than the rest."""
    return "the others" if found.named else names(found.others)


def _standing(rank: int, stack: str) -> str:
    """Where a rank is, or why nobody knows; of one known by its dump, from where it called what it did last."""
    if stack.startswith(UNREAD):
        return f"rank {rank}'s stack could not be read: {stack.partition(': ')[2].partition(chr(10))[0]}"
    called = _CALLED.match(stack)
    if called is not None:
        return f"rank {rank}'s last operation, {called[1]}, was called from {source_line(stack)}"
    return f"rank {rank} is at {source_line(stack)}"


#: The first line of the call that a Flight Recorder dump tells, in place of a stack.
_CALLED = re.compile(r"\w+ (\w+ #-?\d+) was called from\n")


def stacks_of(run: Run) -> dict[int, str]:
    """The last look at each rank."""
    return dict(zip(run.stacks["rank"].tolist(), run.stacks["text"].tolist(), strict=True))


def source_line(stack: str) -> str:
    """The line of a stack dump that a reader wants: the innermost Python frame outside of libraries."""
    frames = [line.strip() for line in stack.splitlines() if "(" in line and ")" in line and ":" in line]
    foreign = ("site-packages", "/lib/python", "hindmost/probes/")
    own = [line for line in frames if ".py" in line and not any(place in line for place in foreign)]
    return (own or frames or [stack.strip().partition("\n")[0] or "an empty stack"])[0]


def hang_advice(stop: Hang, run: Run) -> list[str]:
    """What to do about a stop: of a job that runs its processes can still be looked at."""
    if stop.kind == "desync":
        return [branch_of(stop.ranks)]
    if not stop.ranks:
        return [_advice_on_nobody(stop, run)]
    if _at_work(run):
        where = f"on the node of {names(stop.ranks)}"
        return [*_look(stop, run), f"before you cancel it: `hindmost attach --stacks --job {run.job.id}` {where}"]
    again = "if the job was still at work then, write the dumps once more: what stays open hangs"
    found = _look(stop, run) or [_last_words(stop)]
    return [*found, again] if stop.waited_ns < 0 else found


def branch_of(ranks: tuple[int, ...]) -> str:
    """What to do where these ranks, or nobody knows which, ran another operation than the rest."""
    who = f"{names(ranks)} took and the others did not" if ranks else "only some of the ranks took"
    return f"find the branch that {who}"


def _advice_on_nobody(stop: Hang, run: Run) -> str:
    if stop.unproven and run.job.source == Job.source:
        return f"look at the nodes of {names(stop.unproven)}: their agents are not heard of, or they are not reached"
    if stop.unproven:
        return f"find out what {names(stop.unproven)} did last: one of them did not come, or several"
    if stop.seen:
        return "all ranks are inside the operation: look at the network and the GPUs, not at the script"
    if run.job.source == Job.source:
        return f"next time, while nothing moves, {_ATTACH.format(job=run.job.id)} says where each rank stands"
    return "let `hindmost run` watch such a job to its end: it writes down every rank's stack when nothing moves"


_ATTACH = "`hindmost attach --stacks --job {job}`"


def _look(stop: Hang, run: Run) -> list[str]:
    """The line at which a culprit stood, and where the rest of its stack is."""
    stacks = stacks_of(run)
    known = [rank for rank in stop.ranks if not stacks.get(rank, UNREAD).startswith(UNREAD)]
    lines = {rank: source_line(stacks[rank]) for rank in known if not _CALLED.match(stacks[rank])}
    if not lines:
        return []
    rank, line = next(iter(lines.items()))
    kept = f"; all its threads are in stacks/{rank}.txt of the run directory" if run.job.source == Job.source else ""
    return [f"see what rank {rank} waits for at {line}{kept}"]


def _last_words(stop: Hang) -> str:
    if stop.unproven:
        return f"see what {names(stop.ranks)} printed last, and whether its process was gone: nothing of it is known"
    return (
        f"see what {names(stop.ranks)} printed last: the others waited for {'it' if len(stop.ranks) == 1 else 'them'}"
    )
