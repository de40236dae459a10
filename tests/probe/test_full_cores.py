"""Whether the cores that a process may use are all busy, from the idle time of each."""

from pathlib import Path

import pytest
from hindmost.daemon_process import FullCores


class Machine:
    """A /proc/stat of four cores, and a clock; ``pass_s`` lets time pass in which so much of each core was idle."""

    def __init__(self, folder: Path) -> None:
        self.stat, self.now, self._idle = folder / "stat", 100.0, [0.0] * 4
        self._write()

    def clock(self) -> float:
        return self.now

    def pass_s(self, seconds: float, *idle: float) -> None:
        self.now += seconds
        self._idle = [before + seconds * share for before, share in zip(self._idle, idle, strict=True)]
        self._write()

    def _write(self) -> None:
        lines = [f"cpu{core} 7 0 5 {int(100 * idle)} 0 0 0 0 0 0" for core, idle in enumerate(self._idle)]
        self.stat.write_text("\n".join(["cpu  28 0 20 999999 0 0 0 0 0 0", *lines, "intr 5"]) + "\n")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


@pytest.mark.parametrize(
    ("idle", "full"),
    [((0, 0, 0, 0), True), ((0.1, 0.1, 0.1, 0.1), True), ((0, 0, 0, 0.9), False), ((0.5, 0.5, 0.5, 0.5), False)],
)
def test_cores_are_full_where_none_is_idle(machine: Machine, idle: tuple[float, ...], full: bool) -> None:
    """Ranks that wait for each other leave some of every core; half a core of it is room for a guest."""
    cores = FullCores(machine.stat, range(4), machine.clock)
    machine.pass_s(2.0, *idle)
    assert cores() is full


def test_only_cores_that_may_be_used_count(machine: Machine) -> None:
    """A job confined to two cores of four fills them, however idle the others are."""
    cores = FullCores(machine.stat, (0, 1), machine.clock)
    machine.pass_s(2.0, 0, 0, 1, 1)
    assert cores()


def test_it_says_so_no_longer_once_a_core_is_idle(machine: Machine) -> None:
    """What counts is the time since the last reading, which is a second old at most."""
    cores = FullCores(machine.stat, range(4), machine.clock)
    machine.pass_s(2.0, 0, 0, 0, 0)
    assert cores()
    machine.pass_s(0.5, 1, 1, 1, 1)
    assert cores(), "too soon to look again"
    machine.pass_s(0.6, 1, 1, 1, 1)
    assert not cores()


def test_cores_count_as_free_where_nothing_is_known(machine: Machine) -> None:
    """Without /proc/stat nothing is put off."""
    cores = FullCores(machine.stat.with_name("absent"), range(4), machine.clock)
    machine.pass_s(2.0, 0, 0, 0, 0)
    assert not cores()
