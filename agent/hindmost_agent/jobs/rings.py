"""The rings of this node: found, read process by process, and what they say of each rank's state.

A ring that is torn is no error.
"""

import logging
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from hindmost import ring
from hindmost_proto import telemetry_pb2 as wire

from hindmost_agent.jobs.event_rows import SIZE, Calls, RowBuilder, Rows
from hindmost_agent.jobs.processes import End, Ends
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.kernel_files import File, read_once
from hindmost_agent.sampler import Host

log = logging.getLogger(__name__)


class Mark(NamedTuple):
    """How far a ring had been read when a batch was made, and what its builder then still held back.

    ``created_ns`` tells the ring from an earlier one of the same name.
    """

    created_ns: int
    position: int
    skipped: int
    steps: int
    phases: int


class OpenRing:
    """One ring file and the rows made of it so far; ``mark``: by an earlier agent, which was killed."""

    def __init__(self, path: Path, reader: ring.Reader, mark: Mark | None = None) -> None:
        self.path = path
        self.reader = reader
        self.builder = RowBuilder()
        if mark is not None and mark.created_ns == reader.header.monotonic_ns and mark.position <= reader.written:
            self._resume(mark)
        #: Events that were lost, when it was last read.
        self.lost = reader.lost
        self._communicators: list[ring.Communicator] = []
        self._written, self._capacity = self.reader.position, reader.header.capacity
        #: Events a second that it may get: what a rank's short MPI calls may be, or the most that were seen lately.
        self._rate = self._least_rate = MPI_RATE if reader.header.producer == "mpi" else 0.0
        self._asked_ns: int | None = None

    @property
    def mark(self) -> Mark:
        """Where to go on from once everything that was taken from the builder is in the spool."""
        reader = self.reader
        return Mark(reader.header.monotonic_ns, reader.position, reader.skipped, *self.builder.pending)

    def _resume(self, mark: Mark) -> None:
        """Make rows again of what the ring holds of the past, only for what was pending; read on at the mark."""
        reader = self.reader
        reader.position = max(reader.written - reader.header.capacity, 0)
        while reader.position < mark.position:
            before = reader.position
            block = reader.read(mark.position - before)
            # Where the writer overwrote the oldest meanwhile, as many more were read beyond the mark.
            self.builder.feed(block[: len(block) - SIZE * max(reader.position - mark.position, 0)], reader)
            if reader.position == before:  # a slot that was never written, which the earlier agent gave up
                reader.position += 1
                self.builder.broke()
        self.builder.resume(mark.steps, mark.phases)
        reader.position, reader.skipped = mark.position, mark.skipped

    def grown(self, now_ns: int) -> int:
        """How many events were written since this was last asked; those of a torn ring do not count."""
        before, self._written = self._written, self.written
        grown = self._written - before
        if self._asked_ns is not None:
            passed_ns = max(now_ns - self._asked_ns, SHORT_NS)
            seen, faded = grown / passed_ns * NS, self._rate * 0.5 ** (passed_ns / HALVED_NS)
            self._rate = max(seen, faded, self._least_rate)
        self._asked_ns = now_ns
        return grown

    @property
    def written(self) -> int:
        """How many events were ever written; of a torn ring, as far as is known."""
        try:
            return self.reader.written  # of each ring, some times a second
        except ring.RingError:
            return self._written

    def said(self, what: str) -> Any:
        """What the writer says by now: ``closed``, ``gpu_uuid``, ``framework``, ``text``; empty of a torn ring."""
        try:
            return getattr(self.reader, what)
        except ring.RingError:
            return ""

    @property
    def full(self) -> float:
        """How much of the ring was waiting to be read when ``grown`` was last asked, from 0 to 1."""
        return (self._written - self.reader.position) / self._capacity

    def look_ns(self, reserve: float) -> int | None:
        """How long until only the ``reserve`` of it is free, as fast as it filled lately; ``None``: for ever."""
        return int(self._capacity / self._rate * NS * max(1 - self.full - reserve, 0.0)) if self._rate else None

    def read(self) -> int:
        """Make rows of what is new; returns how many events. A torn ring is lost from here on, not an error."""
        reader, builder = self.reader, self.builder
        before = reader.position - reader.skipped
        try:
            new = reader.read()
            if (lost := reader.lost) != self.lost:
                self.lost = lost
                builder.broke()
            builder.feed(new, reader)
        except ring.RingError:
            return 0
        return reader.position - reader.skipped - before

    def communicators(self) -> list[ring.Communicator]:
        try:
            if self.reader.communicator_count != len(self._communicators):
                self._communicators = self.reader.communicators()
        except ring.RingError:
            return []
        return self._communicators


