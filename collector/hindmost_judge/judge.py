"""From a run to a report: blocks, detectors, causes, costs, verdicts. The same call live, after the run, and on
foreign recordings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from hindmost_judge import communication, detect, overview, tuning, usage
from hindmost_judge.blocks import Blocks, Sharing, Slowdown, Stalls
from hindmost_judge.causes import cpu_sharing, launch_bound, loading, stopped, telemetry
from hindmost_judge.detect import (
    hang,
    host_bound,
    host_work,
    input_bound,
    intermittent,
    slow_link,
    slow_network,
    straggler,
    uneven,
    uneven_stages,
)
from hindmost_judge.encoding import chosen
from hindmost_judge.graph import host_paced
from hindmost_judge.model import RUNNING, Run, Table, rows
from hindmost_judge.settings import DEFAULT, Settings
from hindmost_judge.stats.robust import average, median, percentile
from hindmost_judge.timeline import build_blocks, phases
from hindmost_judge.timeline.separate_jobs import (
    MembershipChange,
    groups_do_the_same,
    groups_note,
    groups_that_never_meet,
    membership_change,
    run_of_ranks,
)
from hindmost_judge.timeline.steps import last_counted, profiler_notes, settings_of_few_profiled
from hindmost_judge.types import Floats
from hindmost_judge.verdict import (
    advice,
    all_slower,
    endings,
    inconclusive,
    missing_ranks,
    oversubscribed,
    stops,
    summary,
    wording,
)
from hindmost_judge.verdict.intermittent import cause_of, of_stalls
from hindmost_judge.verdict.schema import LATE, QUIET, STOPS, UNSURE, Report, Verdict
from hindmost_judge.verdict.slow_ranks import of_links, of_slowdowns
from hindmost_judge.verdict.stops import of_mismatch, of_parted
from hindmost_judge.verdict.whole_job import balanced, saving_note, step_limit, without_others
from hindmost_judge.whatif import savings, waste
from hindmost_judge.whatif.operation_graph import judge_operations


def judge(run: Run, settings: Settings = DEFAULT) -> Report:
    """Say which ranks hold the run back, why, since when and at what cost; or that none does.

    Never raises for missing or contradictory data: what cannot be judged is ``insufficient_data``, with the reason.
    """
    changed = settings.changed()
    if changed and changed not in run.notes:
        run = replace(run, notes=(*run.notes, changed))
    if rows(run.operations):
        return judge_operations(run, settings)
    both = missing_ranks.cross_checked(run, lambda one: judge(one, settings))
    if both is not None:
        return both
    if run.witnesses is not None:
        return missing_ranks.judged_by_witnesses(run, run.witnesses, lambda one: judge(one, settings))
    run = telemetry.with_gpus(run)
    change = membership_change(run, settings)
    if change is not None:
        return _after_membership_change(run, change, settings)
    groups = groups_that_never_meet(run)
    if groups and cpu_sharing.find(run) is None:  # on shared CPUs they meet in the queue for one
        return _of_groups(run, groups, settings)
    return _of_those_that_meet(run, settings)


def _of_those_that_meet(run: Run, settings: Settings) -> Report:
    """The report on ranks that all meet, and are the same from the first step to the last."""
    blocks, aside, seen = _compared(run, settings)
    p99 = percentile(blocks.period, 99) if blocks is not None else float("nan")
    stop = hang.find(run, p99, settings)
    if stop is None or not stop.seen:
        stop = stops.for_good(run, p99, settings) or stop
    if stop is not None and not stop.seen and endings.first_to_die(run)[0]:  # what ended the job was no hang
        stop = None
    stalls, told_of_stalls = stops.find_ended_stalls(run, blocks, settings) if stop is None else ((), [])
    found, told_of_silence = _ended(run, blocks, stop, p99, settings)
    notes = [*run.notes, *told_of_stalls, *told_of_silence]
    if blocks is not None:
        settings = settings_of_few_profiled(blocks, run.steps, settings)
        crowded_out, blocks = oversubscribed.bound_to_few_cpus(run, blocks, settings)
        found = [*found, *crowded_out]
        going = stops.without_ended_stalls(blocks, stalls)
        found, served, more = _held_back(detect.Case(run, going, settings, tuple(found), cpu_sharing.find(run), seen))
        aside += served if stop is None else []
        if any(verdict.kind in STOPS for verdict in found):  # not about ranks that were slow for a while before
            found = [verdict for verdict in found if verdict.kind in STOPS or verdict.until_step is None]
        notes += more if stop is None else []
    if not run.incremental:
        notes += [*profiler_notes(blocks, phases.training(run.steps)), *communication.horovod_notes(run)]
    found = missing_ranks.without_doubtful_forwards(inconclusive.despite_exchanges(found, run, blocks), run, blocks)
    found = inconclusive.without_lost_leads(found, blocks)
    if not found:
        uninterrupted = (
            None if blocks is None else stops.without_ended_stalls(waste.without_planned(blocks, aside), stalls)
        )
        found.append(_despite_pauses(_nothing(run, uninterrupted, settings), aside, blocks))
    found = tuning.with_domains(found, run, seen, stalled=bool(stalls))
    found = stops.with_ended_stalls(missing_ranks.with_missing_ranks(found, run, blocks), stalls, run)
    slower = all_slower.find_slowed(blocks, found) if blocks is not None and stop is None else None
    found = all_slower.with_slowed(found, slower)
    found, lost = inconclusive.with_lost_events(inconclusive.with_unread_steps(found, run, blocks), run)
    notes += lost
    notes = [note for note in notes if not any(line.startswith(note) for one in found for line in one.evidence)]
    if blocks is not None:
        found = [_with_time(_with_loading(one, run, blocks), run, blocks) for one in found]
    notes += all_slower.slowed_note(slower, found)
    notes += summary.last_rank_notes(blocks, found, notes) if blocks is not None and stop is None else []
    if blocks is not None and blocks.exchanges:
        found = [replace(one, evidence=tuple(map(wording.as_exchanges, one.evidence))) for one in found]
        notes = list(map(wording.as_exchanges, notes))
    if run.incremental:
        ranks = summary.sampled_ranks(blocks)
        return Report(job=summary.job(run, blocks), verdicts=_of_job(found, run), ranks=ranks, overview=seen)
    notes = [*endings.undelivered(run), *notes, *stopped.note(run, found, stalls)]
    what_if = summary.what_if(run, blocks, found)
    bound = step_limit(
        None if inconclusive.mostly_lost(run) else blocks, found, settings, partial(_cpu_use, run, blocks), seen, aside
    )
    by, said = (bound.by, bound.evidence) if bound is not None else (None, None)
    notes += saving_note(found, seen) if "checkpoint" not in (by, *(one.cause for one in aside)) else []
    notes += [one.note for one in aside if one.note != said and not by == one.cause == "checkpoint"]
    return Report(
        job=replace(summary.job(run, blocks), bound=bound, stalls=stalls, slowed=slower),
        verdicts=_of_job(without_others(found, bound), run),
        ranks=summary.ranks(run, blocks),
        what_if=replace(what_if, waste=waste.find(run, blocks, what_if, found, aside)),
        notes=tuple(notes),
        counted=last_counted(run, blocks, settings),
        overview=seen,
    )


def _with_time(verdict: Verdict, run: Run, blocks: Blocks) -> Verdict:
    """A verdict that began within the job with the time of its first step, of a recording whose clock is the wall's."""
    if not verdict.since_step or not run.job.started_ns or verdict.since_step not in blocks.steps:
        return verdict
    began = _began(blocks, int(np.searchsorted(blocks.steps, verdict.since_step)))
    return replace(verdict, since_time_s=began / 1e9) if began is not None else verdict


