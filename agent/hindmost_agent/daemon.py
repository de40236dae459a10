"""Life of an agent process: start, the event loop, the reasons to leave, and leaving in order."""

import asyncio
import fcntl
import gc
import json
import logging
import os
import re
import signal
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TextIO

from hindmost import __version__, daemon_process
from hindmost.daemon_process import FULL_PERIOD_S, FullCores, raise_open_file_limit, set_up_allocator
from hindmost_proto import retry
from hindmost_proto import telemetry_pb2 as wire
from hindmost_proto.address import Address

from hindmost_agent import event_trace, samplers, stacks
from hindmost_agent.agent import Agent
from hindmost_agent.delivery import spool
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.delivery.stream import Shipper
from hindmost_agent.exposition import Exposition, listen
from hindmost_agent.jobs.discovery import Jobs, sweep
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.ras import AGAIN_NS, RasWatch, address
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.kernel_files import text
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import Host
from hindmost_agent.settings import Settings, default_spool

log = logging.getLogger(__name__)

NS = 1_000_000_000
PROTOCOL = 1
FLUSH_TIMEOUT_S = 10.0
#: A job's agent leaves when no rank has been there for NO_RANK_NS, or ALL_GONE_NS after the last that it saw ended.
NO_RANK_NS = 60 * NS
ALL_GONE_NS = 3 * NS
NO_RANK, ALL_GONE = "no rank appeared", "all ranks have ended"
#: Reasons to leave because no rank runs. The job may start again under the same id, as elastic jobs do.
SILENCE = (NO_RANK, ALL_GONE)
CLOSED, NO_STDIN = "stdin was closed", "stdin is closed"
#: Reasons that mean the job is over: no collector will read what ranks still write.
OVER = (CLOSED, NO_STDIN)
#: How long the job of ``hindmost run`` may wait for the stream to the collector, s.
AT_WORK_S = 2.0
#: How often to look whether ranks have come while the last acknowledgement is waited for, s.
LOOK_S = 0.25
#: Another process may hold the lock briefly, to check it: how often to try, and the pause between tries, s.
LOCK_TRIES, LOCK_PAUSE_S = 5, 0.02
#: Ranks of a running job whose stacks are taken at one request.
_WATCHED = 4
#: New objects before the garbage collector runs: a batch of rows, which is freed at once, must not start it.
YOUNG = 20_000


