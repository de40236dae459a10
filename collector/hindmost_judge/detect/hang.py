"""Operations that do not end: who did not come, and who came with something else; and those that differ and do end.

Every communicator has a frontier: the lowest sequence number that some member has entered and not left. Members that
have not entered it are missing; who is in a message waits for its peer. Different operations at one sequence number are
a divergence.

The wait-for graph leads from those that wait to those that wait for no other, and hold the job. A node is a rank, or an
operation that several ranks are in. A closed chain of waits is a deadlock: the AND model of Knapp, "Deadlock detection
in distributed databases" (ACM Computing Surveys, 1987).

Ranks that ran different operations at one place of a communicator may go on: then they exchanged garbage. A collective
library requires the same sequence on all members and does not check it. Operations of similar size may pair up wrongly
without a hang.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hindmost_judge.blocks import Blocks
from hindmost_judge.encoding import codes, unique
from hindmost_judge.model import ANY_PEER, ERROR, SENDS, UNMEASURED, Job, Run, Table, has_launches, rows
from hindmost_judge.settings import Settings
from hindmost_judge.timeline.phases import training
from hindmost_judge.types import Array, Ints

#: Places at which all members ran one operation before; then sequence numbers mean the same on all of them (places).
_DESYNC_AGREED = 10

_COLLECTIVE = {"collective", "p2p"}


@dataclass(frozen=True)
class Wait:
    """What one rank is in, since when and for how long (ns): collective number ``seq``, or, -1, a message.

    ``peer`` is whom it waits for (``None``: not one known rank), who has to receive if it ``sends``; that is ``None``
    in a collective.
    """

    rank: int
    op: str
    comm: int
    start: int
    waited: int
    seq: int = -1
    peer: int | None = None
    sends: bool | None = None


@dataclass(frozen=True)
class Hang:
    """A stop: ``kind`` is hang or desync. ``doing`` is what each culprit was inside, or ran instead, where known.

    ``seq`` is -1 where ranks wait in messages: ``waits`` has those, of a ``deadlock`` each rank's in its order.
    """

    kind: str
    ranks: tuple[int, ...]
    victims: tuple[int, ...]
    comm: int
    seq: int
    op: str
    waited_ns: int  # the longest wait for the culprits, of a deadlock the shortest; -1: unknown
    doing: dict[int, str]
    seen: bool = True  # false: what was open was not seen, only that nothing moved any more
    #: Members whose open operations are unknown: the culprits themselves or, where there are none, suspects.
    unproven: tuple[int, ...] = ()
    #: When that wait began, ns.
    entered_ns: int = 0
    waits: tuple[Wait, ...] = ()
    deadlock: bool = False

    @property
    def confidence(self) -> float:
        """How sure the name is: less if the rank's absence, or how long the others waited, was not seen."""
        if not self.ranks:
            return 0.6
        sure = 0.99 if self.waited_ns >= 0 else 0.8
        return sure - 0.2 if self.unproven else sure


def find(run: Run, step_ns: float, settings: Settings) -> Hang | None:
    """The run's hang or divergence, ``None`` if every open operation is young. ``step_ns`` is the p99 step time."""
    limit = settings.hang_timeout_ns(step_ns)
    waits = _waits(run)
    waiting, messages = _frontiers(waits), [one for one in waits if one.sends is not None]
    stuck = {comm: waits for comm, waits in waiting.items() if max(one.waited for one in waits) >= limit}
    late = [message for message in messages if message.waited >= limit]
    seen = _last_seen(run) if late else {}
    late = [message for message in late if message.peer is None or seen.get(message.peer, 0) <= message.start + limit]
    if not stuck and not late:
        return _of_no_age(run, waiting) if waiting else None if messages else _silence(run, limit)
    found = _divergence(stuck) or _left_behind(run, waiting, stuck, messages, late)
    as_planned = "checkpoint" in found.doing.values()
    if run.at_work and found.kind == "hang" and not found.deadlock and found.seq < settings.min_steps:
        # Before a running job's first steps one rank may load data or models for all.
        calls = run.collectives["rank"]
        early = not rows(run.steps) and (not len(calls) or int(np.bincount(calls).max()) < settings.min_steps)
        as_planned = as_planned or early
    return None if as_planned and found.waited_ns < settings.hang_planned_seconds * 1e9 else found


