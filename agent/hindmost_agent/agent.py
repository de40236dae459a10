"""The agent's work of one tick: read rings, make rows, sample, pack, spool. Knows of no sockets or event loops."""

import logging
from collections.abc import Callable, Mapping

from hindmost.daemon_process import FULL_PERIOD_S
from hindmost_proto import telemetry_pb2 as wire

from hindmost_agent.delivery.batch import Builder, message
from hindmost_agent.delivery.spool import REASONS, Spool
from hindmost_agent.jobs.command import at_work
from hindmost_agent.jobs.discovery import Jobs
from hindmost_agent.jobs.event_rows import Calls, Rows
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import NOTHING, Producer, RankStates, RasStall, Rings, start_ticks
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import LONG_AGO_NS, NEVER_NS, Host

log = logging.getLogger(__name__)

NS = 1_000_000_000
#: A batch is made this often, however often is sampled: a message costs the same for one tick or twenty.
FLUSH_NS = 2 * NS
#: What a collector of many agents may ask for instead: a job that trains is judged within seconds.
FLUSH_MOST_NS = 4 * NS
#: On full cores, where it is judged less often and each batch takes a core from a rank.
FULL_FLUSH_NS = FULL_PERIOD_S * NS
#: For this long after the agent's start or a node's first ring, batches stay frequent, so that a new job is judged
#: soon.
BEGINS_NS = 16 * NS
#: Samples are so much further apart there.
FULL_SAMPLING = 2
#: Samples at equal distances never see what recurs in time with them, such as a stop every two seconds. So each is
#: taken elsewhere in its period: multiples of the golden ratio, modulo 1, are the most evenly spread, however many
#: (by the three-distance theorem, V. T. Sós, 1958). Samples are then 0.62 or 1.62 periods apart.
GOLDEN = (5**0.5 - 1) / 2
#: Without a sample the agent wakes after an interval, unless one is due within so many: it then wakes for that alone.
#: Rings hold more than that; those of MPI calls are looked at sooner.
MERGED = 1.7
#: A batch is made of so many events, however soon. As rows they are at most some 8 MiB, of MPI 3: a collector takes 16,
#: and blocks of 4 MiB and more are mapped anew for each batch.
BATCH_EVENTS = 3 << 15
#: Where no rank of a node has written anything for long a batch is made this often: whether a job hangs is a matter of
#: seconds, and there is little to send. The more nodes a job has, the less often each needs to report: any one of them
#: shows the collector that nothing moves. On full cores, where ranks may be computing for long, it is the longer time.
STALLED_BATCH_NS, STALLED_BATCH_MOST_NS = NS // 4, NS
#: How long that is, as a multiple of it, and at most.
STILL, STILL_MOST_NS = 4, 2 * NS
#: A node's agent looks for jobs that began this often: a ring holds more than that, even a busy one's.
FOLDERS_NS = 2 * NS
#: How soon a ring that fills fast is read again.
BUSY_NS = NS // 20
#: What a verdict is made of: sent also while the collector has asked to hold node metrics back.
ALWAYS_SENT = frozenset({"process", "agent"})


