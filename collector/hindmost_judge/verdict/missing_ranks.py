"""Verdicts where a part of the ranks, or of what they did, is missing: what still holds, and what is unknown.

- Some ranks sent nothing, or their files are cut: ranks judged without them are not cleared.
- Some ranks have no collectives: who meets them is late for others, and nothing shows that it waited.
- Only a log of the steps was recorded. A rank may wait for others in its backward, and in the forward of a tensor- or
  pipeline-parallel job; in a launch-bound job, events around a forward time the host's launching.
- A log has all ranks' steps, and collectives those of some, or only those of some are judged in a large job: witnesses
  from all over it, and all ranks that wait least. Both are judged; steps alone clear no rank.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.encoding import codes, factorize
from hindmost_judge.model import COLLECTIVES, Job, Run, Unrecorded, empty, rows, without_waits
from hindmost_judge.stats.robust import lower_median, median
from hindmost_judge.timeline import build_blocks, matching
from hindmost_judge.timeline.separate_jobs import run_of_ranks
from hindmost_judge.types import Array, Floats, Ints
from hindmost_judge.verdict.schema import CAUSES, STOPS, RankRow, Report, Verdict, insufficient
from hindmost_judge.verdict.summary import RankRows
from hindmost_judge.verdict.wording import are, ms, names, percent
from hindmost_judge.whatif import savings

#: Ranks that wait at once for this share of the time wait for a missing rank. Without late ranks, transfers alone
#: scatter by up to 0.025; a rank that costs 3 % of the step made it 0.1.
_TOGETHER = 0.05
#: Where files of all ranks have so large a share of a job, it is judged by that: what ends it is no part of its steps.
_NEARLY_ALL = 0.8
#: Verdicts that hold of the ranks that were seen, whatever the others did.
_OF_SOME = ("straggler", "intermittent", "input_bound", "host_bound")
#: More ranks than this no job has: whatever claims them is believed in nothing.
_MOST_RANKS = 1 << 20


def with_missing(run: Run) -> Run:
    """The run with its ranks marked that sent nothing to the collector that wrote it."""
    seen, world = set(run.ranks["rank"].tolist()), run.job.world_size or 0
    if not len(seen) < world <= _MOST_RANKS or not seen:
        return run
    return replace(run, unrecorded=Unrecorded(tuple(sorted(set(range(world)) - seen))))


def with_missing_ranks(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What still holds although ranks are missing, and what is unknown because of that."""
    if run.job.source == Job.source:
        return _ours(found, run, blocks)
    missing = run.unrecorded
    if missing is None or any(verdict.kind in STOPS for verdict in found):
        return found
    if not missing.ranks and missing.judged < 1.0:
        cut = f"some files are cut: only {percent(missing.judged)} of the job is in all files; no rank is late there"
        whole = "give the whole files of all ranks"
        short = missing.judged < _NEARLY_ALL
        return [
            insufficient(cut, *one.evidence, advice=whole) if short and one.kind == "balanced" else one for one in found
        ]
    waited = missing.together is not None and missing.together >= _TOGETHER
    if missing.by_steps:
        advice = (_complete_files(missing),)
        return [
            replace(one, kind="insufficient_data", evidence=(*one.evidence, _awaited(missing)), advice=advice)
            if waited and one.kind == "balanced"
            else one
            for one in found
        ]
    certain = [verdict for verdict in found if verdict.kind in _OF_SOME and not (missing.apart and verdict.ranks)]
    named = any(one.ranks for one in certain)
    already = [verdict for verdict in found if verdict.kind == "insufficient_data"]
    lacks = f"{_are_missing(missing)} from most of the recording"
    if already and not waited and not named:
        return [replace(one, evidence=(lacks, *one.evidence)) for one in already]
    waits = _awaited(missing) if waited else f"others may wait for {_them(missing.ranks)}"
    return certain if named else [insufficient(lacks, waits, advice=_complete_files(missing)), *certain]


def ranks_without_steps(run: Run, blocks: Blocks) -> Verdict | None:
    """That no rank can be cleared if steps alone show who is late, and some ranks of the recording have none."""
    if blocks.evidence != build_blocks.PHASES or run.job.source == Job.source:
        return None
    missing = run.ranks["rank"][~np.isin(run.ranks["rank"], blocks.ranks)].tolist()
    if not missing:
        return None
    unknown = f"the steps of {names(missing)} are not recorded: others may wait for {_them(missing)}"
    late = f"no rank of the {len(blocks.ranks)} with steps is late; {unknown}"
    remedy = f"add the log of the steps{_of(missing)}; `hindmost run -- COMMAND` records every rank"
    return insufficient(late, advice=remedy)


