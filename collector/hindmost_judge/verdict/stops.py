"""Verdicts on a job that stopped, or whose ranks ran different operations and went on: kind, evidence, advice.

Lost contact: in a foreign recording nothing ends any more though GPUs are busy, and no dump is readable. No rank is
named then. Stalls that ended: a job stopped for as long as a hang does, and went on. That is shown by stacks, which are
taken when a job stops, or by operations that all ranks were in meanwhile.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.causes.stopped import during, stopped_samples, to_the_end
from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.detect import hang
from hindmost_judge.detect.hang import Hang, Mismatch, since_step
from hindmost_judge.model import FINISHED, NONBLOCKING, PROFILED, VANISHED, Job, Run, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import median
from hindmost_judge.timeline.phases import training
from hindmost_judge.types import UNREAD, Array
from hindmost_judge.verdict.advice import in_python, of_stopped, place, with_gpus
from hindmost_judge.verdict.endings import RAISED, ended_by_launcher, last_words
from hindmost_judge.verdict.schema import Stall, Verdict, WhichOperation
from hindmost_judge.verdict.stacks import source_line
from hindmost_judge.verdict.wording import STALL, START_UP, are, attach, names, nodes_of, stopped, whole_nodes


def _of_hang(stop: Hang, run: Run, blocks: Blocks | None) -> Verdict:
    seconds = _stopped_meanwhile(stop, run)
    if stop.deadlock or not (stop.ranks or stop.unproven):
        # A rank that was stopped inside an operation which all members entered, or in a circle of waits, is waited for.
        halted = seconds.keys() & {*stop.ranks} if stop.deadlock else seconds.keys()
        if halted:
            victims = tuple(sorted({*stop.ranks, *stop.victims} - halted))
            stop = replace(stop, ranks=tuple(sorted(halted)), victims=victims, deadlock=False)
    cause = "stopped" if stop.ranks and seconds.keys() >= set(stop.ranks) else "unknown"
    verdict = Verdict(
        kind=stop.kind,
        ranks=stop.ranks,
        victims=stop.victims,
        cause="deadlock" if stop.deadlock else cause,
        since_step=since_step(stop, run, blocks),
        confidence=stop.confidence,
        evidence=tuple(_hang_evidence(stop, run)),
        advice=tuple(_hang_advice(stop, run)),
    )
    if cause == "stopped" and len(stop.ranks) >= max(run.job.world_size or 0, rows(run.ranks)):  # none is to blame
        verdict = replace(verdict, ranks=())
    return _with_waits(verdict, run) if stop.op else replace(verdict, since_time_s=stop.entered_ns / 1e9)


def for_good(run: Run, step_ns: float, settings: Settings) -> Hang | None:
    """A job whose ranks, some or all, were stopped to its end, and in which nothing began any more: seen or not, the
    others wait for these. A launcher lets processes go on to end them."""
    limit, halted = settings.hang_timeout_ns(step_ns), to_the_end(run)
    began = max(int(table["start_ns"].max(initial=0)) for table in (run.steps, run.collectives))
    every = {*run.ranks["rank"].tolist()}
    long = {rank: stop for rank, stop in halted.items() if rank in every and stop[1] - max(stop[0], began) >= limit}
    if not long:
        return None
    since = max(first for first, _ in long.values())
    ranks = tuple(sorted(rank for rank, (_, last) in long.items() if last > since))
    until, victims = min(long[rank][1] for rank in ranks), tuple(sorted(every - {*ranks}))
    return Hang("hang", ranks, victims, 0, -1, "", until - since, {}, entered_ns=since)


def _with_waits(verdict: Verdict, run: Run) -> Verdict:
    """The verdict with when its waiting ranks began to wait, and for how long in all."""
    deadlocked = verdict.ranks if verdict.cause == "deadlock" else ()
    waited_ns, first_ns = hang.waits_of(run, (*verdict.victims, *deadlocked))
    return replace(
        verdict,
        since_time_s=first_ns / 1e9 if first_ns and run.job.started_ns else None,
        waited_s=waited_ns / 1e9 if waited_ns >= 0 else None,
    )


def of_parted(stop: Hang, found: Mismatch | None, run: Run, blocks: Blocks | None) -> Verdict:
    """The verdict of a job that stopped; where its ranks had parted in that communicator before, of that."""
    verdict = _of_hang(stop, run, blocks)
    if found is None or stop.kind != "hang" or found.comm != stop.comm:
        return verdict
    (parted,) = of_mismatch(found, run)
    ran, _ = parted.evidence
    victims = tuple(sorted({*found.ranks, *found.others} - {*found.named}))
    evidence = (ran, *verdict.evidence[:1])
    parted = replace(parted, victims=victims, confidence=verdict.confidence, evidence=evidence)
    return _with_waits(parted, run)


def of_mismatch(found: Mismatch | None, run: Run) -> list[Verdict]:
    """The verdict on ranks that ran another operation than the rest, in a job that went on."""
    if found is None:
        return []
    started = run.steps["step"][run.steps["start_ns"] <= found.start_ns]
    others = "the others" if found.named else names(found.others)
    ran = f"{names(found.ranks)} ran {found.ran} as operation {found.seq}, {others} {found.op}"
    often = "once" if found.places == 1 else f"at {found.places} places since then"
    return [
        Verdict(
            kind="desync",
            ranks=found.named,
            victims=found.others,
            cause="unknown",
            since_step=int(started.max()) if len(started) else None,
            confidence=0.9,
            evidence=(
                f"{ran}: results are wrong",
                f"ranks differ {often}, in communicator {found.comm:#x}; the job went on",
            ),
            advice=(_branch_of(found.named),),
        )
    ]


_BUSY_METRIC = "hindmost_gpu_utilization_ratio"
#: A GPU at work for this share of the time: waiting in a collective looks like that; one whose job is over is idle.
_BUSY = 0.5
#: Most source lines reported at which ranks stand, those of most ranks first.
_SHOWN = 8


def lost_contact(run: Run, step_ns: float, settings: Settings) -> tuple[list[Verdict], list[str]]:
    """The verdict where stacks show the ranks, a note where nothing does; neither where the job may have ended."""
    if run.job.source == Job.source or rows(run.in_flight):
        return [], []
    quiet_ns = _quiet_ns(run)
    if quiet_ns is None or quiet_ns < settings.hang_timeout_ns(step_ns):
        return [], []
    quiet = f"no operation ended in the last {quiet_ns / 1e9:.1f} s of the recording, while GPUs were busy"
    at: dict[str, list[int]] = {}
    for rank, text in sorted(_stacks_of(run).items()):
        at.setdefault(source_line(text), []).append(rank)
    stood = sorted(at.items(), key=lambda one: -len(one[1]))
    if not stood:
        return [], [f"{quiet}: dumps of py-spy or of PyTorch's Flight Recorder from then would show a hang"]
    steps = training(run.steps)
    verdict = Verdict(
        kind="hang",
        cause="unknown",
        since_step=int(steps["step"].max()) + 1 if rows(steps) else None,
        confidence=0.6,
        evidence=(
            quiet,
            *(are(ranks, f"is at {line}") for line, ranks in stood[:_SHOWN]),
            "no readable dump shows the open operations: no rank is named",
        ),
        advice=("find the line that is no wait for others: the others wait for the ranks there",),
    )
    return [verdict], []


def _quiet_ns(run: Run) -> float | None:
    """Ns from the last end of anything to the last sample, GPUs at work throughout; ``None`` where they are not.

    Nor where no log of the steps goes on for as long as the job: a profiler sees a window of it.
    """
    if not rows(run.steps) or (run.steps["kind"] == PROFILED).all():
        return None
    tables = [one for one in (run.steps, run.collectives) if rows(one)]
    ends = [
        table["start_ns"] + np.maximum(table["duration_ns"], 0) for table in tables if (table["start_ns"] >= 0).all()
    ]
    if not ends:
        return None
    last = max(int(end.max()) for end in ends)
    since = [(one.times, one.values[one.times > last]) for one in Metrics.of(run).series(_BUSY_METRIC)]
    busy = [times for times, values in since if len(values) and float(np.mean(values >= _BUSY)) >= _BUSY]
    return float(max(int(times.max()) for times in busy) - last) if busy else None


#: Most stalls that are reported one by one, the longest; more of them are counted.
_MOST_STALLS = 3


#: A wait in which a rank was stopped is a stall from so long, and so many steps, on.
_STOPPED_NS, _STOPPED_STEPS = 1e9, 3.0


def find_ended_stalls(run: Run, blocks: Blocks | None, settings: Settings) -> tuple[tuple[Stall, ...], list[str]]:
    """The stalls, and a sentence on each: from when to when, who was waited for in what, where that rank was.

    Nothing began or ended in one, and no script makes it on purpose: stacks were taken meanwhile, a rank was stopped,
    or every rank was in an operation, so that none evaluated, saved, or read. A wait before the first step is set-up: a
    sentence, and no stall. So is an only wait of all others for a rank that was not looked at: it may have saved.
    """
    step_ns = float(median(blocks.period)) if blocks is not None else float("nan")
    hang_timeout_ns = settings.hang_timeout_ns(step_ns)
    halts = stopped_samples(run)
    if not (run.collectives["duration_ns"] >= hang_timeout_ns).any() and not (
        (rows(run.stacks) or len(halts)) and rows(run.collectives)
    ):
        return (), []
    tables = [one for one in (run.collectives, run.steps) if rows(one)]
    ends = [table["start_ns"] + np.maximum(table["duration_ns"], 0) for table in tables]
    moments = np.unique(np.concatenate([*(table["start_ns"] for table in tables), *ends]))  # anything began, or ended
    began = run.job.started_ns or int(moments[0])
    first_step = float("-inf")  # what ranks wait before is set-up
    if rows(run.steps):
        first_step = float(run.steps["start_ns"].min())
    elif blocks is not None:
        first_step = blocks.entered_ns
    gap_of = np.unique(np.searchsorted(moments, halts, side="right") - 1)
    long = np.flatnonzero(np.diff(moments) >= max(_STOPPED_NS, _STOPPED_STEPS * step_ns))
    halted = [at for at in np.intersect1d(gap_of, long).tolist() if during(run, *moments[at : at + 2].tolist())]
    halted = halted if len(halted) < settings.min_stalls else []  # more are a verdict's
    every, looks = len(np.unique(run.collectives["rank"])), np.searchsorted(moments, run.stacks["time_ns"], "right") - 1
    gaps = np.union1d(np.flatnonzero(np.diff(moments) >= hang_timeout_ns), halted).astype(int).tolist()
    spans = {at: (int(moments[at]), int(moments[at + 1])) for at in gaps}
    waits = {at: _waited_for(run, *span) for at, span in spans.items()}
    found = {at: _stall(run, span, waits[at], looks == at, began) for at, span in spans.items()}
    seen = [at for at in gaps if at in halted or at in looks or waits[at][1] == every > 1]
    awaited = {at: late for at, (late, waiting, _) in waits.items() if late and len(late) + waiting == every}
    once = [found[at] for at in awaited if at not in seen and [*awaited.values()].count(awaited[at]) == 1]
    begin = (first_step - began) / 1e9
    start_up = [_stall_sentence(run, found[at], START_UP) for at in seen if found[at].until_s <= begin]
    stalls = tuple(found[at] for at in seen if found[at].until_s > begin)
    sentences = [_stall_sentence(run, stall, STALL) for stall in _longest(stalls)]
    more = len(stalls) - len(sentences)
    sentences += [f"{more} more stall{'s' if more > 1 else ''}"] if more else []
    unexplained = [_stall_words(stall) for stall in once if stall.until_s > begin]
    sentences += ["; ".join([f"once, cause unknown: {words[0]}", *words[1:]]) for words in unexplained]
    return stalls, [*start_up, *sentences]


#: Share of a stall that others wait in one step for its rank: that wait is the stall.
_THE_STALL = 0.9


def without_ended_stalls(blocks: Blocks, stalls: Sequence[Stall]) -> Blocks:
    """The same without what ranks wait in stalls, and are late by, which is said of these."""
    caused, delay = blocks.caused.copy(), blocks.delay.copy()
    for stall in stalls:
        its = np.isin(blocks.ranks, stall.ranks)[:, None] & (caused >= _THE_STALL * 1e9 * _seconds(stall))
        caused[its], delay[its] = 0.0, 0.0
    return replace(blocks, caused=caused, delay=delay)


def with_ended_stalls(found: list[Verdict], stalls: Sequence[Stall], run: Run) -> list[Verdict]:
    """A job with a stall is no job without anything to act on, however even its other steps are.

    Who comes last in a balanced job is the stall again.
    """
    if not stalls:
        return found
    advice = (_advice_on_stall(max(stalls, key=_seconds), run),)
    why = tuple("; ".join(_stall_words(one)) for one in _longest(stalls))
    return [
        verdict
        if verdict.ranks or verdict.kind not in ("balanced", "insufficient_data")
        else replace(verdict, evidence=(*why, *(verdict.evidence if verdict.kind != "balanced" else ())), advice=advice)
        for verdict in found
    ]


def _seconds(stall: Stall) -> float:
    return stall.until_s - stall.since_s


def _longest(stalls: Sequence[Stall]) -> list[Stall]:
    return sorted(sorted(stalls, key=_seconds, reverse=True)[:_MOST_STALLS], key=lambda one: one.since_s)


def _advice_on_stall(stall: Stall, run: Run) -> str:
    if stall.stopped_s:
        return of_stopped(place(run, [int(rank) for rank in stall.stopped_s]))
    if stall.node is not None:
        return f"check {stall.node}: network, disks, kernel log (`dmesg -T`)"
    if stall.line is not None:
        return f"find out what {stall.line.replace(': ', ' waited for at ', 1)}"
    return f"find out what {names(stall.ranks)} did then" if stall.ranks else "check what all ranks share: the network"


def _stall(run: Run, span: tuple[int, int], waits: tuple[list[int], int, str], looks: Array, began: int) -> Stall:
    """What is known of the time between two moments, in which the stacks ``looks`` were taken."""
    (since, until), (late, waiting, where) = span, waits
    halted = during(run, since, until)
    if halted and not late:  # it was stopped inside the operation
        late, waiting = sorted(halted), max(waiting - len(halted), 0)
    columns = (run.stacks[name][looks].tolist() for name in ("time_ns", "rank", "text"))
    read = [one for one in zip(*columns, strict=True) if not one[2].startswith(UNREAD)]
    last = max([one for one in read if one[1] in late] or read, key=lambda one: (one[0], -one[1]), default=None)
    return Stall(
        since_s=(since - began) / 1e9,
        until_s=(until - began) / 1e9,
        ranks=tuple(late),
        waiting=waiting,
        operation=where or None,
        line=f"rank {last[1]}: {source_line(last[2])}" if last is not None else None,
        node=" and ".join(nodes_of(run, late)) or None,
        stopped_s={str(rank): seconds for rank, seconds in halted.items()},
    )


def _stall_sentence(run: Run, stall: Stall, kind: str) -> str:
    stood = [stall.line.replace(": ", " was at ", 1)] if stall.line is not None else []
    return "; ".join([kind + "; ".join(_stall_words(stall)), *whole_nodes(run, stall.ranks), *stood])


def _stall_words(stall: Stall) -> list[str]:
    when = f"{_seconds(stall):.1f} s without progress, from {stall.since_s:.1f} s after the job's start"
    found = [stopped(dict.fromkeys(map(int, stall.stopped_s), 0.0))] if stall.stopped_s else []
    if not stall.waiting:
        return [when, *found]
    if stall.ranks:
        who = "1 rank" if stall.waiting == 1 else f"{stall.waiting} ranks"
        return [when, *found, f"{who} waited for {names(stall.ranks)} in {stall.operation}"]
    return [when, *found, f"every rank was in {stall.operation}"]


def _waited_for(run: Run, since: int, until: int) -> tuple[list[int], int, str]:
    """Ranks that were in no operation while others waited for them, how many did, and in what."""
    table = run.collectives
    begun = (table["start_ns"] <= since) & (table["flags"] & NONBLOCKING == 0)
    inside = np.flatnonzero(begun & (table["start_ns"] + table["duration_ns"] >= until))
    if not len(inside):
        return [], 0, ""
    waiting = set(table["rank"][inside].tolist())
    missing = {at: hang.members(run, table["comm"][at]) - waiting for at in inside.tolist()}
    first = max(missing, key=lambda at: len(missing[at]) > 0)
    late = sorted(set().union(*missing.values()))
    return late, len(waiting), f"{table['op'][first]} number {table['seq'][first]}"


#: Ranks of which evidence says what each does.
_RANKS = 8
#: Operations that ranks are in where one branch of the script explains them.
_SIDES = 2


def _hang_evidence(stop: Hang, run: Run) -> list[str]:
    """Evidence for a stop, first who waits for whom in what."""
    group = f"communicator {stop.comm:#x}"
    if not stop.seen:
        where = f"{stop.op} number {stop.seq}" if stop.seq >= 0 else _call(stop.op, run)
        return [
            f"no progress for {stop.waited_ns / 1e9:.1f} s before a signal ended the job",
            f"the last operation was {where} of {group}; which were open then was not recorded",
        ]
    stacks = _stacks_of(run)
    at = {rank: _standing(stacks[rank]) for rank in stop.ranks if rank in stacks}
    which = f"that {stop.op} is number {stop.seq}" if stop.seq >= 0 else "the operation is"
    number = [] if stop.waits or not stop.op else [WhichOperation(f"{which} of {group}")]
    if stop.deadlock:
        others = [are(stop.victims, "waits for them")] if stop.victims else []
        return [
            f"deadlock: {_waits(stop.waits, run)}",
            *([", ".join(_of_each(at))] if at else []),
            *others,
            *_end(run, stop),
        ]
    if stop.kind == "desync":
        entered = dict(sorted(stop.doing.items()))
        if not stop.ranks:  # as many entered the one as the other
            entered |= dict.fromkeys(stop.victims, stop.op) | stop.doing
        called = {rank: _called_from(rank, stop, run) for rank in entered}
        found = _of_each({rank: f"entered {entered[rank]} there{line}" for rank, line in called.items() if line})
        places = [] if found else _places(stop, run)
        waited = _waited(stop, run, "" if stop.waits else stop.op)
        messages = [wait for wait in stop.waits if wait.seq < 0]  # whom they wait for that are in no collective
        found = [_instead(stop, run), *found, *([_waits(messages, run)] if messages else []), *places, waited]
        return [*found, *([] if stop.ranks else ["which of them took the wrong branch is not known"]), *number]
    waited, seconds = _waited(stop, run, stop.op if stop.seq >= 0 else ""), _stopped_meanwhile(stop, run)
    found = [f"{_waits(stop.waits, run)}; {waited}" if stop.waits else f"{waited}{_absent(stop, run)}"]
    if seconds and seconds.keys() >= set(stop.ranks):
        found = [f"{stopped(seconds)}; {waited}"]
        if not stop.op:
            begin = f", from {(stop.entered_ns - (run.job.started_ns or 0)) / 1e9:.1f} s after the job's start"
            found = [stopped(seconds) + (begin if run.job.started_ns else "")]
    elif seconds:
        found.append(stopped(seconds))
    said = {rank: words for rank, (_, words) in last_words(run).items() if rank in stop.ranks}
    doing = {rank: _is_in(name, run) for rank, name in sorted(stop.doing.items())}
    left = {rank: words for rank, words in doing.items() if stop.doing[rank] == _FINALIZE and rank not in said}
    ended = _of_each(said, "raised an exception or called MPI_Abort")
    found = [*ended, *_of_each(left), *found, *_of_each({rank: doing[rank] for rank in doing if rank not in left})]
    found += [*_of_each(_gone(stop, run)), *_of_each({rank: at[rank] for rank in at if rank not in said})]
    return [*found, *_end(run, stop), *number, *whole_nodes(run, stop.ranks)]


_FINALIZE = "mpi_finalize"
#: What MPI calls an operation that a ring names.
_MPI = {
    "send": "MPI_Send",
    "recv": "MPI_Recv",
    "sendrecv": "MPI_Sendrecv",
    "probe": "MPI_Probe",
    "wait": "MPI_Wait",
    _FINALIZE: "MPI_Finalize",
}


def _is_in(op: str, run: Run) -> str:
    call = _call(op, run)
    return f"is in {call}: the loop is over" if op == _FINALIZE != call else f"is in {call}"


def _of_each(said: Mapping[int, str], rest: str = "") -> list[str]:
    """``rank 1 is at train.py:49``, ``ranks 2 and 3 are at train.py:64``: what each rank does, those alike together.

    At most ``_RANKS`` sentences, and one that counts the ranks that these leave out.
    """
    alike: dict[str, list[int]] = {}
    for rank, words in said.items():
        alike.setdefault(words, []).append(rank)
    shown = list(alike.items())[:_RANKS]
    left_out = len(said) - sum(len(ranks) for _, ranks in shown)
    found = [are(ranks, words) for words, ranks in shown]
    rest = rest or f"{'is' if left_out == 1 else 'are'} not listed"
    return [*found, f"{left_out:,} more rank{'s' * (left_out > 1)} {rest}"] if left_out else found


def _call(op: str, run: Run) -> str:
    if op == "probe" and in_python(run) and _with_mpi(run):
        return "recv (MPI_Probe)"  # mpi4py asks for the size of a message before it receives that
    return _MPI.get(op, op) if _with_mpi(run) else op


def _with_mpi(run: Run) -> bool:
    return any(str(name).startswith("MPI_COMM") for name in run.communicators["name"].tolist())


def _waits(waits: Sequence[hang.Wait], run: Run) -> str:
    """``rank 0 waits for rank 1 in MPI_Recv, rank 1 waits for rank 0 in MPI_Recv``."""
    said = []
    for wait in waits[:_RANKS]:
        whom = "for an unknown rank" if wait.peer is None else f"for rank {wait.peer}"
        what = f"{wait.op} number {wait.seq}" if wait.seq >= 0 else _call(wait.op, run)
        said.append(f"rank {wait.rank} waits {whom} in {what}")
    more = len(waits) - len(said)
    return ", ".join(said) + (f", and {more} more" if more else "")


def _places(stop: Hang, run: Run) -> list[str]:
    """Where the culprits are; where ranks are in three operations or more, where one rank of each is."""
    stacks, groups = _stacks_of(run), [who for side in _groups(stop, run) for who in side.values()]
    shown = list(stop.ranks) if len(groups) <= _SIDES else [rank for who in groups for rank in who[:1]]
    return _of_each({rank: _standing(stacks[rank]) for rank in shown if rank in stacks})


def _groups(stop: Hang, run: Run) -> tuple[dict[str, list[int]], dict[str, list[int]]]:
    """What ranks are in, and who is in it: of those that took another way, and of the rest."""
    table = run.in_flight
    columns = (table[name].tolist() for name in ("rank", "name", "kind", "comm"))
    here = {(rank, op): comm for rank, op, kind, comm in zip(*columns, strict=True) if kind != "phase"}
    inside = {} if stop.waits else dict.fromkeys(stop.victims, stop.op)
    inside |= dict(sorted(here)) | dict(one for one in here if one[1] == stop.op)
    inside |= {wait.rank: wait.op for wait in stop.waits} | stop.doing
    odd: dict[str, list[int]] = {}
    rest: dict[str, list[int]] = {}
    for rank, op in sorted(inside.items()):
        mine, comm = rank in {*stop.doing, *stop.ranks}, here.get((rank, op))
        what = f"is in {_call(op, run)}" if comm is not None or rank not in stop.doing else f"ran {op}"
        if rank in stop.doing and op == stop.op and comm not in (None, stop.comm):
            what += " of another communicator"
        (odd if mine else rest).setdefault(what, []).append(rank)
    return odd, rest


def _instead(stop: Hang, run: Run) -> str:
    """``rank 1 is in all_gather, the others are in all_reduce``: every rank that is in something, by what that is."""
    odd, rest = _groups(stop, run)
    said = [are(who, what) for groups in (odd, rest) for what, who in groups.items()]
    if stop.ranks and len(rest) == 1 < sum(map(len, rest.values())):
        said[-1] = f"the others {next(iter(rest)).replace('is', 'are', 1)}"
    return ", ".join(said)


def _stopped_meanwhile(stop: Hang, run: Run) -> dict[int, float]:
    """Rank to the seconds in which its process was stopped, of the ranks stopped for most of the wait."""
    if stop.kind != "hang" or stop.waited_ns < 0 or not stop.entered_ns:
        return {}
    return during(run, stop.entered_ns, stop.entered_ns + stop.waited_ns)


def _called_from(rank: int, stop: Hang, run: Run) -> str:
    """From where a rank called what it did in place of the others' operation, if a dump tells."""
    texts = run.stacks["text"][run.stacks["rank"] == rank].tolist()
    calls = ((text, _CALLED.match(text)) for text in texts)
    lines = [source_line(text) for text, call in calls if call is not None and call[1].endswith(f" #{stop.seq}")]
    return f", called from {lines[0]}" if lines else ""