def since_step(stop: Hang, run: Run, blocks: Blocks | None) -> int | None:
    """The step in which the job stopped: the one after the last that the culprits finished, or else any rank.

    Without step marks, the one after the last whole pattern of collectives."""
    table = training(run.steps)
    if not rows(table):
        if blocks is None or not len(blocks.steps):
            return None
        last = int(blocks.steps[-1])
        counts = np.diff(np.append(blocks.starts, blocks.joined.columns)) if blocks.joined is not None else np.ones(1)
        return last if counts[-1] < np.median(counts) else last + 1  # the first step that is not whole
    mine = np.isin(table["rank"], stop.ranks)
    if stop.ranks and not mine.any():
        return None
    known = table["rank"][mine] if mine.any() else table["rank"]
    return min(steps_done(table, run.collectives, rank) for rank in np.unique(known).tolist())


def steps_done(steps: Table, collectives: Table, rank: int) -> int:
    """The number of the step after those that a rank finished: of the last one it may have left no mark."""
    mine = steps["rank"] == rank
    order = np.argsort(steps["start_ns"][mine], kind="stable")
    last = int(steps["step"][mine].max()) + 1
    if not has_launches(collectives):
        return last
    enqueued = collectives["enqueue_ns"][(collectives["rank"] == rank) & (collectives["enqueue_ns"] >= 0)]
    begun = steps["start_ns"][mine][order]
    ended = int(begun[-1] + steps["duration_ns"][mine][order][-1])
    in_each = np.histogram(enqueued, begun)[0] if len(begun) > 1 else np.zeros(1)
    usual = int(np.median(in_each))
    return last + (int((enqueued > ended).sum()) // usual if usual else 0)


def waits_of(run: Run, ranks: Sequence[int]) -> tuple[int, int]:
    """For how many ns these ranks have waited, summed, -1 where one is unknown; when the first began to, 0: unknown."""
    table, waited, longest = run.in_flight, _waited(run), dict.fromkeys(ranks, UNMEASURED)
    theirs = np.flatnonzero(np.isin(table["kind"], [*_COLLECTIVE]) & np.isin(table["rank"], [*longest]))
    for i in theirs.tolist():
        rank = int(table["rank"][i])
        longest[rank] = max(longest[rank], waited[i])
    known = bool(longest) and UNMEASURED not in longest.values()
    return sum(longest.values()) if known else UNMEASURED, min(table["start_ns"][theirs].tolist(), default=0)


def _of_no_age(run: Run, waiting: dict[int, list[Wait]]) -> Hang | None:
    """The ranks that did not come to what the others wait in, where the waiting time is unknown.

    Only that distinguishes a stop from a moment of a running job, in which operations are open too."""
    table = run.in_flight
    pairs = set(table["comm"][table["kind"] == "p2p"].tolist())
    together = {comm: waits for comm, waits in waiting.items() if comm not in pairs}
    stuck = {comm: waits for comm, waits in together.items() if all(one.waited == UNMEASURED for one in waits)}
    parted = _divergence(together)
    if parted is not None and run.job.source != Job.source:
        ran = run.collectives
        same = (ran["comm"] == parted.comm) & (ran["seq"] == parted.seq) & (ran["op"] == parted.op)
        if not (same & np.isin(ran["rank"], list(parted.doing))).any():  # nor among several of one number, as grouped
            return replace(parted, waited_ns=UNMEASURED)  # no moment of a job at work shows that
    found = _left_behind(run, waiting, stuck, [], []) if stuck else None
    if found is None or found.kind != "hang" or not found.ranks:
        return None
    return found if {*found.ranks} - {*found.unproven} <= set(run.ranks["rank"].tolist()) else None


def of_a_moment(run: Run) -> Hang | None:
    """What others wait in and who had not entered it, however short that may have been."""
    ageless = replace(run, in_flight={**run.in_flight, "observed_ns": np.full(rows(run.in_flight), UNMEASURED)})
    return _of_no_age(ageless, _frontiers(_waits(ageless)))


def _left_behind(
    run: Run, waiting: dict[int, list[Wait]], stuck: dict[int, list[Wait]], messages: list[Wait], late: list[Wait]
) -> Hang:
    """The ranks that did not come, upstream of every rank that waits too long; or a circle of ranks that wait for each
    other; or ranks that ran an operation that no other rank ran."""
    waits_in_any = np.isin(run.in_flight["kind"], [*_COLLECTIVE])  # those ahead of the frontier wait, too
    blocked = {*run.in_flight["rank"][waits_in_any].tolist()}
    missing = {comm: _missing(run, comm, waits) for comm, waits in waiting.items()}
    node = {comm: -1 - place for place, comm in enumerate(waiting)}  # an operation needs all who are missing
    targets: dict[int, set[int]] = {rank: set() for rank in blocked} | {node[comm]: {*missing[comm]} for comm in node}
    for rank, operation in [(one.rank, node[comm]) for comm, waits in waiting.items() for one in waits]:
        targets[rank].add(operation)
    sent = {(one.rank, one.peer) for one in messages if one.sends}
    met = {frozenset((one.rank, one.peer)) for one in messages if not one.sends and (one.peer, one.rank) in sent}
    for one in messages:
        if one.peer is not None and frozenset((one.rank, one.peer)) not in met:
            targets[one.rank].add(one.peer)
    roots, cycle = walk(targets, {node[comm] for comm in stuck} | {wait.rank for wait in late})
    if {wait.rank for wait in messages}.intersection(cycle):
        return _deadlock(cycle, waiting, missing, messages, blocked)
    crossed = _crossed(run, stuck, missing) if stuck and not roots else None
    if crossed is not None:
        return crossed
    since: dict[int, int] = {}
    held_up = [(rank, one.start) for comm, waits in waiting.items() for one in waits for rank in missing[comm]]
    held_up += [(wait.peer, wait.start) for wait in messages if wait.peer is not None]
    for awaited, start in held_up:
        since[awaited] = max(since.get(awaited, 0), start)
    culprits, unproven = _culprits(run, [*roots], blocked, since)
    comm = next((comm for comm in (*stuck, *waiting) if {*missing[comm]} & {*culprits, *unproven}), None)
    if comm is None and stuck and not (culprits or unproven):
        comm = next(iter(stuck))
    if comm is None:  # ranks wait in messages: for the culprits or, where there are none, for whom they name
        direct = [wait for wait in messages if wait.peer in {*culprits, *unproven}] or late
        stop = _stop("hang", culprits, blocked - {*culprits}, direct, _doing(run, culprits, direct))
        return replace(stop, unproven=tuple(unproven), waits=tuple(direct))
    waits = waiting[comm]
    entered = {one.rank for one in waits}
    others = _other_operations(run, comm, sorted(members(run, comm) - entered), entered)
    if others:
        return _stop("desync", sorted(others), blocked - {*others}, waits, others)
    stop = _stop("hang", culprits, blocked - {*culprits}, waits, _doing(run, culprits, waits))
    return replace(stop, unproven=tuple(unproven))


def _stop(kind: str, ranks: list[int], victims: Iterable[int], waits: list[Wait], doing: dict[int, str]) -> Hang:
    """A stop of ranks that wait so, the first of them in what the others missed."""
    return Hang(
        kind=kind,
        ranks=tuple(ranks),
        victims=tuple(sorted(victims)),
        comm=waits[0].comm,
        seq=waits[0].seq,
        op=waits[0].op,
        waited_ns=max(wait.waited for wait in waits),
        doing=doing,
        entered_ns=min(wait.start for wait in waits),
    )


def _deadlock(
    cycle: tuple[int, ...],
    waiting: dict[int, list[Wait]],
    missing: dict[int, list[int]],
    messages: list[Wait],
    blocked: set[int],
) -> Hang:
    """Ranks each of which waits for the next, and the last for the first.

    Where some are in a collective and others in messages, one side took another way: the smaller one.
    """
    waits, entered = list[Wait](), set[int]()
    for rank, after in zip(cycle, (*cycle[1:], cycle[0]), strict=True):
        message = next((wait for wait in messages if (wait.rank, wait.peer) == (rank, after)), None)
        awaited = [waiting[comm] for comm, ranks in missing.items() if after in ranks]
        inside = [] if message is not None else next(one for one in awaited if rank in {wait.rank for wait in one})
        waits.append(message or replace(next(one for one in inside if one.rank == rank), peer=after))
        entered |= {one.rank for one in inside}
    sides = sorted((entered, blocked - entered), key=len)
    odd = sides[0] if len(sides[0]) < len(sides[1]) else set[int]()
    parted = bool(entered)
    waits.sort(key=lambda one: one.seq < 0 and parted)
    named = sorted(odd if parted else cycle)
    return replace(
        _stop("desync" if parted else "hang", named, blocked - {*named}, waits, {}),
        comm=next(wait.comm for wait in messages if wait.rank in cycle),
        seq=-1,
        waited_ns=min(wait.waited for wait in waits),
        entered_ns=max(wait.start for wait in waits),
        waits=tuple(waits),
        deadlock=not parted,
    )


def _culprits(run: Run, absent: list[int], blocked: set[int], since: dict[int, int]) -> tuple[list[int], list[int]]:
    """The missing ranks that were observed, or else a single unobserved one if several others wait.

    And, if no observed rank is missing, the ranks whose open operations are unknown."""
    looked_at = _looked_at(run, since)
    proven = [rank for rank in absent if rank in looked_at]
    unproven = [rank for rank in absent if rank not in looked_at]
    if proven or not unproven:
        return proven, []
    return unproven if len(unproven) == 1 < len(blocked) else [], unproven


def _looked_at(run: Run, since: dict[int, int]) -> set[int]:
    """Ranks with known open operations.

    In a foreign recording those that left a dump, else those of a node with contact ``since`` the others entered
    what a rank did not."""
    known = {int(rank) for rank in run.ranks["rank"]}
    if run.job.source != Job.source:
        return {int(rank) for rank in run.rank_states["rank"]} or known
    node = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))
    # An agent that sees no rank may have stopped long ago: its last word says nothing of them.
    heard, sampled = last_heard(run), {node.get(rank, "") for rank in run.rank_states["rank"].tolist()}
    heard_of = {rank for rank in known if node[rank] not in sampled or heard[node[rank]] >= since.get(rank, 0)}
    # A rank without the plugin, or without any row, may have had anything open. Long after a stop a window holds no
    # collectives any more.
    stated = np.intersect1d(run.communicators["rank"], run.rank_states["rank"])
    return heard_of - (since.keys() - {*np.unique(run.collectives["rank"]).tolist(), *stated.tolist()})