NS = 1_000_000_000
#: A ring fuller than this is read at once and looked at again soon, before it overwrites itself.
BUSY_SHARE = 0.2
#: A process that /proc never showed (of another PID namespace) is taken for dead after this long without events.
SILENT_NS = 60 * NS
#: A dead writer may have left a slot claimed and unwritten, which the reader gives up on after a second.
DRAIN_NS = 2 * NS
#: Events a second of a rank that makes short collectives, until it was seen to make more.
MPI_RATE = 100_000.0
#: How fast a ring fills is measured over so long at least, and counts half after so long.
SHORT_NS, HALVED_NS = NS // 20, 60 * NS
#: How much of a ring is to be free when it is looked at again, as an agent may be late by 0.4 s where ranks fill all
#: cores; less where no rank has written for so long.
RESERVE, IDLE_RESERVE, IDLE_NS = 0.62, 0.25, 2 * NS
#: Which GPU a rank uses is said once, by its probe or by the driver.
GPU_NS = 5 * NS
#: A ring file is under construction for an instant; one that cannot be opened this many times is reported.
PATIENCE = 10
#: How many processes that ended are remembered.
KEPT_ENDS = 1024
#: Frameworks from the least telling to the most, where the rings of one process disagree; any other says more.
LEAST_TELLING = ("", "mpi", "python", "mpi4py")


class Producer:
    """One training process with its rings: Python's, MPI's, NCCL's. In an elastic job it may have been another rank."""

    def __init__(self, process: RankProcess, now_ns: int) -> None:
        self.process = process
        self.rings: dict[Path, OpenRing] = {}
        #: When it last showed that it had written, and the reading before that, which was before it wrote the last.
        self.progress_ns = self.progress_after_ns = now_ns
        self.gone_ns: int | None = None
        #: How its process ends, as the kernel tells.
        self.end = End()
        self._stat: File | None = None
        self._gpu_due_ns = now_ns

    @property
    def key(self) -> tuple[int, int, int]:
        """What identifies it, also against a later process with its pid, and against itself as another rank."""
        return self.process.pid, self.process.start_ticks, self.process.rank

    @property
    def closed(self) -> bool:
        """Whether every ring of this process was closed in order."""
        return all(item.said("closed") for item in self.rings.values())

    @property
    def nccl_is_recorded(self) -> bool:
        """Whether NCCL's plugin says itself which operations are open."""
        return any(item.reader.header.producer == "nccl" for item in self.rings.values())

    @property
    def written(self) -> int:
        """Events that the probes of this process have written."""
        return sum(item.written for item in self.rings.values())

    @property
    def lost(self) -> int:
        return sum(item.lost + item.builder.damaged for item in self.rings.values())

    @property
    def last_words(self) -> str:
        """The exception that it ends by, with its message, as its probe wrote before it closed its ring."""
        return next((text for item in self.rings.values() if item.said("closed") and (text := item.said("text"))), "")

    def add(self, item: OpenRing) -> None:
        self.rings[item.path] = item
        self._name(item.reader.header.framework)

    def _name(self, framework: str) -> None:
        """Say what trains here, unless that says less than is known."""
        if _telling(framework) >= _telling(self.process.framework):
            self.process = self.process._replace(framework=framework)

    def refresh(self, gpu_of: Mapping[tuple[int, int], str], now_ns: int) -> None:
        """Look which framework a probe names by now, and which GPU it, or else the driver."""
        if now_ns < self._gpu_due_ns:
            return
        self._gpu_due_ns = now_ns + GPU_NS
        for item in self.rings.values():
            self._name(item.said("framework"))
        process = self.process
        by_ring = next((uuid for item in self.rings.values() if (uuid := item.said("gpu_uuid"))), "")
        uuid = by_ring or gpu_of.get((process.pid, process.start_ticks)) or process.gpu_uuid
        self.process = process._replace(gpu_uuid=uuid)

    def look(self, proc: Path, now_ns: int, *, closely: bool = False, over: bool = False) -> None:
        """Note in ``gone_ns`` when the process has ended; without ``closely``, one that just wrote is known to run.

        Where the job is ``over``, one that /proc never showed ended before it was looked for.

        The kernel sums over all threads of a process to say how it is, which is dear.
        """
        if self.gone_ns is not None or (self._stat is not None and self.progress_ns == now_ns and not closely):
            return
        ended = over or self._stat is not None or self.closed
        if not self._alive(proc) and (ended or now_ns - self.progress_ns > SILENT_NS):
            self.gone_ns = now_ns

    def _alive(self, proc: Path) -> bool:
        """Whether the process runs. Its file stays open: reading it fails after the end, even if the pid is reused."""
        process = self.process
        try:
            if self._stat is not None:
                return started(self._stat.read()) is not None
            file = File(proc / str(process.pid) / "stat")
            ticks = started(file.read())
        except OSError:
            return False
        if ticks is None or process.start_ticks not in (0, ticks):
            return False
        self._stat = file
        return True

    def take(self, now_ns: int) -> Rows:
        """The rows finished since last asked, of all its rings."""
        rows = Rows([], Calls(), [])
        for item in self.rings.values():
            item.builder.age(now_ns)
            finished = item.builder.take()
            rows.steps.extend(finished.steps)
            rows.collectives.extend(finished.collectives)
            rows.intervals.extend(finished.intervals)
        return rows

    def finish(self) -> None:
        """Nothing more is written: what was pending is finished as it stands."""
        for item in self.rings.values():
            item.builder.finish()

    def communicators(self) -> list[ring.Communicator]:
        return [communicator for item in self.rings.values() for communicator in item.communicators()]

    def finished(self, now_ns: int) -> bool:
        """Whether the process has ended and its rings hold nothing more to read."""
        drained = all(item.reader.position >= item.written for item in self.rings.values())
        return self.gone_ns is not None and (drained or now_ns - self.gone_ns > DRAIN_NS)


