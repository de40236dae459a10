"""The sentences of a verdict on a job that stopped, or whose ranks ran different operations."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from hindmost_judge.causes.stopped import during
from hindmost_judge.model import FINISHED, RUNNING, VANISHED, Job
from hindmost_judge.types import UNREAD
from hindmost_judge.verdict.advice import of_stopped, place, with_gpus
from hindmost_judge.verdict.endings import RAISED, last_words
from hindmost_judge.verdict.wording import names, stopped, whole_nodes

if TYPE_CHECKING:
    from hindmost_judge.detect.hang import Hang
    from hindmost_judge.detect.mismatch import Mismatch
    from hindmost_judge.model import Run

#: Ranks of which evidence says what each does.
_RANKS = 8
#: Operations that ranks are in where one branch of the script explains them.
_SIDES = 2


def hang(stop: Hang, run: Run) -> list[str]:
    """Evidence for a stop, first who waits for whom in what."""
    where = f"{stop.op} number {stop.seq}" if stop.seq >= 0 else _call(stop.op, run)
    group = f"communicator {stop.comm:#x}"
    if not stop.seen:
        return [
            f"no progress for {stop.waited_ns / 1e9:.1f} s before a signal ended the job",
            f"the last operation was {where} of {group}; which were open then was not recorded",
        ]
    stacks = stacks_of(run)
    if stop.deadlock:
        lines = [_standing(rank, stacks[rank]) for rank in stop.ranks[:_RANKS] if rank in stacks]
        at = ["; ".join(lines)] if lines else []
        return [f"deadlock: {_waits(stop, run)}", *at, *_for_long(stop, run), *_end(run, stop)]
    if stop.kind == "desync":
        called = [(rank, _called_from(rank, stop, run)) for rank in sorted(stop.doing)]
        found = [f"rank {rank} entered {stop.doing[rank]} there{line}" for rank, line in called[:_RANKS] if line]
        inside = "" if stop.waits else stop.op
        number = [] if stop.waits else [f"that {stop.op} is number {stop.seq} of {group}"]
        found = found or _places(stop, run)
        found = [_instead(stop, run), *found, *_of_messages(stop, run), _waited(stop, run, inside)]
        return [*(found if stop.ranks else [*found, *_either(stop, run)]), *number]
    waited, seconds = _waited(stop, run, stop.op if stop.seq >= 0 else ""), halted(stop, run)
    found = [f"{_waits(stop, run)}; {waited}"] if stop.waits else [f"{waited}; {_absent(stop, run)}"]
    if seconds and seconds.keys() >= set(stop.ranks):
        found = [f"{stopped(seconds)}; {waited}"]
    elif seconds:
        found.append(stopped(seconds))
    said = {rank: f"rank {rank} {words}" for rank, (_, words) in last_words(run).items() if rank in stop.ranks}
    doing = {rank: f"rank {rank} is in {_call(name, run)}" for rank, name in sorted(stop.doing.items())}
    left = [line for rank, line in doing.items() if stop.doing[rank] == FINALIZE and rank not in said]
    found = [*said.values(), *left, *found, *(line for line in doing.values() if line not in left)]
    found += _gone(stop, run)
    found += [_standing(rank, stacks[rank]) for rank in stop.ranks if rank in stacks and rank not in said]
    which = f"that {stop.op} is number {stop.seq}" if stop.seq >= 0 else "the operation is"
    number = [] if stop.waits else [f"{which} of {group}"]
    return [*found, *_end(run, stop), *number, *whole_nodes(run, stop.ranks)]


FINALIZE = "mpi_finalize"
#: What MPI calls an operation that a ring names.
_MPI = {
    "send": "MPI_Send",
    "recv": "MPI_Recv",
    "sendrecv": "MPI_Sendrecv",
    "probe": "MPI_Probe",
    "wait": "MPI_Wait",
    FINALIZE: "MPI_Finalize: it has left its loop",
}


def _call(op: str, run: Run) -> str:
    return _MPI.get(op, op) if _with_mpi(run) else op


def _with_mpi(run: Run) -> bool:
    return any(str(name).startswith("MPI_COMM") for name in run.communicators["name"].tolist())


def _waits(stop: Hang, run: Run) -> str:
    """``rank 0 waits for rank 1 in MPI_Recv, rank 1 waits for rank 0 in MPI_Recv``."""
    said = []
    for one in stop.waits[:_RANKS]:
        whom = "for an unknown rank" if one.peer is None else f"for rank {one.peer}"
        said.append(
            f"rank {one.rank} waits {whom} in {f'{one.op} number {one.seq}' if one.seq >= 0 else _call(one.op, run)}"
        )
    more = len(stop.waits) - len(said)
    return ", ".join(said) + (f", and {more} more" if more else "")


def _of_messages(stop: Hang, run: Run) -> list[str]:
    """Whom ranks wait for that took another way than those in a collective."""
    messages = replace(stop, waits=tuple(one for one in stop.waits if one.seq < 0))
    return [_waits(messages, run)] if messages.waits else []


def _for_long(stop: Hang, run: Run) -> list[str]:
    """For how long ranks have waited for each other, and who waits for them."""
    others = [f"{names(stop.victims)} {'waits' if len(stop.victims) == 1 else 'wait'} for them"] if stop.victims else []
    if stop.waited_ns < 0:
        return others
    return [f"they {'have ' if _at_work(run) else ''}waited {stop.waited_ns / 1e9:.1f} s", *others]


def _places(stop: Hang, run: Run) -> list[str]:
    """Where the culprits are; where ranks are in three operations or more, where one rank of each is."""
    stacks, groups = stacks_of(run), [who for some in _groups(stop, run) for who in some.values()]
    shown = list(stop.ranks) if len(groups) <= _SIDES else [rank for who in groups for rank in who[:1]]
    lines = [_standing(rank, stacks[rank]) for rank in shown if rank in stacks]
    return ["; ".join(lines)] if lines and len(groups) > _SIDES else lines


def _groups(stop: Hang, run: Run) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What ranks are in, and who is in it: of those that took another way, and of the rest."""
    table = run.in_flight
    columns = (table[name].tolist() for name in ("rank", "name", "kind", "comm"))
    here = {(rank, op): comm for rank, op, kind, comm in zip(*columns, strict=True) if kind != "phase"}
    inside = {} if stop.waits else dict.fromkeys(stop.victims, stop.op)
    inside |= dict(sorted(here)) | dict(one for one in here if one[1] == stop.op)
    inside |= {one.rank: one.op for one in stop.waits} | stop.doing
    odd: dict[str, list[int]] = {}
    rest: dict[str, list[int]] = {}
    for rank, op in sorted(inside.items()):
        mine, comm = rank in {*stop.doing, *stop.ranks}, here.get((rank, op))
        what = _call(op, run) if comm is not None or rank not in stop.doing else f"ran {op}"
        if rank in stop.doing and op == stop.op and comm not in (None, stop.comm):
            what += " of another communicator"
        (odd if mine else rest).setdefault(what, []).append(rank)
    return odd, rest