def last_heard(run: Run) -> dict[str, int]:
    """When each node was heard of last, by a measurement of it or of one of its ranks, ns."""
    on = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))
    node = np.array([on.get(rank, "") for rank in run.rank_states["rank"].tolist()], np.str_)
    heard: dict[str, int] = {}
    for names, times in ((node, run.rank_states["time_ns"]), (run.metrics["node"], run.metrics["time_ns"])):
        code, words = codes(names)
        newest = np.zeros(len(words), np.int64)
        np.maximum.at(newest, code, times)
        heard |= {one: max(heard.get(one, 0), last) for one, last in zip(words, newest.tolist(), strict=True)}
    return heard


def _crossed(run: Run, stuck: dict[int, list[Wait]], missing: dict[int, list[int]]) -> Hang | None:
    """Ranks that wait for each other in different communicators, as where one calls all_reduce itself and the others'
    DDP does.

    The wrong side is known where both have the same members: the smaller one."""
    comm = max(stuck, key=lambda one: len(stuck[one]))
    elsewhere = [(other, one) for other, waits in stuck.items() if other != comm for one in waits]
    met = [(other, one) for other, one in elsewhere if one.rank in missing[comm]]
    if not met:
        return None
    alike = all(members(run, other) == members(run, comm) for other, _ in met)
    return _parted(stuck[comm], [one for _, one in met], tell=alike)


