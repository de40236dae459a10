"""How a job ended: on its own, or because some rank did, and which rank the others were waiting for then."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from typing import NamedTuple

import numpy as np

from hindmost_judge.causes.telemetry import Metrics
from hindmost_judge.detect import hang
from hindmost_judge.encoding import codes
from hindmost_judge.model import FINISHED, RUNNING, VANISHED, Job, Run, rows
from hindmost_judge.settings import DEFAULT
from hindmost_judge.verdict.advice import place
from hindmost_judge.verdict.wording import names

#: Agents check their ranks once a second: processes that vanish between two checks have no known order.
LOOK_NS = 1_500_000_000


def of(run: Run, last_step: int | None = None) -> tuple[str | None, str | None]:
    """How the job failed and which rank died first, as far as known, and what to look at then.

    ``None`` where it ended well or that is unknown, and where nothing more is to be seen.

    ``last_step`` is the last one that all ranks took part in, of a rank that logged none.

    A training process that closed its ring left in order, also where its exit code was not 0. In a job that was
    asked to end no rank is named: its processes are killed in any order.
    """
    if run.job.abandoned and (run.rank_states["life"] == RUNNING).any():
        return "not recorded: hindmost was killed first, or its host was lost", None
    gone = _gone(run)
    code, signalled = run.job.exit_code, run.job.interrupted_by
    lost = None if signalled else _lost_node(run)
    if lost is not None:
        node, (_, before) = lost
        silent = f"{node} was last heard {before:.1f} s before the job ended, with its ranks at work"
        return (
            f"{exit_words(code or 0, run.killed_by)}; {silent}",
            f"see whether {node} was lost: its kernel log, the scheduler's record of the node",
        )
    if not code and (code is not None or len(gone) == 0):
        return None, None
    said = [exit_words(code, None if signalled else run.killed_by)] if code else []
    first, how = first_to_die(run)
    if signalled:
        said.insert(0, f"interrupted by {signalled}")
    elif first and how.startswith(f" ({ASKED})"):
        said.append(f"{_who(run, first)} ended it by MPI_Abort{_after(run, first, last_step)}")
    elif len(first) > 1 and how.startswith(" ("):
        said.append(f"{_who(run, first)} ended alike{_after(run, first, last_step)}{how}")
    elif first:
        message = last_words(run).get(first[0], (0, ""))[1].partition(": ")[2]  # of the exception by which it ended
        said.append(f"{_who(run, first)} died first{_after(run, first, last_step)}{how}")
        said += [f"rank {first[0]} said: {message}"] if message else []
    elif len(gone):
        said.append(f"{_who(run, gone)} were killed or crashed{how or ', order unknown'}")
    killed, others = _out_of_memory(run)
    return "; ".join(said + killed + others), None if killed or signalled or not first else _to_do(run, first, how)


def _to_do(run: Run, ranks: Sequence[int], how: str) -> str:
    """What to look at where ranks died ``how``; where that is unknown, as their command did."""
    unknown = not how.startswith(" (")
    if how.startswith(" (SIGKILL)") or (unknown and run.killed_by == signal.SIGKILL):
        return f"see whether {_who(run, ranks)} ran out of memory: `dmesg -T` there, or the scheduler's limit"
    return f"read {'the traceback' if how.startswith(f' ({RAISED}') else 'the last output'} of {names(ranks)}"


def exit_words(code: int, killed_by: int | None) -> str:
    """``exit code 137 (SIGKILL)``; of the command itself, as -9: ``killed by signal 9 (SIGKILL)``."""
    name = f" ({signal.Signals(killed_by).name})" if killed_by in list(signal.Signals) else ""
    return f"killed by signal {-code}{name}" if code < 0 else f"exit code {code}{name}"


def _lost_node(run: Run) -> tuple[str, tuple[int, float]] | None:
    """The node with which contact was lost first, before the job's end; one of none of whose ranks an end was seen,
    and whose agent did not leave in order."""
    if run.job.source != Job.source or run.job.ended_ns is None or run.job.exit_code is None:
        return None
    silent = _silent(run, _left_at_work(run).keys() - set(run.job.left))
    return min(silent.items(), key=lambda one: one[1], default=None)


def _silent(run: Run, at_work: Iterable[str]) -> dict[str, tuple[int, float]]:
    """Which of these nodes were not heard until the job's end: their newest measurement, ns, and how long before, s; 0
    where the job has no end.

    An agent that can be reached measures once more after the end. One that leaves in order may be done a moment before.
    """
    end, heard = run.job.ended_ns if run.job.exit_code is not None else None, hang.last_heard(run)
    return {
        node: (last, 0.0 if end is None else max((end - last) / 1e9, 0.1))
        for node, last in ((node, heard.get(node, 0)) for node in at_work)
        if end is None or last < end - (LOOK_NS if node in run.job.left else 0)
    }


def _left_at_work(run: Run) -> dict[str, list[int]]:
    """The ranks of each node of which no end was seen, of none of whose ranks one was."""
    on = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))
    found: dict[str, list[int]] = {}
    for rank in run.rank_states["rank"].tolist():
        found.setdefault(on.get(rank, ""), []).append(rank)
    ended = {on.get(rank, "") for rank in run.rank_states["rank"][run.rank_states["life"] != RUNNING].tolist()}
    return {node: sorted(ranks) for node, ranks in found.items() if node and node not in ended}


def undelivered(run: Run) -> list[str]:
    """What the recording lacks of nodes whose agents did not send their last data: a sentence a node."""
    if run.job.source != Job.source or run.at_work:
        return []
    ranks, found = _left_at_work(run), []
    for node, (last_ns, seconds) in sorted(_silent(run, ranks).items()):
        at = f"{datetime.fromtimestamp(last_ns / 1e9, timezone.utc):%H:%M:%S} UTC"
        when = f"{seconds:.1f} s before the end of the job" if seconds else at
        found.append(f"{node}: its last data is of {when}: what {names(ranks[node])} did after that is missing")
    return found


def _gone(run: Run) -> list[int]:
    return sorted(run.rank_states["rank"][run.rank_states["life"] == VANISHED].tolist())


def first_to_die(run: Run) -> tuple[list[int], str]:
    """The ranks that died before the rest, or all where they ended alike, and what shows it; none where nothing does.

    The kernel tells agents of each end at once, and a rank's own last words come before its end.
    """
    ends = _ends(run)
    found = sorted(ends, key=lambda one: (not _was_killed_first(one, ends), one.time_ns))
    if not found or not (found[0].words or found[0].status not in _BY_LAUNCHERS):
        return _not_ended_by_launcher(run) or _missed_first(run)
    first, *rest = found
    if rest and _alike(found):
        apart = rest[0].time_ns - first.time_ns
        before = f", rank {first.rank} {_apart(apart)} before {names([one.rank for one in rest])}"
        before = before if apart >= _MOMENT_NS else ""
        return sorted(one.rank for one in found), f" ({_status(first.status)}){before}"
    words = first.words.partition(": ")[0] or _status(first.status)
    others = [one.rank for one in rest]
    after = f", {_apart(rest[0].time_ns - first.time_ns)} before {names(others)}" if rest else ""
    return [first.rank], (f" ({words})" if words else "") + after


def _alike(ends: Sequence[_End]) -> bool:
    """Whether all ranks ended by one exit code of their own before a launcher would have ended the others."""
    exited = all(not one.words and one.status is not None and os.WIFEXITED(one.status) for one in ends)
    times = [one.time_ns for one in ends]
    return exited and len({one.status for one in ends}) == 1 and max(times) - min(times) < LOOK_NS


def _was_killed_first(one: _End, ends: list[_End]) -> bool:
    """Whether a rank crashed or was killed before any that raised had left: these raised because their peer was gone.

    No launcher ends the others before the one that raised has left, unless that one asked for it.
    """
    raised = [each for each in ends if each.words]
    killed = one.status is not None and os.WIFSIGNALED(one.status) and os.WTERMSIG(one.status) not in _BY_LAUNCHERS
    asked = any(each.words == ASKED for each in raised)
    left_ns = min((each.left_ns for each in raised), default=-1)
    return killed and not one.words and not asked and one.time_ns <= left_ns


def _not_ended_by_launcher(run: Run) -> tuple[list[int], str] | None:
    """The one rank of which no end is known, where all others finished or were ended by SIGTERM: a launcher does
    that once one has died."""
    table, ended = run.rank_states, sorted(ended_by_launcher(run))
    unknown = table["rank"][(table["life"] != FINISHED) & (table["exit_status"] < 0)].tolist()
    return (unknown, f", its launcher ended {names(ended)}") if ended and len(unknown) == 1 else None


def _missed_first(run: Run) -> tuple[list[int], str]:
    """The ranks that an agent missed earlier than the others; of those that were gone in one check, the ones that had
    not entered what the others were waiting in. After a long wait that is a hang that was ended, not a death."""
    gone = _gone(run)
    if not gone:
        return [], ""
    when = dict(zip(run.rank_states["rank"].tolist(), run.rank_states["time_ns"].tolist(), strict=True))
    earliest = min(when[rank] for rank in gone)
    early = [rank for rank in gone if when[rank] < earliest + LOOK_NS]
    later = [rank for rank in gone if rank not in early]
    if later:
        return early, f", {(min(when[rank] for rank in later) - earliest) / 1e9:.1f} s before {names(later)}"
    if len(gone) == 1:
        return gone, ""
    stop = hang.find(run, float("nan"), replace(DEFAULT, hang_seconds=0.0))
    if stop is None or not stop.ranks or not set(stop.ranks) <= set(gone):
        return [], ""
    if stop.waited_ns >= DEFAULT.hang_timeout_ns(float("nan")):
        return [], f" while {names(stop.victims)} waited for {names(stop.ranks)}"
    whom = "it" if len(stop.ranks) == 1 else "them"
    where = f"{stop.op} number {stop.seq}" if stop.seq >= 0 else stop.op
    return list(stop.ranks), f": {names(stop.victims)} waited for {whom} in {where}"


#: What is shorter is a moment.
_MOMENT_NS = 1e5
#: Signals by which launchers and people end a process: which of several got one first says nothing.
_BY_LAUNCHERS = (None, signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
#: Last words that a probe writes as it is left: what is recorded as an interval of no length.
RAISED, ABORTED = "raised ", "mpi_abort"
INTERRUPTED, ASKED = "raised KeyboardInterrupt", "called MPI_Abort"


def ended_by_launcher(run: Run) -> set[int]:
    """The ranks that a signal ended which launchers send: not before the job's end."""
    return set(run.rank_states["rank"][np.isin(run.rank_states["exit_status"], _BY_LAUNCHERS[1:])].tolist())