def _waited(stop: Hang, run: Run, where: str) -> str:
    """That the others waited; ``where``: in what, or nothing. For how long, where COST does not say it."""
    one, inside = len(stop.victims) == 1, f" in {where}" if where else ""
    waited = "1 rank" if one else f"{len(stop.victims) or ''} ranks".lstrip()
    if run.at_work or stop.waited_ns < 0:  # COST counts on
        return f"{waited} {'waits' if one else 'wait'}{inside}{'' if run.at_work else ' (time not recorded)'}"
    if where and hang.waits_of(run, stop.victims)[0] >= 0:
        return f"{waited} waited{inside}"
    most = "at least " if _cut_off(run) else "" if one else "up to "
    return f"{waited} waited {most}{stop.waited_ns / 1e9:.1f} s{inside}"


def _cut_off(run: Run) -> bool:
    """Whether a job that is over, or was abandoned, may have waited longer than the recording."""
    return not run.at_work and (run.job.source != Job.source or run.job.abandoned)


def _end(run: Run, stop: Hang) -> list[str]:
    """That a wait may have been longer than what is recorded of it."""
    cut = stop.waited_ns >= 0 and _cut_off(run)
    return ["the wait is as long as the recording; a time-out may have ended it"] if cut else []


def _absent(stop: Hang, run: Run) -> str:
    """Who may not have come; the head names who did not."""
    if not stop.unproven:
        return "" if stop.ranks else "; all members entered it, none leaves"
    own = run.job.source == Job.source
    silent = f"{names(stop.unproven)} {'sent nothing since' if own else 'left no readable dump'}"
    return f"; all others entered it; {silent}" if stop.ranks else f"; {silent}: which of them is late is not known"


