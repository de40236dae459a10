"""Finding the rings of this node and reading them, process by process."""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING

from hindmost import ring

from hindmost_agent.files import File, read_once
from hindmost_agent.jobs.fold import Rows
from hindmost_agent.jobs.open_ring import Mark, OpenRing
from hindmost_agent.jobs.process_ends import End, Ends
from hindmost_agent.jobs.ranks import RankProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from hindmost_agent.sampler import Host

log = logging.getLogger(__name__)

NS = 1_000_000_000
#: A ring fuller than this is read at once and looked at again soon, before it overwrites itself.
BUSY_SHARE = 0.2
#: A process that /proc never showed (of another PID namespace) is taken for dead after this long without events.
SILENT_NS = 60 * NS
#: A dead writer may have left a slot claimed and unwritten, which the reader gives up on after a second.
DRAIN_NS = 2 * NS
#: How often is looked how full the rings of MPI are: a burst of short collectives fills one within 0.65 s. Less often
#: where no rank has called MPI for so long: then all of them are empty.
BURST_NS, IDLE_BURST_NS, IDLE_NS = NS // 4, NS // 2, 2 * NS
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
        self.progress_ns = now_ns
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
        return all(item.closed for item in self.rings.values())

    @property
    def bursts(self) -> bool:
        """Whether it makes MPI calls, of which there may be 100,000 in any second."""
        return any(item.bursts for item in self.rings.values())

    @property
    def written(self) -> int:
        """Events that the probes of this process have written."""
        return sum(item.written for item in self.rings.values())

    @property
    def lost(self) -> int:
        """Events of this process that were lost."""
        return sum(item.lost + item.fold.damaged for item in self.rings.values())

    @property
    def drained(self) -> bool:
        """Whether everything that was written has been read."""
        return all(item.reader.position >= item.written for item in self.rings.values())

    def add(self, item: OpenRing) -> None:
        """Take on another ring of the same process."""
        self.rings[item.path] = item
        header = item.reader.header
        if _telling(header.framework) > _telling(self.process.framework):
            self.process = self.process._replace(framework=header.framework)

    def refresh_gpu(self, gpu_of: Mapping[tuple[int, int], str], now_ns: int) -> bool:
        """Look whether a probe, or else the driver, says by now which GPU this rank uses; true when that is news."""
        if now_ns < self._gpu_due_ns:
            return False
        self._gpu_due_ns = now_ns + GPU_NS
        told = next((uuid for item in self.rings.values() if (uuid := item.gpu_uuid)), "")
        uuid = told or gpu_of.get((self.process.pid, self.process.start_ticks), "")
        if not uuid or uuid == self.process.gpu_uuid:
            return False
        self.process = self.process._replace(gpu_uuid=uuid)
        return True

    def look(self, proc: Path, now_ns: int, *, closely: bool = False) -> None:
        """Note in ``gone_ns`` when the process has ended; without ``closely``, one that just wrote is known to run.

        The kernel sums over all threads of a process to say how it is, which is dear.
        """
        if self.gone_ns is not None or (self._stat is not None and self.progress_ns == now_ns and not closely):
            return
        seen_alive = self._stat is not None
        if not self._alive(proc) and (seen_alive or self.closed or now_ns - self.progress_ns > SILENT_NS):
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
        rows = Rows([], [], [])
        for item in self.rings.values():
            item.fold.age(now_ns)
            finished = item.fold.take()
            rows.steps.extend(finished.steps)
            rows.collectives.extend(finished.collectives)
            rows.intervals.extend(finished.intervals)
        return rows

    def finish(self) -> None:
        """Nothing more is written: what was pending is finished as it stands."""
        for item in self.rings.values():
            item.fold.finish()

    def communicators(self) -> list[ring.Communicator]:
        """All communicators that its probes have registered."""
        return [found for item in self.rings.values() for found in item.communicators()]

    def finished(self, now_ns: int) -> bool:
        """Whether the process has ended and its rings hold nothing more to read."""
        return self.gone_ns is not None and (self.drained or now_ns - self.gone_ns > DRAIN_NS)


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
        self._failed: dict[Path, int] = {}
        self._stamps: dict[Path, int] = {}
        self._lost_before = 0

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
        busy = False
        for producer in self._producers.values():
            for item in producer.rings.values():
                if item.grown():
                    producer.progress_ns = now_ns
                fills = item.full > BUSY_SHARE
                busy = busy or fills
                if fills or everything:
                    self._host.own.ring_events += item.read()
        return busy

    def look_ns(self, now_ns: int) -> int | None:
        """How soon is to be looked how full the rings of MPI calls are; ``None`` where no process writes such a one."""
        writing = [producer for producer in self._producers.values() if producer.gone_ns is None and producer.bursts]
        if not writing:
            return None
        moved_ns = max(producer.progress_ns for producer in writing)
        return BURST_NS if now_ns - moved_ns < IDLE_NS else IDLE_BURST_NS

    def marks(self) -> dict[str, Mark]:
        """How far every ring has been read, by its path."""
        return {item.name: item.mark for producer in self for item in producer.rings.values()}

    def account(self) -> None:
        """Bring the agent's own counts of rings and losses up to date."""
        own = self._host.own
        own.rings = sum(len(producer.rings) for producer in self._producers.values())
        own.ring_lost = self._lost_before + sum(producer.lost for producer in self._producers.values())

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
            producer = self._producers[key] = Producer(_process(header), now_ns)
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


def _process(header: ring.Header) -> RankProcess:
    return RankProcess(
        header.job_id,
        header.rank,
        header.world_size,
        header.local_rank,
        header.pid,
        header.start_ticks,
        header.framework,
        header.command,
        header.gpu_uuid,
    )