class Agent:
    """Everything an agent does between two looks at the clock.

    ``spool`` is ``None`` when nothing is shipped; with ``jobs`` it finds the node's jobs itself. ``phase`` is the
    node's own, from 0 to 1; ``unix_ns`` gives the wall clock's time at a monotonic one. Samples are ``irregular``
    where what recurs must be seen.
    """

    def __init__(
        self,
        node: str,
        interval_ns: int,
        host: Host,
        runner: Runner,
        rings: Rings,
        spool: Spool | None,
        jobs: Jobs | None = None,
        flush_ns: int = FLUSH_NS,
        cores_are_full: Callable[[], bool] = lambda: False,
        phase: float = 0.0,
        unix_ns: Callable[[int], int] = lambda now_ns: now_ns,
        irregular: bool = False,
    ) -> None:
        self.host = host
        self.rings = rings
        self.spool = spool
        self.held_back, self.batch_ns, self.short_columns = False, 0, False
        self._command: tuple[str, int, int | None] | None = None
        self._at_work: RankProcess | None = None
        self._seen_by_ras: Mapping[int, RasStall] = {}
        self._said: set[str] = set()
        self.seen_ns: int | None = None
        self._runner = runner
        self._jobs = jobs
        self._builder = Builder(node, host.proc)
        self._states = RankStates()
        self._interval_ns = interval_ns
        self._sample_ns = LONG_AGO_NS
        self._flush_period_ns = flush_ns
        self._cores_are_full, self.full = cores_are_full, False
        self._phase, self._unix_ns, self._irregular = phase, unix_ns, irregular
        self._flush_ns = self._flushed_ns = self._turn_ns = LONG_AGO_NS
        self._began_ns: int | None = None  # when there was a first tick or, after none, a first ring
        #: Whether the last batch came when it was due, with those of other nodes; else there was reason for it.
        self.in_turn = False
        self._folders_ns = LONG_AGO_NS
        if spool is not None:
            self._account(spool)

    def tick(self, now_ns: int) -> int:
        """Do what is due at ``now_ns`` (CLOCK_MONOTONIC); returns when the next tick is.

        Rings are read when a batch is made of them: before, only those that fill.
        """
        due = now_ns >= self._flush_ns
        if due or now_ns >= self._sample_ns:
            self.full = self._cores_are_full()
        busy = again = False
        try:
            busy, again = self._read_rings(now_ns, due=due)
        except Exception as error:  # noqa: BLE001 - who can write to a ring must not blind the node
            self._say(error)
        if now_ns >= self._sample_ns:
            self._sample_ns = self._next_sample(self._interval_ns * (FULL_SAMPLING if self.full else 1), now_ns)
            self._sample(now_ns)
        if due:
            begins = self._began_ns is None or now_ns - self._began_ns < BEGINS_NS
            asked_ns = FULL_FLUSH_NS if self.full and not begins else min(self.batch_ns, FLUSH_MOST_NS)
            self.in_turn = self._flush_ns == self._turn_ns
            self._flush_ns = self._turn_ns = self._next(max(self._flush_period_ns, asked_ns), now_ns)
        elif again:
            self.in_turn = False
        if due or again:
            self.flush(now_ns)
        soon_ns = now_ns + BUSY_NS if busy else max(self._stalled_batch_ns(now_ns), now_ns + STALLED_BATCH_NS)
        look_ns = self.rings.look_ns(now_ns)
        merged = self._sample_ns <= now_ns + int(MERGED * self._interval_ns)
        next_ns = self._sample_ns if merged else now_ns + self._interval_ns
        return min(next_ns, soon_ns, NEVER_NS if look_ns is None else now_ns + max(look_ns, BUSY_NS))

    def _next(self, period_ns: int, now_ns: int) -> int:
        """The next multiple of the period on the wall clock, later by the node's phase.

        Without the phase while cores are full: the ranks of all nodes wait for what an agent takes, so they wait once.
        """
        shift_ns = 0 if self.full else int(self._phase * period_ns)
        return now_ns + period_ns - (self._unix_ns(now_ns) - shift_ns) % period_ns

    def _next_sample(self, period_ns: int, now_ns: int) -> int:
        """The same, later by a part of the period that differs each time.

        So all nodes sample at the same times while cores are full. Two samples are at least half a period apart.
        """
        next_ns = self._next(period_ns, now_ns)
        if not self._irregular:
            return next_ns
        number = (self._unix_ns(next_ns) + period_ns // 2) // period_ns  # at a border: clocks are not read at once
        at_ns = next_ns - period_ns + int((number - 1) * GOLDEN % 1 * period_ns)
        return at_ns if at_ns >= now_ns + period_ns // 2 else next_ns + int(number * GOLDEN % 1 * period_ns)

    def _read_rings(self, now_ns: int, *, due: bool) -> tuple[bool, bool]:
        """Whether a ring fills, and whether a batch is made though none was due: nothing moves, or much came."""
        if due:
            self._discover(now_ns)
        busy = self.rings.poll(now_ns, everything=due)
        much = self.rings.new_events >= BATCH_EVENTS
        again = not due and (much or now_ns >= self._stalled_batch_ns(now_ns))
        if again:
            self.rings.poll(now_ns)
        if due or again:
            self._look(now_ns)
        return busy, again

    def _say(self, error: Exception) -> None:
        """One line for each kind of trouble with rings, not one a tick."""
        what = type(error).__name__
        if what not in self._said:
            self._said.add(what)
            log.warning("cannot read rings: %s: %s (logged once)", what, error, exc_info=error)

    def _stalled_batch_ns(self, now_ns: int) -> int:
        """When the next batch is due if ranks go on standing still as they do now; never where one does not."""
        if self.rings.moved:
            return NEVER_NS
        running = [producer for producer in self.rings if producer.gone_ns is None]
        here = [one.process for one in running] or [one for one, seen in self._unobserved() if seen.waits]
        if not here:
            return NEVER_NS
        every = min(max(one.world_size for one in here) * STALLED_BATCH_NS // len(here), STALLED_BATCH_MOST_NS)
        every = max(every, STALLED_BATCH_MOST_NS if self.full else STALLED_BATCH_NS)
        since = max((producer.progress_ns for producer in running), default=now_ns - STILL_MOST_NS)
        return self._flushed_ns + every if now_ns - since >= min(STILL * every, STILL_MOST_NS) else NEVER_NS

    def flush(self, now_ns: int) -> None:
        """Put all that was read into one batch, and that into the spool."""
        self._flushed_ns = now_ns
        for process, seen in self._unobserved():
            self._gather_rank(process, seen, now_ns)
        ended = [producer for producer in self.rings if self._gather(producer, now_ns)]
        if self._builder.empty:
            self._heartbeat(now_ns)
        self.rings.account()
        if self.spool is None:
            self._builder.start()
        elif not self._builder.empty:
            packed = self._builder.pack(short_columns=self.short_columns)
            batch = message(self.spool.next_sequence, packed.parts)
            self.spool.append(packed.samples, batch, packed.definitions, self.rings.marks())
            self._account(self.spool)
            self.host.counts.batches += 1
        for producer in ended:  # only now: an agent killed before finds the ring again
            self.rings.remove(producer)

    def _heartbeat(self, now_ns: int) -> None:
        """That this agent speaks, and has nothing new to say, is what tells that its ranks go on waiting."""
        for process in [*(producer.process for producer in self.rings), *(one for one, _ in self._unobserved())]:
            state = self._states.waiting(process.ref(self._builder.node), now_ns)
            if state is not None:
                self._builder.rank(process)
                self._builder.state(state)
                return

    def attach(self, process: RankProcess, name: str, content: bytes, now_ns: int) -> None:
        """Send something that belongs to a rank and is no number, at the next tick."""
        self._flush_ns = min(self._flush_ns, now_ns)
        ref = self._builder.rank(process)
        self._builder.attach(wire.Attachment(rank=ref, time_ns=now_ns, name=name, content=content))

    def take_stalls(self, seen: Mapping[int, RasStall], now_ns: int) -> bool:
        """Take over what NCCL's RAS says, by pid, of ranks that stand still; true of news: the next tick sends it."""
        if seen == self._seen_by_ras:
            return False
        self._seen_by_ras = seen
        self._flush_ns = min(self._flush_ns, now_ns)
        return True

    def finish(self, now_ns: int, *, discover: bool = True, over: bool = False) -> None:
        """Read every ring to its end and every sampler once more, due or not, and make the last batch.

        Without ``discover`` a ring that has just come is left whole to the agent that follows. ``over``: the job is.
        """
        if discover:
            self._discover(now_ns)
        self.rings.poll(now_ns)
        self._look(now_ns)
        self._sample(now_ns, everything=True)
        for producer in self.rings:
            producer.look(self.host.proc, now_ns, closely=True, over=over)
            if producer.gone_ns is not None or producer.closed:
                producer.finish()
        self.flush(now_ns)

    def _discover(self, now_ns: int) -> None:
        if self._jobs is not None and now_ns >= self._folders_ns:
            self._folders_ns = now_ns + FOLDERS_NS
            self.rings.folders = self._jobs.folders(now_ns)
        here = len(self.rings)
        self.rings.discover(now_ns)
        if self._began_ns is None or (not here and len(self.rings)):
            self._began_ns = now_ns

    def _look(self, now_ns: int) -> None:
        """Who of the ranks runs."""
        for producer in self.rings:
            producer.look(self.host.proc, now_ns)
            producer.refresh(self.host.gpu_of, now_ns)
            if producer.gone_ns is None:
                self.host.ranks.put(producer.process)
                self.seen_ns = now_ns
            else:
                self.host.ranks.remove(producer.process.pid)
        self._look_at_command()
        if self._jobs is not None:
            self._jobs.look(now_ns)

    def follow(self, job_id: str, pid: int) -> None:
        """Sample the process that does the work of a job's command, until a rank makes itself known."""
        self._command = job_id, pid, start_ticks(self.host.proc, pid)
        self._look_at_command()

    def _look_at_command(self) -> None:
        if self._command is None:
            return
        before, (job_id, pid, ticks) = self._at_work, self._command
        if len(self.rings) or start_ticks(self.host.proc, pid) != ticks:  # the pid may be another program's by now
            self._command = self._at_work = None
        else:
            self._at_work = at_work(self.host.proc, job_id, pid)
        if before is not None and before != self._at_work and self.host.ranks.get(before.pid) == before:
            self.host.ranks.remove(before.pid)
        if self._at_work is not None:
            self.host.ranks.put(self._at_work)

    def _sample(self, now_ns: int, *, everything: bool = False) -> None:
        for reading in self._runner.run(now_ns, everything=everything):
            if not self.held_back or reading.sampler in ALWAYS_SENT:
                self._builder.reading(reading)

    def _gather(self, producer: Producer, now_ns: int) -> bool:
        """Move one process's finished rows into the batch; true, and leave is taken of it, once it has ended."""
        ended = producer.finished(now_ns)
        try:
            if ended:
                producer.finish()
            seen = NOTHING if producer.nccl_is_recorded else self._seen_by_ras.get(producer.process.pid, NOTHING)
            ref = self._gather_rank(producer.process, seen, now_ns, producer)
            if ended:
                self._states.forget(ref)
                self._builder.forget(ref)
        except Exception as error:  # noqa: BLE001 - only this producer's rows are lost
            self._say(error)
        return ended

    def _gather_rank(self, process: RankProcess, seen: RasStall, now_ns: int, producer: Producer | None = None) -> int:
        """Move what is new of a rank into the batch, by its ``producer`` where a probe observes it; its reference."""
        ref = process.ref(self._builder.node)
        state = self._states.look(producer, ref, now_ns, seen)
        rows = producer.take(now_ns) if producer is not None else Rows([], Calls(), [])
        if state is not None or any(rows):
            self._builder.rank(process)
            known = producer.communicators() if producer is not None else []
            self._builder.communicators(ref, [*known, *seen.communicators])
            self._builder.steps(ref, rows.steps)
            self._builder.collectives(ref, rows.collectives)
            self._builder.intervals(ref, rows.intervals)
        if state is not None:
            self._builder.state(state)
        return ref

    def _unobserved(self) -> list[tuple[RankProcess, RasStall]]:
        """The ranks that no probe observes, with what RAS says of them."""
        if not self._seen_by_ras:
            return []
        observed = {producer.process.pid for producer in self.rings}
        found = ((self.host.ranks.get(pid), seen) for pid, seen in self._seen_by_ras.items() if pid not in observed)
        return [(process, seen) for process, seen in found if process is not None]

    def _account(self, spool: Spool) -> None:
        counts, ledger = self.host.counts, spool.ledger
        counts.produced, counts.delivered = ledger.produced, ledger.delivered
        counts.dropped = {**dict.fromkeys(REASONS, 0), **ledger.dropped}  # 0 from the start: a rate needs it
        counts.pending, counts.spool_bytes = ledger.pending, spool.size