_GONE = {FINISHED: "has finished", VANISHED: "is gone (process ended)"}


def _gone(stop: Hang, run: Run) -> dict[int, str]:
    seen, ended = run.in_flight["observed_ns"].max(initial=0), ended_by_launcher(run)
    columns = (run.rank_states[name].tolist() for name in ("rank", "life", "time_ns"))
    return {
        rank: _GONE[life]
        for rank, life, when in zip(*columns, strict=True)
        if rank in stop.ranks and rank not in ended and life in _GONE and when < seen
    }


def _standing(stack: str) -> str:
    """Where a rank is, or why that is unknown; of one known by its dump, from where it called what it did last."""
    if stack.startswith(UNREAD):
        return f"has no readable stack: {stack.partition(': ')[2].partition(chr(10))[0]}"
    called = _CALLED.match(stack)
    if called is not None:
        return f"ran {called[1]} last, called from {source_line(stack)}"
    return f"is at {source_line(stack)}"


#: The first line of the call that a Flight Recorder dump tells, in place of a stack.
_CALLED = re.compile(r"\w+ (\w+ #-?\d+) was called from\n")


def _stacks_of(run: Run) -> dict[int, str]:
    """The newest stack of each rank; of a compiled program, which has none of Python, one that was not read is none."""
    found = zip(run.stacks["rank"].tolist(), run.stacks["text"].tolist(), strict=True)
    return {rank: text for rank, text in found if not text.startswith(UNREAD) or in_python(run)}