class Daemon:
    """One agent in one process."""

    def __init__(self, settings: Settings, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.settings = settings
        self._monotonic_ns = monotonic_ns
        #: Where lines for the process that started us go; a GPU's library may redirect ``sys.stdout`` for a while.
        self._out = sys.stdout
        self.host = Host()
        self.spool = Spool(settings.spool, settings.spool_bytes) if settings.spool else None
        if self.spool is not None:
            self.host.counts.spool_limit_bytes = settings.spool_bytes
        self._phase = zlib.crc32(settings.node.encode()) / (1 << 32)
        folders = [settings.ring_dir] if settings.ring_dir else []
        rings = Rings(self.host, folders, marks=self.spool.marks if self.spool else None)
        self.runner = Runner(samplers.load(), self.host, settings.interval_ns)
        jobs = None if settings.ring_dir else Jobs(self.host)
        self.agent = Agent(
            settings.node,
            settings.interval_ns,
            self.host,
            self.runner,
            rings,
            self.spool,
            jobs,
            cores_are_full=FullCores(),
            phase=self._phase,
            unix_ns=lambda now_ns: now_ns + time.time_ns() - time.monotonic_ns(),
            irregular=True,
        )
        self.shipper: Shipper | None = None
        self._started_ns = monotonic_ns()
        self._leaving: asyncio.Future[str] | None = None
        self._next: asyncio.TimerHandle | None = None
        self._dumps: set[asyncio.Task[None]] = set()
        self._dumping = 0
        self._weighing = asyncio.Lock()
        self._ras = RasWatch(address(os.environ), self.host.ranks.numbered, lambda: self.agent.rings)
        self._asking: asyncio.Task[None] | None = None

    async def run(self) -> str:
        """Work until there is a reason to leave, then deliver what is held, within ``FLUSH_TIMEOUT_S``; the reason."""
        loop = asyncio.get_running_loop()
        self._leaving = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.leave, signal.Signals(number).name)
        server = await self._serve()
        shipping = self._ship()
        ends = self.agent.rings.ends
        loop.add_reader(ends.fileno(), lambda: ends.collect(self._monotonic_ns()))
        self._tick()
        if self.settings.exit_when_stdin_closes:
            self._watch_stdin(loop)
        await asyncio.to_thread(
            daemon_process.lower_priority, daemon_process.AGENT_SESSION, nice=daemon_process.AGENT_THREADS
        )
        gc.collect()
        gc.freeze()  # what is here now stays: no later collection needs to look through it
        gc.set_threshold(YOUNG)
        if self.settings.exit_when_stdin_closes and self.shipper is not None:
            await self.shipper.at_work(AT_WORK_S)  # what is done now is not done while ranks wait for each other
        self._say_ready(server)
        reason = await self._leaving
        ends.collect(self._monotonic_ns())
        loop.remove_reader(ends.fileno())
        await self._weigh()  # the job is over, or no longer this agent's: what is left is soon done
        if self._asking is not None:
            await retry.cancel(self._asking)
        if server is not None:
            server.close()
        self.agent.finish(self._monotonic_ns(), discover=reason not in SILENCE, over=reason in OVER)
        if self.shipper is not None and shipping is not None:
            await self._deliver(self.shipper, reason)
            await retry.cancel(shipping)  # before the spool is closed: no acknowledgement may come to a closed account
        self._part(reason)
        return reason

    def awaited(self) -> bool:
        """Whether ranks have come that this agent has not read: those that met its lock have started no other agent."""
        return self.agent.rings.unread()

    async def _deliver(self, shipper: Shipper, reason: str) -> None:
        """Wait for the last acknowledgement; should the job start again meanwhile, the spool is for the next agent."""
        finishing = asyncio.ensure_future(shipper.finish(reason, FLUSH_TIMEOUT_S))
        while not finishing.done() and not (reason in SILENCE and self.awaited()):
            await asyncio.wait([finishing], timeout=LOOK_S)
        await retry.cancel(finishing)

    def leave(self, reason: str) -> None:
        """Start leaving; the first reason counts."""
        if self._leaving is not None and not self._leaving.done():
            self._leaving.set_result(reason)

    def hello(self) -> wire.Hello:
        """The first message of a stream."""
        return wire.Hello(
            protocol=PROTOCOL,
            agent_id=self.spool.ledger.agent_id if self.spool else "",
            node=self.settings.node,
            boot_id=text(self.host.proc / "sys/kernel/random/boot_id"),
            version=__version__,
            job_id=self.settings.job_id,
            monotonic_ns=time.monotonic_ns(),
            realtime_ns=time.time_ns(),
        )

    async def _serve(self) -> asyncio.Server | None:
        if self.settings.listen is None:
            return None
        if self.settings.insecure:
            log.warning("everyone who reaches %s may read /metrics there (--insecure)", self.settings.listen)
        exposition = Exposition(self.settings.node)
        page = lambda: exposition.render(self.runner.latest.values())  # noqa: E731
        return await listen(self.settings.listen, page, self.settings.web)

    def _ship(self) -> asyncio.Task[None] | None:
        if self.settings.collector is None or self.spool is None:
            return None
        self.shipper = Shipper(
            self.settings.collector,
            self.spool,
            self.host.counts,
            self.hello,
            self._stopped,
            self._answer_request,
            client=self.settings.client,
        )
        return asyncio.get_running_loop().create_task(self.shipper.run())

    def _tick(self) -> None:
        """One tick and the next one's appointment. Whatever goes wrong in one, there is a next."""
        if self._leaving is None or self._leaving.done():
            return
        now_ns = self._monotonic_ns()
        next_ns = now_ns + self.settings.interval_ns
        try:
            made = self.host.counts.batches
            next_ns = self.agent.tick(now_ns)
            if self.shipper is not None and self.host.counts.batches != made:
                # On full cores many nodes make a batch at once, which a collector is to take one after the other.
                later_s = self._phase * FULL_PERIOD_S / 2 if self.agent.full and self.agent.in_turn else 0
                asyncio.get_running_loop().call_later(later_s, self.shipper.notify)
                self.agent.held_back, self.agent.batch_ns = self.shipper.held_back, self.shipper.batch_ns
                self.agent.short_columns = self.shipper.short_columns
            due_ns = self._ras.due_ns(now_ns)
            next_ns = min(next_ns, max(due_ns, now_ns + AGAIN_NS))
            if self._stalls_change(now_ns, due_ns):
                next_ns = now_ns
        except Exception:
            log.exception("tick failed; going on with the next")
        if self.settings.ring_dir is not None and not self.settings.exit_when_stdin_closes:  # it leaves with its job
            seen = self.agent.seen_ns
            if seen is None and now_ns - self._started_ns > NO_RANK_NS:
                self.leave(NO_RANK)
            elif seen is not None and now_ns - seen > ALL_GONE_NS and not len(self.agent.rings):
                self.leave(ALL_GONE)
        delay_s = max(next_ns - self._monotonic_ns(), 0) / NS
        self._next = asyncio.get_running_loop().call_later(delay_s, self._tick)

    def _part(self, reason: str) -> None:
        said: dict[str, object] = {"left": reason}
        if self.spool is not None:
            said["samples"] = spool.closed(self.spool, self.settings)
        self._clear_rings(over=reason in OVER)
        _say(said, self._out)

    def _clear_rings(self, *, over: bool) -> None:
        """Remove the rings of ranks that have ended, and the folder that holds no other.

        A rank that runs keeps its own for the agent that follows, unless the job is ``over``; it can go on then, too.
        """
        rings, folder = self.agent.rings, self.settings.ring_dir
        for producer in rings:
            if producer.gone_ns is not None or (over and self.settings.job_id):
                rings.remove(producer)
        rings.close()
        if folder is not None and not any(folder.glob("*.ring")):
            (folder / "agent.lock").unlink(missing_ok=True)
            try:
                folder.rmdir()
            except OSError as error:
                log.info("cannot remove %s: %s", folder, error.strerror)

    def _stopped(self) -> None:
        if self.settings.job_id:  # an agent that serves a node outlives the jobs on it
            self.leave("the collector said stop")

    def _answer_request(self, request: wire.EventTraceRequest) -> None:
        """Fetch the stacks or the events that the collector requests, outside the loop: a dump takes up to seconds."""
        mine = [rank for rank in self.host.ranks.numbered() if rank.job_id == request.job_id]
        wanted = [rank for rank in mine if rank.rank in request.ranks] if request.ranks else mine
        stopped = request.stacks and not request.last_step
        if wanted and not stopped:
            self.runner.hasten()
        looks = [
            self._dump(rank) if stopped else self._trace(rank, request.first_step, request.last_step) for rank in wanted
        ]
        if request.stacks and not stopped:
            looks.append(self._watch(wanted[:_WATCHED]))
        for look in looks:
            task = asyncio.get_running_loop().create_task(look)
            self._dumps.add(task)
            task.add_done_callback(self._dumps.discard)

    async def _watch(self, ranks: Sequence[RankProcess]) -> None:
        """Send stacks of ranks that go on, taken at the agent's own priority, of one rank after the other."""
        for rank in ranks:
            for stack, at_ns in await stacks.of_running(rank.pid):
                self.agent.attach(rank, "stack.txt", stack.encode(), at_ns)

    async def _dump(self, rank: RankProcess) -> None:
        self._dumping += 1
        await self._weigh()  # it hangs: what a dump takes is no loss, and one that comes late is no use
        try:
            stack = await asyncio.to_thread(stacks.dump, rank.pid)
        finally:
            self._dumping -= 1
            await self._weigh()
        self.agent.attach(rank, "stack.txt", stack.encode(), time.monotonic_ns())

    async def _weigh(self) -> None:
        """Lower this session's priority below the ranks'; raise it while stacks are read, and once the agent leaves."""
        async with self._weighing:
            leaves = self._leaving is None or self._leaving.done()
            await asyncio.to_thread(
                daemon_process.set_session_priority, 0 if leaves or self._dumping else daemon_process.AGENT_SESSION
            )

    def _stalls_change(self, now_ns: int, due_ns: int) -> bool:
        """Have NCCL's RAS say which collective ranks wait in, where a tick has just seen them stand still; whether
        what it said before is over."""
        if now_ns >= due_ns and (self._asking is None or self._asking.done()):
            self._asking = asyncio.get_running_loop().create_task(self._ask_ras(now_ns))
        return self.agent.take_stalls(self._ras.seen, now_ns)

    async def _ask_ras(self, now_ns: int) -> None:
        try:
            await self._ras.look(now_ns)
        except Exception:
            log.exception("asking NCCL's RAS failed; it is asked again while ranks stand still")
        if self.agent.take_stalls(self._ras.seen, self._monotonic_ns()) and self._next is not None:
            self._next.cancel()  # the next tick may be a second away
            self._tick()

    async def _trace(self, rank: RankProcess, first: int, last: int) -> None:
        paths = [path for ring in self.agent.rings if ring.process.pid == rank.pid for path in ring.rings]
        content = await asyncio.to_thread(event_trace.trace, paths, rank.rank, first, last)
        self.agent.attach(rank, f"trace-{first}-{last}.json", content, time.monotonic_ns())

    def _watch_stdin(self, loop: asyncio.AbstractEventLoop) -> None:
        """``--exit-when-stdin-closes``: the process that started us keeps our stdin open while it needs us."""

        def readable() -> None:
            said = os.read(0, 4096)
            if not said:
                loop.remove_reader(0)
                self.leave(CLOSED)
            elif found := re.fullmatch(rb'{"command": (\d+)}\n', said):
                self.agent.follow(self.settings.job_id, int(found[1]))

        try:
            loop.add_reader(0, readable)
        except (OSError, ValueError):  # /dev/null and files cannot be waited for: they are at their end
            self.leave(NO_STDIN)

    def _say_ready(self, server: asyncio.Server | None) -> None:
        line: dict[str, object] = {"ready": True, "pid": os.getpid(), "node": self.settings.node}
        if self.settings.spool is not None:
            line["spool"] = str(self.settings.spool)
        if server is not None:
            host, port, *_ = server.sockets[0].getsockname()
            line["listen"] = str(Address(host, port))
        _say(line, self._out)


