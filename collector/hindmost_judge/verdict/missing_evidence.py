"""What a run lacks that cannot be judged: the sentence for it, and how to get what is missing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_judge import dictionary_encoding, isolation
from hindmost_judge.detect import hang
from hindmost_judge.model import ERROR, NONBLOCKING, Job, rows
from hindmost_judge.script import script, split
from hindmost_judge.timeline import join
from hindmost_judge.timeline.operation_names import is_synchronising
from hindmost_judge.verdict.advice import in_python
from hindmost_judge.verdict.wording import names, percent

if TYPE_CHECKING:
    from hindmost_judge.blocks import Blocks
    from hindmost_judge.model import Run
    from hindmost_judge.settings import Settings


def insufficient(ranks: int, blocks: Blocks | None, settings: Settings, run: Run) -> tuple[str, str]:
    """What is missing, and how to get it."""
    job = run.job
    own = job.source == Job.source
    if ranks < 2 and not own:
        return _too_few_recorded(ranks, job)
    if ranks == 0:
        return _none_seen(job)
    if ranks == 1:
        return _one_seen(blocks, run)
    if blocks is None or len(blocks.steps) == 0:
        return (
            f"{ranks} ranks, but no step and no collective that repeats on two of them",
            _mark(run) if own else f"{job.source} did not record enough: record the job with `hindmost run -- COMMAND`",
        )
    of_which = "after warm-up" if blocks.warmup else "with start-up"
    few = f"{_count(len(blocks.steps), 'step')} {of_which}, of {ranks} ranks: too few to judge"
    return f"{few}{_so_far(blocks)}", _more(settings.min_steps, job)


#: Of fewer steps, and of a smaller share of them, it says nothing that one rank was waited for longest.
_FEW, _MOST = 3, 0.75


def _so_far(blocks: Blocks) -> str:
    """Who was waited for longest in most of a few steps; nothing where that was now one and now another."""
    if not blocks.collectives or len(blocks.steps) < _FEW:
        return ""
    often = np.bincount(np.argmax(blocks.caused, axis=0), minlength=len(blocks.ranks))
    most = int(np.argmax(often))
    if often[most] < _MOST * len(blocks.steps) or not blocks.caused[most].any():
        return ""
    return f"; others waited longest for rank {int(blocks.ranks[most])} in {int(often[most])} of them"


def _more(steps: int, job: Job) -> str:
    """How to get that many steps."""
    if job.source == Job.source:
        return f"let the job run for {steps} steps or more"
    found = f"record {steps} steps or more"
    if "Kineto" in (job.source or ""):  # start-up is in what a profiler saw
        return f"{found}: `torch.profiler.schedule(wait=1, warmup=1, active={steps + 2})`"
    return f"{found}: `hindmost run -- COMMAND`"


def polled(run: Run) -> tuple[str, str] | None:
    """What was seen where nonblocking collectives of which no wait is known are all there is; ``None`` where not."""
    if run.job.source != Job.source or not rows(run.collectives) or join.grid(run) is not None:
        return None
    code, operations = dictionary_encoding.codes(run.collectives["op"])
    meets = np.array([is_synchronising(name) for name in operations], bool)[code]
    started = int(np.count_nonzero(meets & ((run.collectives["flags"] & (NONBLOCKING | ERROR)) == NONBLOCKING)))
    if not started:
        return None
    calls = _count(started, "nonblocking collective call")
    python = "with hindmost.step():"
    return (
        f"{rows(run.ranks)} ranks, {calls}, and no wait of all ranks for one: which rank waits is not known",
        f"mark iterations (`{python}`)" if in_python(run) else "complete them by MPI_Wait or MPI_Waitall, not MPI_Test",
    )


def _mark(run: Run) -> str:
    """How the steps of a job are recognised."""
    if in_python(run):
        return "write `for batch in hindmost.steps(loader):`, or `with hindmost.step():` around each iteration"
    return "run collectives in each iteration: steps are found by collectives that repeat"


def _one_seen(blocks: Blocks | None, run: Run) -> tuple[str, str]:
    """Why one rank is too few, and what would show the others."""
    job = run.job
    of_all = f" of {job.world_size}" if (job.world_size or 0) > 1 else ""
    alone = f"one rank{of_all} was seen: no other rank to compare it with"
    if of_all:
        return alone, "let the others inherit this command's environment (sudo, ssh and containers drop it)"
    if blocks is None or len(blocks.steps) == 0:
        return f"{alone}, and no step was recognised", f"run more than one rank; {_mark(run)}"
    return alone, "run more than one rank"


def _too_few_recorded(ranks: int, job: Job) -> tuple[str, str]:
    """What is missing where the files are of one rank, or of none."""
    if ranks == 0:
        return (
            f"{job.source} alone: no rank's collectives or steps",
            "add what the ranks recorded to the folder, or record the job with `hindmost run -- COMMAND`",
        )
    of_all = f" of {job.world_size}" if (job.world_size or 0) > 1 else ""
    return (
        f"one rank{of_all} is recorded here: no other rank to compare it with",
        "name the folder that holds the files of all ranks",
    )


def patternless(run: Run, settings: Settings) -> tuple[tuple[str, ...], str] | None:
    """What is known where ranks met in collectives without a pattern; ``None`` where they met too rarely.

    The last rank is reported, and not named: without steps it is unknown whether that matters.
    """
    joined = join.grid(run)
    if joined is None or len(joined.ranks) < 2 or joined.columns < settings.min_steps:
        return None
    met = f"{joined.columns:,} collectives of {len(joined.ranks)} ranks"
    found = [f"{met}, in no pattern that repeats: where a step ends is not known"]
    whole = joined.duration[:, ~np.isnan(joined.duration).any(axis=0)]
    if joined.group.shape[1] == 1 and len(np.unique(joined.group)) == 1 and whole.shape[1] >= settings.min_steps:
        last = np.bincount(np.argmin(whole, axis=0), minlength=len(joined.ranks)) / whole.shape[1]
        most = int(np.argmax(last))
        if last[most] >= settings.min_latest:
            found.append(
                f"rank {int(joined.ranks[most])} is last in {percent(last[most])} of them, at an unknown cost per step"
            )
    own = run.job.source == Job.source
    return tuple(found), _mark(run) if own else "add a log of the steps, or record it with `hindmost run -- COMMAND`"


def of_dumps(run: Run) -> tuple[str, str] | None:
    """What dumps of the operations that were open show of a job that had not stopped; ``None`` without any."""
    if "Flight Recorder" not in (run.job.source or "") or rows(run.ranks) < 2:
        return None
    slow = "to find a slow rank, record the job with `hindmost run -- COMMAND`"
    seen = f"the dumps of {rows(run.ranks)} ranks"
    if not rows(run.in_flight):
        return f"{seen} have no open operation: no rank waited in one then", slow
    moment = hang.of_a_moment(run)
    if moment is None:
        return f"the operations open in {seen} do not show which rank is late", slow
    who = f"{names(moment.victims)} {'is' if len(moment.victims) == 1 else 'are'} in {moment.op} number {moment.seq}"
    return (
        f"{who}, {names(moment.ranks)} not yet: the dumps came too soon after to call it a hang",
        f"write the dumps again half a minute later: what is still open hangs; {slow}",
    )


#: What to look at where ``hindmost run`` saw no rank, and nothing says why.
_INHERIT = (
    "let ranks inherit this command's environment (sudo, ssh and containers drop it)."
    " `hindmost doctor` says what can be seen here"
)

#: The same where the probe was in a process all the same.
_UNTRAINED = (
    "write `with hindmost.step():` around each iteration."
    " If another process trains, let it inherit this command's environment (sudo, ssh and containers drop it)"
)


def _none_seen(job: Job) -> tuple[str, str]:
    """Why no rank was seen, as far as is known, and what helps. ``hindmost run`` alone says what the command was."""
    if job.no_ring:
        return f"no rank was seen: {job.no_ring}", "make room in /dev/shm, or give the container more (--shm-size=1g)"
    if job.command is None:
        return (
            "no rank was seen",
            "put `hindmost run --` before the command that starts the ranks; `hindmost doctor` says what can be seen",
        )
    if job.exit_code:
        return f"no rank was seen before the job {_end(job)}", _after_end(job)
    if job.entered:
        seen = "a Python process loaded the probe, but ran no known step or collective"
        return f"no rank was seen: {seen}", _UNTRAINED
    isolated = isolation.option(split(job.command))
    if isolated:
        return "no rank was seen", isolation.remedy(*isolated)
    called = (script(split(job.command)) or job.command).rpartition("/")[2]
    return f"no MPI, NCCL or Python step was seen in {called}", _INHERIT


def ended_early(run: Run, steps: int) -> tuple[str, str]:
    """What was recorded of a job that failed, or was interrupted, before there was enough to judge.

    ``steps`` are those that were recognised.
    """
    counted = len(np.unique(run.steps["step"])) if rows(run.steps) else steps
    calls = rows(run.collectives)
    found = [_count(counted, "step")] if counted else []
    found += [_count(calls, "collective call")] if calls else []
    recorded = " and ".join(found) or "no step and no collective"
    ranks = rows(run.ranks)
    few = "no other rank to compare it with" if ranks == 1 else "too few to judge"
    were = "were" if len(found) > 1 or max(counted, calls) > 1 else "was"
    return (
        f"{recorded} of {_count(ranks, 'rank')} {were} recorded before the job {_end(run.job)}: {few}",
        _after_end(run.job),
    )


def _end(job: Job) -> str:
    return "was interrupted" if job.interrupted_by else "failed"


def _after_end(job: Job) -> str:
    """What to do about a job that failed, or was interrupted, too early."""
    return "let the job run for longer" if job.interrupted_by else "read the job's own output"


def _count(number: int, what: str) -> str:
    """``1 step``, ``3 steps``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
