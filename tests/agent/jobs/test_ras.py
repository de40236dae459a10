"""NCCL's RAS: what its answers say, whole, cut off and partial, and which ranks wait by them. The files of
tests/fixtures/ras are answers of NCCL 2.28.9 in a job of two ranks on an H200: while it ran, while rank 1 did not come
to an all-reduce, while rank 1 was stopped, and after it was killed."""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost.ring import Communicator
from hindmost_agent.agent import Agent
from hindmost_agent.daemon import Daemon
from hindmost_agent.jobs import ras
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.ras import TRIES, RasWatch, address, standing
from hindmost_agent.jobs.rings import Producer
from hindmost_agent.sampler import NEVER_NS
from hindmost_agent.settings import settings as agent_settings
from hindmost_proto.address import Address

ANSWERS = Path(__file__).parents[2] / "fixtures" / "ras"
WORLD, PAIR = 0xABE8B168CCB1ED8, 0xEB9E1E5C5B3B4C19
NS = 1_000_000_000

#: As NCCL 2.24 and 2.25 have it: one count for all functions, and the many that agree are not listed.
OLDER = b"""NCCL version 2.25.1 compiled with CUDA 12.8

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         1         8         8         8   RUNNING  MISMATCH

Warnings
========

#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different collective operation counts
  6 ranks have launched up to operation 6650
  2 ranks have launched up to operation 6649
  Rank 0 -- GPU 0 managed by process 4830 on node 172.16.64.210
  Rank 3 -- GPU 3 managed by process 4833 on node 172.16.64.210

"""


def answer(name: str) -> bytes:
    return (ANSWERS / name).read_bytes()


def process(rank: int, pid: int, job: str = "job", size: int = 2) -> RankProcess:
    return RankProcess(job, rank, size, rank, pid, 1)


def launched(found: tuple[ras.RasCommunicator, ...]) -> list[tuple[int, int, dict[int, int]]]:
    """Hash, size and the sums of each communicator."""
    return [
        (communicator.hash, communicator.size, {m.rank: sum(m.launched.values()) for m in communicator.members})
        for communicator in found
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hang_json", [(WORLD, 2, {0: 22, 1: 20}), (PAIR, 2, {0: 1, 1: 1})]),
        ("hang_text", [(WORLD, 2, {0: 22, 1: 20})]),
        ("healthy_text", []),
        ("stopped_json", [(WORLD, 2, {0: 22}), (PAIR, 2, {0: 1})]),
        ("stopped_text2", [(WORLD, 2, {})]),
        ("killed_text", [(WORLD, 2, {})]),
    ],
)
def test_what_nccl_answered_is_read(name: str, expected: list[tuple[int, int, dict[int, int]]]) -> None:
    """In both formats; JSON that lacks a comma, too."""
    assert launched(ras.parse_answer(answer(name))) == expected


@pytest.mark.parametrize("name", ["stopped_json", "stopped_text2", "killed_text"])
def test_a_rank_that_did_not_answer_is_missing(name: str) -> None:
    """It is not taken for one that has launched nothing."""
    assert {one.missing for one in ras.parse_answer(answer(name))} == {(1,)}


def test_text_of_older_releases_leaves_the_many_unlisted() -> None:
    """They are all the others."""
    (found,) = ras.parse_answer(OLDER)
    assert {m.rank: m.launched for m in found.members} == {r: {"": 6649 if r in {0, 3} else 6650} for r in range(8)}
    assert [m.pid for m in found.members] == [4830, 0, 0, 4833, 0, 0, 0, 0]


def test_counts_of_a_part_of_the_ranks_name_no_last_rank() -> None:
    """Of two groups that are not listed it is not known who is in which."""
    three = OLDER.replace(b"  6 ranks", b"  3 ranks have launched up to operation 6651\n  3 ranks")
    assert launched(ras.parse_answer(three)) == [(0x27A079B828FF1A75, 8, {})]


@pytest.mark.parametrize("name", ["hang_json", "hang_text", "stopped_json", "stopped_text2"])
def test_a_torn_answer_says_no_more_than_a_whole_one(name: str) -> None:
    """Cut off anywhere, only communicators that came whole are taken."""
    whole = ras.parse_answer(answer(name))
    for end in range(0, len(answer(name)), 7):
        assert set(map(str, ras.parse_answer(answer(name)[:end]))) <= set(map(str, whole))


@pytest.mark.parametrize(
    "nonsense", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b'{"communicators": [{"hash": 5}]}', b"\xff{["]
)
def test_another_servers_answer_is_none(nonsense: bytes) -> None:
    """Something else may listen there."""
    assert ras.parse_answer(nonsense) == ()