def _say(line: dict[str, object], out: TextIO) -> None:
    """One JSON line on stdout, if it is still read."""
    try:
        out.write(json.dumps(line) + "\n")
        out.flush()
    except OSError:  # the process that started this agent has exited
        sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - or the interpreter complains at its end


def lock(folder: Path) -> int | None:
    """Make a job's ring folder and become its agent on this node; ``None``: another agent already is.

    Returns the lock's descriptor, which must stay open.
    """
    path = folder / "agent.lock"
    for _ in range(LOCK_TRIES):
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = -1
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        except (BlockingIOError, FileNotFoundError):  # held; or removed, with its folder, by an agent that leaves
            time.sleep(LOCK_PAUSE_S)
        if descriptor >= 0:
            os.close(descriptor)
    return None


def serve(
    settings: Settings, monotonic_ns: Callable[[], int] = time.monotonic_ns, again: Callable[[], None] | None = None
) -> int:
    """Run an agent in this process; returns its exit code. ``again`` starts another in its place."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format="hindmost agent: %(message)s")
    raise_open_file_limit()
    set_up_allocator()
    ring_lock = lock(settings.ring_dir) if settings.ring_dir is not None else None
    if settings.ring_dir is not None and ring_lock is None:
        log.info("another agent already reads %s; nothing to do", settings.ring_dir)
        return 0
    try:
        if settings.job_id and (removed := sweep(Host().proc)):
            log.info("removed %d rings of processes that are gone", removed)
        if settings.job_id and settings.spool is not None:
            spool.expire(default_spool(settings.job_id, settings.node, 0, os.environ).parent, time.time())
    except OSError as error:  # another agent sweeps too
        log.info("cannot remove old rings or spools: %s", error)
    service = Daemon(settings, monotonic_ns)
    reason = asyncio.run(service.run())
    if ring_lock is not None:
        os.close(ring_lock)
    # Looked for without the lock: a rank makes its ring before it asks for the lock, so one that found it held is seen
    # here, and one that found it free has started an agent.
    if reason in SILENCE and service.awaited():
        log.info("new ranks of this job started; starting again")
        (again or _start_anew)()
    return 0


def _start_anew() -> None:
    """Become a new agent with the same settings, which knows nothing of the ranks before."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - its own command line
