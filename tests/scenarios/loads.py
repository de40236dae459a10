"""Small made runs for scenarios: arrays straight into a ``Run``; and a run in another form, as ranks renamed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from hindmost_collector.recordings.tables import select, table
from hindmost_judge.model import NONBLOCKING, SENDS, Run, Table

from tests.runs import made, rows_of

SECOND = 10**9
WORLD = 7
#: What one rank is inside of: rank, operation, its peer in the communicator, whether the peer has to receive.
Message = tuple[int, str, int, bool]


@dataclass
class Load:
    """A job to make: ``faults`` are dictionaries with rank and what is added, in ms, and from which step. ``scatter``
    of one is a standard deviation, ms, by which computing is now longer and now shorter; ``wire`` is what a message
    between rank and ``peer`` takes longer. Ranks of a ``halo`` exchange messages before every other all-reduce. Those
    of ``edges`` do nothing else, ``stages`` hand on to the next rank, and to no other; rank 0 of ``workers`` hands out
    work to all others."""

    kind: str = "mpi"
    ranks: int = 4
    steps: int = 150
    compute: float = 8.0
    noise: float = 0.2
    transfer: float = 0.3
    seed: int = 1
    cpu: bool = True
    cpus: int = 0  # of the node, 0: unknown
    jostle: float = 0.0  # ms a step that the scheduler holds up some rank or other, in no counter
    on_node: int = 0  # ranks of each, 0: all
    sway: float = 0.0  # share by which all ranks take longer, up and down again in 60 steps
    names: list[int] | None = None
    scale: float = 1.0
    faults: list[dict[str, Any]] = field(default_factory=list)


def own_times(load: Load) -> tuple[np.ndarray[Any, Any], dict[str, np.ndarray[Any, Any]]]:
    """[R, S] ms of self time, and what of it is CPU, run queue, input and blocked."""
    shape = (load.ranks, load.steps)
    noise = np.stack(
        [np.random.default_rng([load.seed, r]).gamma(2.0, load.noise / 2, load.steps) for r in range(load.ranks)]
    )
    parts = {name: np.zeros(shape) for name in ("compute", "runqueue", "input", "blocked")}
    parts["compute"] += load.compute + noise
    if load.jostle:
        held_up = np.random.default_rng(load.seed).gamma(0.5, 2 * load.jostle, shape)
        parts["blocked"] += held_up + load.jostle * np.array([r % 2 for r in range(load.ranks)])[:, None]
    for fault in load.faults:
        held = np.arange(load.steps) >= fault.get("from", 0)
        held &= np.arange(load.steps) < fault.get("until", load.steps)
        if "every" in fault:
            held &= np.arange(load.steps) % fault["every"] == 3
        for name, block in parts.items():
            block[int(fault["rank"])] += fault.get(name, 0.0) * held
        if "scatter" in fault:
            draws = np.random.default_rng([load.seed, 99, fault["rank"]]).standard_normal(load.steps)
            parts["compute"][int(fault["rank"])] += fault["scatter"] * draws * held
    sway = 1 + load.sway * np.abs(np.sin(np.arange(load.steps) / 20))
    parts = {name: block * sway for name, block in parts.items()}
    return np.sum(list(parts.values()), axis=0), parts


def make(load: Load) -> Run:
    """The run: every step ends in one all-reduce, which no rank leaves before the last has come."""
    own, parts = own_times(load)
    own, parts = own * load.scale, {name: block * load.scale for name, block in parts.items()}
    if load.kind == "edges":
        node = [f"node{rank // (load.on_node or load.ranks)}" for rank in range(load.ranks)]
        return made(load.ranks, collectives=with_both_neighbours(load, own), who={"node": node})
    if load.kind in ("stages", "workers"):
        return made(load.ranks, collectives=(handed_on if load.kind == "stages" else handed_out)(own))
    messages = waits_in_messages(load) * load.scale
    came = own + messages
    duration = came.max(axis=0) - came + load.transfer * load.scale
    period = came.max(axis=0) + load.transfer * load.scale
    begin = np.cumsum(period) - period
    start = begin + came
    names = np.array(load.names if load.names is not None else range(load.ranks))[:, None]
    who = {"rank": names[:, 0], "node": "node0", "pid": 0}
    call = {"rank": names, "comm": 7, "seq": np.arange(load.steps), "start_ns": start, "duration_ns": duration}
    if load.kind == "torch":
        computing = parts["compute"]
        steps = rows_of(
            "steps",
            rank=names,
            kind="train",
            start_ns=begin,
            duration_ns=period,
            input_ns=parts["input"] + 0.1,
            forward_ns=computing / 3,
            backward_ns=computing * 2 / 3 + period - (computing + parts["input"]),
        )
        return made(load.ranks, steps=[steps], collectives=[rows_of("collectives", op="ddp_sync", **call)], who=who)
    measured = {"self_ns": own, "cpu_ns": parts["compute"], "runqueue_ns": parts["runqueue"]}
    calls = rows_of("collectives", op="all_reduce", step=-1, **call, **measured)
    reads = rows_of("intervals", rank=names, name="file_read", start_ns=start - own, duration_ns=parts["input"])
    more = {"intervals": select(reads, reads["duration_ns"] > 0)}
    if load.cpus:
        more["metrics"] = metrics([("hindmost_node_cpus", "{}", 1000, float(load.cpus))])
    sent = exchanges(load, begin, messages) if load.kind == "halo" else []
    return made(load.ranks, collectives=[calls, *sent], who=who, more=more)


#: Ms that a call takes that waits for nothing.
_CALL = 1e-3


def handed_on(own: np.ndarray[Any, Any]) -> list[Table]:
    """Messages of ranks that receive of the rank before, work [R, S] ms and send to the next, all but the ends."""
    done = np.zeros_like(own)
    for rank, step in np.ndindex(own.shape):
        free, came = done[rank, step - 1] * bool(step), done[rank - 1, step] * bool(rank)
        done[rank, step] = own[rank, step] + max(free, came)
    ready = np.pad(done, ((0, 0), (1, 0)))[:, :-1] + _CALL
    begun, rank = done - own, np.arange(len(own))[:, None]
    return [
        _messages("recv", ready, begun, 0.0, rank, rank - 1, 1, None),
        _messages("send", done, done, own, rank, rank + 1, 0, -1),
    ]


def with_both_neighbours(load: Load, own: np.ndarray[Any, Any]) -> list[Table]:
    """Messages of ranks that work [R, S] ms, send to both neighbours in a ring, and go on when both have."""
    ranks, steps = own.shape
    wire = np.full((ranks, ranks, steps), 0.02)
    for fault in load.faults:
        pair = [int(fault["rank"]), int(fault.get("peer", fault["rank"]))]
        wire[pair, pair[::-1], int(fault.get("from", 0)) :] += fault.get("wire", 0.0)
    rank, sides = np.arange(ranks), [(np.arange(ranks) + away) % ranks for away in (-1, 1)]
    sent, left = np.zeros_like(own), np.zeros_like(own)
    for step in range(steps):
        sent[:, step] = left[:, step - 1] * bool(step) + own[:, step]
        left[:, step] = np.max([sent[:, step], *(sent[side, step] + wire[side, rank, step] for side in sides)], axis=0)
    rank, peers, done = rank[:, None], [side[:, None] for side in sides], sent + 4 * _CALL
    received = [_messages("recv", sent + at * _CALL, sent, own * (at == 0), rank, peers[at], 0, None) for at in (0, 1)]
    sends = [_messages("send", sent + (2 + at) * _CALL, sent, 0.0, rank, peers[at], 0, None) for at in (0, 1)]
    started = [{**one, "flags": np.full_like(one["flags"], NONBLOCKING)} for one in (*received, *sends)]
    return [*started, _messages("wait", done, left, 0.0, rank, -1, 0, None)]


def handed_out(own: np.ndarray[Any, Any]) -> list[Table]:
    """Messages of rank 0, which sends to all others, receives of them and works [R, S] ms itself."""
    begin = np.cumsum(own[1:].max(axis=0) + own[0]) - own[1:].max(axis=0)
    rank, none = np.arange(len(own))[1:, None], np.zeros_like(own[1:])
    came, sent = begin + own[1:], begin + none + rank * _CALL
    back = np.maximum.accumulate(came, axis=0)
    of_last = np.pad(came, ((0, 0), (1, 0)))[:, :-1]
    gap = np.where(rank == 1, own[0], 0.0)
    return [
        _messages("send", sent, sent, gap, 0 * rank, rank, 0, None),
        _messages("recv", np.concatenate([begin[None], back[:-1]]) + rank * _CALL, back, 0.0, 0 * rank, rank, 0, None),
        _messages("recv", of_last + _CALL, sent, 0.0, rank, 0 * rank, 0, None),
        _messages("send", came, came, own[1:], rank, 0 * rank, 0, None),
    ]


def _messages(op: str, start: Any, end: Any, own: Any, rank: Any, peer: Any, first: int, stop: int | None) -> Table:
    """Those of some rows, as long as a call at least, with what the rank worked before each."""
    each = np.broadcast_arrays(rank, peer, start, np.maximum(end - start, _CALL), own)
    who, whom, at, took, worked = (one[first:stop] for one in each)
    return rows_of(
        "collectives", op=op, comm=7, step=-1, rank=who, peer=whom, start_ns=at, duration_ns=took, self_ns=worked
    )


def waits_in_messages(load: Load) -> np.ndarray[Any, Any]:
    """[R, S] ms that each rank waits in its messages."""
    waits = np.zeros((load.ranks, load.steps))
    for fault in load.faults:
        for end in (int(fault["rank"]), int(fault["peer"])) if "wire" in fault else ():
            waits[end, int(fault.get("from", 0)) : int(fault.get("until", load.steps))] = fault["wire"]
    waits[:, 1::2] = 0.0
    return waits


def exchanges(load: Load, begin: np.ndarray[Any, Any], waits: np.ndarray[Any, Any]) -> list[Table]:
    """Messages of all ranks with both neighbours in a ring, begun at ``begin`` [S] ms, and the ``waits`` for them."""
    at, rank = begin[None, ::2], np.arange(load.ranks)[:, None]
    call = {"rank": rank, "comm": 7, "step": -1, "bytes": 1000, "self_ns": 0.0}
    found = [
        rows_of("collectives", op=op, peer=peer, start_ns=at, duration_ns=0.0, flags=NONBLOCKING, **call)
        for peer in ((rank - 1) % load.ranks, (rank + 1) % load.ranks)
        for op in ("recv", "send")
    ]
    wait = waits[:, ::2]
    return [*found, rows_of("collectives", op="wait", peer=-1, start_ns=at, duration_ns=wait, **call)]


def metrics(samples: Sequence[tuple[str, str, float, float]]) -> Table:
    """What the agent of these ranks' node reads: name, labels, second and value each."""
    name, labels, second, value = zip(*samples, strict=True)
    return table("metrics", node="node0", name=name, labels=labels, time_ns=np.array(second) * 10**9, value=value)