def test_ranks_that_launched_more_wait_in_what_the_last_has_not_launched() -> None:
    """Of communicators that stand; in those whose counts are alike nothing is known."""
    found = ras.parse_answer(answer("hang_json"))
    seen = standing(found, [process(0, 546), process(1, 547)], {one.state: 5 * NS for one in found})
    assert seen[546].waits == [("collective", "all_reduce", WORLD, 20, 0, 0, 5 * NS)]
    assert seen[547].waits == ()
    assert seen[547].communicators == [Communicator(WORLD, 1, 2, "nccl")]


@pytest.mark.parametrize(("missing", "stands"), [((2,), True), ((), False)], ids=["a rank did not answer", "it moves"])
def test_nobody_is_last_where_that_is_not_sure(missing: tuple[int, ...], stands: bool) -> None:
    """The rank that is missing may have launched fewest. Collectives outpace answers: counts that differ once mean
    nothing."""
    found = [replace(one, missing=missing) for one in ras.parse_answer(answer("hang_json"))]
    since = {one.state: NS for one in found} if stands else {}
    assert standing(found, [process(0, 546), process(1, 547)], since) == {}


def test_unlisted_ranks_are_known_by_their_number_in_the_whole_job() -> None:
    """In the communicator that is as large as the job, unless the node has several jobs."""
    found = ras.parse_answer(OLDER)
    since = {found[0].state: NS}
    here = [process(rank, 4830 + rank, size=8) for rank in (2, 3)]
    seen = standing(found, here, since)
    assert [(pid, [wait[1] for wait in one.waits]) for pid, one in seen.items()] == [(4832, ["nccl_other"]), (4833, [])]
    other = process(1, 9999, job="other", size=8)
    assert set(standing(found, [*here, other], since)) == {4833}


class Answers:
    """A RAS that gives these, one after another."""

    def __init__(self, *answers: bytes) -> None:
        self.answers = list(answers)

    def __call__(self, where: Address, timeout_s: float) -> bytes:
        return self.answers.pop(0)


def test_it_takes_two_answers() -> None:
    """The first shows where ranks are, the second that they are still there."""
    hang = answer("hang_json")
    watch = RasWatch(Address("", 0), lambda: [process(0, 546), process(1, 547)], list, Answers(hang, hang))
    assert watch.due_ns(10 * NS) <= 10 * NS
    asyncio.run(watch.look(10 * NS))
    assert watch.seen == {}
    assert watch.due_ns(10 * NS) == 11 * NS, "RAS is not asked all the time"
    asyncio.run(watch.look(11 * NS))
    assert watch.seen[546].waits[0][-1] == 10 * NS


HANG = answer("hang_json")
BEFORE = HANG.replace(b'"AllReduce": 22', b'"AllReduce": 19').replace(b'"AllReduce": 20', b'"AllReduce": 19')


@pytest.mark.parametrize(
    ("answers", "asked", "probe_saw", "since"),
    [
        ([BEFORE, HANG, HANG, HANG], (10, 11, 12, 13), None, 10),
        ([b""] * TRIES + [HANG, HANG], (10, 15, 16), None, 15),
        ([HANG, HANG], (10, 11), 8.5, 8.5),
        ([HANG, HANG], (10, 11), 1.0, 7.0),
    ],
    ids=["the answer before did not have it", "no answer before", "a probe saw them just now", "and long ago"],
)
def test_when_a_wait_began(answers: list[bytes], asked: tuple[int, ...], probe_saw: float | None, since: float) -> None:
    """Not when it was first seen: a hang would be reported as late as RAS was asked. NCCL may have begun after a time
    without answers; of ranks that have stood for long when RAS is first asked, it is not known."""
    ranks = [process(0, 546), process(1, 547)]
    seen = [] if probe_saw is None else [Producer(rank, int(probe_saw * NS)) for rank in ranks]
    watch = RasWatch(Address("", 0), lambda: ranks, lambda: seen, Answers(*answers))
    for second in asked:
        assert watch.due_ns(second * NS) <= second * NS
        asyncio.run(watch.look(second * NS))
    assert watch.seen[546].waits[0][-1] == since * NS


def test_answers_about_another_job_are_not_about_ours() -> None:
    """All jobs of a node share the port; ours may take the connection next time."""
    hang, other = answer("hang_json"), answer("healthy_json")
    watch = RasWatch(Address("", 0), lambda: [process(0, 546)], list, Answers(hang, other, other, hang))
    asyncio.run(watch.look(10 * NS))
    asyncio.run(watch.look(20 * NS))
    assert [wait[1] for wait in watch.seen[546].waits] == ["all_reduce"]


