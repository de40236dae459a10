"""When rings are read and what becomes of it: rarely, in time, and never without bound."""

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent import samplers
from hindmost_agent.agent import BEGINS_NS, BUSY_NS, FLUSH_NS, Agent
from hindmost_agent.delivery.batch import Builder
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.jobs.ranks import RankProcess
from hindmost_agent.jobs.rings import BUSY_SHARE, RasStall, Rings
from hindmost_agent.kernel_files import PIECE, File, read_once
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host, Sampler

CAPACITY = 64


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ring.Writer]:
    """The ring of a rank, which is this process."""
    identity = Identity("job", 0, 1, 0, "n", "torch", "t.py")
    made = ring.Writer.create(tmp_path / "rings", identity, "py", CAPACITY)
    yield made
    made.close()


def agent(
    folder: Path,
    spool: Spool | None,
    kinds: Mapping[str, type[Sampler]] | None = None,
    cores_are_full: Callable[[], bool] = lambda: False,
    **clock: Any,
) -> Agent:
    host = Host()
    runner, rings = Runner(kinds or {}, host, NS), Rings(host, [folder / "rings"])
    return Agent("n", NS, host, runner, rings, spool, cores_are_full=cores_are_full, **clock)


def under_way(mine: Agent) -> Agent:
    """The agent of a job whose first seconds are over, at ``BEGINS_NS``."""
    for at in range(0, BEGINS_NS, FLUSH_NS):
        mine.tick(at)
    return mine


def steps(writer: ring.Writer, count: int) -> None:
    for step in range(count):
        writer.event(ring.STEP, writer.name("train"), step, 1, step)


def test_a_ring_is_read_when_a_batch_is_made_of_it(tmp_path: Path, writer: ring.Writer) -> None:
    """Between two batches a tick only looks how far it has been written: reading in small portions is dear."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    assert mine.tick(0) == NS
    steps(writer, 3)
    assert mine.tick(NS) == 2 * NS
    assert mine.host.counts.ring_events == 0
    mine.tick(FLUSH_NS)
    assert (mine.host.counts.ring_events, mine.host.counts.produced) == (3, 3 + 1)  # the steps, and that the rank runs


@pytest.mark.parametrize(("asked_s", "every_s"), [(0, 2), (1, 2), (3, 3), (60, 4)])
def test_a_collector_of_many_agents_gets_fewer_batches(tmp_path: Path, asked_s: int, every_s: int) -> None:
    """As it asked, within what a verdict can wait: never more often than usual, never as rarely as it may ask."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), {"cpu": samplers.load()["cpu"]})
    mine.batch_ns = asked_s * NS
    made = []
    for second in range(13):
        before = mine.host.counts.batches
        mine.tick(second * NS)
        if mine.host.counts.batches != before:
            made.append(second)
    assert made == list(range(0, 13, every_s))


