"""NCCL's RAS: in which collective each rank of a stalled job waits, as NCCL's own threads know it (NCCL 2.24 on).

Any process of the job answers for all of them, as text or JSON over TCP: how many collectives each rank of each
communicator has launched. That needs no probe.

Two answers are compared. A communicator whose counts differ between its ranks, and are the same as a while before,
stands: the ranks that have launched more wait in the collective that the others have not launched. Those that merely
run ahead of each other move on between two answers.
"""

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from hindmost.ring import Communicator
from hindmost_proto.address import Address, parse
from hindmost_proto.ras import NAMES, Member, RasCommunicator, parse_answer

from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import Entered, Producer, RasStall
from hindmost_agent.sampler import NEVER_NS

log = logging.getLogger(__name__)

PORT = 28028
#: Some 29,000 members of communicators, 560 bytes each. What is beyond is cut off: an agent has little memory.
LIMIT = 16 << 20
#: How long RAS itself may wait for another process, s: twice, and then it answers without it.
LEG_S = 1
#: A verbose text lists more of the ranks that differ. A server that knows no JSON says so, and goes on in text.
QUESTION = b"TIMEOUT %d\nSET FORMAT json\nVERBOSE STATUS\n" % LEG_S


def query_ras(where: Address, timeout_s: float, monotonic: Any = time.monotonic) -> bytes:
    """The answer of the RAS at this address, or what came of it until the time was up. Raises ``OSError``."""
    until = monotonic() + timeout_s
    parts, size = list[bytes](), 0
    with socket.create_connection(where, timeout=timeout_s) as connection:
        connection.sendall(QUESTION)
        while (left := until - monotonic()) > 0 and size < LIMIT:
            connection.settimeout(left)
            try:
                part = connection.recv(1 << 16)
            except TimeoutError:
                break
            if not part:
                break
            parts.append(part)
            size += len(part)
    return b"".join(parts)


NS = 1_000_000_000
#: RAS is asked once ranks have stalled for so long. Of ranks that no probe observes nothing else tells that.
STILL_NS = NS
#: And again this often: the second answer is needed. Of a job on many nodes each asks less often.
AGAIN_NS, AGAIN_OF_A_NODE_NS = NS, NS // 20
#: Ranks stand for no longer than this when RAS is first asked; an agent that has just started does not know better.
STANDS_MOST_NS = 3 * STILL_NS
#: Where no RAS answers for these ranks: it is off, or NCCL has not begun.
SILENT_NS = 5 * NS
#: Any job's process may take a connection. One that is stopped never answers.
TRIES, TIMEOUT_S = 3, 4.0


def standing(
    found: Iterable[RasCommunicator], ranks: Iterable[RankProcess], since: Mapping[tuple[object, ...], int]
) -> dict[int, RasStall]:
    """By pid of this node's ranks: what they are in. ``since``, by ``state``: since when each communicator may be so,
    ns; one that was not moves. One that lacks ranks says nothing: these may have launched fewest."""
    here = list(ranks)
    members: dict[int, list[Communicator]] = {}
    waits: dict[int, list[Entered]] = {}
    for comm in found:
        launched = {member.rank: sum(member.launched.values()) for member in comm.members}
        if comm.missing:
            continue
        behind = min(launched, key=lambda rank: (launched[rank], rank), default=None)
        if behind is None or comm.state not in since or launched[behind] == max(launched.values()):
            continue
        laggard = next(member for member in comm.members if member.rank == behind)
        for member, process in _processes(comm, here):
            members.setdefault(process.pid, []).append(Communicator(comm.hash, member.rank, comm.size, "nccl"))
            if launched[member.rank] > launched[behind]:
                name = _ahead(member, laggard)
                wait = ("collective", name, comm.hash, launched[behind], 0, 0, since[comm.state])
                waits.setdefault(process.pid, []).append(wait)
    return {pid: RasStall(inside, waits.get(pid, ())) for pid, inside in members.items()}


def _ahead(member: Member, laggard: Member) -> str:
    """The function of which a rank has launched more than the last; of several it is not known which came first."""
    more = [name for name, count in member.launched.items() if count > laggard.launched.get(name, 0)]
    return NAMES.get(more[0], "nccl_other") if len(more) == 1 else "nccl_other"