def counters(name: str, rates: Mapping[int, float], seconds: Iterable[float]) -> list[tuple[str, str, int, float]]:
    """Samples of a counter of ranks' processes that rises by these rates a second, each as often."""
    name, ticks = f"hindmost_process_{name}_total", list(seconds)
    return [
        (name, f'{{"job": "made", "rank": "{rank}"}}', tick, rate * tick)
        for rank, rate in rates.items()
        for tick in ticks
    ]


def held_up(run: Run, longer_ms: Any) -> Run:
    """The run whose all-reduces take so many ms [S] longer, on all ranks; what follows comes as much later."""
    calls, longer = run.collectives, (np.asarray(longer_ms) * 1e6).astype(np.int64)
    later, seq = np.cumsum(longer) - longer, calls["seq"]
    moved = {"start_ns": calls["start_ns"] + later[seq], "duration_ns": calls["duration_ns"] + longer[seq]}
    return replace(run, collectives=calls | moved)


def hang(load: Load, missing: list[int], op: str = "all_reduce", other: str | None = None, waited: float = 30.0) -> Run:
    """The same, and then all but ``missing`` wait in the next all-reduce; with ``other`` they entered that."""
    inside = {rank: other if rank in missing else op for rank in range(load.ranks)}
    entered = {rank: name for rank, name in inside.items() if name is not None}
    waits = {"start_ns": 10**12, "observed_ns": 10**12 + int(waited * 1e9)}
    call = {"rank": list(entered), "name": list(entered.values()), "kind": "collective", "comm": 7, "seq": load.steps}
    return replace(make(load), in_flight=table("in_flight", **call, **waits))


