"""Whether a recording decides: inconclusive verdicts, which neither name nor clear a rank, and what would decide.

Without launch times, a rank that is late may only have lost its host's lead. Hosts that launch for nearly all of a step
are equally slow, each some steps ahead of its GPU. After a stall a rank comes last for tens of steps, until it has
caught up; then it is another's turn. So it was in healthy jobs on 2 and 4 H200s. From durations alone, a rank computes
longer only if it is late throughout, or if it is the only late one.

Of an excerpt of a recording, findings are of the steps that were read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from hindmost_judge import communication, job_command
from hindmost_judge.blocks import Blocks
from hindmost_judge.causes import cpu_wait
from hindmost_judge.detect import hang
from hindmost_judge.encoding import codes
from hindmost_judge.job_command import script, split
from hindmost_judge.model import AMOUNTS, ERROR, NONBLOCKING, PHASES, Job, Run, rows
from hindmost_judge.settings import Settings
from hindmost_judge.stats.robust import average, mean, median, or_zero
from hindmost_judge.timeline import build_blocks, matching, phases
from hindmost_judge.timeline.collective_calls import is_synchronising
from hindmost_judge.timeline.messages import messages_a_step
from hindmost_judge.types import Array, Floats
from hindmost_judge.verdict import missing_ranks
from hindmost_judge.verdict.advice import by_torch, in_python
from hindmost_judge.verdict.schema import LATE, STOPS, UNSURE, Verdict, insufficient
from hindmost_judge.verdict.wording import ALONE, NONE_SEEN, OLDER, ONE_ANSWER, are, attach, ms, names, percent
from hindmost_judge.whatif import savings


def no_measure(blocks: Blocks) -> Verdict:
    """Waits without the length of a step to weigh them against."""
    most = int(np.argmax(or_zero(blocks.caused).mean(axis=1)))
    return insufficient(
        f"rank {int(blocks.ranks[most])} is last most often; the length of a step, and so its cost, is not recorded",
        advice="record when operations start, too, or add a log of the steps",
    )


def nothing_inside(blocks: Blocks) -> Verdict:
    """Steps alike long, and not a word on what is in them: that may be a wait or work."""
    own = median(blocks.self_time, axis=1)
    took = f"a step takes {ms(float(own.min()))} to {ms(float(own.max()))} on these {len(own)} ranks"
    mark = 'mark the parts of a step: `with hindmost.phase("input"):`'
    remedy = f"{mark}; `hindmost doctor` says which collectives it can see"
    return insufficient(f"{took}; no collective and no phase was seen", advice=remedy)


def passed_on(blocks: Blocks) -> Verdict:
    """Stages that only send to each other, of which no two hold the same layers."""
    return insufficient(
        f"all {len(blocks.ranks)} ranks are stages of one pipeline, each with its own layers: none has a peer",
        advice="compare the kernels of the stages in a profiler, without receives",
    )


#: A wait that work does not explain matters from this share of a step on; ranks that cause this share of what the most
#: costly one does cause it together.
_WAITED, _AS_MUCH = 0.05, 0.5
#: If less than this share of the steps is in any phase, of any rank, no rank is cleared: its work may be elsewhere.
#: Phases that a probe marks are 0.9 and more of a step; in a log without the forward they were 0.7.
_SEEN = 0.75


def little_inside(run: Run, blocks: Blocks) -> Verdict | None:
    """Steps of which the phases that were seen are the lesser part; ``None`` where they tell most of it."""
    took = blocks.took if blocks.took is not None else np.full(blocks.self_time.shape, np.nan)
    share = float(np.nanmin(median(phases.named_share(blocks.parts, took), axis=1), initial=1.0))
    if not share < _SEEN:
        return None
    seen = ", ".join(name for name in blocks.parts if name in PHASES and name not in AMOUNTS)
    return insufficient(
        f"the phases seen ({seen}) cover {percent(share)} of a step of {ms(blocks.step_ns)}; no rank is slow in them",
        advice='write `with hindmost.phase("forward"):` around what it computes'
        if run.job.source == Job.source
        else "record the rest with `hindmost run -- COMMAND`; `hindmost.phase(NAME)` marks a phase",
    )


#: If some rank did nothing in its phases of work for at least this share of the steps, no rank is cleared: it may have
#: waited there for others. Ranks that work use all of their time, and more with several threads.
_IDLE = 0.1
#: What a rank does in a step that is no wait for others.
_ACCOUNTED = ("input", "checkpoint", "cpu", "runqueue")


def idle_inside(blocks: Blocks) -> Verdict | None:
    """Phases of work in which a rank did nothing, where no wait for others was seen; ``None`` where they say more.

    The time in no input and no checkpoint, less the CPU time of the rank's threads and the wait for a CPU. A GPU's
    phases tell its work themselves.
    """
    parts = blocks.parts
    if "cpu" not in parts or blocks.took is None or any(name == "sync" or name.startswith("gpu_") for name in parts):
        return None
    used = np.sum([or_zero(parts[name]) for name in _ACCOUNTED if name in parts], axis=0)
    idle = np.where(np.isnan(parts["cpu"]), np.nan, 1.0 - used / blocks.took)
    known = ~np.isnan(idle).all(axis=1)
    share = float(np.max(median(idle[known], axis=1), initial=0.0))
    if not share >= _IDLE:
        return None
    return insufficient(
        f"a rank used no CPU for {percent(share)} of a step of {ms(blocks.step_ns)}; it may have waited for others",
        advice=f"mark where ranks meet: `hindmost.phase('sync')`; while it runs, see where they are: {attach()}",
    )


def exchanging_inside(run: Run, blocks: Blocks) -> Verdict | None:
    """Phases that hold sends and receives in an unknown order; ``None`` where there are none in most steps.

    A slow rank makes these longer on all ranks that it exchanges with, so that no rank's phases show which it is.
    """
    often = messages_a_step(run, np.tile(blocks.steps, len(blocks.ranks)))
    if often < 1:
        return None
    return insufficient(
        f"{often:.0f} sends and receives per step are inside phases: a slow rank makes those of all ranks longer",
        advice="record waits in collectives, too: a profiler's trace of some steps has them",
    )


def without_starts(blocks: Blocks) -> Verdict | None:
    """Several groups that meet at unknown times; ``None`` where self time is known, or all ranks meet in one."""
    grid = blocks.joined
    if grid is None or blocks.overlapped or not np.isnan(grid.start).all() or not np.isnan(grid.self_time).all():
        return None
    return insufficient(
        "ranks meet in several groups, and only durations are recorded: a wait in one can cause a delay in the next",
        advice="record starts, too: `hindmost run -- COMMAND`, or NCCL Inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1",
    )


def late_in_messages(blocks: Blocks) -> Verdict | None:
    """Ranks that others wait for by more than differences in work explain, after messages; ``None``: no such wait."""
    if blocks.joined is None or blocks.pipeline is not None or not blocks.joined.peer_wait.any():
        return None
    waits, explained = average(blocks.wait), savings.imbalance_cost(blocks)
    if waits - explained < _WAITED * average(blocks.period):
        return None
    caused = or_zero(mean(blocks.caused))
    last = names(blocks.ranks[caused >= _AS_MUCH * caused.max()].tolist())
    return insufficient(
        f"ranks wait {ms(waits)} per step, mostly for {last} after messages; different work explains {ms(explained)}",
        advice=f"compare the links of {last} with others'; while it runs: {attach()}",
    )


#: Ranks that wait by polling are on a CPU, or queue for one, for all of the time but this share.
_POLLING = 0.02


def off_the_cpu(blocks: Blocks) -> Verdict | None:
    """One rank that neither ran nor queued for a CPU while others, which poll, waited; ``None``: no such rank.

    Noise of the scheduler hides in delays when it was so, and not how long in all.
    """
    cpu, queued = blocks.gauge("cpu"), blocks.gauge("runqueue")
    if cpu is None or queued is None or cpu_wait.on_gpus(blocks):
        return None
    off = 1.0 - cpu - queued
    row = int(np.argmax(off))
    others, met = (np.delete(one, row) for one in (off, mean(or_zero(blocks.wait + blocks.transfer))))
    polling = np.abs(others).max() <= _POLLING and met.min() >= off[row] * average(blocks.period)
    if not (polling and off[row] >= _WAITED):  # NaN too
        return None
    who = f"rank {int(blocks.ranks[row])}"
    found = f"{who} neither ran nor waited for a CPU for {percent(off[row])} of the time, its peers never"
    return insufficient(
        f"{found}: it was blocked or stopped",
        advice=f"look for signals and debuggers that stop {who} (`ps` shows T); while it runs: {attach()}",
    )


def despite_exchanges(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What holds of verdicts by phases that hold sends and receives: of a rank named, what it was seen to do itself."""
    if blocks is None or blocks.evidence != build_blocks.PHASES or blocks.pipeline is not None:
        return found
    if not any(verdict.ranks for verdict in found) or exchanging_inside(run, blocks) is None:
        return found
    return [
        verdict
        for verdict in found
        if not verdict.ranks or verdict.kind in STOPS or verdict.cause in missing_ranks.ITS_OWN
    ]