def _instead(stop: Hang, run: Run) -> str:
    """``rank 1 is in all_gather, the others are in all_reduce``: every rank that is in something, by what that is."""
    odd, rest = _groups(stop, run)
    said = [_are_in(names(who), what, len(who)) for groups in (odd, rest) for what, who in groups.items()]
    if stop.ranks and len(rest) == 1 < sum(map(len, rest.values())):
        said[-1] = _are_in("the others", next(iter(rest)), 2)
    return ", ".join(said)


def _are_in(who: str, what: str, count: int) -> str:
    return f"{who} {what}" if what.startswith("ran ") else f"{who} {'is' if count == 1 else 'are'} in {what}"


def halted(stop: Hang, run: Run) -> dict[int, float]:
    """Rank to the seconds in which its process was stopped, of the ranks stopped for most of the wait."""
    if stop.kind != "hang" or stop.waited_ns < 0 or not stop.entered_ns:
        return {}
    return during(run, stop.entered_ns, stop.entered_ns + stop.waited_ns)


def _either(stop: Hang, run: Run) -> list[str]:
    """What is known where as many ranks entered one operation as the other."""
    others = [(rank, _called_from(rank, stop, run)) for rank in stop.victims if rank not in stop.doing]
    known = [f"rank {rank} entered {stop.op}{called}" for rank, called in others[:_RANKS] if called]
    return [*known, "which of them took the wrong branch is not known"]


def _called_from(rank: int, stop: Hang, run: Run) -> str:
    """From where a rank called what it did in place of the others' operation, if a dump tells."""
    texts = run.stacks["text"][run.stacks["rank"] == rank].tolist()
    calls = ((text, _CALLED.match(text)) for text in texts)
    lines = [source_line(text) for text, call in calls if call is not None and call[1].endswith(f" #{stop.seq}")]
    return f", called from {lines[0]}" if lines else ""