class Rings:
    """All rings in some folders. ``marks``, by path: how far an earlier agent with the same spool had read them."""

    def __init__(
        self,
        host: Host,
        folders: Iterable[Path] = (),
        unix_ns: Callable[[], int] = time.time_ns,
        marks: Mapping[str, Sequence[int]] | None = None,
    ) -> None:
        self.folders = list(folders)
        self._marks = dict(marks or {})
        self._host = host
        self._unix_ns = unix_ns
        self._producers: dict[tuple[int, int, int], Producer] = {}
        self.ends = Ends()
        #: How processes ended whose rings were read and removed: another ring of theirs may be found only now.
        self._ended: dict[tuple[int, int], End] = {}
        self._known: set[Path] = set()
        self._polled_ns = 0
        self._failed: dict[Path, int] = {}
        self._stamps: dict[Path, int] = {}
        self._lost_before = 0
        #: Events written since all rings were read, and whether there were any new ones when they were last polled.
        self.new_events, self.moved = 0, False

    def __iter__(self) -> Iterator[Producer]:
        return iter(tuple(self._producers.values()))

    def __len__(self) -> int:
        return len(self._producers)

    def discover(self, now_ns: int) -> None:
        """Open rings that have appeared; one ``stat`` a folder while nothing has."""
        for folder in self.folders:
            try:
                stamp = os.stat(folder).st_mtime_ns  # noqa: PTH116 - each batch
                if self._stamps.get(folder) == stamp and not self._failed:
                    continue
                found = [folder / entry.name for entry in os.scandir(folder) if entry.name.endswith(".ring")]
            except OSError:
                continue
            # File times are coarse: only an old one proves that nothing was added since.
            self._stamps[folder] = stamp if self._unix_ns() - stamp > NS else -1
            for path in found:
                if path not in self._known:
                    self._open(path, now_ns)
        if len(self._stamps) > len(self.folders):  # of jobs that are over
            self._stamps = {folder: self._stamps[folder] for folder in self.folders if folder in self._stamps}

    def unread(self) -> bool:
        """Whether there is a ring that was never opened here: a rank has come since they were last looked for."""
        return any(path not in self._known for folder in self.folders for path in folder.glob("*.ring"))

    def poll(self, now_ns: int, *, everything: bool = True) -> bool:
        """Read what is new in every ring, or only in those that fill; true when one does: look again soon.

        How far each has been written is one word of it; reading what was written is dear, and dearer in small portions.
        """
        busy, new = False, 0
        before_ns, self._polled_ns = self._polled_ns or now_ns, now_ns
        for producer in self._producers.values():
            for item in producer.rings.values():
                if grown := item.grown(now_ns):
                    producer.progress_ns, producer.progress_after_ns = now_ns, before_ns
                    new += grown
                full = item.full
                busy = busy or full > BUSY_SHARE
                if everything or full > BUSY_SHARE:
                    self._host.counts.ring_events += item.read()
        self.moved = new > 0
        self.new_events = 0 if everything else self.new_events + new
        return busy

    def look_ns(self, now_ns: int) -> int | None:
        """How soon is to be looked how full the rings are, by the fastest; ``None`` where none was ever written."""
        writing = [producer for producer in self._producers.values() if producer.gone_ns is None]
        idle = now_ns - max((producer.progress_ns for producer in writing), default=now_ns) >= IDLE_NS
        reserve = IDLE_RESERVE if idle else RESERVE
        waits = (item.look_ns(reserve) for producer in writing for item in producer.rings.values())
        return min((wait for wait in waits if wait is not None), default=None)

    def marks(self) -> dict[str, Mark]:
        """How far every ring has been read, by its path."""
        return {str(item.path): item.mark for producer in self for item in producer.rings.values()}

    def account(self) -> None:
        """Bring the agent's own counts of rings and losses up to date."""
        counts = self._host.counts
        counts.rings = sum(len(producer.rings) for producer in self._producers.values())
        counts.ring_lost = self._lost_before + sum(producer.lost for producer in self._producers.values())

    def remove(self, producer: Producer) -> None:
        """Close and delete the rings of a process that has ended and was read to the end."""
        self._lost_before += producer.lost
        del self._producers[producer.key]
        self.ends.forget(producer.end)
        if producer.end.ended_ns is not None:
            self._ended[producer.key[:2]] = producer.end
            if len(self._ended) > KEPT_ENDS:
                del self._ended[next(iter(self._ended))]
        for item in producer.rings.values():
            item.reader.close()
            try:
                item.path.unlink(missing_ok=True)
                self._known.discard(item.path)
            except OSError:  # another user's, and this agent may only read: it stays known, so it is not read again
                log.info("cannot remove ring %s of another user", item.path)

    def close(self) -> None:
        """Close every ring and leave the files."""
        for producer in self._producers.values():
            self.ends.forget(producer.end)
        self.ends.close()
        for producer in self._producers.values():
            for item in producer.rings.values():
                item.reader.close()
        self._producers.clear()

    def _open(self, path: Path, now_ns: int) -> None:
        try:
            reader = ring.Reader(path)
            mark = self._marks.get(str(path))
            item = OpenRing(path, reader, Mark(*mark) if mark else None)
        except ring.RingError as error:
            self._failed[path] = tries = self._failed.get(path, 0) + 1
            if tries >= PATIENCE or not path.exists():
                self._known.add(path)
                del self._failed[path]
                log.warning("ring skipped: %s", error)
            return
        self._failed.pop(path, None)
        self._known.add(path)
        header = reader.header
        key = header.pid, header.start_ticks, header.rank
        if key not in self._producers:
            for other in self._producers.values():
                if other.key[:2] == key[:2]:  # this process goes on as another rank
                    other.gone_ns = now_ns
            process = RankProcess(*(getattr(header, name) for name in RankProcess._fields))
            producer = self._producers[key] = Producer(process, now_ns)
            known = self._ended.get(key[:2])
            if known is not None:
                producer.end, producer.gone_ns = known, now_ns
            else:
                ticks = header.start_ticks
                producer.end = self.ends.watch(self._host.proc, header.pid, lambda stat: started(stat) == ticks)
        self._producers[key].add(item)