def _parted(common: list[Wait], odd: list[Wait], tell: bool = True) -> Hang:
    """The divergence of the ``odd`` from what the others entered; of two equal halves neither is the odd one."""
    named = sorted(wait.rank for wait in odd) if tell and len(odd) < len(common) else []
    doing = {wait.rank: wait.op for wait in odd}
    return _stop("desync", named, [wait.rank for wait in common], [*common, *odd], doing)


def _other_operations(run: Run, comm: int, away: list[int], entered: set[int]) -> dict[int, str]:
    """Rank to the operation that it ran in this communicator and that no waiting rank ever entered.

    A broadcast's root need not wait: a rank that took the wrong branch may have finished there and gone on.
    """
    if not away or not entered:
        return {}
    table = run.collectives
    here = np.flatnonzero(table["comm"] == comm)
    theirs = here[np.isin(table["rank"][here], [*entered])]
    found: dict[int, str] = {}
    for rank in away:
        own = here[table["rank"][here] == rank]
        for at in own[table["start_ns"][own] == table["start_ns"][own].max(initial=0)]:
            name, alike = str(table["op"][at]), theirs[table["seq"][theirs] == table["seq"][at]]
            if name not in _MEET and not (table["op"][alike] == name).any():
                found[rank] = name
    still_open = {str(name) for name in run.in_flight["name"][run.in_flight["comm"] == comm]}
    return {rank: name for rank, name in found.items() if name not in still_open}


