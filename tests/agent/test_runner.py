"""The runner owns when samplers run, how long they took, and what becomes of their errors."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.agent import Agent
from hindmost_agent.delivery.spool import Spool
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.kernel_files import File
from hindmost_agent.runner import ABSENT_RETRY_NS, Runner
from hindmost_agent.sampler import NS, Absent, Host, Sampler, Series, TableSampler, counter, gauge, series
from hindmost_agent.samplers.disk import Disk
from hindmost_proto import telemetry_pb2 as wire

from tests.agent.readings import VALUE, Steady


class Slow(Steady):
    name, period = "slow", 10.0


class Telling(Slow):
    name, tells_why = "telling", True


class Broken(Steady):
    name = "broken"

    def sample(self) -> list[float]:
        raise ValueError("torn")


class Elsewhere(Steady):
    name = "elsewhere"
    looks = 0

    def sample(self) -> list[float]:
        type(self).looks += 1
        raise Absent("not on this node")


class Mounts(Steady):
    """Makes its series anew at each reading."""

    name = "mounts"
    count = 1

    def sample(self) -> list[float]:
        if self.count < 0:
            raise OSError("gone while it was read")
        self.series = tuple([series(VALUE)] * self.count)
        return [1.0] * self.count


class Lopsided(Steady):
    name = "lopsided"

    def sample(self) -> list[float]:
        return [1.0, 2.0]


def runner(*kinds: type[Sampler], host: Host | None = None) -> Runner:
    return Runner({kind.name: kind for kind in kinds}, host or Host(), NS, timer=iter(range(0, 10**12, 1000)).__next__)


def test_what_causes_are_read_from_is_sampled_when_asked_for() -> None:
    """At the next tick, once, and then at its own pace again; other slow samplers keep theirs."""
    made = runner(Slow, Telling)
    made.run(0)
    made.run(NS)
    made.hasten()
    asked = [reading.sampler for reading in made.run(2 * NS)]
    later = [now for now in range(3, 13) if "telling" in [one.sampler for one in made.run(now * NS)]]
    assert ("telling" in asked, later) == (True, [12])


def test_series_are_the_same_object_until_they_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new tuple is a new definition to send."""
    made = runner(Mounts)
    first, second = (made.run(now * NS)[0].series for now in range(2))
    monkeypatch.setattr(Mounts, "count", 2)
    changed = made.run(2 * NS)[-1].series
    assert first is second
    assert len(changed) == 2


def test_series_that_are_gone_end_as_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a process that has ended no last value stays: once, whether others go on or none is there. A failure between
    says nothing of what is still there; the next reading does."""
    made = runner(Mounts)
    (before,) = made.run(0)
    monkeypatch.setattr(Mounts, "count", -1)
    assert made.run(NS // 2) == []
    monkeypatch.setattr(Mounts, "count", 2)
    ended, _ = made.run(NS)
    assert (ended.series, ended.time_ns, str(ended.values)) == (before.series, NS, "[nan]")
    monkeypatch.setattr(Mounts, "count", 0)
    (ended,) = made.run(2 * NS)
    assert str(ended.values) == "[nan, nan]"
    assert made.run(3 * NS) == []


def test_each_sampler_has_its_own_period() -> None:
    """In thirty ticks of a second after the first one runs thirty times, the other three times, ten seconds apart."""
    made = runner(Steady, Slow)
    made.run(0)
    readings = [len(made.run(now * NS)) for now in range(1, 31)]
    both = [tick for tick, count in enumerate(readings) if count == 2]
    assert (len(both), both[1] - both[0], both[2] - both[1]) == (3, 10, 10)


def test_slow_samplers_do_not_meet_in_one_tick() -> None:
    """All are read at the start; then ten that are due every ten seconds have a tick each."""
    kinds = [type(f"Slow{number}", (Slow,), {"name": f"slow{number}"}) for number in range(10)]
    made = runner(*kinds)
    assert [len(made.run(now * NS)) for now in range(31)] == [10] + [1] * 30


def test_the_costliest_choose_their_tick_first() -> None:
    """One that takes as long as three others gets no company where two ticks are to be had."""

    class Every2(Steady):
        period = 2.0

    kinds = {name: type(name, (Every2,), {"name": name}) for name in ("a", "b", "costly", "c")}
    durations = iter([0, 1, 0, 1, 0, 3] + [0, 1] * 100)
    made = Runner(kinds, Host(), NS, timer=lambda: next(durations))
    made.run(0)
    together = [{reading.sampler for reading in made.run(now * NS)} for now in (1, 2)]
    assert {"costly"} in together


def test_a_long_pause_is_not_caught_up_with() -> None:
    """After a suspended hour each sampler runs once, not 3,600 times."""
    made = runner(Steady)
    made.run(NS)
    assert [len(made.run(3600 * NS + tick)) for tick in range(3)] == [1, 0, 0]


@pytest.mark.parametrize("kind", [Broken, Lopsided])
def test_a_broken_sampler_stops_no_other(kind: type[Sampler], caplog: pytest.LogCaptureFixture) -> None:
    """Its failure is counted and said once; the others are read. So it is where a value has no name in its series."""
    host = Host()
    made = runner(kind, Steady, host=host)
    readings = [len(made.run(now * NS)) for now in range(1, 6)]
    assert readings == [1] * 5
    assert (host.counts.success, host.counts.errors[kind.name]) == ({kind.name: 0, "steady": 1}, 5)
    assert len(caplog.records) == 1


def test_errors_are_counted_from_0() -> None:
    """`increase()` sees a sampler's first error only if its series was there before."""
    kinds = {"agent": samplers.load()["agent"], "broken": Broken, "locked": Locked}
    made = Runner(kinds, Host(), NS)
    (reading,) = made.run(0)
    errors = [
        (one.values[0], value)
        for one, value in zip(reading.series, reading.values, strict=True)
        if one.metric.name == "hindmost_agent_sampler_errors_total"
    ]
    assert errors == [("agent", 0), ("broken", 0), ("locked", 0)]


