"""The last minutes of one job, in memory, and which part of them is evaluated.

Each agent sends what its ranks did every few seconds, at its own moments. A window therefore lacks the newest seconds
of some ranks, and the oldest of those whose oldest rows were dropped first. A rank with missing rows does not seem
late, and the ranks that wait for it seem to wait for a slow network. Such steps are not judged.

A full evaluation takes tenths of a second to a second of CPU time. Between two of them the newest steps are evaluated,
which takes a part of that.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
from hindmost_judge.encoding import chosen
from hindmost_judge.model import (
    GPU_TIME,
    IN_FLIGHT,
    METRICS,
    RANK_STATES,
    RUNNING,
    STACKS,
    TABLES,
    Job,
    Run,
    Table,
    empty,
    rows,
    world_size,
)
from hindmost_judge.timeline.separate_jobs import judged_incarnation
from hindmost_judge.timeline.steps import calls_a_step, period

from hindmost_collector.ingest.chunk import CODED, Chunk, concatenated, from_rows, with_words
from hindmost_collector.ingest.definitions import Definitions, Head
from hindmost_collector.ingest.packed_fields import eights
from hindmost_collector.ingest.row_builder import MetricRows, Origin, Words
from hindmost_collector.ingest.session import MOST_S, NS
from hindmost_collector.live.witnesses import Witnesses

#: Ranks that report so much later than others, or earlier, are not waited for: they have joined, ended or are cut off.
#: The newest steps take so much longer at most: agents of large jobs send what seconds brought, in turn.
REPORT_LAG_NS = 2 * MOST_S * NS
#: At least this many steps are left, as far as the window has them: a slowdown needs ten, the first ones may be left
#: out as warm-up, and the newest rows are of unfinished steps. Windows of very many ranks are short.
_STEPS = 16
#: Least rows of the fullest table for an incremental evaluation that may take 20 to 100 ms, and for one that may not.
INCREMENTAL_ROWS, LEAST_INCREMENTAL_ROWS = 50_000, 1_000

#: Characters of the stacks that a window may hold: several of each of thousands of ranks.
_STACK_CHARACTERS = 32 << 20
#: With this many times the rows, this many steps are enough, if nearly all ranks reported enough for a judgement:
#: evaluations of thousands of ranks must be as frequent.
_MANY, _FEWEST = 2, 13
#: Share of the ranks that need enough steps for a judgement: some may have ended, or lost contact.
_NEARLY_ALL = 0.9
#: Least steps that collectives must cover: the full evaluation does not use fewer.
_JUDGED = 11
#: Least metric samples: they show how many CPUs ranks share. Causes need a full evaluation.
_SAMPLES = 20_000
#: Larger jobs span so many nodes that CPU oversubscription would be an oversight.
_ON_A_NODE = 512


def reported_by_all(run: Run, step_ns: float, gone: AbstractSet[int], begun: AbstractSet[str]) -> Run:
    """A window without what began before or after the time that all ranks reported, except those that are ``gone``.

    A step takes ``step_ns``. Tables without dropped rows are complete since the ranks have ``begun``. Each table is cut
    by its own clock: a GPU's clock is not the host's. Where steps are marked, collectives of too few of them are left
    out: of thousands of ranks the window holds seconds, and most ranks would be missing in each.
    """
    cut: dict[str, Any] = {}
    for name, table in (("steps", run.steps), ("collectives", run.collectives)):
        if rows(table):
            spans = _reported(table, gone, begun=name in begun)
            too_few = name == "collectives" and name not in begun and spans[0][1] - spans[0][0] < _JUDGED * step_ns
            if too_few and rows(run.steps):
                cut[name] = {column: values[:0] for column, values in table.items()}
                cut |= {"witnesses": None, "few_collectives": True}
            else:
                cut[name] = _cut(
                    table, next((span for span in spans if span[1] - span[0] >= _STEPS * step_ns), spans[-1])
                )
    return replace(run, **cut)


def _of_witnesses(run: Run, step_ns: float) -> Run:
    """With the collectives of those witnesses only that are so for enough steps, since the last of them became one.

    Before that it seems that the others waited for a slow network, and not for it.
    """
    if run.witnesses is None:
        return run
    last = int(run.witnesses[-1]) + 1 if len(run.witnesses) else 0
    mask = np.zeros(last + 1, bool)
    mask[run.witnesses] = True
    table = chosen(run.collectives, mask[np.minimum(run.collectives["rank"], last)])
    first = np.full(last, np.iinfo(np.int64).max)
    np.minimum.at(first, table["rank"], table["start_ns"])
    enough = first <= table["start_ns"].max(initial=0) - _JUDGED * step_ns
    if enough.any():
        table = chosen(table, enough[table["rank"]] & (table["start_ns"] >= first[enough].max()))
    return replace(run, collectives=table, witnesses=np.flatnonzero(enough))


def _reported(table: Table, gone: AbstractSet[int], *, begun: bool) -> tuple[tuple[int, int], ...]:
    """When the last of the ranks began to tell, and the first ended; with what only some reported before, and after."""
    rank, start = table["rank"], table["start_ns"]
    first = np.full(int(rank.max()) + 1, np.iinfo(np.int64).max)
    last = np.full(len(first), np.iinfo(np.int64).min)
    np.minimum.at(first, rank, start)
    np.maximum.at(last, rank, start + np.maximum(table["duration_ns"], 0))
    oldest, newest = int(first.min()), int(last.max())
    last[[one for one in gone if one < len(last)]] = newest
    since = oldest if begun else int(first[first <= oldest + REPORT_LAG_NS].max())
    until = int(last[last >= newest - REPORT_LAG_NS].min())
    return (since, until), (oldest, until), (oldest, newest + 1)


def _cut(table: Table, span: tuple[int, int]) -> Table:
    return chosen(table, (table["start_ns"] >= span[0]) & (table["start_ns"] < span[1]))


def newest_steps(
    tables: Mapping[str, Sequence[Piece]],
    step_ns: float,
    ranks: int,
    least: int = INCREMENTAL_ROWS,
    begun: AbstractSet[str] = frozenset(),
) -> dict[str, list[Piece]]:
    """The pieces of tables, oldest first, of the newest steps, which take ``step_ns`` each, of so many ranks.

    The fullest table has at least ``least`` rows. Each table is cut by its own clock: a GPU's clock is not the
    host's. Tables without dropped rows are complete since the ranks have ``begun``.
    """
    newest = {name: list(pieces) for name, pieces in tables.items()}
    if newest.get("steps") and newest.get("collectives"):
        pieces = newest["collectives"]  # the oldest reaches back into time of which others' rows were dropped
        since = pieces[0].first_ns if "collectives" in begun else pieces[0].newest_ns
        if pieces[-1].newest_ns - since < _JUDGED * step_ns:
            newest["collectives"] = []
    fullest = max(newest.values(), key=lambda pieces: sum([one.rows for one in pieces]), default=[])
    span, found, reported = 0, 0, _Reported(newest.get("steps") or [], ranks)
    for piece in reversed(fullest):
        found += piece.rows
        span = fullest[-1].newest_ns - piece.first_ns
        enough = span >= (_STEPS if found < _MANY * least else _FEWEST) * step_ns
        if found >= least and enough and (reported.of_nearly_all(span) or span >= _STEPS * step_ns + REPORT_LAG_NS):
            break
    return {
        name: [one for one in pieces if pieces[-1].newest_ns - one.newest_ns <= span] for name, pieces in newest.items()
    }


class _Reported:
    """How many steps each rank has reported, in more and more of the newest pieces."""

    def __init__(self, pieces: Sequence[Piece], ranks: int) -> None:
        self._left, self._ranks = list(pieces), ranks
        self._newest = pieces[-1].newest_ns if pieces else 0
        self._steps = np.zeros(0, np.int64)

    def of_nearly_all(self, span: int) -> bool:
        """Whether nearly all ranks reported enough steps for a judgement in this time; true where no step is marked."""
        if not self._newest:
            return True
        while self._left and self._newest - self._left[-1].newest_ns <= span:
            more = np.bincount(self._left.pop().table["rank"], minlength=len(self._steps))
            more[: len(self._steps)] += self._steps
            self._steps = more
        return int(np.sum(self._steps >= _JUDGED)) >= _NEARLY_ALL * self._ranks


def ticks_to_skip(sizes: Sequence[int]) -> int:
    """How many ticks of metrics, which hold so many samples each, oldest first, to leave out."""
    found, left = 0, len(sizes)
    while left and found < _SAMPLES:
        left -= 1
        found += sizes[left]
    return left


class Piece(NamedTuple):
    """A tick's rows, their count, and their first and last begin; each evaluation reads all pieces.

    One that is not ``whole`` has the rows of witnesses only."""

    table: Table
    rows: int
    first_ns: int
    newest_ns: int
    whole: bool = True


def piece(table: Table) -> Piece:
    """Rows, at least one, as a piece."""
    return Piece(table, rows(table), int(table["start_ns"].min()), int(table["start_ns"].max()))


class Pieces:
    """Pieces, bounded by rows and by age, which counts from the newest piece; the newest is always kept."""

    def __init__(self) -> None:
        self._held: deque[Piece] = deque()
        self._rows = 0
        self.whole = True  # nothing was let go

    def __iter__(self) -> Iterator[Piece]:
        return iter(tuple(self._held))  # another thread may add one meanwhile

    def __bool__(self) -> bool:
        return bool(self._held)

    def tables(self) -> list[Table]:
        return [one.table for one in self]

    def add(self, one: Piece) -> None:
        self._held.append(one)
        self._rows += one.rows

    def bound(self, limit: int, span_ns: int) -> None:
        """Let the oldest go, beyond so many rows or older than the newest piece by more than this."""
        while len(self._held) > 1 and (
            self._rows > limit or self._held[0].newest_ns < self._held[-1].newest_ns - span_ns
        ):
            self._rows -= self._held.popleft().rows
            self.whole = False

    def thin(self, limit: int, witnesses: Witnesses) -> None:
        """Keep of all pieces but the newest, which have so many rows, those of the witnesses."""
        while witnesses.sampled is None and self._held and not self._held[0].whole:
            self._rows -= self._held.popleft().rows
        if witnesses.sampled is None:
            return
        for place in range(len(self._held) - 1, -1, -1):
            one, limit = self._held[place], limit - self._held[place].rows
            if limit < 0 and one.whole:
                table = witnesses.of(one.table)
                self._held[place] = one._replace(table=table, rows=rows(table), whole=False)
                self._rows -= one.rows - rows(table)

    def clear(self) -> None:
        self._held.clear()
        self._rows, self.whole = 0, False


_ORIGIN = attrgetter("origin")
#: The part of its collectives' rows that a window has of all ranks, not of witnesses only: the newest.
_OF_ALL = 0.25
#: Age, ns, up to which data of a running job is judged: five minutes.
WINDOW_NS = 300_000_000_000
#: Rows that a window may hold of one table; beyond, the oldest go first, however young.
ROWS = 400_000
#: Rows of one table that the windows of all jobs may hold together, and what each may however many there are.
ALL_ROWS, LEAST_ROWS = 1_600_000, 5_000
#: Calls of one rank among which a repeating pattern is looked for.
_PATTERN = 2048
#: Metric samples that a window may hold.
SAMPLES = 200_000
#: Nodes of which it is remembered when they were heard of: those of a job that has run for long come and go.
MOST_NODES = 1 << 15
#: Kinds of what a rank is inside together with others.
_COLLECTIVE = frozenset({"collective", "p2p"})
#: Schemas of nodes of which it is remembered which series those are.
_SCHEMAS = 1 << 16
#: How many CPUs a node has.
CPUS = "hindmost_node_cpus"
#: What causes are read from; other metrics are for dashboards and stay out of the window.
CAUSAL = (
    "hindmost_process_",
    "hindmost_gpu_",
    "hindmost_node_pressure_",
    CPUS,
    "hindmost_node_cpu_seconds_total",
    "hindmost_node_cpu_throttled",
    "hindmost_node_oom_kills_total",
)


def window_limit(jobs: int) -> int:
    """Rows of one table for each of so many jobs."""
    return max(min(ROWS, ALL_ROWS // max(jobs, 1)), LEAST_ROWS)


class Window:
    """Chunks of one job, bounded by age and by rows. Age counts from the newest row: a hang keeps what led to it."""

    def __init__(self, span_ns: int = WINDOW_NS, row_limit: int = ROWS) -> None:
        self._span, self._limit = span_ns, row_limit
        self._parts: dict[str, Pieces] = {name: Pieces() for name in CODED}
        self._metrics: deque[_Samples] = deque()
        self._samples = 0
        self._witnesses = Witnesses(int((1 - _OF_ALL) * row_limit))
        self._causal: dict[Origin, _Causal] = {}
        self._places: dict[Head, tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]] = {}
        self._ranks = LastRows("ranks", ("rank",))
        self._stated = LastRows("ranks", ("rank", "world_size"))  # the last of each size that the job had
        self._communicators = LastRows("communicators", ("comm", "rank"))
        self._in_flight: dict[int, list[tuple[Any, ...]]] = {}
        self._states = LastRows("rank_states", ("rank",))
        self.answered = False  # stacks came since this was set
        self._stacks: deque[tuple[Any, ...]] = deque()  # in the order in which they came
        self._stack_characters = 0
        self._heard: dict[str, int] = {}
        self._node_of: tuple[Table, dict[int, str], int] = {}, {}, 0
        self.newest_ns = 0  # when what was begun last, of all that has ended, began
        self.started_ns: int | None = None
        self.command: str | None = None

    def add(self, chunk: Chunk, definitions: Definitions) -> None:
        """Take a tick in, and let what is too old go."""
        self._witnesses.add(chunk.coded)
        for name, table in chunk.coded.items():
            one = piece(table)
            self._parts[name].add(one)
            if name == "collectives":
                self._parts[name].thin(int(_OF_ALL * self._limit), self._witnesses)
            self._parts[name].bound(self._limit, self._span)
            self.newest_ns = max(self.newest_ns, one.newest_ns)
        self._ranks.add(chunk.plain.get("ranks"))
        self._stated.add(chunk.plain.get("ranks"))
        self._communicators.add(chunk.plain.get("communicators"))
        self._observe(chunk)
        self._keep(chunk.metrics, definitions)

    def _keep(self, blocks: Sequence[MetricRows], definitions: Definitions) -> None:
        """Hold those samples that causes are read from, a tick's as one piece."""
        if len(self._causal) >= _SCHEMAS:  # processes and devices come and go
            self._causal.clear()
            self._places.clear()
        known = self._causal
        for origin in set(map(_ORIGIN, blocks)).difference(known):
            known[origin] = self._causal_of(origin, definitions)
        causal_blocks = [(block, causal) for block in blocks if len((causal := known[block.origin]).place)]
        if causal_blocks:
            self._metrics.append(_Samples(causal_blocks))
            self._samples += self._metrics[-1].size
        while self._samples > SAMPLES and len(self._metrics) > 1:
            self._samples -= self._metrics.popleft().size

    def bound(self, row_limit: int) -> None:
        """Hold no more than so many rows of a table from now on."""
        self._limit, self._witnesses.limit = row_limit, int((1 - _OF_ALL) * row_limit)
        for parts in self._parts.values():
            parts.bound(self._limit, self._span)

    def let_go(self) -> None:
        """Drop the collectives and samples received so far: they are no longer judged."""
        self._parts["collectives"].clear()
        self._metrics.clear()
        self._samples = 0

    def _causal_of(self, origin: Origin, definitions: Definitions) -> _Causal:
        """The series of a schema that a cause is read from."""
        schema = definitions.schemas[origin.schema]
        head = schema.head
        if head not in self._places:
            place = np.array([place for place, name in enumerate(head.names) if name.startswith(CAUSAL)], np.int64)
            self._places[head] = place, np.array([head.names[one] for one in place.tolist()], object)
        place, name = self._places[head]
        return _Causal(place, name, np.array(schema.words, object)[head.word[place]])

    def _observe(self, chunk: Chunk) -> None:
        """Replace what each rank had in flight by what its newest state says; a rank that is gone waits for nothing."""
        for node, heard in chunk.heard.items():
            self._heard[node] = max(self._heard.pop(node, 0), heard)
        while len(self._heard) > MOST_NODES:  # those of which nothing was heard for longest
            del self._heard[next(iter(self._heard))]
        for row in _tuples(chunk.plain.get("stacks"), STACKS):
            self._stacks.append(row)
            self._stack_characters += len(row[2])
            self.answered = True
        while self._stacks and (
            self._stack_characters > _STACK_CHARACTERS or self._stacks[0][1] < self.newest_ns - self._span
        ):
            self._stack_characters -= len(self._stacks.popleft()[2])
        self._states.add(chunk.plain.get("rank_states"))
        states = {row[0]: row for row in _tuples(chunk.plain.get("rank_states"), RANK_STATES)}
        nodes = self.nodes_of() if states else {}
        for rank, state in states.items():
            self._in_flight.pop(rank, None)
            if rank in nodes:
                self._heard[nodes[rank]] = max(self._heard.get(nodes[rank], 0), state[1])
        for row in _tuples(chunk.plain.get("in_flight"), IN_FLIGHT):
            rank, time_ns, life = states.get(row[0], (None, None, None))[:3]
            if rank is not None and time_ns == row[-1] and life == RUNNING:
                self._in_flight.setdefault(rank, []).append(row)

    @property
    def waiting(self) -> bool:
        """Whether any rank has entered something and not left it."""
        return bool(self._in_flight)

    @property
    def since_ns(self) -> int:
        """Since when nothing was begun: of what has ended or, where nothing has, of what is in flight; 0: no such."""
        return self.newest_ns or max((row[-2] for found in self._in_flight.values() for row in found), default=0)

    @property
    def quiet_ns(self) -> int:
        """For how long agents have been heard of and nothing that ranks do; 0 where nothing ever was."""
        since_ns = self.since_ns
        return max(max(self._heard.values(), default=0) - since_ns, 0) if since_ns else 0

    @property
    def still_ns(self) -> int:
        """For how long nothing was heard of ranks though one of them waits; 0 where all may be computing."""
        return self.quiet_ns if self.waiting else 0

    def waited_ns(self) -> int:
        """For how long some rank has been inside a collective at least; 0 where none is."""
        return max((row[-1] - row[-2] for row in self._still_in_flight() if row[1] in _COLLECTIVE), default=0)

    def stacked(self, since_ns: int) -> set[int]:
        """Ranks whose stack was taken after that."""
        return {rank for rank, time_ns, _ in self._stacks if time_ns > since_ns}

    def stack(self, rank: int) -> str | None:
        """The last stack that was taken of a rank."""
        return next((str(text) for of, _, text in reversed(self._stacks) if of == rank), None)

    def absent(self) -> list[int]:
        """Ranks that are inside no collective while others are, unless they write a checkpoint."""
        met = {row[0] for found in self._in_flight.values() for row in found if row[1] in _COLLECTIVE}
        saving = {rank for rank, found in self._in_flight.items() if any(row[2] == "checkpoint" for row in found)}
        return sorted(set(self._ranks.table()["rank"].tolist()) - met - saving) if met else []

    @property
    def gone(self) -> set[int]:
        states = self._states.table()
        return set(states["rank"][states["life"] != RUNNING].tolist())

    @property
    def begun(self) -> set[str]:
        """Tables of which nothing was let go."""
        return {name for name, table in self._parts.items() if table.whole}

    @property
    def nodes(self) -> int:
        """On how many nodes the ranks are."""
        self.nodes_of()
        return self._node_of[2]

    def _still_in_flight(self) -> list[tuple[Any, ...]]:
        """What is in flight as of now. An agent speaks of a rank when something changes and every 10 s: as long as it
        sends its node's metrics and says nothing of a rank, what that rank had entered it has not left."""
        nodes = self.nodes_of()
        return [
            (*row[:-1], max(row[-1], self._heard.get(nodes.get(rank, ""), 0)))
            for rank, found in self._in_flight.items()
            for row in found
        ]

    def nodes_of(self) -> dict[int, str]:
        """The node of each rank; made anew when there is another table of ranks."""
        ranks = self._ranks.table()
        if self._node_of[0] is not ranks:
            nodes = ranks["node"].tolist()
            self._node_of = ranks, dict(zip(ranks["rank"].tolist(), nodes, strict=True)), len(set(nodes))
        return self._node_of[1]

    @property
    def last_step(self) -> int:
        """The newest step of any rank; -1 before the first."""
        return max((int(part["step"].max()) for part in self._parts["steps"].tables()), default=-1)

    @property
    def first_step(self) -> int:
        """The first step that is held of any rank; -1 where there is none."""
        return min((int(part["step"].min()) for part in self._parts["steps"].tables()), default=-1)

    @property
    def lasts_ns(self) -> int:
        """From when the first collective that is held began to when the last did."""
        pieces = list(self._parts["collectives"])
        return pieces[-1].newest_ns - pieces[0].first_ns if pieces else 0

    def calls_per_step(self) -> int | None:
        """Collective calls in one step of a rank, by their pattern; None where nothing repeats."""
        parts = self._parts["collectives"].tables()
        if not parts:
            return None
        columns = concatenated("collectives", parts)
        one = np.flatnonzero(columns["rank"] == columns["rank"][0])[-_PATTERN:]
        tokens = np.stack([columns[name][one].astype(np.int64) for name in ("comm", "op", "bytes")])
        length = period(np.unique(tokens, axis=1, return_inverse=True)[1].ravel())
        if length != 1 or (columns["flags"][one] & GPU_TIME).any():
            return length
        return calls_a_step(np.maximum(columns["self_ns"][one], 0).astype(np.float64))

    def step_seconds(self) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        """Durations of the training steps in the window, seconds, all ranks."""
        parts = [part["duration_ns"] for part in self._parts["steps"].tables()]
        durations = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return durations[durations >= 0] / 1e9

    def began_ns(self, step: int) -> int | None:
        """When the first rank began a step, where that step is held."""
        found = (part["start_ns"][part["step"] == step] for part in self._parts["steps"].tables())
        return min((int(one.min()) for one in found if len(one)), default=None)

    def ranks(self) -> Table:
        """Every rank that has said what it is, by number."""
        return self._ranks.table()

    def snapshot(
        self,
        job: str,
        words: Words,
        step_ns: float = 0.0,
        *,
        newest: bool = False,
        least_rows: int = INCREMENTAL_ROWS,
        stopped: bool = False,
    ) -> Callable[[], Run]:
        """A function that makes the run of this moment; another thread may call it while rows come in.

        A step takes ``step_ns``. Of the ``newest`` steps only, the run holds at least so many rows. Of a job that has
        ``stopped`` it holds the collectives of all ranks, however few.
        """
        parts = {name: list(found) for name, found in self._parts.items()}
        if stopped:
            parts["collectives"] = [collective for collective in parts["collectives"] if collective.whole]
        witnesses = None if stopped else self._witnesses.sampled
        ticks, ranks, stated = list(self._metrics), self.ranks(), self._stated.table()
        recorded = bool(parts["collectives"])
        if newest:
            parts = newest_steps(parts, step_ns, rows(ranks), least_rows, self.begun)
            ticks = ticks[ticks_to_skip([tick.size for tick in ticks]) :]
        pieces = {name: [one.table for one in found] for name, found in parts.items()}
        communicators, states = self._communicators.table(), self._states.table()
        small = {"in_flight": self._still_in_flight(), "stacks": list(self._stacks)}
        # of ranks that may share CPUs metrics say which may be named, else how many CPUs there are
        cpus_only = newest and rows(ranks) > _ON_A_NODE
        facts = Job(
            id=job,
            command=self.command,
            world_size=world_size(ranks),
            nodes=self.nodes or None,
            started_ns=self.started_ns,
        )

        def make() -> Run:
            tables: dict[str, Any] = {
                name: with_words(name, concatenated(name, found), words) if found else empty(TABLES[name])
                for name, found in pieces.items()
            }
            tables |= {name: from_rows(name, found) for name, found in small.items() if found}
            whole = Run(
                job=facts,
                ranks=ranks,
                communicators=communicators,
                rank_states=states,
                metrics=_joined([tick.cpus() if cpus_only else tick.long() for tick in ticks]),
                incremental=newest,
                witnesses=None if witnesses is None or not pieces["collectives"] else np.flatnonzero(witnesses),
                few_collectives=recorded and not pieces["collectives"],
                **tables,
            )
            return _of_witnesses(judged_incarnation(whole, stated), step_ns)

        return make