def _silence(run: Run, limit: float) -> Hang | None:
    """A job that a signal ended long after the last progress, though its open operations were not seen."""
    ended, table = run.job.ended_ns, run.collectives
    if run.killed_by is None or ended is None or rows(table) == 0:
        return None
    stops = [
        int((one["start_ns"] + np.maximum(one["duration_ns"], 0)).max()) for one in (table, run.steps) if rows(one)
    ]
    silent = ended - max(stops)
    if silent < limit:
        return None
    last = int(np.argmax(table["start_ns"]))
    op, comm, seq = (table[name][last] for name in ("op", "comm", "seq"))
    return replace(_stop("hang", [], (), [Wait(-1, str(op), int(comm), 0, silent, int(seq))], {}), seen=False)


def _waits(run: Run) -> list[Wait]:
    """What ranks are in, of a message once for each peer."""
    table, waited, message, found = run.in_flight, _waited(run), _in_message(run), list[Wait]()
    for i in np.flatnonzero(np.isin(table["kind"], [*_COLLECTIVE])).tolist():
        rank, comm, start, seq = (int(table[name][i]) for name in ("rank", "comm", "start_ns", "seq"))
        one = Wait(rank, str(table["name"][i]), comm, start, waited[i], seq)
        if not message[i]:
            found.append(one)
            continue
        sends = table["flags"][i] > 0 and bool(table["flags"][i] & SENDS)
        peers = _peers(run, rank, comm, int(table["peer"][i]))
        found += [replace(one, seq=-1, peer=peer, sends=sends) for peer in peers]
    return found


def _frontiers(waits: Iterable[Wait]) -> dict[int, list[Wait]]:
    """Communicator to its lowest unfinished operations: each rank's lowest, and of those the ones at the lowest."""
    lowest: dict[int, dict[int, Wait]] = {}
    for one in waits:
        if one.sends is None:
            of_comm = lowest.setdefault(one.comm, {})
            of_comm[one.rank] = min(of_comm.get(one.rank, one), one, key=lambda wait: wait.seq)
    first = {comm: min(one.seq for one in ranks.values()) for comm, ranks in lowest.items()}
    return {comm: [one for one in ranks.values() if one.seq == first[comm]] for comm, ranks in lowest.items()}


def _waited(run: Run) -> list[int]:
    """For how long each operation in flight has been open, ns; -1 where that was not recorded.

    A rank waits until its own process ends, however long its launcher needs after that.
    """
    table, states = run.in_flight, run.rank_states
    killed = run.job.ended_ns if run.killed_by is not None else None
    seen = np.maximum(table["observed_ns"], killed or UNMEASURED)
    ended = dict(zip(states["rank"].tolist(), states["ended_ns"].tolist(), strict=True))
    own = np.array([ended.get(rank, UNMEASURED) for rank in table["rank"].tolist()], np.int64)
    seen = np.where(own >= table["start_ns"], np.minimum(seen, own), seen)
    return np.where(seen != UNMEASURED, seen - table["start_ns"], UNMEASURED).tolist()  # type: ignore[no-any-return]


