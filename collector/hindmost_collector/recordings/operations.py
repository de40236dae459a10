"""Operations that several sources recorded, put together: times, ranks and steps that one lacks and another knows.

One source knows an operation's time on the GPU, the other when the host enqueued it. NCCL numbers operations of each
kind separately. A log without its beginning has none of the kinds that occur at start-up only, such as the broadcasts
of a model's parameters. It then counts fewer than a source that numbers all kinds together.

Where communicators do not tell which rank a process was, the times do by which another source saw it enqueue. In a job
of several groups no communicator may have all processes, and process ids need not ascend with ranks: they begin anew
at their maximum, and every node counts its own. A Flight Recorder dump knows its rank, and notes each operation
microseconds before the profiler does; another rank's came at another time.

A log that polls for the last ended operation misses some, often on all ranks alike, and those left do not repeat. Its
steps are the pattern of the operations that it has, placed by their numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from hindmost_judge.model import UNMEASURED, Run, Table, has_launches, rows
from hindmost_judge.types import Array, Floats, Ints

from hindmost_collector.recordings import rank_mapping
from hindmost_collector.recordings.tables import select

#: How many of the operations that two sources have in common must be of one kind for their counts to be the same count.
AGREEMENT = 0.99


def with_what_others_saw(chosen: Table, others: Iterable[Table]) -> Table:
    """The chosen operations with enqueue times, and sizes in bytes, from sources that count the same operations."""
    for other in others:
        if other is chosen or not rows(other):
            continue
        mine, theirs = _matched(chosen, other)
        if len(mine) and np.mean(chosen["op"][mine] == other["op"][theirs]) >= AGREEMENT:
            chosen = _enqueued(chosen, other, mine, theirs)
            chosen = _sized(chosen, other, mine, theirs)
    return chosen


def _matched(chosen: Table, other: Table) -> tuple[Array, Array]:
    """Rows of both with the same rank and communicator, and a number that counts alike; collectives only."""
    ours, theirs = (np.flatnonzero((part["peer"] < 0) & (part["seq"] >= 0)) for part in (chosen, other))
    pairs = [np.empty((2, 0), np.int64)]
    for comm in np.intersect1d(chosen["comm"][ours], other["comm"][theirs]):
        first, second = ours[chosen["comm"][ours] == comm], theirs[other["comm"][theirs] == comm]
        more = _more(chosen, first, other, second)
        if more is not None:
            keys = _key(chosen, first, more), _key(other, second, 0)
            _, one, two = np.intersect1d(*keys, return_indices=True)
            pairs.append(np.stack([first[one], second[two]]))
    mine, same = np.concatenate(pairs, axis=1)
    return mine, same


def _more(chosen: Table, mine: Array, other: Table, theirs: Array) -> int | None:
    """What to add to the numbers of these rows of ``chosen`` for them to be those of these rows of ``other``."""
    ranks = np.intersect1d(chosen["rank"][mine], other["rank"][theirs])
    if not len(ranks):
        return None
    size = max(len(np.unique(chosen["rank"][mine])), len(np.unique(other["rank"][theirs])))
    of_one = [(part, rows_[part["rank"][rows_] == ranks[0]]) for part, rows_ in ((chosen, mine), (other, theirs))]
    one, two = (select(part, rows_[np.argsort(part["seq"][rows_], kind="stable")]) for part, rows_ in of_one)
    return difference(one, two, size)


def _key(part: Table, index: Array, more: int) -> Array:
    key: Array = part["rank"][index].astype(np.int64) << 24 | (part["seq"][index] + more) % (1 << 24)
    return key


def _enqueued(chosen: Table, other: Table, mine: Array, theirs: Array) -> Table:
    seen = other.get("enqueue_ns")
    if seen is None:
        return chosen
    known = chosen.get("enqueue_ns", np.full(rows(chosen), UNMEASURED)).copy()
    known[mine] = np.where(known[mine] >= 0, known[mine], seen[theirs])
    return {**chosen, "enqueue_ns": known}


def _sized(chosen: Table, other: Table, mine: Array, theirs: Array) -> Table:
    """Bytes from element counts, where all common operations of a kind have one size of element.

    The column ``elements`` stays as long as some operations' element size is unknown.
    """
    if "elements" not in chosen:
        return chosen
    elements, size = chosen["elements"], chosen["bytes"].copy()
    sized = np.zeros(len(size), dtype=bool)
    for op in np.unique(chosen["op"][mine]):
        common = (chosen["op"][mine] == op) & (other["bytes"][theirs] > 0) & (elements[mine] > 0)
        ratio = np.unique(other["bytes"][theirs][common] / elements[mine][common])
        if len(ratio) == 1:
            every = chosen["op"] == op
            size[every], sized[every] = elements[every] * ratio[0], True
    columns = {name: values for name, values in chosen.items() if name != "elements" or not sized.all()}
    return {**columns, "bytes": size}


#: A process is the rank whose operations it enqueued this many times sooner than any other's. In recorded jobs of 4
#: ranks the right one's median is 9 to 15 times below the next; where two ranks run in step to the microsecond, 1.
_CLEARER = 3.0
#: Operations that must be compared of each process, so that one coincidence is nothing.
_LEAST = 16
#: Operations used of a longer recording, evenly spread: enough for a median.
_MOST_RANKS = 4096


def with_ranks_by_time(runs: Sequence[Run]) -> list[Run]:
    """The runs, those whose ranks were guessed from process ids with the ranks that another one's times tell."""
    known = [run for run in runs if _enqueued_by_rank(run) and rank_mapping.GUESSED not in run.notes]
    return [
        _with_ranks(run, known) if rank_mapping.GUESSED in run.notes and _enqueued_by_rank(run) else run for run in runs
    ]


