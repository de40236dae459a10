"""How long a copy to the GPU kept a rank: measured on a host and a GPU that take known times."""

import pytest
from hindmost.probes.torch_cuda import Call, copied_ms

LAUNCH, WAKE, SETTLE = 0.04, 0.01, 0.02  # ms until a copy is launched, until a blocked host goes on, until it records


def told(copy: float, *, blocks: bool, queued: float = 0.0, slow: float = 0.0) -> tuple[float, Call]:
    """ms between the events, and the call, of a copy that takes so long; ``slow``: ms the host needs to go on."""
    passed = queued  # when the GPU passes the first event
    copied = max(LAUNCH, passed) + copy
    returned = copied + WAKE if blocks else LAUNCH
    settled = returned + SETTLE + slow
    return max(copied, settled) - passed, Call(returned, queued == 0.0, copied <= returned)


@pytest.mark.parametrize("slow", [0.0, 0.4])
@pytest.mark.parametrize("copy", [0.002, 0.72, 3.0])
def test_a_blocking_copy_is_the_host_s_time_in_the_call(copy: float, slow: float) -> None:
    """All of it, and nothing of what the host does afterwards, however late it records the event."""
    between, call = told(copy, blocks=True, slow=slow)
    assert copied_ms(between, call) == pytest.approx(LAUNCH + copy + WAKE)


def test_waiting_for_earlier_work_is_no_copying() -> None:
    """A call that blocks until the GPU is through with a step's work took so long for that, not for its copy."""
    between, call = told(0.72, blocks=True, queued=25.0)
    assert call.ms > 25.7
    assert copied_ms(between, call) == pytest.approx(0.72 + WAKE + SETTLE)


@pytest.mark.parametrize("queued", [0.0, 5.0])
@pytest.mark.parametrize("copy", [0.3, 0.72, 3.0])
def test_a_copy_that_goes_on_is_the_gpu_s_time(copy: float, queued: float) -> None:
    """Launching is the host's, and an idle GPU's waiting for that is no copying."""
    between, call = told(copy, blocks=False, queued=queued)
    assert copied_ms(between, call) == pytest.approx(copy)


def test_pageable_memory_is_copied_inside_the_call_mostly() -> None:
    """A copy that was not to block, from memory that makes it: the call holds the host up, and little goes on after."""
    assert copied_ms(2.95, Call(2.9, idle=True, over=False)) == pytest.approx(2.9)