def _processes(comm: RasCommunicator, here: list[RankProcess]) -> Iterator[tuple[Member, RankProcess]]:
    """The members that are ranks of this node: by pid; where the answer has none, by number in the whole job's one."""
    of_pid = {process.pid: process for process in here}
    of_rank = {process.rank: process for process in here if process.world_size == comm.size}
    one_job = len({process.job_id for process in here}) == 1
    for member in comm.members:
        process = of_pid.get(member.pid)
        if process is None and not member.pid and one_job:
            process = of_rank.get(member.rank)
        if process is not None:
            yield member, process


class RasWatch:
    """Asks RAS while this node's ranks stand still, and keeps what it said."""

    def __init__(
        self,
        where: Address,
        ranks: Callable[[], Iterable[RankProcess]],
        producers: Callable[[], Iterable[Producer]],
        ask: Callable[[Address, float], bytes] = query_ras,
    ) -> None:
        self._where, self._ranks, self._producers, self._ask = where, ranks, producers, ask
        self._since: dict[tuple[object, ...], int] = {}
        self._due_ns = 0
        self._answered_ns: int | None = None  # when RAS was last asked and answered, in this stop
        self.seen: dict[int, RasStall] = {}

    def due_ns(self, now_ns: int) -> int:
        """When to ask next: the ranks of some job have stood for long enough. Never while all move."""
        if not self._still(now_ns):
            self._since, self.seen, self._answered_ns = {}, {}, None
            return NEVER_NS
        return self._due_ns

    def _still(self, now_ns: int) -> list[RankProcess]:
        """The ranks of jobs of which none here is seen to move. One that no probe observes may stand."""
        here = list(self._ranks())
        last = {
            producer.process.pid: producer.progress_ns for producer in self._producers() if producer.gone_ns is None
        }
        moving = {one.job_id for one in here if now_ns - last.get(one.pid, now_ns - STILL_NS) < STILL_NS}
        return [one for one in here if one.job_id not in moving]

    async def look(self, now_ns: int) -> None:
        """Ask once, outside the loop. What was seen before is forgotten where no answer is about these ranks."""
        here = self._still(now_ns)
        if not here:
            return
        nodes = max(process.world_size for process in here) // len(here)
        self._due_ns = now_ns + max(AGAIN_NS, nodes * AGAIN_OF_A_NODE_NS)
        since_ns = self._moved_ns(here, now_ns)
        found = await self._answer({process.pid for process in here})
        self._answered_ns = now_ns if found else None
        if not found:
            self._due_ns = now_ns + SILENT_NS
        self.seen = standing(found, here, self._since)
        self._since = {comm.state: self._since.get(comm.state, since_ns) for comm in found}

    def _moved_ns(self, here: list[RankProcess], now_ns: int) -> int:
        """Since when what is seen now for the first time may be so: since the answer before, where it was not, or since
        these ranks last recorded something."""
        pids = {process.pid for process in here}
        known = [producer.progress_after_ns for producer in self._producers() if producer.process.pid in pids]
        if self._answered_ns is not None:
            return max([self._answered_ns, *known])
        return max([now_ns - STANDS_MOST_NS, *known]) if known else now_ns

    async def _answer(self, pids: set[int]) -> tuple[RasCommunicator, ...]:
        """Communicators of an answer about these processes."""
        anonymous: tuple[RasCommunicator, ...] = ()
        for _ in range(TRIES):
            try:
                found = parse_answer(await asyncio.to_thread(self._ask, self._where, TIMEOUT_S))
            except OSError as error:
                log.debug("no RAS at %s:%d: %s", *self._where, error)
                return ()
            named = {member.pid for comm in found for member in comm.members} - {0}
            if named & pids:
                return found
            anonymous = anonymous or (() if named else found)
        return anonymous


def address(environ: Mapping[str, str]) -> Address:
    """Where RAS listens on this node: ``NCCL_RAS_ADDR``, as NCCL reads it, else its default."""
    found = parse(environ.get("NCCL_RAS_ADDR", ""))
    return found._replace(host=found.host or "localhost") if found else Address("localhost", PORT)