def few_collectives(blocks: Blocks) -> Verdict:
    """Waits inside of phases that are not judged, as a window holds too few steps of the collectives."""
    seen = "no rank is slow in its phases; waits inside of them are not judged live: memory holds the collectives of"
    until = "compare `hindmost_rank_caused_wait_seconds_total`"
    return insufficient(
        f"{seen} {len(blocks.ranks):,} ranks for too few steps",
        advice=f"the report after the run judges all collectives; until then {until}",
    )


def hosts_unmarked(blocks: Blocks, settings: Settings) -> Verdict | None:
    """A GPU that waits for its host, of which nothing tells that it is slower than the others'; ``None``: none does."""
    if blocks.unsure is None or not float(np.max(blocks.unsure)) >= settings.min_effect * blocks.step_ns:
        return None
    row = int(np.argmax(blocks.unsure))
    late = f"rank {int(blocks.ranks[row])} arrives {ms(float(np.max(blocks.unsure)))} late per step"
    seen, remedy = (
        "its GPU waits for its CPU to launch work",
        "add a log of the steps (when each begins, has its input and is launched)",
    )
    if blocks.joined is not None and not (blocks.joined.enqueue[row] > 0).any():
        seen, remedy = "its kernel launches were not recorded", "record when each operation was enqueued, on every rank"
    remedy = f"{remedy}; `hindmost run -- COMMAND` records it"
    return insufficient(f"{late}; {seen}: a slow CPU, or others a step ahead", advice=remedy)


