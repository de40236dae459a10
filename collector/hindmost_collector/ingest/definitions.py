"""What references mean: ranks, metric schemas and communicators, by the hash of their content.

A reference is the same in every stream, so one registry serves all agents, and a reconnecting agent is asked for
nothing that is already known. A thousand nodes define a million series: what their schemas share is kept once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np
from google.protobuf.message import DecodeError
from hindmost_proto import telemetry_pb2 as wire

from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.packed_fields import Label, eights
from hindmost_collector.ingest.row_builder import NAME_LIMIT, RANK_LIMIT, TICK_NS, JobRows, Malformed, bounded
from hindmost_collector.ingest.session import AgentSession

Array = np.ndarray[Any, Any]


class Series(NamedTuple):
    """One metric series; ``labels`` is canonical JSON without the node."""

    name: str
    counter: bool
    help: str
    labels: str


class Head:
    """What schemas that differ in their labels alone have in common: a node's GPUs have names of their own.

    ``word`` (S,) says which of a schema's words each series has as its labels; ``order`` (S,) are the places of the
    series sorted by name and labels.
    """

    __slots__ = ("__weakref__", "counters", "helps", "names", "order", "width", "word")

    def __init__(
        self, names: tuple[str, ...], counters: tuple[bool, ...], helps: tuple[str, ...], word: Array, order: Array
    ) -> None:
        self.names, self.counters, self.helps, self.word, self.order = names, counters, helps, word, order
        self.width = len(names)


_heads: WeakValueDictionary[Any, Head] = WeakValueDictionary()


class Schema:
    """The series of a metric block, in the order of its values. ``words`` are their different labels."""

    __slots__ = ("head", "width", "words")

    def __init__(self, series: Iterable[tuple[str, bool, str, str]]) -> None:
        every = list(series)
        names, counters, helps, labels = zip(*every, strict=True) if every else ((), (), (), ())
        places: dict[str, int] = {label: place for place, label in enumerate(dict.fromkeys(labels))}
        word = np.array([places[label] for label in labels], np.int32)
        ordered = sorted(zip(names, labels, range(len(names)), strict=True))
        order = np.array([place for _, _, place in ordered], np.int32)
        key = names, counters, helps, word.tobytes(), order.tobytes()
        head = _heads.get(key)
        if head is None:
            head = _heads[key] = Head(names, counters, helps, word, order)
        self.head, self.width, self.words = head, len(names), tuple(places)

    def labels(self, place: int) -> str:
        return self.words[int(self.head.word[place])]

    @property
    def series(self) -> Iterator[Series]:
        head = self.head
        labels = (self.words[one] for one in head.word.tolist())
        return map(Series, head.names, head.counters, head.helps, labels)


def learned(sent: Any) -> Schema:
    """The schema that an agent defines, as :mod:`hindmost_collector.ingest.packed_fields` has it. Raises Malformed."""
    every = [(sys.intern(one.name), one.kind != 0, one.help, tuple(one.labels)) for one in sent.series]
    helps = {name: text for name, _, text, _ in reversed(every) if text}  # help travels once for each name
    return Schema([(name, counter, helps.get(name, ""), _labels(labels)) for name, counter, _, labels in every])


@lru_cache(maxsize=4096)
def _labels(entries: tuple[bytes, ...]) -> str:
    try:
        pairs = {one.key: one.value for one in map(Label.FromString, entries)}
    except DecodeError as error:
        raise Malformed(f"a label that is none: {error}") from error
    return sys.intern(json.dumps(pairs, sort_keys=True, separators=(",", ":")))


__all__ = ["Definitions", "RankRef", "Schema", "Series"]

#: Characters of what tells nodes, jobs and GPUs apart, and of a command line, which is only shown.
IDENTITY_LIMIT, COMMAND_LIMIT = 1024, 4096


@dataclass(frozen=True, slots=True)
class RankRef:
    """Which rank of which job a reference means, and the labels of ``hindmost_rank_info``."""

    job: str
    rank: int
    world_size: int
    local_rank: int
    node: str
    pid: int
    gpu_uuid: str
    framework: str
    command: str
    user: str = ""


class Pod(NamedTuple):
    """The pod of a rank, and what made it: ``workload`` is KIND/NAME. Empty where its environment does not say."""

    namespace: str
    name: str = ""
    uid: str = ""
    workload: str = ""
    queue: str = ""


class Group(NamedTuple):
    """The ranks of one block: who they are, their numbers as bytes of int32, and their job; None where several."""

    owners: tuple[RankRef, ...]
    ranks: bytes
    job: str | None


#: What is kept at most: processes of ranks, communicators, and series of all schemas.
RANKS_LIMIT, COMMUNICATORS_LIMIT, SERIES_LIMIT = 1 << 18, 1 << 20, 1 << 23


def _hash(content: bytes) -> int:
    return int.from_bytes(blake2b(content, digest_size=8).digest(), "little")


def rank_reference(one: Any) -> int:
    """The reference that the content of a ``wire.Rank`` has."""
    return _hash(f"{one.node}\0{one.job_id}\0{one.rank}\0{one.pid}\0{one.process_start_ticks}".encode())


def communicator_reference(one: Any) -> int:
    """The reference that the content of a ``wire.Communicator`` has."""
    return _hash(f"{one.rank}\0{one.id}\0{one.size}\0{one.rank_in}\0{one.name}".encode())


def schema_reference(one: Any) -> int:
    """The reference that the content of a ``wire.Schema`` has."""
    content = type(one)()
    content.CopyFrom(one)
    content.ClearField("ref")
    return _hash(content.SerializeToString(deterministic=True))


def check_own(sent: Any, job: str, node: str) -> None:
    """Raise Malformed unless definitions are an agent's own: of its ``job`` and ``node``, where these are not empty.

    Each is under the reference that its content has, so that none takes the place of another agent's.
    """
    ranks = set()
    for one in sent.ranks:
        if (job and one.job_id != job) or (node and one.node != node):
            raise Malformed(f"rank {one.rank} of job {one.job_id!r:.80} on {one.node!r:.80} is not its to define")
        if one.ref != rank_reference(one):
            raise Malformed(f"rank {one.rank} has a reference that is not its own")
        ranks.add(one.ref)
    for one in sent.communicators:
        if one.ref != communicator_reference(one):
            raise Malformed(f"communicator {one.id:#x} has a reference that is not its own")
    for one in sent.schemas:
        if one.ref != schema_reference(one):
            raise Malformed(f"schema {one.ref:#x} has a reference that is not its own")
        for labels in {_labels(tuple(series.labels)) for series in one.series}:
            owner = json.loads(labels).get("job", job)
            if job and owner != job:
                raise Malformed(f"a series of job {owner!r:.80} is not this agent's to define")


def foreign(batch: Any, blocks: Iterable[tuple[int, bytes, bytes]], known: Definitions, agent: AgentSession) -> str:
    """What in a batch, of which these are the samples, is not its agent's to send; empty where nothing is."""
    named = {block.ranks or block.rank for block in (*batch.steps, *batch.collectives, *batch.intervals)}
    named.update(one.rank for one in (*batch.rank_states, *batch.attachments))
    for one in named - agent.owned:  # most are those of the batch before
        owners = known.owners(one)
        for owner in owners:
            if (agent.only_job and owner.job != agent.only_job) or owner.node != agent.node:
                return f"rows of rank {owner.rank} of job {owner.job!r:.80} on {owner.node!r:.80} are not its to send"
        if owners:
            agent.claim(one)
    if not agent.schemas.issuperset([ref for ref, _, _ in blocks]):
        return "samples of a schema that it did not define"
    return ""