def test_batches_are_rare_while_cores_are_full(tmp_path: Path, writer: ring.Writer) -> None:
    """Each one takes a core from a rank, here and in the collector; a job that begins waits for its first verdict."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), cores_are_full=lambda: True)
    made = []
    for second in range(40):
        steps(writer, 1)
        before = mine.host.counts.batches
        mine.tick(second * NS)
        made += [second] * (mine.host.counts.batches - before)
    assert made == [0, 2, 4, 6, 8, 10, 12, 14, 16, 24, 32]


def test_samples_are_half_as_many_while_cores_are_full(tmp_path: Path) -> None:
    """And as many as ever once a core is free."""
    full = [True]
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), {"cpu": samplers.load()["cpu"]}, lambda: full[0])
    sampled = []
    for second in range(9):
        full[0] = second < 4
        mine.host.counts.success.clear()
        mine.tick(second * NS)
        sampled += [second] * len(mine.host.counts.success)
    assert sampled == [0, 2, 4, 5, 6, 7, 8]


def test_all_nodes_work_at_the_same_times_while_cores_are_full(tmp_path: Path, writer: ring.Writer) -> None:
    """What each takes of a rank, all ranks wait for: at once, and not for one node after the other."""
    begun_ns = {0.1: 200_000_000, 0.6: 1_300_000_000}  # by node: its monotonic clock is not the wall clock
    sampled: list[set[int]] = []
    made: list[set[int]] = []
    for phase, late_ns in begun_ns.items():
        mine = agent(
            tmp_path,
            Spool(tmp_path / f"spool{phase}", 1 << 20),
            {"cpu": samplers.load()["cpu"]},
            lambda: True,
            phase=phase,
            unix_ns=lambda now_ns, late_ns=late_ns: now_ns + late_ns,  # type: ignore[misc]
        )
        at, found, batches = 0, set(), set()
        while at < BEGINS_NS + 40 * NS:
            steps(writer, 1)
            before = mine.host.counts.batches
            mine.host.counts.success.clear()
            due = mine.tick(at)
            found |= {at + late_ns} if mine.host.counts.success else set()
            batches |= {at + late_ns} if mine.host.counts.batches > before else set()
            at = due
        sampled.append({one - BEGINS_NS for one in found if 4 * NS < one - BEGINS_NS < 38 * NS})
        made.append({one - BEGINS_NS for one in batches if 4 * NS < one - BEGINS_NS < 38 * NS})
    assert sampled[0] == sampled[1] == {2 * NS * count for count in range(3, 19)}
    assert made[0] == made[1] == {8 * NS * count for count in range(1, 5)}


@pytest.mark.parametrize("stopped_s", [0.25, 0.5])
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("begun_s", [0.0, 0.3, 1.1, 1.7])
def test_samples_see_what_recurs_in_their_time(tmp_path: Path, stopped_s: float, full: bool, begun_s: float) -> None:
    """A rank that is stopped every two seconds, sampled as often, is seen stopped as often as it is."""
    mine = agent(tmp_path, None, {"cpu": samplers.load()["cpu"]}, lambda: full, irregular=True)
    at, sampled = 0, list[int]()
    while at < 200 * NS:
        mine.host.counts.success.clear()
        due = mine.tick(at)
        sampled += [at] * len(mine.host.counts.success)
        at = due
    apart = [later - earlier for earlier, later in itertools.pairwise(sampled)]
    stopped = [(one / NS - begun_s) % 2 < stopped_s for one in sampled]
    assert len(sampled) == pytest.approx(100 if full else 200, abs=2)
    assert min(apart) >= NS // 2
    assert sum(stopped) / len(stopped) == pytest.approx(stopped_s / 2, abs=0.03)


@pytest.mark.parametrize("full", [False, True])
def test_irregular_samples_wake_the_agent_no_more_often(tmp_path: Path, full: bool) -> None:
    """Than regular ones: each time it wakes it may take a core from a rank."""
    kinds = {"cpu": samplers.load()["cpu"]}
    woken = []
    for irregular in (False, True):
        mine = agent(tmp_path, None, kinds, lambda: full, irregular=irregular)
        at = times = 0
        while at < 200 * NS:
            at, times = mine.tick(at), times + 1
        woken.append(times)
    assert woken[1] <= woken[0] + 1


def test_full_batches_are_made_sooner(tmp_path: Path, writer: ring.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A collector refuses a message of more than 16 MiB, and no event may be lost for that."""
    monkeypatch.setattr("hindmost_agent.agent.BATCH_EVENTS", 10)
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), cores_are_full=lambda: True)
    under_way(mine).tick(BEGINS_NS)
    read = []
    for second in range(1, 7):
        steps(writer, 4)
        mine.tick(BEGINS_NS + second * NS)
        read.append(mine.host.counts.ring_events)
    assert read == [0, 0, 12, 12, 12, 24]