def _began(blocks: Blocks, column: int) -> float | None:
    """When the first rank began a step, ns; ``None`` where that is not known."""
    if blocks.ended is not None and blocks.took is not None:
        began = (blocks.ended - blocks.took)[:, column]
    elif blocks.joined is not None:
        began = blocks.joined.start[:, blocks.starts[column]]
    else:
        return None
    return float(np.nanmin(began)) if not np.isnan(began).all() else None


def _stacks_meanwhile(verdict: Verdict, run: Run, blocks: Blocks) -> Table:
    """The stacks that were taken in the steps of a verdict, as far as is known when these began."""
    count, until_step = len(blocks.steps), np.inf if verdict.until_step is None else verdict.until_step
    first, after = np.searchsorted(blocks.steps, (verdict.since_step or 0, until_step + 1)).tolist()
    since, until = (_began(blocks, one) if one < count else None for one in (first, after))
    taken = run.stacks["time_ns"]
    return chosen(run.stacks, (taken >= (since or 0)) & (taken < (until or np.inf)))


def _with_loading(verdict: Verdict, run: Run, blocks: Blocks) -> Verdict:
    """A verdict on late input with what it waits for, and what to do about that."""
    finer, shards = loading.on(verdict, blocks)
    storage = loading.uses_storage(verdict, blocks)
    found = finer if finer is verdict and not storage else advice.on(finer, run, storage=storage)
    return replace(found, advice=(shards,)) if shards else found