TIMES = ("start_ns", "time_ns", "observed_ns")


def renamed(run: Run, order: Sequence[int]) -> Run:
    """Rank r is called ``order[r]``; nothing else changes."""
    names = np.array(order)

    def table(one: Table) -> Table:
        numbers = {name: one[name] for name in ("rank", "peer") if name in one}
        called = {name: np.where(was >= 0, names[was], was).astype(was.dtype) for name, was in numbers.items()}
        moved = one | called
        by_rank = np.argsort(moved["rank"], kind="stable") if "rank" in moved else slice(None)
        return {name: column[by_rank] for name, column in moved.items()}

    return replace(run, **{name: table(one) for name, one in run.tables().items()})


def shifted(run: Run, offsets: Mapping[str, int]) -> Run:
    """The clock of a node is ahead by so many ns: all that its ranks and its agent wrote."""
    node = dict(zip(run.ranks["rank"].tolist(), run.ranks["node"].tolist(), strict=True))

    def table(one: Table) -> Table:
        of = one["node"].tolist() if "node" in one else [node[rank] for rank in one.get("rank", np.empty(0)).tolist()]
        ahead = np.array([offsets.get(name, 0) for name in of], dtype=np.int64)
        return one | {name: one[name] + ahead for name in TIMES if name in one and len(one[name])}

    return replace(run, **{name: table(one) for name, one in run.tables().items()})


