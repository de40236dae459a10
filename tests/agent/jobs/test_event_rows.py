"""Events of a ring become steps with exclusive phases, collectives with their gaps, and intervals."""

from hindmost import ring
from hindmost.ring import Event
from hindmost_agent.jobs.event_rows import UNMEASURED, RowBuilder

from tests.ring_records import feed, rows


def event(kind: int, name: str, start: int, duration: int, **more: int) -> Event:
    fields = {"flags": 0, "seq": 0, "peer": -1, "comm_id": 0, "value": 0, **more}
    return Event(kind=kind, name=name, start_ns=start, duration_ns=duration, **fields)


def built(*events: Event) -> RowBuilder:
    builder = RowBuilder()
    feed(builder, events)
    return builder


def test_a_phase_is_exclusive_of_what_nests_in_it() -> None:
    """The synchronisation inside backward is counted once, as synchronisation."""
    builder = built(
        event(ring.PHASE, "forward", 10, 20),
        event(ring.PHASE, "sync", 50, 15),
        event(ring.PHASE, "backward", 40, 40),
        event(ring.STEP, "train", 0, 100, seq=7, value=32),
    )
    (step,) = builder.steps
    assert (step.step, step.duration_ns, step.work) == (7, 100, 32)
    assert step.phases == {"forward": 20, "sync": 15, "backward": 25}


def test_nesting_goes_any_number_of_levels_deep() -> None:
    """A grandchild is subtracted from its parent and not again from its grandparent."""
    builder = built(
        event(ring.PHASE, "gc", 30, 5),
        event(ring.PHASE, "sync", 20, 30),
        event(ring.PHASE, "backward", 10, 60),
        event(ring.STEP, "train", 0, 100),
    )
    assert builder.steps[0].phases == {"gc": 5, "sync": 25, "backward": 30}


def test_amounts_neither_nest_nor_are_subtracted() -> None:
    """CPU time of many threads may exceed the step; GPU time overlaps everything."""
    builder = built(
        event(ring.PHASE, "forward", 10, 20),
        event(ring.PHASE, "cpu", 5, 400),
        event(ring.PHASE, "gpu_forward", 12, 90),
        event(ring.PHASE, "backward", 5, 50),
        event(ring.STEP, "train", 0, 100),
    )
    assert builder.steps[0].phases == {"forward": 20, "backward": 30, "cpu": 400, "gpu_forward": 90}


def test_a_step_written_late_takes_only_its_own_phases() -> None:
    """Steps are written after their GPU times have come, when phases of later steps are in the ring already."""
    builder = built(
        event(ring.PHASE, "forward", 10, 20),
        event(ring.PHASE, "forward", 110, 30),
        event(ring.STEP, "train", 0, 100, seq=1),
        event(ring.STEP, "train", 100, 100, seq=2),
    )
    assert [step.phases["forward"] for step in builder.steps] == [20, 30]


def test_a_phase_that_did_not_happen_in_a_step_took_no_time() -> None:
    """Once a loop has shown a phase, its absence from a step is a measurement of zero; before, it is missing."""
    builder = built(
        event(ring.STEP, "train", 0, 100, seq=1),
        event(ring.PHASE, "checkpoint", 110, 50),
        event(ring.STEP, "train", 100, 100, seq=2),
        event(ring.STEP, "train", 200, 100, seq=3),
    )
    assert [step.phases.get("checkpoint") for step in builder.steps] == [None, 50, 0]


def test_a_gpu_amount_that_was_not_measured_is_missing() -> None:
    """GPU time that never came is not zero."""
    builder = built(
        event(ring.PHASE, "gpu_forward", 10, 50),
        event(ring.STEP, "train", 0, 100),
        event(ring.STEP, "train", 100, 100),
    )
    assert "gpu_forward" not in builder.steps[1].phases


def test_a_phase_between_steps_is_an_interval() -> None:
    """A checkpoint between two steps belongs to neither."""
    builder = built(event(ring.PHASE, "checkpoint", 110, 50), event(ring.STEP, "train", 200, 100))
    assert [(row.name, row.start_ns, row.duration_ns) for row in builder.intervals] == [("checkpoint", 110, 50)]