def _compared(run: Run, settings: Settings) -> tuple[Blocks | None, list[waste.Planned], overview.Overview | None]:
    """The run as blocks by which ranks are compared, what was set aside of them as planned, and the run as shown."""
    built = build_blocks.build(run, settings)
    if built is None:
        return None, [], None
    by_work = host_paced.by_turn(built, run)
    by_work = by_work if by_work.turn > 1 else host_paced.by_work(built)
    if by_work is built:
        by_work = launch_bound.late_by_hosts(built, run)
    blocks, aside = waste.aside(stopped.in_collectives(by_work, settings), run.steps, settings)
    blocks = straggler.set_apart(uneven.in_full(blocks, settings), settings)
    return blocks, aside, overview.of(built, blocks.delay, loading.queued(built))


def _ended(
    run: Run, blocks: Blocks | None, stop: hang.Hang | None, p99: float, settings: Settings
) -> tuple[list[Verdict], list[str]]:
    """Verdicts on a job that stopped, on ranks with lost contact and on ranks that ran another operation; and notes."""
    ours = run.job.source == "hindmost"  # other recordings do not guarantee what sequence numbers count
    parted = hang.find_mismatch(run, stopped=stop is not None) if ours else None
    if stop is not None:
        return [of_parted(stop, parted, run, blocks)], []
    silent, notes = stops.lost_contact(run, p99, settings)
    return [*silent, *of_mismatch(parted, run)], notes


def _of_most(run: Run, blocks: Blocks, settings: Settings) -> list[Verdict]:
    """The verdict on most ranks slow at once; if a few ranks are ahead from the start, it names no rank."""
    most = all_slower.find_majority(blocks, settings)
    if most is None:
        return []
    if most.change is None:
        return [all_slower.with_majority(_nothing(run, blocks, settings), most)]
    alone_with_ahead = judge(run_of_ranks(run, np.array(sorted([most.ranks[0], *most.ahead]))), settings)
    alone = [
        verdict
        for verdict in alone_with_ahead.verdicts
        if verdict.kind == "straggler" and verdict.ranks == most.ranks[:1]
    ]
    return [advice.on(all_slower.majority_verdict(most, most.change, alone[0] if alone else None, blocks), run)]


def _after_membership_change(run: Run, change: MembershipChange, settings: Settings) -> Report:
    """The report on the job as it is now, with the ranks that were named before some ranks left."""
    before, now = judge(change.before, settings), judge(change.after, settings)
    past = [
        replace(verdict, until_step=change.last_step if verdict.until_step is None else verdict.until_step)
        for verdict in before.verdicts
        if verdict.ranks and verdict.kind not in STOPS
    ]
    of_now = [verdict for verdict in now.verdicts if verdict.kind not in ("balanced", "insufficient_data") or not past]
    return replace(
        now,
        job=replace(summary.job(run, None), step_ms=now.job.step_ms, bound=now.job.bound),
        verdicts=_in_order([*of_now, *past]),
        notes=(str(change), *now.notes),
    )


