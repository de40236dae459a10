"""Who waits for whom, in jobs of two ranks on gloo of which one comes late."""

import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from hindmost import ring
from hindmost_agent.jobs.event_rows import RowBuilder, is_amount

from tests.ring_records import feed
from tests.torch.conftest import Trace, run
from tests.torch.loops import LOOPS

Train = Callable[..., dict[int, Trace]]

pytestmark = pytest.mark.torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_torch_ddp.py"
#: The same job by three launchers, and without a compiler in processes that get their place as torchrun's do.
JOBS = {"torchrun": {"by": "torchrun"}, "mpirun": {"by": "mpirun"}, "srun": {"by": "srun"}, "python": {"native": False}}


def who_comes_late_waits_less(calls: list[list[ring.Event]]) -> bool:
    """Whether, in most calls to which one of two ranks came 10 ms after the other, the later one waited less.

    A busy machine may hold up either rank: who sleeps is not last each time, but who is last waits for none.
    """
    pairs = [pair for pair in zip(*calls, strict=True) if abs(pair[0].start_ns - pair[1].start_ns) > 10_000_000]
    less = [
        max(pair, key=lambda one: one.start_ns).duration_ns < min(pair, key=lambda one: one.start_ns).duration_ns
        for pair in pairs
    ]
    return bool(less) and sum(less) > len(less) / 2