def _ours(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """What holds in a run of our own: a rank that may have waited for one without collectives is not named."""
    missing = _find_unrecorded(run, blocks)
    if missing is None:
        return found
    doubted = [verdict for verdict in found if missing.doubts(verdict)]
    certain = [verdict for verdict in found if verdict not in doubted]
    who = names(missing.ranks) if missing.ranks else "some ranks"
    lost = f"{_are_missing(missing)}: no collective of {_them(missing.ranks)} was recorded"
    checks = f"run `hindmost doctor` on the node of {who}: it checks the agent and the probe"
    advice = (f"{checks}. If it sent to another collector, name that directory, too",)
    if doubted and not certain:
        late = sorted({rank for verdict in doubted for rank in verdict.ranks})
        seem = are(late, "looks late") if late else "transfers look slow"
        doubt = f"{seem}, and may have waited for {_them(missing.ranks)}"
        return [Verdict("insufficient_data", cause="unknown", evidence=(lost, doubt), advice=advice)]
    seen = rows(run.ranks) - int(np.isin(run.ranks["rank"], missing.ranks).sum())
    alike = f"no rank of the {seen} recorded is late, but they may wait for {who}, not recorded"
    return [
        replace(one, kind="insufficient_data", evidence=(alike, *one.evidence), advice=advice)
        if one.kind == "balanced"
        else one
        if one.kind in (*STOPS, "insufficient_data")
        else replace(one, evidence=(*one.evidence, lost))
        for one in certain
    ]


def _are_missing(missing: Unrecorded | Absent) -> str:
    return f"{are(missing.ranks, 'is') if missing.ranks else 'some ranks are'} missing"


def _awaited(missing: Unrecorded) -> str:
    who, share = names(missing.ranks) if len(missing.ranks) == 1 else "a missing rank", percent(missing.together or 0.0)
    return f"all recorded ranks wait at once for {share} of the time, transfers apart: likely for {who}"


def _them(ranks: Sequence[int]) -> str:
    return "it" if len(ranks) == 1 else "them"


def _of(ranks: Sequence[int]) -> str:
    return f" of {names(ranks)}" if ranks else " that are missing"


def _complete_files(missing: Unrecorded) -> str:
    return f"add the whole files{_of(missing.ranks)}; `hindmost run -- COMMAND` records every rank"


#: Causes measured on a rank's own host or GPU: these are no wait for others.
ITS_OWN = frozenset(CAUSES) - {"compute", "network", "deadlock", "workload", "unknown"}
#: Share of a communicator's recorded members that must be late together: a rank that waits for a missing one is not
#: alone.
_ALIKE = 0.5


@dataclass(frozen=True)
class Absent:
    """``ranks`` of which no collective was recorded, as far as is known which, and of each communicator that such a
    rank is in the members that were seen, where others were seen that are not in it.
    """

    ranks: tuple[int, ...]
    partners: tuple[frozenset[int], ...] = ()

    def doubts(self, one: Verdict) -> bool:
        """Whether those whom a verdict names may have waited for one of these ranks."""
        if one.kind in STOPS or one.cause in ITS_OWN:
            return False
        if one.kind == "slow_link" or one.cause == "network":
            return True  # waits for a missing rank look like slow transfers
        named = set(one.ranks)
        return any(len(seen & named) >= _ALIKE * len(seen) for seen in self.partners if named)


def _find_unrecorded(run: Run, blocks: Blocks | None) -> Absent | None:
    """The ranks without collectives in a run; ``None`` where none is known to be missing."""
    unheard = set(run.unrecorded.ranks) if run.unrecorded is not None else set()
    if blocks is None or blocks.joined is None:  # the others' steps are all that is known
        if blocks is not None:
            heard = np.concatenate([run.collectives["rank"], run.intervals["rank"], blocks.ranks])
            unheard |= set(np.setdiff1d(run.ranks["rank"], heard).tolist())
        return Absent(tuple(sorted(unheard))) if unheard else None
    comm, members, size = _memberships(run, blocks.ranks)
    silent = np.setdiff1d(run.ranks["rank"], blocks.ranks)
    if not unheard and not len(silent) and (members >= size).all():
        return None
    seen = set(blocks.ranks.tolist())
    expected = dict(zip(comm.tolist(), size.tolist(), strict=True))
    short = {one: met for one, met in _members_seen(run).items() if len(met) < expected.get(one, 0)}
    if not expected:  # then the missing members of a communicator are unknown
        short = _members_seen(run)
    if short:
        defined = np.isin(run.communicators["comm"], np.array(list(short), np.uint64))
        unheard |= {*silent.tolist(), *run.communicators["rank"][defined].tolist()} - seen
    partners = tuple(frozenset(met) for met in short.values() if met < seen)
    return Absent(tuple(sorted(unheard)), partners) if unheard or (short and expected) else None


def _memberships(run: Run, ranks: Ints) -> tuple[Array, Ints, Ints]:
    """Each communicator that was defined, how many of its members are among these ``ranks``, and its size."""
    table = run.communicators
    if not rows(table):
        return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, np.int64)
    comm, which = np.unique(table["comm"], return_inverse=True)
    size = np.zeros(len(comm), np.int64)
    np.maximum.at(size, which, table["size"])
    seen = np.isin(table["rank"], ranks)
    pairs = np.unique(which[seen].astype(np.int64) * (1 << 32) + table["rank"][seen])  # one may be defined again
    return comm, np.bincount(pairs >> 32, minlength=len(comm)), size