def test_what_is_no_ring_keeps_no_agent_from_sampling(tmp_path: Path, writer: ring.Writer) -> None:
    """All users of a node may write to the rings' folder: the node, and other rings, are read on."""
    os.mkfifo(tmp_path / "rings/1.py.1.ring")
    (tmp_path / "rings/2.py.1.ring").mkdir()
    (tmp_path / "rings/3.py.1.ring").symlink_to("/dev/zero")
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), {"cpu": samplers.load()["cpu"]})
    steps(writer, 3)
    for tick in range(12):
        mine.tick(tick * FLUSH_NS)
        assert mine.host.counts.success.pop("cpu") == 1
    assert mine.host.counts.ring_events == 3


def test_a_ring_that_is_cut_short_is_the_end_of_that_ring_alone(tmp_path: Path, writer: ring.Writer) -> None:
    """Its rank runs on, and is reported with what was read before; the node is sampled."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), {"cpu": samplers.load()["cpu"]})
    steps(writer, 3)
    mine.tick(0)
    cut = tmp_path / "cut"
    cut.write_bytes(Path(writer.path).read_bytes())
    (producer,) = mine.rings
    (item,) = producer.rings.values()
    item.reader = ring.Reader(cut)
    item.reader.position = 3
    os.truncate(cut, 0)
    mine.host.counts.success.clear()
    produced = mine.host.counts.produced or 0
    mine.tick(10 * NS)
    assert mine.host.counts.success["cpu"] == 1
    assert (mine.host.counts.produced or 0) > produced
    assert (producer.written, producer.closed, producer.gone_ns) == (3, False, None)


@pytest.mark.parametrize("over", [True, False])
def test_a_rank_that_died_early_is_gone_once_the_job_is_over(tmp_path: Path, writer: ring.Writer, over: bool) -> None:
    """Until then it may run in another PID namespace, where /proc shows no process of its number."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    mine.host.proc = tmp_path
    steps(writer, 3)
    mine.finish(0, over=over)
    assert len(mine.rings) == (0 if over else 1)


@pytest.mark.parametrize("where", ["discover", "poll"])
def test_trouble_with_rings_is_logged_once_and_blinds_no_sampler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, where: str
) -> None:
    """Whatever it is: the node is sampled and its samples are sent."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), {"cpu": samplers.load()["cpu"]})
    monkeypatch.setattr(mine.rings, where, Mock(side_effect=OSError("odd")))
    for tick in range(3):
        mine.tick(tick * FLUSH_NS)
    assert mine.host.counts.batches == 3
    assert caplog.messages == ["cannot read rings: OSError: odd (logged once)"]


def test_a_ring_that_fills_is_read_at_once_and_looked_at_soon(tmp_path: Path, writer: ring.Writer) -> None:
    """Whatever the batches' period is, before it overwrites itself."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    mine.tick(0)
    filling = int(CAPACITY * BUSY_SHARE) + 1
    steps(writer, filling)
    assert mine.tick(NS) == NS + BUSY_NS
    assert mine.host.counts.ring_events == filling
    assert mine.tick(NS + BUSY_NS) == 2 * NS


def test_rings_of_mpi_are_looked_at_less_often_while_no_rank_calls_it(tmp_path: Path) -> None:
    """A burst of calls fills an empty one within 0.66 s: it is looked at sooner the fuller it is, while there are
    calls. An agent that gets no CPU for 0.4 s then still reads it whole."""
    (tmp_path / "rings").mkdir(exist_ok=True)
    identity = Identity("j", 0, 64, 0, "n", "mpi", "solver")
    writer = ring.Writer.create(tmp_path / "rings", identity, "mpi", 1 << 16)
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    assert mine.tick(0) == 249_036_800
    assert mine.tick(2 * NS) == 2 * NS + 491_520_000
    steps(writer, 1 << 13)
    assert mine.tick(3 * NS) == 3 * NS + 167_116_800
    writer.close()


