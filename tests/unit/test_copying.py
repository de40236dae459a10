"""How long a GPU copied, whatever the host did meanwhile: told as a host and a GPU that take known times."""

from __future__ import annotations

import pytest
from hindmost.probes.copying import TINY, Call, Launch

LAUNCH, WAKE, SETTLE = 0.04, 0.01, 0.02  # ms until a copy is launched, until a blocked host goes on, until it records


def told(copy: float, *, blocks: bool, queued: float = 0.0) -> tuple[float, float, bool]:
    """ms between the events, ms of the call, and whether the GPU was idle, of a copy that takes so long."""
    passed = queued  # when the GPU passes the first event
    copied = max(LAUNCH, passed) + copy
    returned = copied + WAKE if blocks else LAUNCH
    return max(copied, returned + SETTLE) - passed, returned, queued == 0.0


@pytest.mark.parametrize("blocks", [True, False])
@pytest.mark.parametrize("copy", [0.3, 0.72, 3.0])
def test_an_idle_gpu_s_waiting_is_no_copying(copy: float, blocks: bool) -> None:
    """What the host takes to launch a copy and to see that it has ended is not the copy's time."""
    launch = Launch()
    between, call, idle = told(0.002, blocks=blocks)
    assert launch.copied_ms(between, Call(call, idle, TINY)) is None
    between, call, idle = told(copy, blocks=blocks)
    assert between > copy + 0.035
    assert launch.copied_ms(between, Call(call, idle, 34_000_000)) == pytest.approx(copy, abs=0.003)


def test_a_host_that_is_slow_to_go_on_after_a_blocking_copy_hides_none_of_it() -> None:
    """What passes after the call's end is the host's, however long, where the copy was inside the call."""
    launch = Launch()
    launch.copied_ms(0.08, Call(0.05, True, TINY))
    assert launch.copied_ms(3.51, Call(3.45, True, 34_000_000)) == pytest.approx(3.4)


def test_launching_is_what_it_is_by_now() -> None:
    """Calls that a profiler makes longer are taken off as long as they are, and one short call of old says nothing."""
    launch = Launch()
    for slower in [0.0, *[0.015] * 20]:
        between, call, idle = told(0.002, blocks=True)
        assert launch.copied_ms(between + slower, Call(call + slower, idle, TINY)) is None
    between, call, idle = told(0.6, blocks=True)
    copied = launch.copied_ms(between + 0.015, Call(call + 0.015, idle, 34_000_000))
    assert copied == pytest.approx(0.6, abs=0.003)


def test_a_tiny_copy_is_untold() -> None:
    """What calls of tiny copies vary by is launching, and no copying."""
    launch = Launch()
    assert [launch.copied_ms(ms, Call(ms, True, TINY)) for ms in (0.02, 0.05, 0.03)] == [None] * 3


def test_a_busy_gpu_copies_between_the_events() -> None:
    """Where the GPU has other work first, the copy waits for it, and the events are right."""
    between, call, idle = told(0.72, blocks=False, queued=5.0)
    assert Launch().copied_ms(between, Call(call, idle, 34_000_000)) == pytest.approx(0.72)


def test_launching_stays_in_where_it_is_not_known() -> None:
    """Only large copies that block were seen: nothing is taken off that was not measured."""
    launch = Launch()
    for _ in range(3):
        between, call, idle = told(0.72, blocks=True)
        assert launch.copied_ms(between, Call(call, idle, 34_000_000)) == pytest.approx(0.72 + LAUNCH + WAKE)