def _members_seen(run: Run) -> dict[int, set[int]]:
    """The ranks that were seen in each communicator, messages left out."""
    together = run.collectives["peer"] < 0
    which, comms = factorize(run.collectives["comm"][together])
    pairs = np.unique(which.astype(np.int64) * (1 << 32) + run.collectives["rank"][together])
    met: dict[int, set[int]] = {}
    for place, rank in zip((pairs >> 32).tolist(), (pairs & 0xFFFFFFFF).tolist(), strict=True):
        met.setdefault(int(comms[place]), set()).add(rank)
    return met


#: A backward computes about twice what a forward does, and with its transfers recorded ones of GPUs at work took up to
#: six times as long; where that of every rank takes more than this, most of it is waiting, or launching.
_MOSTLY_WAITS = 8.0
#: Whose forward is longer by this share of what it is late by is late in it.
_IN_FORWARD = 0.5
#: Ranks that differ by at least this share of what a late one takes longer may be the ones that it waits for; and where
#: they do of what a forward takes, they may have each their own work.
_UNLIKE = 0.5
#: … unless they are later than that one by this factor: who waits for another is late by as much.
_FAR = 3.0
#: Share of a step from which a phase may hide a rank that others wait for.
_MAY_HIDE = 0.05
#: Ranks are reported with the one of the longest forward if their extra time is this share of its extra time.
_AS_LONG = 0.5

#: What to do about it.
_REMEDY = "record waits, too: `hindmost run -- COMMAND`, or NCCL Inspector's logs of the same steps"


def without_doubtful_forwards(found: list[Verdict], run: Run, blocks: Blocks | None) -> list[Verdict]:
    """These verdicts but for those on ranks whose longer forward may be a wait, or another stage's work.

    Nor for what costs less than such a wait: it is part of what that is for, and costs more than is seen of it.
    """
    if blocks is None or not _steps_alone(run, blocks):
        return found
    own = {rank for verdict in found if verdict.cause in ITS_OWN for rank in verdict.ranks}
    doubtful = [verdict for verdict in found if verdict.kind not in STOPS and _doubtful(verdict, run, blocks, own)]
    most = max((one.cost_ms_per_step or 0.0 for one in doubtful), default=0.0)
    certain = [verdict for verdict in found if verdict not in doubtful]
    return [one for one in certain if one.kind in STOPS or not doubtful or (one.cost_ms_per_step or 0.0) >= most]