@pytest.fixture(scope="module", params=JOBS)
def slow_input(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[int, Trace]:
    """What two ranks recorded of 20 steps, of which rank 1 has its batch 20 ms late."""
    options = ("--steps", "20", "--slow-rank", "1", "--slow-what", "input", "--slow-ms", "20")
    return run(tmp_path_factory.mktemp("slow"), EXAMPLE, *options, **JOBS[request.param])


def test_ddp_on_gloo_shows_steps_phases_and_who_waits(slow_input: dict[int, Trace]) -> None:
    """Every step has its phases; the rank whose input is slow waits for input, and its peer waits for it."""
    traces = slow_input
    assert sorted(traces) == [0, 1]
    for rank in (0, 1):
        assert traces[rank].count(ring.STEP) == {"train": 20}
        seen = traces[rank].count(ring.PHASE)
        assert {seen[name] for name in ("input", "forward", "backward", "optimizer")} == {20}
        assert seen["sync"] == sum(traces[rank].count(ring.COLLECTIVE).values())
        assert seen["cpu"] >= 2
        assert traces[rank].count(ring.COLLECTIVE)["ddp_sync"] == 20
        assert {event.value for event in traces[rank].events if event.kind == ring.STEP} == {16}
    assert traces[1].total_ms(ring.PHASE, "input") > 17 * 19  # it sleeps for so long, whatever else the machine does
    assert who_comes_late_waits_less([traces[rank].of(ring.COLLECTIVE, "ddp_sync") for rank in (0, 1)])
    syncs = [
        [(event.comm_id, event.seq, event.value) for event in traces[rank].of(ring.COLLECTIVE, "ddp_sync")]
        for rank in (0, 1)
    ]
    assert syncs[0] == syncs[1], "both ranks name the communicator and its operations alike"
    assert [seq for _, seq, _ in syncs[0]] == list(range(20))
    assert syncs[0][0][0] != 0
    assert syncs[0][0][2] > 1000, "the bytes of all gradients"


def test_waiting_in_backward_is_no_part_of_it(slow_input: dict[int, Trace]) -> None:
    """What DDP waits for within backward is the phase sync, and not backward's, too: phases fit into their step."""
    fold = RowBuilder()
    feed(fold, slow_input[0].events)
    rows = fold.take().steps[3:]
    assert len(rows) == 17
    for row in rows:
        assert sum(ns for name, ns in row.phases.items() if not is_amount(name)) <= row.duration_ns


@pytest.mark.parametrize("native", [True, False], ids=["c", "python"])
def test_models_of_one_group_wait_once_a_backward(train: Train, native: bool) -> None:
    """Two DDP models trained in turns, as a GAN's: each backward is a synchronisation with one number on both ranks."""
    script = (
        LOOPS
        + """
    import time, torch.distributed as dist
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    wrap = nn.parallel.DistributedDataParallel
    judge = wrap(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)))
    maker = wrap(nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.01) for one in (judge, maker)]
    for x, y in DataLoader(data, batch_size=4):
        if rank:
            time.sleep(0.02)
        optimizers[0].zero_grad()
        (judge(maker(x).detach()).mean() - judge(x).mean()).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        (-judge(maker(x)).mean()).backward()
        optimizers[1].step()
    dist.barrier()
    dist.barrier()  # twice: docs/how-to/troubleshoot.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script), native=native)
    for rank in (0, 1):
        syncs = traces[rank].of(ring.COLLECTIVE, "ddp_sync")
        assert [event.seq for event in syncs] == list(range(32))
        assert len({event.comm_id for event in syncs}) == 1
        assert traces[rank].count(ring.PHASE)["sync"] == sum(traces[rank].count(ring.COLLECTIVE).values())
    assert who_comes_late_waits_less([traces[rank].of(ring.COLLECTIVE, "ddp_sync")[4::2] for rank in (0, 1)])


def test_collectives_called_by_hand_are_seen(train: Train, tmp_path: Path) -> None:
    """A loop that averages its gradients itself shows each call, alike on both ranks; nested calls are one."""
    script = (
        LOOPS
        + f"""
    import time, torch.distributed as dist, torch.distributed.checkpoint as checkpoint
    dist.init_process_group("gloo")
    for x, y in loader:
        time.sleep(0.02 * dist.get_rank())
        criterion(model(x), y).backward()
        flat = torch.cat([p.grad.flatten() for p in model.parameters()])
        dist.all_reduce(flat)
        optimizer.step()
        optimizer.zero_grad()
    work = dist.all_reduce(flat, async_op=True)
    work.wait()
    gathered = [None, None]
    dist.all_gather_object(gathered, dist.get_rank())
    if dist.get_rank():
        dist.send(flat, 0)
    else:
        dist.recv(flat, src=1)
    checkpoint.save({{"model": model.state_dict()}}, checkpoint_id={str(tmp_path / "saved")!r})
    dist.barrier()
    dist.barrier()  # twice: docs/how-to/troubleshoot.md
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    for rank in (0, 1):
        started = next(one for one in traces[rank].of(ring.COLLECTIVE, "all_reduce") if one.flags == 2)
        (waited,) = traces[rank].of(ring.P2P, "wait")
        assert (waited.comm_id, waited.seq) == (started.comm_id, started.seq)
    seen = [[event[:3] + event[5:] for event in traces[r].events if event.kind == ring.COLLECTIVE] for r in (0, 1)]
    assert seen[0] == seen[1]
    assert traces[0].count(ring.COLLECTIVE)["all_reduce"] == 9
    assert traces[0].of(ring.COLLECTIVE, "all_reduce")[0].value == 4 * (8 * 8 + 8 + 8 * 2 + 2)
    assert [event.flags for event in traces[0].of(ring.COLLECTIVE, "all_reduce")][7:] == [0, 2]
    assert traces[0].count(ring.P2P) == {"recv": 1, "wait": 1}
    assert traces[1].count(ring.P2P) == {"send": 1, "wait": 1}
    assert traces[0].count(ring.PHASE)["checkpoint"] >= 1
    assert who_comes_late_waits_less([traces[rank].of(ring.COLLECTIVE, "all_reduce")[3:8] for rank in (0, 1)])
    assert traces[0].open == []


def test_the_broadcast_of_buffers_is_a_call_and_no_part_of_forward(train: Train) -> None:
    """DDP broadcasts batch norm's buffers before each forward: what a rank waits there is no work of its own."""
    script = (
        LOOPS
        + """
    import time, torch.distributed as dist
    dist.init_process_group("gloo")
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Linear(8, 2))
    model = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in DataLoader(data, batch_size=8):
        time.sleep(0.02 * dist.get_rank())
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()
    dist.destroy_process_group()
    """
    )
    traces = train(textwrap.dedent(script))
    calls = [traces[rank].of(ring.COLLECTIVE, "broadcast")[1:] for rank in (0, 1)]  # the first: of parameters
    assert [[call.seq for call in mine] for mine in calls] == [list(range(1, 9))] * 2
    assert {(call.peer, call.value) for mine in calls for call in mine} == {(0, 8 * 4 + 8 * 4 + 8)}
    assert sum(call.duration_ns for call in calls[0]) > 7 * 15_000_000, "the root waits for the rank that comes late"
    fold = RowBuilder()
    feed(fold, traces[0].events)
    for row, call in zip(fold.take().steps, calls[0], strict=True):
        assert row.phases["sync"] >= call.duration_ns
        assert sum(ns for name, ns in row.phases.items() if not is_amount(name)) <= row.duration_ns
