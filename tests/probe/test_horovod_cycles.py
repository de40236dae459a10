"""What the probe makes of the cycles of Horovod's thread: words as the shim writes them."""

import pytest
from hindmost.probes import horovod_cycles as probe

MS = 1_000_000


def words(*began_ms: int, yielded_ms: int = 0, forgotten: int = 0) -> list[int]:
    """``struct hm_cycles`` after cycles that began at these times, and others before that are forgotten."""
    found = [0] * probe.WORDS
    found[probe.CYCLES] = forgotten + len(began_ms)
    found[probe.YIELDED] = yielded_ms * MS
    for number, began in enumerate(began_ms, forgotten):
        found[probe.BEGAN + number % probe.KEPT] = began * MS
    return found


@pytest.mark.parametrize(
    ("yielded", "expected"),
    [
        pytest.param(118, 10 * MS, id="the cycle that ended the wait began 10 ms into it"),
        pytest.param(105, 0, id="the cycle had begun before the rank was ready"),
        pytest.param(95, 0, id="everything was done already: the thread last gave way before"),
    ],
)
def test_negotiation_ends_as_the_last_cycle_begins(yielded: int, expected: int) -> None:
    """What begins after the training thread found everything done has nothing to do with its wait."""
    told = probe.Cycles(words(90, 99, 112, 121, yielded_ms=yielded))
    assert told.waited(102 * MS) == expected


def test_what_is_forgotten_is_not_measured() -> None:
    """Before the first cycle, and for a wait that ended before all cycles that are remembered."""
    assert probe.Cycles(words()).waited(100 * MS) == probe.UNMEASURED
    late = probe.Cycles(words(*range(200, 264), forgotten=5))
    assert late.negotiation(100 * MS, 190 * MS) == probe.UNMEASURED
    assert late.negotiation(100 * MS, 201 * MS) == 101 * MS


def test_cycles_are_counted_once_a_second() -> None:
    """Each account begins where the one before ended; the first only says where, and so does one after a new start."""
    table = words(1000, 1002)
    told = probe.Cycles(table)
    assert told.account() is None
    table[:] = words(1500, forgotten=400)
    assert told.account() is None
    table[:] = words(2010, forgotten=900)
    assert told.account() == (1002 * MS, 1008 * MS, 899)
    assert told.account() is None
    table[:] = words(5000)
    assert told.account() is None


def test_the_time_between_two_threads_is_no_cycle() -> None:
    """An elastic job begins again with another thread: its cycles are counted from there."""
    table = words(1000)
    told = probe.Cycles(table)
    told.account()
    table[:] = words(9000, forgotten=500)
    told.forget()
    assert told.account() is None
    table[:] = words(10_500, forgotten=1500)
    assert told.account() == (9000 * MS, 1500 * MS, 1000)
