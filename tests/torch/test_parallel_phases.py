"""bench/gpu/parallel_phases.py reads a profiler's trace right, and its jobs run; its figures come from GPUs."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.torch.conftest import PATIENCE_S

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.torch

STEP_US = 10_000.0


@pytest.fixture
def phases(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "bench/gpu"))
    return importlib.import_module("parallel_phases")


def host(cat: str, name: str, start: float, took: float, **args: Any) -> dict[str, Any]:
    return {"cat": cat, "name": name, "ts": start, "dur": took, "tid": 1, "args": args}


def step(number: int) -> list[dict[str, Any]]:
    """A step whose GPU is 2 ms behind the host: forward takes 3 ms, backward 4 with its reducing, the optimizer 1.

    The reducing kernel runs in parallel with backward's own, on another stream, and ends 1 ms after it.
    """
    at, gpu = number * STEP_US, number * STEP_US + 2_000
    events = [
        host("user_annotation", "forward", at, 300),
        host("user_annotation", "backward", at + 300, 300),
        host("user_annotation", "optimizer", at + 600, 300),
        host("cpu_op", "record_param_comms", at + 400, 100, **{"Process Group Name": "7"}),
    ]
    kernels = [("gemm", 100, 0, 3_000), ("gemm", 350, 3_000, 3_000), ("adam", 700, 7_000, 1_000)]
    kernels.append(("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", 450, 5_000, 2_000))
    for index, (name, launch, start, took) in enumerate(kernels):
        correlation = 10 * number + index
        events.append(host("cuda_runtime", "cudaLaunchKernel", at + launch, 5, correlation=correlation))
        events.append(host("kernel", name, gpu + start, took, correlation=correlation))
    return events


@pytest.fixture
def trace(phases: Any) -> Any:
    # Before the first step the GPU does something that ends when its forward begins, as the step before would.
    begun = [
        host("cuda_runtime", "cudaLaunchKernel", -50, 5, correlation=-1),
        host("kernel", "adam", 1_000, 1_000, correlation=-1),
    ]
    return phases.Trace([event for number in range(3) for event in step(number)] + begun)


def test_a_phase_lasts_from_the_end_of_what_was_launched_before_it(phases: Any, trace: Any) -> None:
    """An event waits for all that was launched before it, so the GPU's phases lag the host's, and idle time counts."""
    ours = {"forward": {41: 5.0}, "backward": {41: 4.0, 42: 4.4}, "optimizer": {}}
    pairs = phases.phase_pairs(ours, trace, 40, gpu=True)
    # 3 ms of work and the 2 ms for which the GPU was idle after the step before.
    assert pairs == {"forward": [(5.0, 5.0)], "backward": [(4.0, 4.0), (4.4, 4.0)], "optimizer": []}
    assert phases.difference(pairs["backward"])["worst_relative_difference"] == pytest.approx(0.1)


def test_collectives_are_counted_by_communicator_and_step(phases: Any, trace: Any) -> None:
    """Each kernel of NCCL's belongs to the process group of the call that launched it, and to the step it was in."""
    events = [SimpleNamespace(name="all_reduce", comm_id=99, seq=seq, duration_ns=2_000_000) for seq in (5, 6, 7)]
    sync, counts = phases.collectives(trace, events, {"7": "all"}, {99: "all"})
    assert counts == {"equal": True, "calls": {"all: all_reduce": {"plugin": 3, "profiler": 3}}}
    assert sync == [(2.0, 2.0), (2.0, 2.0)]  # of the steps after the first


def test_a_collective_that_was_missed_or_put_elsewhere_shows(phases: Any, trace: Any) -> None:
    """Counts that differ, in number or by communicator, are not called equal."""
    events = [SimpleNamespace(name="all_reduce", comm_id=99, seq=seq, duration_ns=2_000_000) for seq in (5, 6)]
    assert not phases.collectives(trace, events, {"7": "all"}, {99: "all"})[1]["equal"]
    assert not phases.collectives(trace, [*events, events[0]], {"7": "tensor"}, {99: "data"})[1]["equal"]
    assert not phases.collectives(phases.Trace([]), [], {}, {})[1]["equal"]