def too_little(run: Run, blocks: Blocks | None, settings: Settings) -> Verdict:
    """Too little was seen; what is missing, and how to get it."""
    ranks, own = len(blocks.ranks) if blocks is not None else rows(run.ranks), run.job.source == Job.source
    if run.job.exit_code and ranks:
        return _ended_early(run, blocks)
    if blocks is None:
        known = _patternless(run, settings) or (ranks > 1 and (polled(run) or _of_dumps(run) or _of_ras(run)))
        if known:
            return known
    if ranks < 2:
        return (_one_seen(blocks, run) if ranks else _none_seen(run.job)) if own else _too_few_recorded(ranks, run.job)
    if blocks is None and run.at_work and not rows(run.steps) and rows(run.collectives) < ranks * settings.min_steps:
        wait = f"wait for the first {settings.min_steps} steps; if none come, {_mark(run)}"
        return insufficient(f"{ranks} ranks, no step yet", advice=wait)
    if blocks is None or len(blocks.steps) == 0:
        found = f"{ranks} ranks, but no step, no collective that repeats on two of them, and messages form no steps"
        do = _mark(run) if own else "record the job with `hindmost run -- COMMAND`"
        if farm := _in_calls(run):
            found, do = f"{found}; {farm}", "compare the workers: the one with the least time in calls works most"
        return insufficient(found, advice=do)
    of_which = "after warm-up" if blocks.warmup else "with start-up"
    steps = f"{_count(len(blocks.steps), 'step')} {of_which}, of {ranks} ranks: too few to judge"
    return insufficient(f"{steps}{_so_far(blocks)}", advice=_more(settings.min_steps, run.job))


def _in_calls(run: Run) -> str:
    """Who waits in calls while all others work, as a master does; nothing where several wait, or all do alike."""
    ranks = np.unique(run.ranks["rank"])
    shares = communication.share_of_time(run, ranks)
    most = float(np.nanmax(shares, initial=0.0))
    work, wait = ranks[shares < most / 2].tolist(), ranks[shares >= most / 2].tolist()
    if len(wait) != 1 or len(work) < 2:
        return ""
    return f"{names(wait)} waits in calls for {percent(most)} of the time, as a master does; {names(work)} work"