#: Groups of ranks that are remembered: one for each node, and more while ranks come and go.
_GROUPS = 1 << 16


class Definitions:
    """The registry. ``revision`` grows with every rank learned."""

    def __init__(self) -> None:
        self.ranks: dict[int, RankRef] = {}
        self.schemas: dict[int, Schema] = {}
        #: By job and rank, where the rank runs in a pod.
        self.pods: dict[str, dict[int, Pod]] = {}
        self._communicators: dict[int, str] = {}
        self._groups: dict[bytes, Group] = {}
        self._used: dict[int, int] = {}
        self._series = 0
        self.revision = 0

    def missing(self, refs: Iterable[int]) -> list[int]:
        """Those of ``refs`` that are not defined yet."""
        return [ref for ref in refs if ref not in self.schemas and ref not in self.ranks]

    def group(self, refs: bytes) -> Group:
        """The ranks that a packed column of references means. Raises Malformed when one was never defined."""
        group = self._groups.get(refs)
        if group is None:
            if len(refs) % 8:
                raise Malformed(f"a column of ranks is cut off: {len(refs)} bytes")
            owners = tuple(map(self.rank, eights(refs, np.uint64).tolist()))
            jobs = {owner.job for owner in owners}
            ranks = np.array([owner.rank for owner in owners], np.int32).tobytes()
            if len(self._groups) >= _GROUPS:
                self._groups.clear()
            group = self._groups[refs] = Group(owners, ranks, jobs.pop() if len(jobs) == 1 else None)
        return group

    def rank(self, ref: int) -> RankRef:
        """The rank that a reference means. Raises Malformed when it was never defined."""
        try:
            return self.ranks[ref]
        except KeyError:
            raise Malformed(f"rank {ref:#x} was never defined") from None

    def owners(self, named: int | bytes) -> tuple[RankRef, ...]:
        """Whom a reference, or a packed column of them, means, as far as that is defined."""
        if isinstance(named, int):
            return (self.ranks[named],) if named in self.ranks else ()
        try:
            return self.group(named).owners
        except Malformed:  # which decoding says once more
            return ()

    def is_known(self, refs: bytes) -> bool:
        """Whether there was a block of just these ranks before."""
        return refs in self._groups

    def forget(self) -> None:
        """Forget who is who, so that all of it is asked for, and recorded, again; schemas are only layouts and stay."""
        self.ranks.clear()
        self.pods.clear()
        self._groups.clear()
        self._communicators.clear()

    def forget_job(self, job: str) -> None:
        """Forget the ranks and communicators of a job that is over; should it go on, they are asked for."""
        self.ranks = {ref: rank for ref, rank in self.ranks.items() if rank.job != job}
        self.pods.pop(job, None)
        self._groups.clear()
        self._communicators = {ref: owner for ref, owner in self._communicators.items() if owner != job}

    def used(self, schemas: Iterable[int], now_ns: int) -> None:
        """Note that there are samples of these schemas."""
        self._used.update(dict.fromkeys(schemas, now_ns))

    def prune(self, now_ns: int, age_ns: int) -> None:
        """Forget schemas without samples for ``age_ns``: processes and devices come and go, and each has its own."""
        for ref in list(self.schemas):
            if now_ns - self._used.setdefault(ref, now_ns) > age_ns:
                self._series -= self.schemas[ref].width
                del self.schemas[ref], self._used[ref]

    def command(self, job: str) -> str | None:
        """The command line that a job's lowest rank runs, as far as known."""
        said = [(rank.rank, rank.command) for rank in self.ranks.values() if rank.job == job and rank.command]
        return min(said)[1] if said else None

    def user(self, job: str) -> str | None:
        """Who runs a job: the one whom its lowest rank says; None where none does."""
        said = [(rank.rank, rank.user) for rank in list(self.ranks.values()) if rank.job == job and rank.user]
        return min(said)[1] if said else None

    def learn(self, sent: wire.Definitions, rows: Callable[[str], JobRows], clock: NodeClock) -> None:
        """Take definitions in; ranks and communicators that are new become rows of their job. Raises Malformed."""
        for schema in sent.schemas:
            if schema.ref not in self.schemas:
                if self._series + len(schema.series) > SERIES_LIMIT:
                    raise Malformed(f"more than {SERIES_LIMIT} series are defined")
                self.schemas[schema.ref] = learned(schema)
                self._series += len(schema.series)
        for rank in sent.ranks:
            if _says_more(rank, self.ranks.get(rank.ref)):
                self._learn_rank(rank, rows, clock)
        for communicator in sent.communicators:
            owner = self.ranks.get(communicator.rank)
            if communicator.ref in self._communicators or owner is None:
                continue
            if len(self._communicators) >= COMMUNICATORS_LIMIT:
                raise Malformed(f"more than {COMMUNICATORS_LIMIT} communicators are defined")
            self._communicators[communicator.ref] = owner.job
            row = (communicator.id, owner.rank, communicator.rank_in, communicator.size, communicator.name[:NAME_LIMIT])
            rows(owner.job).communicators.append(row)

    def _learn_rank(self, sent: wire.Rank, rows: Callable[[str], JobRows], clock: NodeClock) -> None:
        if not 0 <= sent.rank < RANK_LIMIT:
            raise Malformed(f"rank {sent.rank} is out of range")
        longest = max(map(len, (sent.job_id, sent.node, sent.gpu_uuid, sent.framework)))
        if longest > IDENTITY_LIMIT:  # cut, it would be another's
            raise Malformed(f"rank {sent.rank} says who it is in {longest} characters: at most {IDENTITY_LIMIT}")
        if len(self.ranks) >= RANKS_LIMIT and sent.ref not in self.ranks:
            raise Malformed(f"more than {RANKS_LIMIT} processes of ranks are defined")
        rank = RankRef(
            sent.job_id,
            sent.rank,
            sent.world_size,
            sent.local_rank,
            sent.node,
            sent.pid,
            sent.gpu_uuid,
            sent.framework,
            sent.command[:COMMAND_LIMIT],
            sent.user[:NAME_LIMIT],
        )
        self.ranks[sent.ref] = rank
        self.revision += 1
        if sent.pod.namespace:
            words = sent.pod.namespace, sent.pod.name, sent.pod.uid, sent.pod.workload, sent.pod.queue
            self.pods.setdefault(rank.job, {})[rank.rank] = Pod(*(word[:NAME_LIMIT] for word in words))
        started = sent.process_start_ticks * TICK_NS
        start_ns = bounded(started + clock.offset(bounded(started))) if started else -1
        rows(rank.job).ranks.append(
            (rank.rank, rank.world_size, rank.local_rank, rank.node, rank.pid, rank.gpu_uuid, rank.framework, start_ns)
        )


def _says_more(sent: wire.Rank, known: RankRef | None) -> bool:
    """Whether a process is new, or names its GPU or what trains in it only now: a probe may come after its ring."""
    if known is None:
        return True
    named = ((sent.framework, known.framework), (sent.gpu_uuid, known.gpu_uuid))
    return any(now and now != before for now, before in named)