@pytest.mark.parametrize("producer", ["py", "mpi"])
def test_a_ring_is_looked_at_as_soon_as_its_rank_was_seen_to_need(tmp_path: Path, producer: str) -> None:
    """A small ring and a fast rank fill it before the usual look, whichever probe writes it."""
    (tmp_path / "rings").mkdir(exist_ok=True)
    writer = ring.Writer.create(tmp_path / "rings", Identity("j", 0, 2, 0, "n", "mpi4py", "t.py"), producer, 1 << 14)
    mine = agent(tmp_path, None)
    assert mine.tick(0) == (NS if producer == "py" else 62_259_200)
    steps(writer, 10_000)
    mine.tick(NS // 20)  # 200,000 a second
    mine.tick(NS // 10)
    assert mine.tick(NS * 3 // 20) == NS * 3 // 20 + BUSY_NS
    assert all(item.lost == 0 for item in mine.rings)
    writer.close()


def test_a_rank_that_died_right_after_a_batch_is_in_the_next(tmp_path: Path, writer: ring.Writer) -> None:
    """Events of the last tick prove life, those of ticks before do not, though they are only read now."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    mine.tick(0)
    (producer,) = mine.rings
    steps(writer, 3)
    mine.tick(NS)
    assert producer.progress_ns == NS
    mine.tick(FLUSH_NS)
    assert (mine.host.counts.ring_events, producer.progress_ns) == (3, NS)


@pytest.mark.parametrize(
    ("world", "full", "batches"),
    [
        (1, False, [0, 1, 1.25, 1.5, 1.75, 2, 2.25, 2.5, 4, 4.25, 4.5, 4.75, 5]),
        (16, False, [0, 2, 4, 5]),
        (1, True, [0, 2, 5]),
    ],
)
def test_stalled_ranks_are_reported_soon(tmp_path: Path, world: int, full: bool, batches: list[float]) -> None:
    """Whether that is a hang is a matter of seconds; in a job on many nodes each node reports it less often, and on
    full cores, where each report takes a core from a rank. As soon as any rank goes on, batches are as rare as
    before."""
    rank = ring.Writer.create(tmp_path / "rings", Identity("job", 0, world, 0, "n", "torch", "t.py"), "py", CAPACITY)
    mine = under_way(agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), cores_are_full=lambda: full))
    steps(rank, 1)
    rank.enter(0, ring.COLLECTIVE, rank.name("all_reduce"), 1, 3, rank.communicator(77, 0, world, "world"))
    made, now = [], BEGINS_NS
    while now <= BEGINS_NS + 5 * NS:
        if now > BEGINS_NS + 2.5 * NS and all(one.written < 2 for one in mine.rings):
            steps(rank, 1)
        before, then = mine.host.counts.batches, now
        now = mine.tick(now)
        made += [(then - BEGINS_NS) / NS] * (mine.host.counts.batches - before)
    rank.close()
    assert made == batches


def test_a_batch_that_has_a_reason_waits_for_no_turn(tmp_path: Path) -> None:
    """On full cores others are sent one node after the other. Ranks that stand still are reported at once."""
    rank = ring.Writer.create(tmp_path / "rings", Identity("job", 0, 1, 0, "n", "torch", "t.py"), "py", CAPACITY)
    mine = under_way(agent(tmp_path, Spool(tmp_path / "spool", 1 << 20), cores_are_full=lambda: True))
    rank.enter(0, ring.COLLECTIVE, rank.name("all_reduce"), 1, 3, rank.communicator(77, 0, 1, "world"))
    in_turn, now = {}, BEGINS_NS
    while now <= BEGINS_NS + 8 * NS:
        before, then = mine.host.counts.batches, now
        now = mine.tick(now)
        if mine.host.counts.batches > before:
            in_turn[(then - BEGINS_NS) / NS] = mine.in_turn
    rank.close()
    assert [at for at, regular in in_turn.items() if regular] == [0, 8]
    assert len(in_turn) > 4


def test_who_waits_is_said_to_wait_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a job that stands still says at what time a rank was inside what, though nothing has changed."""
    rank = ring.Writer.create(tmp_path / "rings", Identity("job", 0, 1, 0, "n", "torch", "t.py"), "py", CAPACITY)
    rank.enter(0, ring.COLLECTIVE, rank.name("all_reduce"), 1, 3, rank.communicator(77, 0, 1, "world"))
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    states, now = [], 0
    state = Builder.state
    monkeypatch.setattr(Builder, "state", lambda self, one: states.append(one) or state(self, one))
    while now < 2 * NS:
        now = mine.tick(now)
    rank.close()
    said = [(one.time_ns / NS, [open_.name for open_ in one.in_flight]) for one in states]
    assert said == [(0, []), *((at, ["all_reduce"]) for at in (1, 1.25, 1.5, 1.75))]


def test_who_waits_without_a_probe_is_said_to_wait_still(tmp_path: Path) -> None:
    """NCCL's RAS tells what such a rank waits in: at once, and then as often as of ranks with a probe."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    mine.host.ranks.put(RankProcess("job", 0, 2, 0, 546, 1))
    mine.tick(0)
    waits = ("collective", "all_reduce", 7, 20, 0, 0, NS)
    assert mine.take_stalls({546: RasStall([], [waits])}, NS)
    assert not mine.take_stalls({546: RasStall([], [waits])}, NS)
    due, made = NS, []
    while due < 2 * NS:
        due = mine.tick(due)
        made.append(mine.host.counts.batches)
    assert (made, due) == ([1, 2], 2 * NS)


def test_what_was_asked_for_is_sent_at_the_next_tick(tmp_path: Path, writer: ring.Writer) -> None:
    """A verdict waits for the stack of a rank: it does not wait for the next regular batch."""
    mine = agent(tmp_path, Spool(tmp_path / "spool", 1 << 20))
    mine.tick(0)
    (producer,) = mine.rings
    steps(writer, 1)
    mine.attach(producer.process, "stack.txt", b"main", NS // 2)
    made = mine.host.counts.batches
    mine.tick(NS)
    assert mine.host.counts.batches == made + 1


def test_a_scraped_agent_keeps_nothing(tmp_path: Path, writer: ring.Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is only scraped runs for months: what it reads of rings must not pile up in it."""
    builder = Builder("n")
    monkeypatch.setattr("hindmost_agent.agent.Builder", lambda *_: builder)
    mine = agent(tmp_path, None)
    mine.tick(0)
    steps(writer, 3)
    mine.tick(FLUSH_NS)
    assert mine.host.counts.ring_events == 3
    assert builder.empty


@pytest.mark.parametrize("size", [PIECE // 2, PIECE, 2 * PIECE + 1])
def test_a_file_of_one_record_is_asked_for_once(tmp_path: Path, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Asking whether there is more makes the kernel write it all again; only what fills a piece may have more."""
    (tmp_path / "stat").write_bytes(bytes(range(256)) * (size // 256) + b"x" * (size % 256))
    asked = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: asked.append(args) or pread(*args))  # type: ignore[func-returns-value]
    data = File(tmp_path / "stat", one_record=True).read()
    assert data == (tmp_path / "stat").read_bytes()
    assert (len(asked) == 1) == (size < PIECE)


@pytest.mark.parametrize(("size", "times"), [(10, 1), (5000, 2), (PIECE + 1, 3)])
def test_a_short_file_is_asked_for_once(tmp_path: Path, size: int, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A piece that is far from a page's end is the last one; longer files are read until there is no more."""
    (tmp_path / "stat").write_bytes(b"x" * size)
    asked = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *args: asked.append(args) or pread(*args))  # type: ignore[func-returns-value]
    assert len(read_once(tmp_path / "stat")) == size
    assert len(asked) == times
