"""The job clock: simulated nodes whose true offset is known."""

import random

import pytest
from hindmost_collector.ingest.clock import JobClock, NodeClock
from hypothesis import given, settings
from hypothesis import strategies as st

HOUR = 3_600_000_000_000
SECOND = 1_000_000_000


def exchange(clock, true, node_ns, there=200_000, back=300_000):
    """One round trip at node time ``node_ns`` of a node whose offset then is ``true(node_ns)``."""
    received = node_ns + true(node_ns) + there
    replied = received + 20_000
    returned = node_ns + there + 20_000 + back
    return clock.add(node_ns, received, replied, returned)


def test_first_guess_is_the_arrival():
    """Before any round trip, Hello's arrival maps the clock, however far the node's own clock is off."""
    clock = NodeClock(hello_monotonic_ns=5 * HOUR, arrived_ns=100 * HOUR)
    assert clock.offset(5 * HOUR) == 95 * HOUR
    assert clock.uncertainty_ns == SECOND


@settings(max_examples=25)
@given(st.integers(-HOUR, 10**6 * SECOND), st.floats(-50e-6, 50e-6), st.integers(0, 2**32))
def test_offset_is_within_its_uncertainty(offset, drift, seed):
    """With asymmetric, noisy round trips and drift, the error stays within the stated uncertainty and 0.3 ms."""
    noise = random.Random(seed)  # noqa: S311 - a simulation
    clock = NodeClock(0, offset)

    def true(at):
        return offset + round(drift * at)

    for tick in range(120):
        there, back = (100_000 + round(noise.expovariate(1 / 200_000)) for _ in range(2))
        exchange(clock, true, tick * 5 * SECOND, there, back)
    at = 120 * 5 * SECOND
    error = abs(clock.offset(at) - true(at))
    assert error < 300_000
    assert error <= clock.uncertainty_ns + 100_000


def test_drift_is_measured():
    """A node that runs 40 ppm slow is seen to, to 2 ppm."""
    clock = NodeClock(0, 0)
    for tick in range(0, 600, 5):
        exchange(clock, lambda at: round(40e-6 * at), tick * SECOND)
    assert clock.drift_ppb == pytest.approx(40_000, abs=2_000)


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_follows_a_step_of_the_node_clock(jump):
    """After a step of an hour the map is right again within three round trips."""
    clock = NodeClock(0, 0)
    for tick in range(10):
        exchange(clock, lambda at: 7, tick * SECOND)
    for tick in range(10, 13):
        exchange(clock, lambda at: jump, tick * SECOND)
    assert abs(clock.offset(13 * SECOND) - jump) < 300_000


def test_one_bad_round_trip_changes_nothing():
    """A single contradictory sample is not believed, and an impossible one is refused."""
    clock = NodeClock(0, 0)
    for tick in range(5):
        exchange(clock, lambda at: 0, tick * SECOND)
    before = clock.offset(6 * SECOND)
    exchange(clock, lambda at: HOUR, 6 * SECOND)
    assert clock.offset(6 * SECOND) == before
    assert not clock.add(10, 5, 4, 20)
    assert not clock.add(10, 5, 6, 9)


def test_job_clock_ignores_steps_of_the_wall_clock():
    """The collector's own wall clock may step by an hour; job time goes on."""
    monotonic, wall = [10 * SECOND], [1000 * SECOND]
    clock = JobClock(None, lambda: monotonic[0], lambda: wall[0], boot="one")
    monotonic[0] += SECOND
    wall[0] += HOUR
    assert clock.now() == 1001 * SECOND


def test_job_clock_survives_a_restart_but_not_a_reboot():
    """A restarted collector carries the same clock on; after a reboot it reads the wall clock again."""
    before = JobClock(None, lambda: 10, lambda: 1000, boot="one")
    assert JobClock(before.state(), lambda: 20, lambda: 99999, boot="one").now() == 1010
    assert JobClock(before.state(), lambda: 20, lambda: 99999, boot="two").now() == 99999