def start_ticks(proc: Path, pid: int) -> int | None:
    """When the process started (field 22 of its stat), which tells a reused pid apart; ``None``: no such process."""
    try:
        return started(read_once(proc / str(pid) / "stat", 4096))
    except OSError:
        return None


def started(stat: bytes) -> int | None:
    """When the process started, from the content of its stat, in clock ticks since boot; ``None``: it runs no more."""
    try:
        fields = stat[stat.rindex(b")") + 2 :].split()
        # A zombie runs no more; its parent has just not asked yet.
        return None if fields[0] in (b"Z", b"X") else int(fields[19])
    except (ValueError, IndexError):
        return None


def _telling(framework: str) -> int:
    return LEAST_TELLING.index(framework) if framework in LEAST_TELLING else len(LEAST_TELLING)


#: An operation is reported as in flight once it has been open this long: a slow one, not one that was just met.
OPEN_NS = NS // 2
REPEAT_NS = 10 * NS
#: A rank that tests for a message and finds none waits for it as long as it tests again within this time.
TESTS_NS = NS
KINDS = {ring.STEP: "step", ring.PHASE: "phase", ring.COLLECTIVE: "collective", ring.P2P: "p2p"}

#: Kind, name, communicator, sequence, peer as on the wire, flags, start (ns).
Entered = tuple[str, str, int, int, int, int, int]