def _of_groups(run: Run, groups: list[Run], settings: Settings) -> Report:
    """The report on groups of ranks that never meet: the ranks named in any group; the job's facts from the longest
    steps."""
    reports = [judge(group, settings) for group in groups]
    found = [
        verdict
        if verdict.ranks or verdict.kind != "slow_link"
        else replace(verdict, ranks=tuple(group.ranks["rank"].tolist()))
        for group, report in zip(groups, reports, strict=True)
        for verdict in report.verdicts
        if verdict.kind not in ("balanced", "insufficient_data")
    ]
    blocks = build_blocks.build(run, settings) if not found else None
    if blocks is not None and groups_do_the_same(groups, blocks):
        found = [_at_home(link, run, blocks) for link in of_links(slow_link.find(blocks, settings), blocks, settings)]
    first = max(reports, key=lambda one: one.job.step_ms.get("mean") or 0.0)
    by_rank = {rank: ms for one in reports for rank, ms in one.what_if.waste_by_rank_ms.items()}
    by_node = waste.by_node(run, {int(rank): ms for rank, ms in by_rank.items()})
    return Report(
        job=replace(summary.job(run, None), steps=first.job.steps, step_ms=first.job.step_ms, bound=first.job.bound),
        verdicts=_in_order(found) or first.verdicts,
        ranks=tuple(row for one in reports for row in one.ranks),
        what_if=replace(first.what_if, waste_by_rank_ms=by_rank, waste_by_node_ms=by_node),
        notes=tuple(dict.fromkeys([groups_note(groups), *(note for one in reports for note in one.notes)])),
        overview=overview.together(seen) if (seen := [one.overview for one in reports if one.overview]) else None,
    )


#: Slow segments of one rank cost alike from this share of the dearest on: noise must not put a later one first.
_AS_DEAR = 0.9


def _in_order(found: list[Verdict]) -> tuple[Verdict, ...]:
    """A stopped job first, then the most costly: by the share of its own steps that its repair saves.

    What is saved only once others are repaired comes after these. Episodes of one rank that follow each other and cost
    about as much come in the order of time.
    """
    weights = [verdict.cost_ratio or 0.0 for verdict in found]
    for index, one in enumerate(found):
        earlier = [weights[at] for at in range(index) if set(found[at].ranks) & set(one.given)]
        weights[index] = min([weights[index], *earlier])
    order = sorted(range(len(found)), key=lambda at: (found[at].kind not in STOPS, -weights[at]))
    runs: list[list[int]] = []
    for at in order:
        first = runs[-1][0] if runs else at
        alike = all(getattr(found[at], name) == getattr(found[first], name) for name in ("kind", "ranks", "cause"))
        if runs and alike and weights[at] >= _AS_DEAR * weights[first]:
            runs[-1].append(at)
        else:
            runs.append([at])
    return tuple(found[at] for run in runs for at in sorted(run, key=lambda at: found[at].since_step or 0))


def _of_job(found: list[Verdict], run: Run) -> tuple[Verdict, ...]:
    """The same with the job in commands to type."""
    return _in_order([replace(one, advice=tuple(wording.for_job(text, run) for text in one.advice)) for one in found])


#: What else makes steps longer than ranks that are late. Each detector knows what those before it found.
DETECTORS: tuple[detect.Detector, ...] = (
    input_bound.verdicts,
    slow_link.verdicts,
    uneven.verdicts,
    host_bound.verdicts,  # while hosts wait for their input, they launch nothing
    slow_network.verdicts,  # one group's slow link is not the network of all
    uneven_stages.verdicts,  # ranks behind a slow link are left aside
)


def _held_back(case: detect.Case) -> tuple[list[Verdict], list[waste.Planned], list[str]]:
    """Those found before, the verdicts on ranks that are late, and on what else makes steps longer; what stalls are
    planned; and notes."""
    run, blocks, settings = case.run, case.blocks, case.settings
    late, notes, planned = _late(blocks, settings, case.shared)
    unsure, late = ([one for one in late if (one.kind in QUIET) == quiet] for quiet in (True, False))
    others, failed = detect.run(DETECTORS, replace(case, found=(*case.found, *late)))
    slow = [stopped.on(one, blocks, settings) for one in [*late, *others] if not _gone(one, run)]
    found = [*case.found, *(_at_home(one, run, blocks) for one in slow)]
    if not any(one.ranks for one in found) and case.shared is None:
        found += _of_most(run, blocks, settings)
    hidden = loading.hidden_input_notes(blocks, found, settings) if not run.incremental else []
    return found or unsure, [*planned], [*notes, *failed, *hidden]