#: How to confirm a wait of unknown length, by what recorded it.
_CONFIRMS = {
    "Flight Recorder": "write the dumps again: what is still open hangs",
    "NCCL RAS": "ask RAS again (`ncclras`): a job whose counts stay the same hangs",
}


#: What the agent says is to do where nothing can read a stack.
_PY_SPY = "pip install py-spy"


def _hang_advice(stop: Hang, run: Run) -> list[str]:
    """What to do about a stop: of a job that runs its processes can still be looked at."""
    who = names(stop.ranks) if stop.ranks else ""
    if stop.deadlock or stop.kind == "desync":
        branch = _branch_of(stop.ranks if sum(map(len, _groups(stop, run))) <= _SIDES else ())
        messages = f"let one of {who} send before it receives, or use nonblocking calls for both"
        return [messages if stop.deadlock else branch]
    if not who:
        return [_advice_on_all(stop, run)]
    raised = [rank for rank, (_, words) in last_words(run).items() if rank in stop.ranks and words.startswith(RAISED)]
    if raised:
        ends = "; with `python -m mpi4py` before the script, an exception ends the job" if _with_mpi(run) else ""
        return [f"read the traceback that {names(raised)} printed{ends}"]
    seconds, at = _stopped_meanwhile(stop, run), place(run, stop.ranks)
    if seconds and seconds.keys() >= set(stop.ranks):
        return [of_stopped(at, still=True)]
    look = _look(stop, run)
    if run.at_work:
        command = f"{attach()} on the node{'s' * (len(stop.ranks) > 1)} of {who}"
        if len(at.pids) == len(at.nodes) == 1:
            command = f"`hindmost attach --stacks --pid {at.pids[0]}`{at.on}"
        return [*look, f"before you cancel the job: {command}"]
    gone = f", and whether {'it was' if len(stop.ranks) == 1 else 'they were'} gone" if stop.unproven else ""
    confirms = [text for name, text in _CONFIRMS.items() if name in run.job.source] if stop.waited_ns < 0 else []
    unread = [_stacks_of(run).get(rank, "") for rank in stop.ranks]
    shows = f"; its source line needs py-spy: `{_PY_SPY}`" if any(_PY_SPY in text for text in unread) else ""
    return [*(look or [f"see what {who} printed last{gone}{shows}"]), *confirms]


def _branch_of(ranks: tuple[int, ...]) -> str:
    who = f"{names(ranks)} took and the others did not" if ranks else "only some ranks took"
    return f"find the branch in the code that {who}"


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
    see = f"see where each rank waits: {attach()}"
    look = f"before you cancel the job, {see}" if run.at_work else f"next time, while it hangs, {see}"
    return look if own else "run it with `hindmost run`: in a hang that writes every rank's stack"


def _look(stop: Hang, run: Run) -> list[str]:
    stacks = _stacks_of(run)
    known = [rank for rank in stop.ranks if not stacks.get(rank, UNREAD).startswith(UNREAD)]
    lines = {rank: source_line(stacks[rank]) for rank in known if not _CALLED.match(stacks[rank])}
    if not lines:
        return []
    rank, line = next(iter(lines.items()))
    stack = f"; its stack is in stacks/{rank}.txt of the run directory" if run.job.source == Job.source else ""
    at = place(run, [rank])
    who = f"rank {rank}{f' (PID {at.pids[0]})' if at.pids else ''}{at.on}"
    return [f"see what {who} {'waits' if run.at_work else 'waited'} for at {line}{stack}"]