def test_launches_without_operations_are_forgotten() -> None:
    """A launch whose operation was lost must not stay for ever."""
    builder = built(*(event(ring.LAUNCH, "all_reduce", at, 5, comm_id=5, seq=at) for at in range(1000)))
    for seq in (0, 999):
        feed(builder, [event(ring.COLLECTIVE, "all_reduce", 7_000, 1, comm_id=5, seq=seq, flags=ring.GPU_TIME)])
    assert [row.enqueue_ns for row in rows(builder.collectives)] == [UNMEASURED, 999]


def test_a_launch_is_of_one_operation() -> None:
    """The next one of the same number has its own, or none."""
    operation = event(ring.COLLECTIVE, "all_reduce", 50, 1, seq=3, flags=ring.GPU_TIME)
    builder = built(event(ring.LAUNCH, "all_reduce", 40, 5, seq=3), operation, operation)
    assert [row.enqueue_ns for row in rows(builder.collectives)] == [40, UNMEASURED]


def test_what_came_before_a_loss_is_of_no_call_after_it() -> None:
    """The call that the gap, or the launch, was before may be among what was lost."""
    builder = built(event(ring.SELF, "", 0, 30), event(ring.LAUNCH, "all_reduce", 40, 5, seq=3))
    builder.broke()
    for flags in (0, ring.GPU_TIME):
        feed(builder, [event(ring.COLLECTIVE, "all_reduce", 50, 1, seq=3, flags=flags)])
    assert [(row.self_ns, row.enqueue_ns) for row in rows(builder.collectives)] == [(UNMEASURED, UNMEASURED)] * 2


def test_a_loop_without_steps_keeps_nothing_forever() -> None:
    """Phases that no step takes are handed out as intervals, at the latest at the end."""
    builder = built(*(event(ring.PHASE, "forward", at * 10, 5) for at in range(20_000)))
    waiting = 20_000 - len(builder.intervals)
    assert waiting <= 8192
    builder.finish()
    assert len(builder.intervals) == 20_000


def test_gpu_times_find_their_step_though_they_come_late() -> None:
    """Once GPU times come, a step waits for its own; the next step's show that it has all of them."""
    builder = built(
        event(ring.STEP, "train", 0, 100, seq=1),
        event(ring.PHASE, "gpu_forward", 10, 60, seq=1),
        event(ring.STEP, "train", 100, 100, seq=2),
        event(ring.STEP, "train", 200, 100, seq=3),
        event(ring.PHASE, "gpu_forward", 110, 70, seq=2),
        event(ring.PHASE, "gpu_backward", 150, 20, seq=2),
        event(ring.PHASE, "h2d", 100, 5, flags=ring.GPU_TIME, seq=2),
        event(ring.PHASE, "gpu_forward", 210, 80, seq=3),
    )
    assert [step.step for step in builder.steps] == [1, 2]
    assert builder.steps[1].phases == {"gpu_forward": 70, "gpu_backward": 20, "h2d": 5}


def test_a_step_whose_gpu_times_never_come_is_let_go() -> None:
    """A lost GPU time delays a step by two seconds, not for ever."""
    builder = built(event(ring.PHASE, "gpu_forward", 10, 60, seq=1), event(ring.STEP, "train", 100, 100, seq=2))
    builder.age(1_000_000_000)
    assert builder.steps == []
    builder.age(3_000_000_000)
    assert [step.step for step in builder.steps] == [2]


def test_a_damaged_event_costs_no_other() -> None:
    """A value that fits no column of the wire is left out and counted; the rows around it are made."""
    builder = built(
        event(ring.STEP, "train", 0, 100, seq=1),
        event(ring.COLLECTIVE, "all_reduce", 10, 5, value=1 << 63),
        event(ring.PHASE, "forward", (1 << 64) - 1, 5),
        event(ring.STEP, "train", 100, (1 << 64) - 1, seq=2),
        event(ring.STEP, "train", 100, 100, seq=3),
    )
    assert [step.step for step in builder.steps] == [1, 3]
    assert (rows(builder.collectives), builder.damaged) == ([], 3)