@pytest.fixture
def server() -> Iterator[tuple[Address, list[bytes]]]:
    """A server that takes one connection: what it got, after it gave half an answer and then nothing."""
    queries: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection:
                queries.append(connection.recv(4096))
                connection.sendall(b"half")
                connection.recv(4096)

        thread = threading.Thread(target=serve)
        thread.start()
        yield Address("127.0.0.1", listening.getsockname()[1]), queries
        thread.join(300)


def test_a_server_that_falls_silent_holds_nobody_up(server: tuple[Address, list[bytes]]) -> None:
    """A process that is stopped takes connections and never answers: what came until the time was up is kept."""
    where, queries = server
    assert ras.query_ras(where, 300.0, iter((0.0, 0.0, 299.8)).__next__) == b"half"
    assert queries == [ras.QUESTION]


def test_an_answer_without_end_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever listens there must not fill the agent's memory."""
    monkeypatch.setattr(ras, "LIMIT", 1 << 20)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            with connection, contextlib.suppress(OSError):
                while True:
                    connection.sendall(b"x" * (1 << 16))

        thread = threading.Thread(target=serve)
        thread.start()
        answer = ras.query_ras(Address("127.0.0.1", listening.getsockname()[1]), 300)
        thread.join(300)
    assert 1 << 20 <= len(answer) <= (1 << 20) + (1 << 16)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("localhost", 28028)),
        ({"NCCL_RAS_ADDR": "10.0.0.1:5"}, ("10.0.0.1", 5)),
        ({"NCCL_RAS_ADDR": "[::1]:6"}, ("::1", 6)),
        ({"NCCL_RAS_ADDR": "nonsense"}, ("localhost", 28028)),
    ],
)
def test_where_ras_listens(environ: dict[str, str], expected: tuple[str, int]) -> None:
    """As NCCL reads it."""
    assert address(environ) == expected


@pytest.mark.parametrize("moves", [True, False])
async def test_ras_is_asked_of_ranks_that_a_tick_sees_stand_still(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, moves: bool
) -> None:
    """Two ticks may be further apart than ranks that stand still are given: what the next one reads decides."""
    settings = agent_settings(listen="127.0.0.1:0", ring_dir=str(tmp_path / "rings"))
    asked, ticks, now_ns = [], [0], [NS]
    writer = ring.Writer.create(tmp_path / "rings", Identity("job", 0, 1, 0, "n", "torch", "t.py"), "py", 64)
    agent, tick = Daemon(settings, lambda: now_ns[0]), Agent.tick

    async def look(_: RasWatch, at_ns: int) -> None:
        asked.append(at_ns)

    def at_its_time(of: Agent, at_ns: int) -> int:
        ticks[0] += 1
        if moves:
            writer.event(ring.MARK, 0, at_ns, 0)
        if ticks[0] == 9:
            agent.leave("over")
        now_ns[0] = tick(of, at_ns)
        return now_ns[0]

    monkeypatch.setattr(RasWatch, "look", look)
    monkeypatch.setattr(Agent, "tick", at_its_time)
    await agent.run()
    writer.close()
    assert bool(asked) is not moves


@pytest.mark.parametrize(("rank", "asked"), [(0, True), (-1, False)])
async def test_ras_is_not_asked_about_a_command_without_ranks(rank: int, *, asked: bool) -> None:
    """A script has no communicators."""
    agent = Daemon(agent_settings(listen="127.0.0.1:0"), lambda: 10 * NS)
    agent.host.ranks.put(process(rank, 546))
    assert (agent._ras.due_ns(10 * NS) < NEVER_NS) == asked


async def test_a_long_interval_does_not_put_off_asking(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are a minute apart: the next tick is when RAS is due, which ranks that stand still wait for."""
    agent, pauses = Daemon(agent_settings(listen="127.0.0.1:0", interval="60s"), lambda: 10 * NS), list[float]()
    agent.host.ranks.put(process(0, 546))
    loop = asyncio.get_running_loop()
    agent._leaving = loop.create_future()
    monkeypatch.setattr(Agent, "tick", lambda _, at_ns: at_ns + 60 * NS)
    monkeypatch.setattr(agent, "_stalls_change", lambda *_: False)
    monkeypatch.setattr(loop, "call_later", lambda delay, _: pauses.append(delay))
    agent._tick()
    assert pauses == [1.0]