#: Of fewer steps, and of a smaller share of them, it says nothing that one rank was waited for longest.
_LEAST_STEPS, _MOST = 3, 0.75


def _so_far(blocks: Blocks) -> str:
    """Who was waited for longest in most of a few steps; nothing where that was now one and now another."""
    if not blocks.collectives or len(blocks.steps) < _LEAST_STEPS:
        return ""
    often = np.bincount(np.argmax(blocks.caused, axis=0), minlength=len(blocks.ranks))
    most = int(np.argmax(often))
    if often[most] < _MOST * len(blocks.steps) or not blocks.caused[most].any():
        return ""
    return f"; others waited longest for rank {int(blocks.ranks[most])} in {int(often[most])} of them"


def _more(steps: int, job: Job) -> str:
    if job.source == Job.source:
        return f"let the job run for {steps} steps or more"
    found = f"record {steps} steps or more"
    if "Kineto" in (job.source or ""):  # start-up is in what a profiler saw
        return f"{found}: `torch.profiler.schedule(wait=1, warmup=1, active={steps + 2})`"
    return f"{found}: `hindmost run -- COMMAND`"


def polled(run: Run) -> Verdict | None:
    """What was seen where nonblocking collectives of which no wait is known are all there is; ``None`` where not."""
    if run.job.source != Job.source or not rows(run.collectives) or matching.grid(run) is not None:
        return None
    code, operations = codes(run.collectives["op"])
    meets = np.array([is_synchronising(name) for name in operations], bool)[code]
    started = int(np.count_nonzero(meets & ((run.collectives["flags"] & (NONBLOCKING | ERROR)) == NONBLOCKING)))
    if not started:
        return None
    marks = "mark iterations (`with hindmost.step():`)"
    calls = f"{rows(run.ranks)} ranks, {_count(started, 'nonblocking collective call')}"
    return insufficient(
        f"{calls}, and no wait of all ranks for one: which rank waits is not known",
        advice=marks if in_python(run) else "complete them by MPI_Wait or MPI_Waitall, not MPI_Test",
    )


def _mark(run: Run) -> str:
    if in_python(run):
        loop = "`for batch in hindmost.steps(loader):`, or " if by_torch(run) else ""
        return f"write {loop}`with hindmost.step():` around each iteration"
    return "call the same collective in each iteration: it shows where a step ends"


def _one_seen(blocks: Blocks | None, run: Run) -> Verdict:
    of_all = f" of {run.job.world_size}" if (run.job.world_size or 0) > 1 else ""
    alone = f"one rank{of_all} was seen: {ALONE}"
    do = "see what limits it, and any settings to try: `hindmost report RUN --sections limits,advice`"
    if of_all:
        do = "let the others inherit this command's environment (sudo, ssh and containers drop it)"
    elif blocks is None or len(blocks.steps) == 0:
        alone, do = f"{alone}, and no step was recognised", f"run more than one rank; {_mark(run)}"
    return insufficient(alone, advice=do)


def _too_few_recorded(ranks: int, job: Job) -> Verdict:
    of_all = f" of {job.world_size}" if (job.world_size or 0) > 1 else ""
    found, do = f"one rank{of_all} is recorded here: {ALONE}", "name the folder that holds the files of all ranks"
    if ranks == 0:
        found = f"{job.source} alone: no rank's collectives or steps"
        do = "add what the ranks recorded to the folder, or record the job with `hindmost run -- COMMAND`"
    return insufficient(found, advice=do)


def _patternless(run: Run, settings: Settings) -> Verdict | None:
    """What is known where ranks met in collectives without a pattern; ``None`` where they met too rarely.

    The last rank is reported, and not named: without steps it is unknown whether that matters.
    """
    joined = matching.grid(run)
    if joined is None or len(joined.ranks) < 2 or joined.columns < settings.min_steps:
        return None
    met = f"{joined.columns:,} collectives of {len(joined.ranks)} ranks"
    found = [f"{met}, in no regular pattern: where a step ends is not known"]
    whole = joined.duration[:, ~np.isnan(joined.duration).any(axis=0)]
    if joined.group.shape[1] == 1 and len(np.unique(joined.group)) == 1 and whole.shape[1] >= settings.min_steps:
        last = np.bincount(np.argmin(whole, axis=0), minlength=len(joined.ranks)) / whole.shape[1]
        most = int(np.argmax(last))
        if last[most] >= settings.min_latest:
            found.append(
                f"rank {int(joined.ranks[most])} is last in {percent(last[most])} of them, at an unknown cost per step"
            )
    own = run.job.source == Job.source
    remedy = _mark(run) if own else "add a log of the steps, or record it with `hindmost run -- COMMAND`"
    return insufficient(*found, advice=remedy)