def test_phases_of_micro_batches_are_summed(phases: Any) -> None:
    """Where a step goes back several times, forward is what lies before each, and the optimizer what is left."""
    windows = {
        "forward": [(0.0, 10.0), (100_000.0, 100_010.0)],
        "backward": [(20.0, 30.0), (103_000.0, 107_000.0), (108_000.0, 110_000.0)],
        "optimizer": [(30.0, 40.0), (111_000.0, 113_000.0)],
    }
    ours = {"forward": {8: 4.0}, "backward": {8: 6.0}, "optimizer": {8: 3.0}}
    pairs = phases.phase_pairs(ours, SimpleNamespace(windows=windows.get), 7, gpu=False)
    assert pairs == {"forward": [(4.0, 4.0)], "backward": [(6.0, 6.0)], "optimizer": [(3.0, 3.0)]}


def messages_of(numbers: range) -> tuple[list[dict[str, Any]], list[Any]]:
    """Of steps that send, then send and receive in one kernel: what profiler and plugin tell."""
    name, seen, events = "ncclDevKernel_SendRecv(args)", [], []
    for number in numbers:
        at = number * STEP_US
        seen.append(host("user_annotation", "forward", at, 300))
        for index, whats in enumerate((["send"], ["send", "recv"])):
            correlation, start, took = 100 * number + index, at + 1_000 * index, 1_000.0
            seen += [host("cpu_op", "record_param_comms", start + 2, 4, **{"Collective name": one}) for one in whats]
            seen.append(host("cuda_runtime", "cudaLaunchKernel", start + 8, 5, correlation=correlation))
            seen.append(host("kernel", name, start + 50, took, correlation=correlation))
            # The plugin's intervals have all of a kernel's edges in front, and so overlap by those of the next.
            began = int(1e3 * (start + 49))
            events += [SimpleNamespace(name=one, start_ns=began, duration_ns=int(1e3 * took)) for one in whats]
            events[-1].start_ns += 200 * index
            events[-1].duration_ns -= 200 * index
    return seen, events


def test_messages_are_compared_that_are_a_kernel_each(phases: Any) -> None:
    """Of several in one kernel NCCL reports when the first ended: each gets its share of that; all are counted."""
    seen, events = messages_of(range(2))
    pairs, counts = phases.messages.compared(phases.Trace(seen), events)
    assert pairs == [(1.0, 1.0)]  # of the step after the first
    assert counts["equal"]
    assert counts["of_several"] == {"kernels": 2, "shares": [1.0, 1.0, 1.0]}
    assert counts["plugin"] == counts["called"] == {"send": 4, "recv": 2}
    assert counts["kernels"] == {"plugin": 4, "profiler": 4}
    assert not phases.messages.compared(phases.Trace(seen), events[:-1])[1]["equal"]


def test_drift_is_no_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step that gets slower all the while, with hindmost in or not, does not count as slower through hindmost."""
    monkeypatch.syspath_prepend(str(ROOT / "bench/gpu"))
    step_cost = importlib.import_module("step_cost")
    now, steps, inside = [0.0], [0], [False]

    def step() -> None:
        steps[0] += 1
        now[0] += 30.0 + 0.01 * steps[0] + (0.02 if inside[0] else 0.0)

    class Mark:
        def __init__(self) -> None:
            self.ms = now[0]

        def elapsed_time(self, other: Any) -> float:
            return other.ms - self.ms

    found = step_cost.compared(step, lambda put: inside.__setitem__(0, put), 12, Mark)
    assert found["pairs_of_blocks"] == 24
    assert [found["difference_us"], *found["difference_us_95"]] == pytest.approx([20, 20, 20], abs=1e-3)


def test_the_jobs_train_and_the_probe_has_their_steps(tmp_path: Path) -> None:
    """Without a GPU the jobs run on gloo, and the probe's phases are those of the annotated steps."""
    out = tmp_path / "out.json"
    line = [sys.executable, str(ROOT / "bench/gpu/parallel_phases.py"), "--cost", "0.1", "--limit", "200"]
    line += ["--out", str(out)]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    for rank in json.loads(out.read_text())["ranks"]:
        assert rank["cost"]["pairs_of_blocks"] >= 4
        for job in ("ddp", "fsdp", "tp_dp", "pp_dp"):
            found = rank[job]["phases"]
            assert all(found[name]["steps"] >= 25 for name in ("forward", "backward", "optimizer"))
            assert abs(found["forward"]["median_relative_difference"]) < 0.3