def _enqueued_by_rank(run: Run) -> bool:
    return has_launches(run.collectives)


def _with_ranks(run: Run, known: Sequence[Run]) -> Run:
    for other in known:
        ranks = _matched_ranks(_times(run.collectives), _times(other.collectives))
        if ranks is not None:
            return _renumbered(run, ranks)
    return run


def _times(operations: Table) -> dict[int, Array]:
    """When each rank enqueued, in order."""
    seen = operations["enqueue_ns"] >= 0
    rank, time = operations["rank"][seen], operations["enqueue_ns"][seen]
    return {int(one): np.sort(time[rank == one]) for one in np.unique(rank)}


def _matched_ranks(guessed: dict[int, Array], known: dict[int, Array]) -> dict[int, int] | None:
    """The rank of each process; nothing unless each has one of its own, clearly."""
    names = sorted(known)
    found: dict[int, int] = {}
    for process, times in guessed.items():
        delays = np.array([_delay(times[:: 1 + len(times) // _MOST_RANKS], known[rank]) for rank in names])
        order = np.argsort(delays)
        if not np.isfinite(delays[order[0]]):
            return None
        if len(order) > 1 and delays[order[1]] < _CLEARER * delays[order[0]]:
            return None
        found[process] = names[order[0]]
    return found if len(set(found.values())) == len(found) else None


def _delay(times: Array, seen: Array) -> float:
    """How long after what the other source saw last, typically: of the time that it tells of."""
    inside = times[(times >= seen[0]) & (times <= seen[-1] + 1_000_000)]
    if len(inside) < _LEAST:
        return float("inf")
    return float(np.median(inside - seen[np.searchsorted(seen, inside, side="right") - 1]))


def _renumbered(run: Run, ranks: dict[int, int]) -> Run:
    """The same with every process under its own rank, and without the note that it was guessed."""
    high = max(ranks) + 1
    new = np.array([ranks.get(one, one) for one in range(high)], dtype=np.int32)

    def mapped(part: Table) -> Table:
        return {**part, "rank": new[part["rank"]]} if rows(part) else part

    return replace(
        run,
        ranks=mapped(run.ranks),
        collectives=mapped(run.collectives),
        communicators=mapped(run.communicators),
        notes=tuple(note for note in run.notes if note != rank_mapping.GUESSED),
    )


#: Share of the operations that must equal those one period later; the rest may be checkpoints or evaluations.
_ALIKE = 0.95
#: Collectives of one step, at most.
_LONGEST = 4096
#: Share of the numbers of which some rank must have the operation; longer runs without any are windows of time that
#: were not read, and count for nothing.
_SEEN, _NOT_READ = 0.7, 1000
#: Share of the collectives that are in the one communicator whose pattern is looked for: another's have their own.
_IN_ONE = 0.95
_UNKNOWN = -1


def with_steps(run: Run) -> Run:
    """The run with the step of each operation, where no rank marks any and some operations are missing."""
    table = run.collectives
    if rows(run.steps) or not rows(table) or (table["step"] >= 0).any():
        return run
    indices = np.flatnonzero((table["peer"] < 0) & (table["seq"] >= 0) & (table["duration_ns"] >= 0))
    comms, count = np.unique(table["comm"][indices], return_counts=True)
    if not len(comms) or count.max() < _IN_ONE * len(indices):
        return run
    indices = indices[table["comm"][indices] == comms[np.argmax(count)]]
    found = _steps(select(table, indices))
    if found is None:
        return run
    step = np.full(rows(table), UNMEASURED, np.int64)
    step[indices] = found
    return replace(run, collectives={**table, "step": step})


def _steps(table: Table) -> Ints | None:
    """The step of each row, -1 for none; ``None`` where no number is missing, or what is there does not repeat."""
    number = table["seq"] - table["seq"].min()
    count = int(number.max()) + 1
    if count >= 4 * len(number):
        return None
    tokens = _tokens(table, number, count)
    length = _period(tokens) if _SEEN <= _recorded_share(tokens) < 1 else None
    if length is None:
        return None
    of_number = _repetitions(tokens, length, _time_before(table, number, count))
    return np.asarray(of_number[number])


def _recorded_share(tokens: Ints) -> float:
    """Share of the numbers that were recorded, of those in windows that were read."""
    known = np.flatnonzero(tokens != _UNKNOWN)
    apart = np.diff(known) - 1
    return float(len(known) / (len(known) + apart[apart < _NOT_READ].sum()))


def _tokens(table: Table, number: Ints, count: int) -> Ints:
    """What ran at each number, as a number itself."""
    _, kind = np.unique(table["op"], return_inverse=True)
    _, token = np.unique(table["bytes"] * (int(kind.max()) + 1) + kind, return_inverse=True)
    tokens = np.full(count, _UNKNOWN, np.int64)
    tokens[number] = token
    return tokens


def _period(tokens: Ints) -> int | None:
    """Shortest length after which what is known repeats, in the last three quarters: starting up does other things."""
    tail = tokens[len(tokens) // 4 :]
    for length in range(1, min(len(tail) // 2, _LONGEST) + 1):
        known = (tail[:-length] != _UNKNOWN) & (tail[length:] != _UNKNOWN)
        if known.any() and np.mean((tail[:-length] == tail[length:])[known]) >= _ALIKE:
            return length
    return None


def _time_before(table: Table, number: Ints, count: int) -> Floats:
    """How long ranks computed before each number, or, where no start is known, how far apart they came; or NaN."""
    ranks, row = np.unique(table["rank"], return_inverse=True)
    start, took = (np.full((len(ranks), count), np.nan) for _ in range(2))
    took[row, number] = table["duration_ns"]
    start[row, number] = np.where(table["start_ns"] >= 0, table["start_ns"], np.nan)
    if np.isnan(start).all():
        return np.asarray(np.fmax.reduce(took) - np.fmin.reduce(took))
    between = start[:, 1:] - (start + took)[:, :-1]
    return np.append(np.nan, np.fmin.reduce(between))


def _repetitions(tokens: Ints, length: int, before: Floats) -> Ints:
    """Which repetition of the pattern each number is in, -1 for none: starting up, a checkpoint, an evaluation.

    A step begins where most time passes before an operation, or ranks come furthest apart: after the computing.
    """
    first = len(tokens) // 4
    count = (len(tokens) - first) // length
    places = [slice(first + place, first + count * length, length) for place in range(length)]
    pattern = np.array([_most(tokens[place]) for place in places])
    begin = int(np.argmax([_mean(before[place]) for place in places]))
    pattern = np.roll(pattern, -begin)
    known = np.flatnonzero(tokens != _UNKNOWN)
    found = np.full(len(tokens), UNMEASURED, np.int64)
    at = step = 0
    while at + length <= len(tokens):
        if tokens[at] == _UNKNOWN and known[np.searchsorted(known, at)] >= at + length:
            at = int(known[np.searchsorted(known, at)]) - length + 1
        elif _fits(tokens[at : at + length], pattern):
            found[at : at + length] = step
            at, step = at + length, step + 1
        else:
            at += 1
    return found


def _most(tokens: Ints) -> int:
    known = tokens[tokens != _UNKNOWN]
    return int(np.bincount(known).argmax()) if len(known) else _UNKNOWN


def _mean(values: Floats) -> float:
    """Not the median: who is late in a part of the run only would show nowhere."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else 0.0


def _fits(tokens: Ints, pattern: Ints) -> bool:
    known = tokens != _UNKNOWN
    return bool(2 * np.count_nonzero(known) >= len(tokens) and (tokens == pattern)[known].all())


#: Operations, at most, of kinds that only one source has. A model has some dozen parameters broadcast at once.
_MOST = 512
#: Operations of a rank that are compared.
_COMPARED = 4096
#: Share of them that must be of one kind and size: sources describe the operations that only one of them has
#: differently.
_SAME_COUNT = 0.99
#: Bytes of an element.
_ITEMS = np.array([1, 2, 4, 8])
#: What NCCL runs for it is an all-reduce.
_BARRIERS = ("barrier", "all_reduce_barrier")


def difference(mine: Table, theirs: Table, size: int) -> int | None:
    """What to add to the numbers of ``mine`` for them to be those of ``theirs``; ``None`` where nothing fits.

    Both are one rank's collectives in one communicator of ``size`` ranks, in order. The least that fits: operations
    repeat from step to step, so that a whole number of steps more would do too.
    """
    near = (mine["seq"] >= theirs["seq"][0] - _MOST) & (mine["seq"] <= theirs["seq"][-1])
    mine = select(mine, np.flatnonzero(near)[:_COMPARED])
    for more in range(_most_counted(mine, theirs) + 1):
        first, second = _together(mine, theirs, more)
        if len(first) and _alike(select(mine, first), select(theirs, second), size) >= _SAME_COUNT:
            return more
    return None


def _most_counted(mine: Table, theirs: Table) -> int:
    """How many operations of kinds that ``mine`` has none of may have run before; 0 for recordings of other times."""
    together, _ = _together(mine, theirs, 0)
    if 2 * len(together) < min(len(mine["seq"]), len(theirs["seq"])):
        return 0
    if theirs["seq"][0] > 0:
        return _MOST
    return min(int(np.count_nonzero(~np.isin(theirs["op"], mine["op"]))), _MOST)


def _together(mine: Table, theirs: Table, more: int) -> tuple[Array, Array]:
    """Rows of both with one number, if ``more`` is added to mine."""
    _, first, second = np.intersect1d(mine["seq"] + more, theirs["seq"], return_indices=True)
    return first, second


def _alike(mine: Table, theirs: Table, size: int) -> float:
    """Share of these pairs that may be one operation, by their kinds and by their sizes where both are known.

    A size may be an element count, or that of one rank's part of all.
    """
    kind = (mine["op"] == theirs["op"]) | ((mine["op"] == "all_reduce") & np.isin(theirs["op"], _BARRIERS))
    known = (mine["bytes"] > 0) & (theirs["bytes"] > 0)
    times = theirs["bytes"] / np.maximum(mine["bytes"], 1)
    items = _ITEMS if "elements" in mine else _ITEMS[:1]
    fits = np.isin(times, items) | np.isin(times * size, items) | np.isin(times / size, items)
    return float(np.mean(kind & (fits | ~known)))