def test_nothing_here_is_no_error() -> None:
    """A missing source has neither success nor failure, and is looked for again once a minute."""
    host = Host()
    made = runner(Elsewhere, host=host)
    for now in range(1, 120):
        made.run(now * NS)
    assert (host.counts.success, +host.counts.errors) == ({}, {})
    assert Elsewhere.looks == 120 * NS // ABSENT_RETRY_NS


class Locked(Steady):
    name = "locked"

    def sample(self) -> list[float]:
        raise Absent("may not be read") from PermissionError()


def test_what_may_not_be_read_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """It is missing like what does not exist, but the agent's log says so."""
    made = runner(Locked)
    for now in range(0, 600, 60):
        made.run(now * NS)
    assert caplog.messages == [
        f"sampler locked: {Absent.__name__}: may not be read (logged once; tried again every minute)"
    ]


@pytest.fixture
def no_garbage_collector() -> Iterator[None]:
    """What goes in this test goes with its last reference."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_garbage_collector")
@pytest.mark.parametrize("kind", [Absent, ValueError])
def test_what_failed_keeps_no_file_open(tmp_path: Path, kind: type[Exception]) -> None:
    """A sampler that breaks half made is tried again and again: its files are closed at once, not some time later."""
    there = tmp_path / "there"
    there.touch()

    class HalfMade(Steady):
        name = "half_made"

        def __init__(self, host: Host) -> None:
            super().__init__(host)
            self.files = [File(there)]
            try:
                self.files.append(File(tmp_path / "missing"))
            except OSError as error:
                raise kind("one of two") from error

    host = Host()
    runner(HalfMade, host=host).run(0)
    assert host.counts.errors["half_made"] == (kind is ValueError)
    assert str(there) not in [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]


def test_durations_are_the_runner_s() -> None:
    """Each sampler's cost is measured around it, in seconds."""
    host = Host()
    runner(Steady, host=host).run(NS)
    assert host.counts.duration_s == {"steady": pytest.approx(1e-6)}


@pytest.mark.parametrize(
    ("declare", "wrong"),
    [
        (lambda: gauge("node_bytes", "No prefix."), "hindmost_"),
        (lambda: counter("hindmost_node_reads", "No suffix."), "_total"),
        (lambda: gauge("hindmost_node_reads_total", "A gauge."), "_total"),
        (lambda: gauge("hindmost_node_free_bytes", "no sentence"), "sentence"),
        (lambda: gauge("hindmost_node_free_bytes", "Free.", "node"), "node is added"),
    ],
)
def test_a_badly_declared_metric_never_starts(declare: object, wrong: str) -> None:
    """Names, units and help are checked where a metric is declared."""
    with pytest.raises(ValueError, match=wrong):
        declare()  # type: ignore[operator]


def test_a_label_is_one_line() -> None:
    """A thread may be called anything: what is not to be printed becomes a blank."""
    named = gauge("hindmost_node_named_bytes", "Named.", "name")
    assert series(named, "a\r\nb\x1b[31m").values == ("a  b [31m",)


def test_an_agent_s_last_batch_has_what_was_not_due(tmp_path: Path) -> None:
    """An out-of-memory kill that ended the job is not missed because its sampler is slow."""
    spool = Spool(tmp_path / "spool", 1 << 20)
    agent = Agent("n", NS, Host(), Runner({"slow": Slow}, Host(), NS), Rings(Host()), spool)
    agent.tick(0)
    agent.finish(NS)
    spool.connected(0)
    sent = [wire.AgentMessage.FromString(one.message) for one in iter(spool.next, None)]
    batches = [one.batch for one in sent if one.WhichOneof("body") == "batch"]
    assert [list(block.time_ns) for batch in batches for block in batch.metrics] == [[0], [NS]]
    spool.close()


class Listed(TableSampler):
    name, metrics = "listed", (VALUE,)

    def table(self) -> dict[Series, float]:
        return {series(VALUE): 1.0}


def test_a_table_names_its_series_anew_only_when_they_change() -> None:
    """What its readers make of the names is kept by the tuple itself."""
    sampler = Listed(Host())
    sampler.sample()
    before = sampler.series
    sampler.sample()
    assert sampler.series is before


def test_what_is_listed_by_row_is_named_only_when_a_row_comes_or_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node may have hundreds of disks, each with eight series: their names cost more than their values."""
    line = "8 0 {} 1 2 3 4 5 6 7 8 9 10 11\n"
    (tmp_path / "diskstats").write_text(line.format("sda"))
    sampler = Disk(Host(proc=tmp_path))
    sampler.sample()
    named: list[tuple[str, ...]] = []
    monkeypatch.setattr("hindmost_agent.sampler.series", lambda _, *labels: named.append(labels))
    sampler.sample()
    assert named == []
    (tmp_path / "diskstats").write_text(line.format("sdb"))
    sampler.sample()
    assert set(named) == {("sdb",)}