class _End(NamedTuple):
    """How one rank ended: when, in its own words, and with which status (as waitpid has it)."""

    rank: int
    time_ns: int
    words: str
    status: int | None
    left_ns: float


def _ends(run: Run) -> list[_End]:
    """Ranks that did not end in order, of which it is known when they did."""
    said = last_words(run)
    table = run.rank_states
    columns = (table[name].tolist() for name in ("rank", "life", "ended_ns", "exit_status"))
    found = []
    for rank, life, ended_ns, status in zip(*columns, strict=True):
        time_ns, words = said.get(rank, (ended_ns, ""))
        known = status if status >= 0 else None
        if time_ns >= 0 and (words or life == VANISHED or known):
            began = min(time_ns, ended_ns) if ended_ns >= 0 else time_ns
            found.append(_End(rank, began, words, known, ended_ns if ended_ns >= 0 else float("inf")))
    return found


def last_words(run: Run) -> dict[int, tuple[int, str]]:
    """Rank to when and with which words it began to end: ``raised ValueError at train.py:88: "too large"``.

    The message is the job's, in one line without control characters, and in quotes, so that it cannot pass for a
    finding. An interrupt of several ranks was the job's own, a Ctrl-C or a launcher's.
    """
    table, found = run.intervals, dict[int, tuple[int, str]]()
    code, words = codes(table["name"])
    last = [place for place, word in enumerate(words) if word.startswith(RAISED) or word == ABORTED]
    wanted = np.flatnonzero(np.isin(code, last))
    in_full = dict(zip(run.rank_states["rank"].tolist(), run.rank_states["last_words"].tolist(), strict=True))
    for i in wanted[np.argsort(table["start_ns"][wanted], kind="stable")].tolist():
        word = words[int(code[i])]
        how, rank = ASKED if word == ABORTED else word, int(table["rank"][i])
        whole = in_full.get(rank, "")
        found.setdefault(rank, (int(table["start_ns"][i]), _quoted(whole if whole.startswith(how) else how)))
    interrupted = [rank for rank, (_, how) in found.items() if how.startswith(INTERRUPTED)]
    return found if len(interrupted) == 1 else {rank: found[rank] for rank in found if rank not in interrupted}


