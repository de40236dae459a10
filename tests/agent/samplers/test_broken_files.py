"""Whatever /proc and /sys hand out, no sampler raises out of the runner. Every sampler is tried, a new one too."""

import errno
import itertools
import os
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host, Sampler

from tests.agent import typical_nodes
from tests.agent.conftest import FakeNvml, whole_node
from tests.agent.readings import Steady

NUMBER = re.compile(rb"\d+")
ENDLESS = b"9" * (5 << 20)
#: Reads in a row that a device answers with damage; then it has nothing more to say, as a real one at some time.
READS = 20


def fails(code: int) -> Callable[[bytes], bytes]:
    """A read that ends with this error, as of a process that has ended or a device that was taken out."""

    def read(_: bytes) -> bytes:
        raise OSError(code, os.strerror(code))

    return read


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "half of it": lambda whole: whole[: len(whole) // 2],
    "all but the end": lambda whole: whole[:-3],
    "a line without its end": lambda whole: whole.split(b"\n", 1)[0][:7],
    "only line ends": lambda whole: b"\n" * len(whole),
    "binary": lambda whole: bytes(range(256)) * (len(whole) // 256 + 1),
    "no numbers": lambda whole: NUMBER.sub(b"x", whole),
    "negative numbers": lambda whole: NUMBER.sub(b"-1", whole),
    "numbers beyond any counter": lambda whole: NUMBER.sub(b"9" * 400, whole[:4096]),
    "one endless number": lambda _: ENDLESS,
    "many times as long": lambda whole: whole * 50,
    "process gone": fails(errno.ESRCH),
    "device gone": fails(errno.ENODEV),
    "input/output error": fails(errno.EIO),
    "not permitted": fails(errno.EACCES),
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of a whole node."""
    return typical_nodes.build("whole", tmp_path_factory.mktemp("node"))


@pytest.fixture
def damage(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[bytes], bytes]]]:
    """What is in this list is done to the content of every file that is read."""
    done: list[Callable[[bytes], bytes]] = []
    pread, read = os.pread, os.read

    def damaged(fd: int, size: int, offset: int) -> bytes:
        if not done:
            return pread(fd, size, offset)
        whole = b""
        while piece := pread(fd, 1 << 20, len(whole)):
            whole += piece
        return done[0](whole)[offset : offset + size]

    reads = itertools.count(1)

    def damaged_device(fd: int, size: int) -> bytes:
        return done[0](read(fd, size))[:size] if done and next(reads) % READS else read(fd, size)

    monkeypatch.setattr(os, "pread", damaged)
    monkeypatch.setattr(os, "read", damaged_device)
    yield done
    done.clear()


def with_bystander(host: Host, *kinds: type[Sampler]) -> Runner:
    """These samplers, and one that must be read whatever happens to them."""
    return Runner({kind.name: kind for kind in (*kinds, Steady)}, host, NS)


def survives(runner: Runner, now_ns: int) -> None:
    """A run raises nothing: what fails is counted, once each, the bystander is read, and what is read can be sent."""
    counts = runner.host.counts
    before = counts.errors.copy()
    readings = {reading.sampler: reading for reading in runner.run(now_ns)}
    assert readings["steady"].values == [1.0]
    for reading in readings.values():
        assert len(array("d", reading.values)) == len(reading.series), reading.sampler
    failed = {name for name, success in counts.success.items() if not success}
    assert counts.errors - before == dict.fromkeys(failed, 1)
    assert not failed & readings.keys()


def lasting(kind: type[Sampler], host: Host, damage: list[Callable[[bytes], bytes]]) -> list[str]:
    """Does every damage to a sampler at work and to one that starts: those after which it does not recover."""
    runner, harm = with_bystander(host, kind), []
    survives(runner, 0)
    before = set(runner.latest)
    for number, (name, broken) in enumerate(DAMAGES.items(), 1):
        damage[:] = [broken]
        survives(runner, number * 1000 * NS)
        host.counts.success.clear()
        survives(with_bystander(host, kind), 0)
        damage.clear()
        survives(runner, (number * 1000 + 500) * NS)
        if set(runner.latest) != before or not all(host.counts.success.values()):
            harm.append(name)
    return harm


@pytest.mark.parametrize("name", samplers.load())
def test_broken_files_break_no_sampler(name: str, root: Path, damage: list[Callable[[bytes], bytes]]) -> None:
    """Empty, cut, binary, huge, wrong, failing: at worst a counted error, and the next whole file is read again."""
    assert lasting(samplers.load()[name], whole_node(root, FakeNvml(2)), damage) == []


@pytest.mark.parametrize("name", samplers.load())
def test_files_that_vanish_break_no_sampler(name: str, root: Path) -> None:
    """A node whose /proc and /sys are gone between two readings: no sampler stops another, nor itself for good."""
    runner = with_bystander(whole_node(root, FakeNvml(2)), samplers.load()[name])
    survives(runner, 0)
    before = set(runner.latest)
    away = root.rename(root.with_name("away"))
    try:
        for second in (1000, 2000):
            survives(runner, second * NS)
    finally:
        away.rename(root)
    survives(runner, 3000 * NS)
    assert set(runner.latest) == before, "it is read again once they are back"


@pytest.mark.parametrize("at", range(1, 40, 3))
def test_a_file_may_vanish_while_a_sampler_reads(at: int, root: Path, damage: list[Callable[[bytes], bytes]]) -> None:
    """The first reads of a tick work and all later ones fail. What was read by then does no harm, failures are counted,
    and all are read again afterwards."""
    runner = with_bystander(whole_node(root, FakeNvml(2)), *samplers.load().values())
    survives(runner, 0)
    before = set(runner.latest)
    reads = iter(range(at))
    gone = fails(errno.ESRCH)
    damage[:] = [lambda whole: whole if next(reads, None) is not None else gone(whole)]
    survives(runner, 1000 * NS)
    assert +runner.host.counts.errors
    damage.clear()
    survives(runner, 2000 * NS)
    assert set(runner.latest) == before


def test_this_machine_s_own_files_may_break_too(damage: list[Callable[[bytes], bytes]]) -> None:
    """The same with what this kernel has, for every sampler that finds something here."""
    found = {name: lasting(kind, Host(), damage) for name, kind in samplers.load().items()}
    assert {name: harm for name, harm in found.items() if harm} == {}
