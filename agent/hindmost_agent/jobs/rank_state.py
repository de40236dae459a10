"""How each rank is: running, finished or vanished, and what it has entered and not left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hindmost import ring
from hindmost_proto import telemetry_pb2 as wire

if TYPE_CHECKING:
    from hindmost_agent.jobs.rings import Producer

NS = 1_000_000_000
#: An operation is reported as in flight once it has been open this long: a slow one, not one that was just met.
OPEN_NS = NS // 2
REPEAT_NS = 10 * NS
#: A rank that tests for a message and finds none waits for it as long as it tests again within this time.
TESTS_NS = NS
KINDS = {ring.STEP: "step", ring.PHASE: "phase", ring.COLLECTIVE: "collective", ring.P2P: "p2p"}

#: Kind, name, communicator, sequence, peer as on the wire, flags, start (ns).
Entered = tuple[str, str, int, int, int, int, int]


class Lives:
    """Says what changed since it was last asked; and how every rank is, every ten seconds."""

    def __init__(self) -> None:
        self._said: dict[int, tuple[object, ...]] = {}
        self._waiting: dict[int, wire.RankState] = {}
        self._said_ns: dict[int, int] = {}
        #: By rank and start of its tests, how many there were, and when there was last one more.
        self._tests: dict[int, dict[int, tuple[int, int]]] = {}

    def look(self, producer: Producer, rank: int, now_ns: int) -> wire.RankState | None:
        """The rank's state if it is news. ``rank`` is its reference."""
        life = _life(producer)
        entered = [] if life == wire.RankState.FINISHED else self._entered(producer, rank, now_ns)
        news = (life, producer.lost, tuple(entered))
        if self._said.get(rank) == news and now_ns - self._said_ns[rank] < REPEAT_NS:
            return None
        self._said[rank], self._said_ns[rank] = news, now_ns
        state = wire.RankState(
            rank=rank,
            time_ns=now_ns,
            life=life,
            events_total=producer.written,
            events_lost_total=producer.lost,
            in_flight=[
                wire.InFlight(kind=kind, name=name, comm=comm, seq=seq, peer=peer, flags=flags, start_ns=start)
                for kind, name, comm, seq, peer, flags, start in entered
            ],
            ended_ns=producer.end.ended_ns or 0,
            exit_status=producer.end.status,
        )
        self._waiting.pop(rank, None)
        if entered and life == wire.RankState.RUNNING:
            self._waiting[rank] = state
        return state

    def _entered(self, producer: Producer, rank: int, now_ns: int) -> list[Entered]:
        """What is open, without tests that do not go on."""
        events, before = open_events(producer, now_ns), self._tests.get(rank, {})
        tests = {one.start_ns: one.duration_ns for one in events if one.flags & ring.POLLS}
        known = {start: before.get(start, (-1, 0)) for start in tests}
        seen = {start: known[start] if known[start][0] == count else (count, now_ns) for start, count in tests.items()}
        self._tests[rank] = seen
        stale = {start for start, (_, changed_ns) in seen.items() if now_ns - changed_ns > TESTS_NS}
        return [
            (KINDS.get(one.kind, "other"), one.name, one.comm_id, one.seq, _peer(one), one.flags, one.start_ns)
            for one in events
            if not (one.flags & ring.POLLS and one.start_ns in stale)
        ]

    def waiting(self, rank: int, now_ns: int) -> wire.RankState | None:
        """How a running rank was that was inside something when last looked at, said as of now; no change since."""
        state = self._waiting.get(rank)
        if state is not None:
            state = wire.RankState.FromString(state.SerializeToString())
            state.time_ns = now_ns
        return state

    def forget(self, rank: int) -> None:
        """The rank has gone."""
        self._waiting.pop(rank, None)
        self._said.pop(rank, None)
        self._said_ns.pop(rank, None)
        self._tests.pop(rank, None)


def _peer(event: ring.Event) -> int:
    """As on the wire."""
    return -1 if event.peer == ring.ANY else event.peer + 1


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


def _life(producer: Producer) -> wire.RankState.Life:
    if producer.closed:
        return wire.RankState.FINISHED
    return wire.RankState.RUNNING if producer.gone_ns is None else wire.RankState.VANISHED