def _quoted(words: str) -> str:
    line = " ".join("".join(one if one.isprintable() else " " for one in words).split())
    how, colon, message = line.partition(": ")
    return f'{how}: "{message.replace(chr(34), chr(39))}"' if colon else how


def _status(status: int | None) -> str:
    """``SIGSEGV``, ``exit code 3``; empty if unknown."""
    if status is None:
        return ""
    number = os.waitstatus_to_exitcode(status & ~0x80)  # without the mark of a core dump
    if number >= 0:
        return f"exit code {number}"
    return signal.Signals(-number).name if -number in list(signal.Signals) else f"signal {-number}"


def _apart(ns: int) -> str:
    return f"{ns / 1e9:.1f} s" if ns >= 1e8 else f"{ns / 1e6:.1f} ms" if ns >= _MOMENT_NS else "a moment"


def _who(run: Run, ranks: Sequence[int]) -> str:
    """``rank 1 on vm``; nodes where they are few."""
    return f"{names(ranks)}{place(run, ranks).on}"


def _after(run: Run, ranks: Sequence[int], last_step: int | None) -> str:
    mine = np.isin(run.steps["rank"], ranks) & (run.steps["kind"] != "eval")
    step = int(run.steps["step"][mine].max()) if mine.any() else last_step
    return "" if step is None else f" after step {step}"


def _out_of_memory(run: Run) -> tuple[list[str], list[str]]:
    """What is said of nodes whose kernels killed because memory ran out: as ranks ended, and at other times.

    A node's count is of all that runs there. A process is gone a moment after it is killed.
    """
    during, apart = list[str](), list[str]()
    when = {one.rank: one.time_ns for one in _ends(run)}
    known, ends = bool(when) and when.keys() >= {*_gone(run)}, np.array([*when.values()], np.int64)
    for one in Metrics.of(run).series("hindmost_node_oom_kills_total") if rows(run.metrics) else ():
        since, until = one.times[:-1, None], one.times[1:, None] + LOOK_NS
        then = ((since <= ends) & (ends <= until)).any(axis=1) | (not known)
        counts = [int(np.diff(one.values)[mask].sum()) for mask in (then, ~then)]
        theirs, other = (f"kernel killed {count} process{'es' * (count > 1)}" for count in counts)
        during += [f"{one.node} ran out of memory: its {theirs}"] * (counts[0] > 0)
        apart += [f"{one.node}'s {other} because memory ran out, but not as a rank ended"] * (counts[1] > 0)
    return during, apart