def _tuples(table: Table | None, columns: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows of a small table, values in the model's order."""
    if table is None:
        return iter(())
    return zip(*(table[name].tolist() for name in columns), strict=True)


class _Causal(NamedTuple):
    """The series of a node's schema that causes are read from: their places, names and labels (C,).

    Nodes of one kind share places and names, by which what they sent is taken apart together.
    """

    place: np.ndarray[Any, Any]
    name: np.ndarray[Any, Any]
    labels: np.ndarray[Any, Any]


class _Samples:
    """What of one tick causes are read from, and how many values that are: taken apart once, when first judged."""

    def __init__(self, blocks: list[tuple[MetricRows, _Causal]]) -> None:
        self.size = sum([len(block.raw) for block, _ in blocks]) // 8
        self._held: list[tuple[MetricRows, _Causal]] | Table = blocks
        self._cpus: Table | None = None

    def long(self) -> Table:
        samples = self._held  # read once: two threads may ask
        if isinstance(samples, list):
            samples = self._held = _long(samples)
        return samples

    def cpus(self) -> Table:
        """Those rows that say how many CPUs nodes have."""
        if self._cpus is None:
            samples = self._held
            if isinstance(samples, list):
                self._cpus = _long(samples, CPUS)
            else:
                self._cpus = chosen(samples, samples["name"] == CPUS)
        return self._cpus


def _long(blocks: list[tuple[MetricRows, _Causal]], only: str = "") -> Table:
    """Causal series, or ``only`` that one, as long rows, in the model's columns; many rows share one text."""
    alike: dict[tuple[int, int, int], list[tuple[MetricRows, _Causal]]] = {}
    for one in blocks:
        alike.setdefault((id(one[1].place), one[0].ticks, one[0].size), []).append(one)
    return _joined([_long_of_one_kind(found, only) for found in alike.values()])


def _long_of_one_kind(blocks: list[tuple[MetricRows, _Causal]], only: str) -> Table:
    """The same of blocks with the same series and as many ticks: nodes' of one kind are one array."""
    first, causal = blocks[0]
    wanted = np.flatnonzero(causal.name == only) if only else np.arange(len(causal.name))
    if not len(wanted):
        return empty(METRICS)
    values = eights(b"".join([block.raw for block, _ in blocks]), np.float64)
    values = values.reshape(len(blocks), first.ticks, -1)[:, :, causal.place[wanted]]
    known = ~np.isnan(values)
    columns = {
        "node": np.array([block.node for block, _ in blocks], object)[:, None, None],
        "name": causal.name[wanted][None, None, :],
        "labels": np.stack([each.labels[wanted] for _, each in blocks])[:, None, :],
        "time_ns": np.stack([block.times for block, _ in blocks])[:, :, None],
        "value": values,
    }
    return {name: np.broadcast_to(columns[name], values.shape)[known] for name in METRICS}


def _joined(parts: list[Table]) -> Table:
    return {name: np.concatenate([part[name] for part in parts]) for name in METRICS} if parts else empty(METRICS)


#: Rows that are remembered; beyond, those that were stated longest ago go. A job that is started again and again makes
#: new communicators each time: of 16,384 ranks, each in ten, this holds three times as many.
MOST = 1 << 19


class LastRows:
    """The last row of each key of a small table, in the order of the keys."""

    def __init__(self, table: str, keys: tuple[str, ...], most: int = MOST) -> None:
        self._table, self._keys, self._most = table, keys, most
        self._columns: Table = empty(TABLES[table])
        self._stated = np.empty(0, np.int64)  # the turn in which each row was stated last
        self._turn = 0

    def add(self, rows_: Table | None) -> None:
        """Take rows in; each replaces the one of its key."""
        if rows_ is None:
            return
        joined = concatenated(self._table, [self._columns, rows_])
        count = rows(joined)
        order = np.lexsort((np.arange(count), *(joined[key] for key in reversed(self._keys))))
        last = np.ones(count, dtype=bool)
        last[:-1] = np.logical_or.reduce([np.diff(joined[key][order]) != 0 for key in self._keys])
        self._turn += 1
        stated = np.append(self._stated, np.full(rows(rows_), self._turn))
        newest = order[last]
        if len(newest) > self._most:
            newest = newest[np.sort(np.argsort(stated[newest], kind="stable")[-self._most :])]
        self._columns, self._stated = {name: column[newest] for name, column in joined.items()}, stated[newest]

    def table(self) -> Table:
        return self._columns