def backward_may_wait(run: Run, blocks: Blocks) -> Verdict | None:
    """Why phases in which ranks may wait clear no rank; ``None`` where other ranks' collectives do."""
    missing = run.unrecorded  # collectives of some ranks show whether all of these wait for a missing one
    if not _steps_alone(run, blocks) or (missing is not None and missing.by_steps and missing.together is not None):
        return None
    backward = _phase(blocks, "backward")
    share = float(median(median(backward, axis=1)) / blocks.step_ns) if backward is not None else 0.0
    if not share >= _MAY_HIDE:
        return None
    spent = f"backward, {percent(share)} of a step of {ms(blocks.step_ns)}, is work and wait in one"
    return insufficient(f"only a log of the steps was recorded: {spent}", *_longer(blocks), advice=_REMEDY)


def _steps_alone(run: Run, blocks: Blocks) -> bool:
    """Whether logged phases show who is late; our own probe marks where ranks meet."""
    return blocks.evidence == build_blocks.PHASES and run.job.source != Job.source and blocks.pipeline is None


def _doubtful(one: Verdict, run: Run, blocks: Blocks, sure: set[int]) -> bool:
    """Whether a verdict rests on forwards that may be longer for what others do, or for what is done in them."""
    forward = _phase(blocks, "forward")
    by_forward = bool(one.ranks) and one.cause not in ITS_OWN
    by_forward |= one.kind == "uneven_workload" and blocks.work is None
    if not by_forward or forward is None:
        return False
    indices = np.arange(*savings.span_of(one, blocks))
    indices = indices if len(indices) else np.arange(len(blocks.steps))
    typical = median(forward[:, indices], axis=1)
    backward = _phase(blocks, "backward")
    if backward is not None:
        least = float(np.nanmin(median(backward[:, indices], axis=1)))
        if least > _MOSTLY_WAITS * float(lower_median(typical, axis=0)):
            return True
    world = run.job.world_size or 0
    if not one.ranks or rows(run.ranks) < world:  # a part of a job may wait for ranks outside of it
        return rows(run.ranks) < world or _differ(typical) >= _UNLIKE * float(lower_median(typical, axis=0))
    if _all_meet(run):
        return False
    own = median(blocks.self_time[:, indices], axis=1)
    named = np.flatnonzero(np.isin(blocks.ranks, one.ranks)).tolist()
    late, longer = _beyond(own), _beyond(typical)
    clear = np.isin(blocks.ranks, list(sure))
    return any(longer[row] >= _IN_FORWARD * late[row] and _among_unlike(late, row, clear) for row in named)


def _all_meet(run: Run) -> bool:
    """Whether all ranks are in each communicator: those that share a part of a model would have one of their own."""
    comms, count = np.unique(run.communicators["comm"], return_counts=True)
    used = count[np.isin(comms, run.collectives["comm"])]
    sent = (run.collectives["peer"] >= 0).any()  # from stage to stage
    return bool(len(used)) and not sent and bool((used == rows(run.ranks)).all())


def _among_unlike(late: Floats, row: int, clear: Array) -> bool:
    """Whether others differ about as much as this row is late, or are as late; not those that are later by far.

    ``late`` [R] is by how much each is.
    """
    others = (late < _FAR * late[row]) & ~clear & (np.arange(len(late)) != row)
    return bool(others.any()) and _differ(late[others]) >= _UNLIKE * late[row]


def _differ(values: Floats) -> float:
    return float(np.nanmax(values) - np.nanmin(values))


def _longer(blocks: Blocks) -> list[str]:
    """A sentence on ranks whose forward is longer than that of others, where there are any; in a list of its own."""
    forward = _phase(blocks, "forward")
    if forward is None:
        return []
    beyond = _beyond(median(forward, axis=1))
    most = float(np.nanmax(beyond))
    if not most >= _MAY_HIDE * blocks.step_ns:
        return []
    late = blocks.ranks[beyond >= _AS_LONG * most].tolist()
    why = "slow, or waiting in a model-parallel group, or another stage of a pipeline"
    return [are(late, f"takes up to {ms(most)} longer in forward than others: {why}")]


def _phase(blocks: Blocks, name: str) -> Floats | None:
    """[R, S] ns of a phase on the GPU, or else on the host; ``None`` where unmeasured."""
    return next((blocks.parts[one] for one in (f"gpu_{name}", name) if one in blocks.parts), None)


def _beyond(typical: Floats) -> Floats:
    """[R] by how much each is more than the typical; of as many who are more, than the others."""
    return np.asarray(typical - lower_median(typical, axis=0))