def _of_dumps(run: Run) -> Verdict | None:
    """What dumps of the operations that were open show of a job that had not stopped; ``None`` without any."""
    if "Flight Recorder" not in (run.job.source or "") or rows(run.ranks) < 2:
        return None
    seen, moment = f"the dumps of {rows(run.ranks)} ranks", hang.of_a_moment(run)
    if not rows(run.in_flight):
        return insufficient(f"{seen} have no open operation: no rank waited in one then", advice=_FOR_A_SLOW_RANK)
    if moment is None:
        return insufficient(f"the operations open in {seen} do not show which rank is late", advice=_FOR_A_SLOW_RANK)
    inside = are(moment.victims, f"is in {moment.op} number {moment.seq}")
    return insufficient(
        f"{inside}, {names(moment.ranks)} not yet: the dumps came too soon after to call it a hang",
        advice=f"write the dumps again half a minute later: what is still open hangs; {_FOR_A_SLOW_RANK}",
    )


#: What a recording of open operations or of counts does not have.
_FOR_A_SLOW_RANK = "to find a slow rank, record the job with `hindmost run -- COMMAND`"


def _of_ras(run: Run) -> Verdict | None:
    """What counts of collectives show where no rank was seen to wait; ``None`` without answers of NCCL's RAS."""
    if "NCCL RAS" not in (run.job.source or ""):
        return None
    seen = f"NCCL RAS counted the collectives of {rows(run.ranks)} ranks"
    if ONE_ANSWER not in run.notes:
        return insufficient(f"{seen}: no rank waited from one answer to the next", advice=_FOR_A_SLOW_RANK)
    again = f"keep a second answer 2 s later: it shows whether the job hangs; {_FOR_A_SLOW_RANK}"
    return insufficient(f"{seen} at one moment", advice=again)


#: What makes a process a rank.
_LOOKED_FOR = (
    "a rank calls MPI (under mpirun or srun), NCCL, torch.distributed or Horovod, or makes steps."
    " PyTorch, Keras, Lightning and `hindmost.step()` make steps"
)
#: What to look at where ``hindmost run`` saw no rank, and nothing says why.
_INHERIT = (
    "let ranks inherit this command's environment (sudo, ssh and containers drop it)."
    " `hindmost doctor` says what can be seen here"
)

#: The same where the probe was in a process all the same.
_UNTRAINED = (
    "if the job is one process, mark its steps: `import hindmost`, and `with hindmost.step():` around each iteration."
    " Start a lone MPI process with `mpirun -np 1`."
    " If another process trains, it needs this command's environment: sudo, ssh and containers drop it"
)


def _none_seen(job: Job) -> Verdict:
    """Why no rank was seen, as far as is known, and what helps. ``hindmost run`` alone says what the command was."""
    if job.no_ring:
        room = "make room in /dev/shm, or give the container more (--shm-size=1g)"
        return insufficient(f"{NONE_SEEN}: {job.no_ring}", advice=room)
    if job.command is None:
        start = "put `hindmost run --` before the command that starts the ranks"
        return insufficient(NONE_SEEN, advice=f"{start}; `hindmost doctor` says what can be seen")
    if job.exit_code:
        end, do = _failed(job)
        return insufficient(f"{NONE_SEEN} before the job {end}", advice=do)
    isolated = None if job.entered else job_command.isolating_option(split(job.command))
    if isolated:
        return insufficient(NONE_SEEN, advice=job_command.isolation_remedy(*isolated))
    called = (script(split(job.command)) or job.command).rpartition("/")[2]
    after = f" after {(job.ended_ns - job.started_ns) / 1e9:.1f} s" if job.started_ns and job.ended_ns else ""
    seen = f"{called} ended{after}" + " without a step or a collective that is known" * job.entered
    return insufficient(f"{NONE_SEEN}: {seen}", _LOOKED_FOR, advice=_UNTRAINED if job.entered else _INHERIT)