#: Verdicts on slow and on stalling ranks, each judged with the others in view; notes; and stalls that are planned.
_Late = tuple[list[Verdict], list[str], Sequence[waste.Planned]]
#: A host stalls in a smaller share of the steps than this; in more of them it only varies, as hosts do.
_RARE = 0.125


def _late(blocks: Blocks, settings: Settings, shared: Sharing | None) -> _Late:
    by_work = (blocks.lanes is not None or blocks.turn > 1) and shared is None
    if by_work:  # hosts or loaders set the pace
        same_work, slowdowns = None, host_work.find(blocks, settings)
        stalls = intermittent.find(blocks, settings, slowdowns)
        stalls = [one for one in stalls if len(one.stalled) <= _RARE * len(blocks.steps)]
    else:
        uncounted = uneven.uncounted(blocks, settings)
        same_work = uneven.levelled(blocks, settings, uncounted[0] if uncounted is not None else None)
        slowdowns = straggler.find(same_work, settings, shared=shared is not None)
        if uncounted is not None and shared is None:
            slowdowns, same_work = _uncounted(slowdowns, blocks, same_work, *uncounted, settings)
        stalls = intermittent.find(blocks, settings, slowdowns)
        slowdowns = intermittent.beyond_stalls(slowdowns, stalls, blocks, settings)
        slowdowns = slowdowns if slowdowns or stalls else straggler.of_stopped(blocks, settings)
    found, notes = of_slowdowns(slowdowns, blocks, settings, same_work)
    named = set(np.flatnonzero(np.isin(blocks.ranks, [rank for one in found for rank in one.ranks])).tolist())
    late = set(named)
    if not by_work:  # a host that is slower by too little to act on may stall as well
        stalling = intermittent.other_stalls(slowdowns, stalls, settings)  # reported as stalls, not as persistent
        late |= {slowdown.row for slowdown in slowdowns if slowdown.row not in stalling}
    stalls = [stall for stall in stalls if late.isdisjoint(stall.rows)]
    own, served = _served(stalls, blocks, settings)
    if shared is not None:
        found, more = oversubscribed.on_shared_cpus(shared, found, own, blocks, settings)
        return found, [*notes, *more], served
    asking = oversubscribed.asking_most(blocks, settings) if not (found or by_work) else []
    if asking:
        return [*asking, *oversubscribed.other_stalls(asking, stalls, blocks, settings)], notes, ()
    fixed = [slowdown for slowdown in slowdowns if slowdown.row in named]
    return [*found, *of_stalls(own, blocks, settings, slowdowns=fixed)], notes, served


def _served(stalls: list[Stalls], blocks: Blocks, settings: Settings) -> tuple[list[Stalls], list[waste.Planned]]:
    """The stalls that are no work for the others, by their causes, and what is."""
    halted = set(stopped.stopped_rows(blocks))
    causes = ["stopped" if halted & {*one.rows} else cause_of(blocks, one, stalls, settings).cause for one in stalls]
    return waste.served(stalls, causes, blocks, settings)


def _uncounted(
    slowdowns: list[Slowdown],
    blocks: Blocks,
    same_work: Blocks,
    timed: Floats,
    hosts_alone: Blocks,
    settings: Settings,
) -> tuple[list[Slowdown], Blocks]:
    """The ranks that are surely slow in a job with uneven, uncounted work, and the blocks to cost them.

    A rank that is late because of its host stays late without its GPU's computing.
    """
    late = {slowdown.row for slowdown in slowdowns}
    # What becomes slow among few steps is smoothed away with what is usual then.
    slowdowns = [*slowdowns, *(one for one in straggler.find(blocks, settings) if one.row not in late)]
    sure = uneven.no_batches(slowdowns, timed, settings)
    hosts = [one for one in straggler.find(hosts_alone, settings) if one.row not in {slowdown.row for slowdown in sure}]
    rows = sorted({host.row for host in hosts})
    delay, intervals = same_work.delay.copy(), same_work.intervals.copy()
    delay[rows], intervals[rows] = hosts_alone.delay[rows], hosts_alone.intervals[rows]
    found = sorted([*sure, *hosts], key=lambda one: -one.delay)
    return found, replace(same_work, delay=delay, intervals=intervals)