def without_first_steps(run: Run, share: float) -> Run:
    """As if recording had begun later: without this share of the marked steps, and the collectives before the rest."""
    steps, calls = run.steps, run.collectives
    number = np.unique(steps["step"])
    first = number[int(share * len(number))]
    begun = steps["start_ns"][steps["step"] == first].min()
    later = calls["step"] >= first if (calls["step"] >= 0).any() else calls["start_ns"] >= begun
    for comm in np.unique(calls["comm"]):  # all ranks from the same one on
        of = calls["comm"] == comm
        later[of] = calls["seq"][of] >= calls["seq"][of & later].min(initial=np.iinfo(np.int64).max)
    held = {"steps": (steps, steps["step"] >= first), "collectives": (calls, later)}
    return replace(run, **{name: {n: col[where] for n, col in one.items()} for name, (one, where) in held.items()})


def standing(*messages: Message, ranks: int = 4, in_collective: tuple[int, ...] = (), comm: int = WORLD) -> Run:
    """A job whose ranks have been for 30 s in these messages, or in the next all-reduce."""
    run = make(Load(ranks=ranks, steps=40))
    held = [(rank, "p2p", op, comm, 0, peer, SENDS * sends) for rank, op, peer, sends in messages]
    held += [(rank, "collective", "all_reduce", WORLD, 40, -1, 0) for rank in in_collective]
    columns = dict(zip(("rank", "kind", "name", "comm", "seq", "peer", "flags"), zip(*held, strict=True), strict=True))
    began = int(run.collectives["start_ns"].max()) + SECOND
    in_flight = table(
        "in_flight",
        **{name: list(values) for name, values in columns.items()},
        start_ns=np.full(len(held), began),
        observed_ns=np.full(len(held), began + 30 * SECOND),
    )
    world = table(
        "communicators", comm=WORLD, rank=range(ranks), rank_in=range(ranks), size=ranks, name="MPI_COMM_WORLD"
    )
    return replace(run, in_flight=in_flight, communicators=world)