def _waited(stop: Hang, run: Run, where: str) -> str:
    """How long the others waited; ``where``: in what, or nothing."""
    one, inside = len(stop.victims) == 1, f" in {where}" if where else ""
    waited = "1 rank" if one else f"{len(stop.victims)} ranks"
    if stop.waited_ns < 0:
        return f"{waited} {'waits' if one else 'wait'}{inside} (time not recorded)"
    have = f"{'has' if one else 'have'} " if _at_work(run) else ""
    most, until = "" if one else "up to ", ""
    if _cut_off(run):
        most, until = "at least ", " (the recording ends there)"
    return f"{waited} {have}waited {most}{stop.waited_ns / 1e9:.1f} s{inside}{until}"


def _cut_off(run: Run) -> bool:
    """Whether a job that is over, or was abandoned, may have waited longer than the recording."""
    return not _at_work(run) and (run.job.source != Job.source or run.job.abandoned)


def _end(run: Run, stop: Hang) -> list[str]:
    """What ended a wait that had no end of its own, in a job that is over."""
    if _at_work(run) or stop.waited_ns < 0:
        return []
    if _cut_off(run):
        return ["the wait is as long as the recording; a time-out may have ended it"]
    if run.job.interrupted_by:
        return [f"the wait ended when {run.job.interrupted_by} ended the job"]
    if run.killed_by is not None:
        return ["the wait ended when a signal ended the job"]
    return ["the wait ended with the job, as after a time-out" if run.job.exit_code else "the wait ended with the job"]


def _at_work(run: Run) -> bool:
    """Whether the job may still be there to be looked at."""
    job, life = run.job, run.rank_states["life"]
    over = job.ended_ns is not None or job.exit_code is not None or job.abandoned
    return job.source == Job.source and not over and (len(life) == 0 or bool((life == RUNNING).any()))


def _absent(stop: Hang, run: Run) -> str:
    """Who did not come, or may not have."""
    if not stop.unproven:
        return f"{names(stop.ranks)} never entered it" if stop.ranks else "all members entered it, none leaves"
    own = run.job.source == Job.source
    silent = f"{names(stop.unproven)} {'sent nothing since' if own else 'left no readable dump'}"
    return f"all others entered it; {silent}" if stop.ranks else f"{silent}: which of them is late is not known"


_GONE = {FINISHED: "has finished", VANISHED: "is gone: its process ended"}


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
    """Evidence for operations that differ between ranks though no rank hangs."""
    ran = f"{names(found.ranks)} ran {found.ran} as operation {found.seq}, {the_others(found)} {found.op}"
    often = "once" if found.places == 1 else f"at {found.places} places since then"
    return [f"{ran}: results are wrong", f"ranks differ {often}, in communicator {found.comm:#x}; the job went on"]


def the_others(found: Mismatch) -> str:
    """Who ran what most ran; by name where they are no more than the rest."""
    return "the others" if found.named else names(found.others)


def _standing(rank: int, stack: str) -> str:
    """Where a rank is, or why that is unknown; of one known by its dump, from where it called what it did last."""
    if stack.startswith(UNREAD):
        return f"rank {rank}'s stack could not be read: {stack.partition(': ')[2].partition(chr(10))[0]}"
    called = _CALLED.match(stack)
    if called is not None:
        return f"rank {rank}'s last operation, {called[1]}, was called from {source_line(stack)}"
    return f"rank {rank} is at {source_line(stack)}"


#: The first line of the call that a Flight Recorder dump tells, in place of a stack.
_CALLED = re.compile(r"\w+ (\w+ #-?\d+) was called from\n")


def stacks_of(run: Run) -> dict[int, str]:
    """The newest stack of each rank."""
    return dict(zip(run.stacks["rank"].tolist(), run.stacks["text"].tolist(), strict=True))


#: A Python function and its line, as stack dumps have them.
_FRAME = re.compile(r"([\w.<>]+) \((.+\.py:\d+)\)")