def _in_message(run: Run) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which operations in flight are messages; a wait for a collective, which has a number, is none."""
    table = run.in_flight
    if "peer" not in table:
        return np.zeros(rows(table), bool)
    known = table["peer"] != UNMEASURED
    if run.job.source == Job.source:
        known |= (table["name"] != "wait") | (table["comm"] == 0)
    return np.asarray((table["kind"] == "p2p") & known)


def _peers(run: Run, rank: int, comm: int, peer: int) -> list[int | None]:
    """The ranks of the job that a rank of a communicator stands for; ``None``: not known."""
    table = run.communicators
    here = table["comm"] == comm
    if peer == ANY_PEER:
        return [member for member in sorted(members(run, comm)) if member != rank] or [None]
    found = table["rank"][here & (table["rank_in"] == peer)].tolist()
    whole = run.job.world_size is not None and (table["size"][here] == run.job.world_size).any()
    return found[:1] or [peer if whole and peer >= 0 else None]


def _last_seen(run: Run) -> dict[int, int]:
    """When each rank last began an operation or a step."""
    tables = (run.collectives, run.steps)
    rank, start = (np.concatenate([table[name] for table in tables]) for name in ("rank", "start_ns"))
    order = np.argsort(start, kind="stable")
    return dict(zip(rank[order].tolist(), start[order].tolist(), strict=True))


def _divergence(stuck: dict[int, list[Wait]]) -> Hang | None:
    for waits in stuck.values():
        names = [one.op for one in waits]
        if len(set(names)) > 1 and not _MEET.issuperset(names):
            common = max(sorted(set(names)), key=names.count)
            return _parted([one for one in waits if one.op == common], [one for one in waits if one.op != common])
    return None


def _missing(run: Run, comm: int, waits: list[Wait]) -> list[int]:
    """Members of the communicator that have neither finished nor entered its frontier."""
    seq = waits[0].seq
    entered = {wait.rank for wait in waits}
    table = run.collectives
    passed = (table["comm"] == comm) & (table["seq"] >= seq)
    if _counted_apart(table, np.flatnonzero(table["comm"] == comm)):
        passed &= table["op"] == waits[0].op
    return sorted(members(run, comm) - entered - set(table["rank"][passed].tolist()))


def members(run: Run, comm: int) -> set[int]:
    """Ranks of a communicator: as defined, else all ranks seen in it, else the whole job."""
    defined = run.communicators["rank"][run.communicators["comm"] == comm].tolist()
    sizes = run.communicators["size"][run.communicators["comm"] == comm].tolist()
    world = run.job.world_size or 0
    if world and max(sizes, default=0) == world > len(set(defined)):
        return set(range(world))
    seen = set(run.collectives["rank"][run.collectives["comm"] == comm].tolist())
    return set(defined) | seen or set(run.ranks["rank"].tolist())


def _doing(run: Run, ranks: list[int], waits: list[Wait]) -> dict[int, str]:
    """The innermost open phase of each rank, where its probe said so: what it began before most of the others' wait.

    What came later is no reason for it, as is MPI_Finalize after a Ctrl-C.
    """
    table = run.in_flight
    until = max(wait.start + max(wait.waited, 0) // 2 for wait in waits)
    found: dict[int, tuple[int, str]] = {}
    for i in range(rows(table)):
        rank, start = int(table["rank"][i]), int(table["start_ns"][i])
        known = rank in ranks and str(table["kind"][i]) == "phase" and (start <= until or waits[0].waited < 0)
        if known and start >= found.get(rank, (start, ""))[0]:
            found[rank] = (start, str(table["name"][i]))
    return {rank: name for rank, (_, name) in found.items()}


@dataclass(frozen=True)
class Mismatch:
    """The first place at which ``ranks`` ran ``ran`` and ``others`` ran ``op``, and at how many places ranks differ."""

    ranks: tuple[int, ...]
    others: tuple[int, ...]
    ran: str
    op: str
    comm: int
    seq: int
    start_ns: int
    places: int

    @property
    def named(self) -> tuple[int, ...]:
        """The wrong side: the smaller one; with two equal sides, neither."""
        return self.ranks if len(self.ranks) < len(self.others) else ()


#: Two sides of one operation: different names at one number are no mismatch here.
_MEET = {"send", "recv"}


def find_mismatch(run: Run, *, stopped: bool = False) -> Mismatch | None:
    """The earliest such place of any communicator; ``None`` where there is none, or too little agreed to tell.

    In a job that went on, half of the ranks against the other half is no proof; in one that ``stopped`` it is the
    reason.
    """
    table = run.collectives
    if rows(table) == 0:
        return None
    op, names = codes(table["op"])
    usable = np.flatnonzero((table["seq"] >= 0) & ((table["flags"] & ERROR) == 0))
    found = [
        one
        for comm in (np.unique(table["comm"][usable]) if len(names) > 1 else ())
        if (one := _in_communicator(table, op, names, usable[table["comm"][usable] == comm])) is not None
        and (stopped or one.named)
    ]
    return min(found, key=lambda one: one.start_ns, default=None)


#: Each number has a slot of its own where numbers span less than this for each row.
_SLOTS_A_ROW = 4


def _in_communicator(table: Table, op: Ints, names: list[str], indices: Array) -> Mismatch | None:
    seq, ran = table["seq"][indices].astype(np.int64), op[indices]
    slot = seq % (_SLOTS_A_ROW * len(seq))
    last = np.zeros(_SLOTS_A_ROW * len(seq), ran.dtype)
    last[slot] = ran
    if (last[slot] == ran).all():  # in nearly all jobs
        return None
    number, ways = np.unique(unique(seq * len(names) + ran) // len(names), return_counts=True)
    places = number[ways > 1]
    if len(places) == 0 or _counted_apart(table, indices):
        return None
    _, agreed = np.unique(seq[seq < places[0]], return_counts=True)
    if int(np.sum(agreed > 1)) < _DESYNC_AGREED:
        return None
    members = indices[seq == places[0]]
    common = int(np.argmax(np.bincount(op[members])))
    odd = op[members] != common
    if 2 * int(odd.sum()) > len(members) or _MEET.issuperset({names[one] for one in op[members].tolist()}):
        return None
    return Mismatch(
        ranks=tuple(sorted(table["rank"][members[odd]].tolist())),
        others=tuple(sorted(table["rank"][members[~odd]].tolist())),
        ran=names[int(op[members[odd][0]])],
        op=names[common],
        comm=int(table["comm"][members[0]]),
        seq=int(table["seq"][members[0]]),
        start_ns=int(table["start_ns"][members[0]]),
        places=len(places),
    )


def _counted_apart(table: Table, indices: Array) -> bool:
    """Whether any member has one number twice: then operations are numbered each for itself, or by another rule."""
    order = np.lexsort((table["seq"][indices], table["rank"][indices]))
    rank, seq = table["rank"][indices][order], table["seq"][indices][order]
    return bool(np.any((np.diff(rank) == 0) & (np.diff(seq) == 0)))


def walk(targets: Mapping[int, set[int]], starts: Iterable[int]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Follow the waits from ``starts``; ``targets`` are what each waiting node waits for, as far as that is known.

    Numbers below 0 are operations, all others ranks. Returns the ranks that wait for no other and that waiting ranks
    lead to, in order; and ranks each of which waits for the next, and the last for the first, empty where there is no
    deadlock.
    An operation needs all of its targets. A rank with one target needs that; one with several was waiting for some of
    them, it is not known which, so only chains of certain waits are a deadlock while any other rank is a root.
    """
    reached: dict[int, set[int]] = {}
    queue = [*starts]
    while queue:
        node = queue.pop()
        if node in targets and node not in reached:
            reached[node] = targets[node]
            queue.extend(targets[node])
    certain = {node: others for node, others in reached.items() if node < 0 or len(others) == 1}
    ends = {target for others in reached.values() for target in others if target >= 0}
    roots = tuple(sorted(ends - targets.keys()))
    return roots, _cycle(certain) or (() if roots else _cycle(reached))