class RasStall(NamedTuple):
    """What NCCL's RAS says of a rank that stands still: its communicators, and the collectives that it waits in."""

    communicators: Sequence[ring.Communicator] = ()
    waits: Sequence[Entered] = ()


NOTHING = RasStall()


@dataclass
class _LastState:
    """What was said of a rank, and when; its state while it waits; by start of its tests, how many there were, and when
    there was last one more."""

    news: tuple[object, ...] = ()
    said_ns: int = 0
    waiting: wire.RankState | None = None
    tests: Mapping[int, tuple[int, int]] = field(default_factory=dict)


class RankStates:
    """Says what changed since it was last asked; and how every rank is, every ten seconds."""

    def __init__(self) -> None:
        self._known: defaultdict[int, _LastState] = defaultdict(_LastState)

    def look(
        self, producer: Producer | None, rank: int, now_ns: int, seen: RasStall = NOTHING
    ) -> wire.RankState | None:
        """The rank's state if it is news. ``rank`` is its reference; ``seen``: what NCCL's RAS says of it. Without a
        ``producer`` no probe observes it.
        """
        state, entered = wire.RankState(rank=rank, time_ns=now_ns, life=wire.RankState.RUNNING), list(seen.waits)
        if producer is not None:
            gone = wire.RankState.RUNNING if producer.gone_ns is None else wire.RankState.VANISHED
            state.life = wire.RankState.FINISHED if producer.closed else gone
            state.last_words = producer.last_words
            state.events_total, state.events_lost_total = producer.written, producer.lost
            state.ended_ns = producer.end.ended_ns or 0
            if (status := producer.end.status) is not None:
                state.exit_status = status
            finished = state.life == wire.RankState.FINISHED
            entered = [] if finished else [*self._entered(producer, rank, now_ns), *entered]
        # That a rank is in a communicator is news, too: it may be what others wait for in it.
        news = (state.life, state.events_lost_total, state.last_words, *entered, *seen.communicators)
        known = self._known[rank]
        if known.news == news and now_ns - known.said_ns < REPEAT_NS:
            return None
        for kind, name, comm, seq, peer, flags, start in entered:
            state.in_flight.add(kind=kind, name=name, comm=comm, seq=seq, peer=peer, flags=flags, start_ns=start)
        known.news, known.said_ns = news, now_ns
        known.waiting = state if entered and state.life == wire.RankState.RUNNING else None
        return state

    def _entered(self, producer: Producer, rank: int, now_ns: int) -> list[Entered]:
        """What is open, without tests that do not go on."""
        events, before = open_events(producer, now_ns), self._known[rank].tests
        tests = {event.start_ns: event.duration_ns for event in events if event.flags & ring.POLLS}
        known = {start: before.get(start, (-1, 0)) for start in tests}
        seen = {start: known[start] if known[start][0] == count else (count, now_ns) for start, count in tests.items()}
        self._known[rank].tests = seen
        stale = {start for start, (_, changed_ns) in seen.items() if now_ns - changed_ns > TESTS_NS}
        return [_as_entered(event) for event in events if not (event.flags & ring.POLLS and event.start_ns in stale)]

    def waiting(self, rank: int, now_ns: int) -> wire.RankState | None:
        """How a running rank was that was inside something when last looked at, said as of now; no change since."""
        state = known.waiting if (known := self._known.get(rank)) else None
        if state is not None:
            state = wire.RankState.FromString(state.SerializeToString())
            state.time_ns = now_ns
        return state

    def forget(self, rank: int) -> None:
        self._known.pop(rank, None)


def _as_entered(event: ring.Event) -> Entered:
    kind, peer = KINDS.get(event.kind, "other"), -1 if event.peer == ring.ANY else event.peer + 1
    return kind, event.name, event.comm_id, event.seq, peer, event.flags, event.start_ns


def open_events(producer: Producer, now_ns: int) -> list[ring.Event]:
    """What has been open for long.

    Of a process that is gone: of all that it was in when it ended, which its ring still shows.
    """
    found: list[ring.Event] = []
    latest_ns = now_ns - OPEN_NS if producer.gone_ns is None else now_ns
    for item in producer.rings.values():
        try:
            records = item.reader.open_records()
        except ring.RingError:
            continue
        found += [event for event in records if event.start_ns < latest_ns]
    return found