def _ended_early(run: Run, blocks: Blocks | None) -> Verdict:
    """What was recorded of a job that failed, or was interrupted, before there was enough to judge."""
    recognised = len(blocks.steps) + blocks.warmup if blocks is not None else 0
    counted = len(np.unique(run.steps["step"])) if rows(run.steps) else recognised
    calls, ranks = rows(run.collectives), rows(run.ranks)
    found = [_count(number, what) for number, what in ((counted, "step"), (calls, "collective call")) if number]
    were = "were" if len(found) > 1 or max(counted, calls) > 1 else "was"
    why, (end, do) = ALONE if ranks == 1 else "too few to judge", _failed(run.job)
    recorded = f"{' and '.join(found) or 'no step and no collective'} of {_count(ranks, 'rank')} {were} recorded"
    return insufficient(f"{recorded} before the job {end}: {why}", advice=do)


def _failed(job: Job) -> tuple[str, str]:
    """How a job ended too early, and what to do about that."""
    if job.interrupted_by:
        return "was interrupted", "let the job run for longer"
    return "failed", "read the job's own output"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


#: A rank that is late in so large a share of the steps is late throughout: no lead lasts for that, and none that took
#: its turn after another rank is late for as long.
_THROUGHOUT = 0.8
#: In a smaller share of them than this a rank is late by chance, or for one stall.
_SELDOM = 0.125

#: What remains of a rank's delay may be a lead if this many times as much was one.
_MOSTLY = 0.5

#: Most segments of the steps that are reported.
_SHOWN = 4

_REMEDY = (
    "record launches and a log of the steps: `hindmost run -- COMMAND`,"
    " or NCCL Inspector with NCCL_INSPECTOR_DUMP_VERBOSE=1"
)


def without_lost_leads(found: list[Verdict], blocks: Blocks | None) -> list[Verdict]:
    """These verdicts without ranks that may be late because their hosts lost their lead; the reason, if none is
    left."""
    if blocks is None or blocks.joined is None or not blocks.joined.gpu_time:
        return found
    no_starts = bool(np.isnan(blocks.joined.start).all())
    unsure = [] if blocks.unsure is None else blocks.ranks[blocks.unsure > 0].tolist()  # hosts that marked nothing
    late = [
        verdict
        for verdict in found
        if verdict.kind in LATE and verdict.ranks and (no_starts or not set(verdict.ranks).isdisjoint(unsure))
    ]
    persistent = [verdict for verdict in late if verdict.kind == "straggler"]
    throughout = {
        ranks
        for ranks in {verdict.ranks for verdict in persistent}
        if _steps_of(blocks, *(one for one in persistent if one.ranks == ranks)).mean() >= _THROUGHOUT
    }
    leads = [one for one in late if one.ranks in throughout or not _may_be_a_lead(one, late, blocks)]
    if len(leads) == len(late):
        return found
    left = [verdict for verdict in found if verdict not in late or verdict in leads]
    return left or [_late_in_turn(late)]


def _may_be_a_lead(one: Verdict, late: Sequence[Verdict], blocks: Blocks) -> bool:
    """Whether what a verdict says of its ranks may be said of any rank whose host has no lead.

    Hosts that gather parameters launch far more than others, and are what such a job waits for at times: there one
    rank that is late for a while is doubtful, too; so is one most of whose delay was taken for others' lead.
    """
    if len({verdict.ranks for verdict in late}) > 1 or _steps_of(blocks, one).mean() < _SELDOM:
        return True
    gathers = blocks.joined is not None and int(blocks.joined.gathers.sum()) >= len(blocks.steps)  # in most steps
    mostly, named = False, np.isin(blocks.ranks, one.ranks)
    if blocks.unsure is not None:
        left = np.maximum(or_zero(blocks.delay[named]), 0.0).mean(axis=1)
        mostly = bool((blocks.unsure[named] >= _MOSTLY * left).any())
    return bool(_steps_of(blocks, *late).mean() < _THROUGHOUT) and (gathers or mostly)


def _steps_of(blocks: Blocks, *late: Verdict) -> Array:
    """[S] the steps that any of these verdicts holds of."""
    mask = np.zeros(len(blocks.steps), bool)
    for one in late:
        mask[slice(*savings.span_of(one, blocks))] = True
    return mask