def source_line(stack: str) -> str:
    """``train.py:49, in load()``: the innermost Python frame of a stack dump outside of libraries."""
    frames = [line.strip() for line in stack.splitlines() if "(" in line and ")" in line and ":" in line]
    foreign = ("site-packages", "/lib/python", "hindmost/probes/")
    own = [line for line in frames if ".py" in line and not any(place in line for place in foreign)]
    line = (own or frames or [stack.strip().partition("\n")[0] or "an empty stack"])[0]
    frame = _FRAME.fullmatch(line)
    if frame is None:
        return line
    return frame[2] if frame[1] == "<module>" else f"{frame[2]}, in {frame[1]}()"


def hang_advice(stop: Hang, run: Run) -> list[str]:
    """What to do about a stop: of a job that runs its processes can still be looked at."""
    if stop.kind == "desync" or stop.deadlock:
        sides = sum(map(len, _groups(stop, run)))
        return [_break(stop) if stop.deadlock else branch_of(stop.ranks if sides <= _SIDES else ())]
    if not stop.ranks:
        return [_advice_on_all(stop, run)]
    who = names(stop.ranks)
    raised = [rank for rank, (_, words) in last_words(run).items() if rank in stop.ranks and words.startswith(RAISED)]
    if raised:
        ends = "; with `python -m mpi4py` before the script, an exception ends the job" if _with_mpi(run) else ""
        return [f"read the traceback that {names(raised)} printed{ends}"]
    look = _look(stop, run)
    there = f"on the node{'' if len(stop.ranks) == 1 else 's'}"
    gone = f", and whether {'it was' if len(stop.ranks) == 1 else 'they were'} gone"
    seconds = halted(stop, run)
    if seconds and seconds.keys() >= set(stop.ranks):
        return [of_stopped(place(run, stop.ranks), still=True)]
    if _at_work(run):
        at, command = place(run, stop.ranks), f"{_ATTACH.format(job=run.job.id)} {there} of {who}"
        if len(at.pids) == len(at.nodes) == 1:
            command = f"`hindmost attach --stacks --pid {at.pids[0]}`{at.on}"
        return [*look, f"before you cancel the job: {command}"]
    found = look or [f"see what {who} printed last{gone if stop.unproven else ''}"]
    return [*found, "write the dumps again: what is still open hangs"] if stop.waited_ns < 0 else found


def _break(stop: Hang) -> str:
    return f"let one of {names(stop.ranks)} send before it receives, or use nonblocking calls for both"


def branch_of(ranks: tuple[int, ...]) -> str:
    """What to do where these ranks, or unknown ones, ran another operation than the rest."""
    who = f"{names(ranks)} took and the others did not" if ranks else "only some ranks took"
    return f"find the branch in the script that {who}"


_ATTACH = "`hindmost attach --stacks --job {job}`"


def _advice_on_all(stop: Hang, run: Run) -> str:
    own, silent = run.job.source == Job.source, names(stop.unproven) if stop.unproven else ""
    if stop.unproven and own:
        nodes, agents = ("node", "its agent sends") if len(stop.unproven) == 1 else ("nodes", "their agents send")
        return f"check the {nodes} of {silent}: {agents} nothing, or cannot be reached"
    if stop.unproven:
        return f"see what {silent} did last"
    if stop.waits:
        return f"see whether tags and sizes of the messages of {names(stop.victims)} fit, then check the network"
    if stop.seen:
        where = "the network and the GPUs" if with_gpus(run) or not own else "the network"
        return f"check {where}, not the script: all ranks are in the operation"
    look = f"next time, while it hangs, see where each rank waits: {_ATTACH.format(job=run.job.id)}"
    return look if own else "run it with `hindmost run`: in a hang that writes every rank's stack"


def _look(stop: Hang, run: Run) -> list[str]:
    """The line at which a culprit was, and where the rest of its stack is."""
    stacks = stacks_of(run)
    known = [rank for rank in stop.ranks if not stacks.get(rank, UNREAD).startswith(UNREAD)]
    lines = {rank: source_line(stacks[rank]) for rank in known if not _CALLED.match(stacks[rank])}
    if not lines:
        return []
    rank, line = next(iter(lines.items()))
    kept = f"; its stack is in stacks/{rank}.txt of the run directory" if run.job.source == Job.source else ""
    return [f"see what {whereabouts(run, rank)} waits for at {line}{kept}"]


def whereabouts(run: Run, rank: int) -> str:
    """``rank 1 (PID 4711) on vm``, as far as known."""
    at = place(run, [rank])
    return f"rank {rank} (PID {at.pids[0]}){at.on}" if at.pids else f"rank {rank}{at.on}"