#: From so many ranks a closed chain is looked for.
_MAX_STARTS = 64


def _cycle(targets: Mapping[int, set[int]]) -> tuple[int, ...]:
    """The shortest closed chain through one of the first ranks that are in any; empty where there is none."""
    first = [rank for rank in sorted(_knotted(targets)) if rank >= 0][:_MAX_STARTS]
    shortest = min((chain for rank in first if (chain := _back_to(rank, targets))), key=len, default=())
    return tuple(node for node in shortest if node >= 0)


def _knotted(targets: Mapping[int, set[int]]) -> set[int]:
    """Nodes that may be in a closed chain: those that are left once nodes without a target, or a waiter, are gone."""
    left = set(targets)
    while True:
        leads = {node for node in left if targets[node] & left}
        both = leads & {target for node in leads for target in targets[node]}
        if both == left:
            return left
        left = both


def _back_to(start: int, targets: Mapping[int, set[int]]) -> tuple[int, ...]:
    """The shortest chain of waits from a node back to it, by breadth-first search."""
    previous, queue = {start: start}, [start]
    for node in queue:
        for target in sorted(targets.get(node, ())):
            if target == start:
                chain = [node]
                while chain[-1] != start:
                    chain.append(previous[chain[-1]])
                return tuple(reversed(chain))
            if target not in previous:
                previous[target] = node
                queue.append(target)
    return ()