def _late_in_turn(late: Sequence[Verdict]) -> Verdict:
    spans = [(one, "on" if one.until_step is None else f"to {one.until_step}") for one in late[:_SHOWN]]
    found = "; ".join(f"{names(one.ranks)} from step {one.since_step or 0} {end}" for one, end in spans)
    who = "ranks are late in turn"
    if len({verdict.ranks for verdict in late}) == 1:
        who = "one rank is late in a part of the steps"
    unknown = "launches were not recorded: more work, or a CPU that was behind for a while"
    return insufficient(f"{who}: {found}", unknown, advice=_REMEDY)


#: If most of a rank's events were lost, no rank is cleared and no limit named: what was not read may differ.
_MOST_LOST = 0.5


def _lost_shares(run: Run) -> Floats:
    """[R] shares of the events of ranks that were lost before they were read; -1 events: not known."""
    lost, total = (run.rank_states[name] for name in ("events_lost_total", "events_total"))
    return np.asarray(np.clip(lost / np.maximum(total, 1), 0.0, 1.0))


def mostly_lost(run: Run) -> bool:
    """Whether most of one rank's events were."""
    return bool(_lost_shares(run).max(initial=0.0) >= _MOST_LOST)


def with_lost_events(found: Sequence[Verdict], run: Run) -> tuple[list[Verdict], list[str]]:
    """The verdicts, each less sure by the largest share of a rank's events that was lost before it was read; a note."""
    lost, total = (run.rank_states[name] for name in ("events_lost_total", "events_total"))
    shares = _lost_shares(run)
    if not shares.any():
        return list(found), []
    worst = int(np.argmax(shares))
    share = float(shares[worst])
    seen = (
        f"{int(lost[worst]):,} of {int(total[worst]):,} events of rank {int(run.rank_states['rank'][worst])}"
        f" ({percent(share)}) were overwritten before the agent read them"
    )
    remedy = "raise HINDMOST_RING_CAPACITY"
    if share >= _MOST_LOST and any(one.kind == "balanced" for one in found):
        return [insufficient(f"{seen}: which rank is slow is not known", advice=remedy)], []
    sure = max(1.0 - share, UNSURE)
    return [
        one if one.kind in STOPS or one.confidence is None else replace(one, confidence=min(one.confidence, sure))
        for one in found
    ], [f"{seen}: {remedy}"]


#: A change is reported up to this many steps away from where it was: noise moves it.
_NEAR = 2


def with_unread_steps(found: Sequence[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """The verdicts, with how far each is known; as they are where all was read."""
    if blocks is None or not len(blocks.steps):
        return list(found)
    if run.job.skipped_ns is None:
        running = run.job.source == Job.source and run.job.ended_ns is None and run.job.exit_code is None
        return [_from_the_edge(verdict, blocks) for verdict in found] if running else list(found)
    read, every = len(blocks.steps) + blocks.warmup, run.job.steps
    share = f"{read:,} of {every:,} steps ({percent(read / every)})" if every else "some steps"
    line = f"{share} were read and judged; the others may differ"
    said = [(line, *one.evidence) if one.kind == "balanced" else (*one.evidence, *_dates(one, blocks)) for one in found]
    return [replace(one, evidence=lines) for one, lines in zip(found, said, strict=True)]


def _dates(one: Verdict, blocks: Blocks) -> Iterator[str]:
    """Between which steps it began, and ended, where those there were not read."""
    for what, step in (("began", one.since_step), ("ended", one.until_step)):
        at = int(np.searchsorted(blocks.steps, step or 0))
        near = blocks.steps[max(at - _NEAR - 1, 0) : at + _NEAR + 1]
        gaps = np.diff(near)
        if step and gaps.max(initial=1) > 1:
            low, high = near[gaps.argmax()] + 1, near[gaps.argmax() + 1] - 1
            unread = f"{low} to {high} were not read"
            yield f"it {what} between steps {min(low - 1, step)} and {max(high + 1, step)}: {unread}"


def _from_the_edge(one: Verdict, blocks: Blocks) -> Verdict:
    """Of a job that is watched for longer than the window remembers: what begins with the window may be older."""
    near = blocks.steps[: _NEAR + 1]
    if one.since_step is None or one.since_step == 0 or not near[0] <= one.since_step <= near[-1]:
        return one
    return replace(
        one, evidence=(*one.evidence, f"{OLDER} {int(near[0])} are no longer in memory: it may have begun earlier")
    )