def _at_home(verdict: Verdict, run: Run, blocks: Blocks) -> Verdict:
    """With the node where a verdict names all of its ranks, and with what to do there."""
    whole = wording.whole_nodes(run, verdict.ranks) if verdict.kind in LATE else []
    usual = 0.0
    if rows(run.stacks):
        run = replace(run, stacks=_stacks_meanwhile(verdict, run, blocks))
        off = blocks.parts.get("self_blocked")
        if off is not None and len(others := off[~np.isin(blocks.ranks, verdict.ranks)]):
            usual = float(np.nan_to_num(median(others))) / blocks.step_ns
    return advice.on(replace(verdict, evidence=(*verdict.evidence, *whole)), run, usual=usual)


def _gone(verdict: Verdict, run: Run) -> bool:
    """Whether all ranks of a verdict have left a job that still runs: they no longer hold it back."""
    if run.job.ended_ns is not None or run.job.exit_code is not None or not verdict.ranks:
        return False
    life = dict(zip(run.rank_states["rank"].tolist(), run.rank_states["life"].tolist(), strict=True))
    return RUNNING in life.values() and all(life.get(rank, RUNNING) != RUNNING for rank in verdict.ranks)


def _unclear(run: Run, blocks: Blocks, settings: Settings) -> Verdict | None:
    """Why steps alone, or launches without steps, cannot clear any rank."""
    if run.few_collectives:
        return inconclusive.few_collectives(blocks)
    if blocks.evidence != build_blocks.PHASES:
        hidden = inconclusive.without_starts(blocks) or inconclusive.hosts_unmarked(blocks, settings)
        return hidden or inconclusive.late_in_messages(blocks)
    if blocks.pipeline is not None:
        return inconclusive.passed_on(blocks)
    inside = (
        inconclusive.exchanging_inside(run, blocks)
        or inconclusive.little_inside(run, blocks)
        or inconclusive.idle_inside(blocks)
    )
    return inside or missing_ranks.backward_may_wait(run, blocks)


def _cpu_use(run: Run, blocks: Blocks | None) -> dict[str, usage.CpuUse]:
    """Node to who used its CPUs in the judged steps; in all of the recording where too little was sampled in these.

    None where a quota keeps all ranks from using what others leave.
    """
    if cpu_sharing.all_bound(run, by_quota=True):
        return {}
    metrics, span = telemetry.Metrics.of(run), usage.of_steps(run, blocks)
    of_steps = usage.cpu_use(metrics.during(*span)) if span is not None else {}
    return of_steps or usage.cpu_use(metrics)


def _despite_pauses(verdict: Verdict, planned: Sequence[waste.Planned], blocks: Blocks | None) -> Verdict:
    """A verdict that clears all ranks, in doubt where they wait much for what only looks planned: it may be a fault."""
    if blocks is None or verdict.kind != "balanced":
        return verdict
    much = wording.DEAR * average(blocks.period) / 1e6
    pauses = [one.note.partition(". ")[0] for one in planned if not one.seen and one.ms_per_step >= much]
    if not pauses:
        return verdict
    return replace(verdict, confidence=UNSURE, evidence=(*pauses, *verdict.evidence), advice=wording.TELLING)


def _nothing(run: Run, blocks: Blocks | None, settings: Settings) -> Verdict:
    """No rank to name: all is well, or too little was recorded."""
    ranks = len(blocks.ranks) if blocks is not None else rows(run.ranks)
    if blocks is None or ranks < 2 or len(blocks.steps) < settings.min_steps:
        return inconclusive.too_little(run, blocks, settings)
    if blocks.evidence == build_blocks.BARE:
        return inconclusive.nothing_inside(blocks)
    if np.isnan(blocks.period).all():
        return inconclusive.no_measure(blocks)
    unclear = missing_ranks.ranks_without_steps(run, blocks) or _unclear(run, blocks, settings)
    if unclear is not None:
        return unclear
    shared = cpu_sharing.find(run)
    if shared is None:
        return inconclusive.off_the_cpu(blocks) or balanced(blocks, savings.imbalance_cost(blocks), settings)
    fewer = advice.fewer_ranks(run, shared.cpus)
    return oversubscribed.no_rank_named(shared, blocks, settings, partial(_cpu_use, run, blocks), fewer)