#: Verdicts on all of a job, which hold for all other ranks too.
_OF_THE_JOB = (*STOPS, "input_bound", "host_bound")
#: Forward is timed as long as it is launched: hosts without a fault differ in that by up to 1.4 % of a step.
_UNEXPLAINED = 0.03


def cross_checked(run: Run, judge: Callable[[Run], Report]) -> Report | None:
    """The report on such a run, by what ``judge`` says of the collectives and of the steps; ``None`` for another."""
    missing = run.unrecorded
    if missing is None or not missing.by_steps:
        return None
    if not matching.synchronising(run.collectives, codes(run.collectives["op"])).any():
        return None  # of the steps alone
    met, log = judge(replace(run, unrecorded=replace(missing, by_steps=False))), judge(without_waits(run))
    named = [verdict for verdict in met.verdicts if verdict.ranks or verdict.kind in _OF_THE_JOB]
    unmet = [
        verdict
        for verdict in log.verdicts
        if verdict.kind in STOPS
        or (
            (verdict.cause != "unknown" or (verdict.cost_ratio or 0.0) >= _UNEXPLAINED)
            and not set(verdict.ranks).isdisjoint(missing.ranks)
        )
    ]
    if any(verdict.kind == "host_bound" for verdict in named):  # what events time on GPUs is then how long hosts launch
        unmet = [verdict for verdict in unmet if verdict.cause == "input" or verdict.kind in STOPS]
    if named and not unmet:
        return replace(met, notes=log.notes)
    if unmet:
        said = [(one.kind, set(one.ranks)) for one in unmet]
        more = (one for one in named if not any(one.kind == kind and ranks >= set(one.ranks) for kind, ranks in said))
        return replace(log, verdicts=(*unmet, *more))
    unsure = tuple(verdict for verdict in log.verdicts if verdict.kind == "insufficient_data")
    return replace(log, verdicts=unsure or met.verdicts)


def judged_by_witnesses(run: Run, ranks: Ints, judge: Callable[[Run], Report]) -> Report:
    """The report on a run by what ``judge`` says of the witnesses ``ranks`` [W], and of the steps of all.

    Only the first where only the named ranks are wanted.
    """
    met = judge(_of_these(run, ranks))
    if run.incremental:
        return met
    steps = judge(replace(run, collectives=empty(COLLECTIVES), witnesses=None))
    seen = set(ranks.tolist())
    # Of the steps of all: stops, and what was measured on a rank that is no witness.
    unmet = [
        verdict
        for verdict in steps.verdicts
        if verdict.kind in STOPS or (verdict.cause in ITS_OWN and not seen.issuperset(verdict.ranks))
    ]
    waiting = [verdict for verdict in met.verdicts if verdict.ranks or not unmet]
    of_all = f"the collectives of {len(ranks):,} of {len(run.ranks['rank']):,} ranks are judged: a sample, and of those"
    return replace(
        steps,
        job=replace(steps.job, step_ms=met.job.step_ms, bound=met.job.bound, slowed=met.job.slowed),
        verdicts=(*unmet, *waiting),
        ranks=_with_waits(steps.ranks, met.ranks),
        what_if=met.what_if,
        notes=(f"{of_all} that wait least", *steps.notes, *(note for note in met.notes if note not in steps.notes)),
    )


def _of_these(run: Run, ranks: Ints) -> Run:
    """These as a job of its own: others are not missing in their communicators."""
    part = run_of_ranks(run, ranks)
    comm, size = np.unique(part.communicators["comm"], return_inverse=True)
    members = np.bincount(size, minlength=len(comm))
    communicators = {**part.communicators, "size": members[size].astype(np.int32)}
    return replace(
        part, communicators=communicators, incremental=run.incremental, past=run.past, unrecorded=run.unrecorded
    )


def _with_waits(every: Sequence[RankRow], of_witnesses: Sequence[RankRow]) -> Sequence[RankRow]:
    """The rows of all ranks, with what only their collectives tell of some."""
    if not (isinstance(every, RankRows) and isinstance(of_witnesses, RankRows)):
        return every
    at = np.searchsorted(every.ranks, of_witnesses.ranks)
    figures = dict(every.figures)
    for name, values in of_witnesses.figures.items():
        known = ~np.isnan(values)
        figures[name] = np.array(figures.get(name, np.full(len(every.ranks), np.nan)))
        figures[name][at[known]] = values[known]
    return replace(every, figures=figures)
