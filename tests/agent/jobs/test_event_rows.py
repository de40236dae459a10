"""Events of a ring become steps with exclusive phases, collectives with their gaps, and intervals."""

import re

import pytest
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


#: Events as ``name start+duration`` in the order in which they were written, and the phases of each step.
STEPS: dict[str, tuple[str, list[dict[str, int]]]] = {
    "a phase is exclusive of what nests in it": (
        "forward 10+20, sync 50+15, backward 40+40, train 0+100",
        [{"forward": 20, "sync": 15, "backward": 25}],
    ),
    "a grandchild is subtracted from its parent and not again from its grandparent": (
        "gc 30+5, sync 20+30, backward 10+60, train 0+100",
        [{"gc": 5, "sync": 25, "backward": 30}],
    ),
    "CPU time of many threads may exceed the step, and GPU time overlaps everything": (
        "forward 10+20, cpu 5+400, gpu_forward 12+90, backward 5+50, train 0+100",
        [{"forward": 20, "backward": 30, "cpu": 400, "gpu_forward": 90}],
    ),
    "a step that is written late takes only its own phases": (
        "forward 10+20, forward 110+30, train 0+100, train 100+100",
        [{"forward": 20}, {"forward": 30}],
    ),
    "a phase that a step did not have took no time, once the loop has shown it": (
        "train 0+100, checkpoint 110+50, train 100+100, train 200+100",
        [{}, {"checkpoint": 50}, {"checkpoint": 0}],
    ),
    "GPU time that never came is not zero": (
        "gpu_forward 10+50, train 0+100, train 100+100",
        [{"gpu_forward": 50}, {}],
    ),
}


@pytest.mark.parametrize("truth", STEPS)
def test_phases_of_a_step(truth: str) -> None:
    """Each has what is its own, and nothing else."""
    text, phases = STEPS[truth]
    events = []
    for number, (name, start, duration) in enumerate(re.findall(r"(\w+) (\d+)\+(\d+)", text)):
        kind = ring.STEP if name == "train" else ring.PHASE
        events.append(event(kind, name, int(start), int(duration), seq=number * (kind == ring.STEP)))
    assert [step.phases for step in built(*events).steps] == phases


def test_a_step_has_its_number_length_and_work() -> None:
    """As they were recorded."""
    (step,) = built(event(ring.STEP, "train", 0, 100, seq=7, value=32)).steps
    assert (step.step, step.duration_ns, step.work) == (7, 100, 32)


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
