"""The limit of a job: limit where it was measured, and not where it was not."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hindmost_collector.ingest.chunk import from_rows
from hindmost_collector.page import document
from hindmost_collector.recordings.load import load
from hindmost_collector.recordings.tables import concatenate, table
from hindmost_collector.report import columns, text
from hindmost_collector.report.verdict_lines import with_rendered
from hindmost_collector.simulate import Fault, Scenario, simulate
from hindmost_judge import overview
from hindmost_judge.judge import judge
from hindmost_judge.model import RUNNING, Run
from hindmost_judge.settings import DEFAULT
from hindmost_judge.timeline import build_blocks
from hindmost_judge.usage import CpuUse
from hindmost_judge.verdict import whole_job, wording
from hindmost_judge.verdict.schema import BOUNDS, UNSURE, StepLimit, Verdict

from tests.pages import inside
from tests.runs import with_rows
from tests.scenarios import loads

ROOT = Path(__file__).parents[3]
#: What the agent read of one H200 that multiplied matrices, copied memory, or idled.
MEASURED = json.loads((ROOT / "bench/results/agent_gpu_1xh200.json").read_text())["activity"]


def recorded(**shape: Any) -> Run:
    """A job of 8 ranks."""
    return simulate(Scenario(**{"ranks": 8, "steps": 60, "seed": 2} | shape)).run


def with_levels(run: Run, **levels: float) -> Run:
    """The same job, of all GPUs of which these levels were sampled besides."""
    clock = np.flatnonzero(run.metrics["name"] == "hindmost_gpu_sm_clock_hertz")
    rows = {name: run.metrics[name][clock] for name in ("node", "labels", "time_ns")}
    parts = [
        table("metrics", **rows, name=f"hindmost_gpu_{name}_ratio", value=np.full(len(clock), value))
        for name, value in levels.items()
    ]
    return with_rows(run, metrics=concatenate("metrics", parts))


def found(run: Run) -> StepLimit:
    """What the report says."""
    limit = judge(run).job.bound
    assert limit is not None
    return limit


@pytest.mark.parametrize(("gpu_bound", "by"), [("compute", "gpu_compute"), ("memory", "gpu_memory")])
def test_gpus_at_work_are_limited_by_what_is_near_its_peak(gpu_bound: str, by: str) -> None:
    """Their memory, or their arithmetic; the evidence has the figures of both."""
    limit = found(recorded(gpu_bound=gpu_bound))
    assert limit.by == by
    assert "of peak bandwidth" in limit.evidence
    assert "SMs active" in limit.evidence


@pytest.mark.parametrize(("lost", "limited"), [(400, True), (600, False)])
def test_no_limit_is_named_where_most_events_were_lost(lost: int, limited: bool) -> None:
    run = recorded(gpu_bound="compute")
    states = from_rows("rank_states", [(0, 10**9, RUNNING, 1000, lost, -1, -1, "")])
    assert (judge(replace(run, rank_states=states)).job.bound is not None) == limited


@pytest.mark.parametrize(("load", "by"), [("gemm", "gpu_compute"), ("copy", "gpu_memory"), ("idle", "unknown")])
def test_what_an_h200_showed_is_called_what_it_was(load: str, by: str) -> None:
    """Matrix products are computing, copies are memory; of a GPU that waits neither is the limit."""
    levels = {
        name.removesuffix("_ratio"): value for name, value in MEASURED[load].items() if name.endswith("_activity_ratio")
    }
    assert found(with_levels(recorded(), **levels)).by == by


def test_small_kernels_are_limited_by_neither() -> None:
    """SMs with work but hardly any arithmetic or memory traffic: the limit is unknown."""
    small = {"sm_activity": 0.95, "dram_activity": 0.2, "tensor_activity": 0.03, "fp32_activity": 0.05}
    limit = found(with_levels(recorded(), **small))
    assert limit.by == "unknown"
    assert "neither memory nor arithmetic" in limit.evidence


def test_without_the_monitor_memory_is_never_said_to_be_the_limit() -> None:
    """NVML counts the time in which memory was touched at all: much of it proves nothing, little of it excludes it."""
    assert found(with_levels(recorded(), memory_utilization=0.95)).by == "unknown"
    capped = with_levels(recorded(), memory_utilization=0.4)
    reasons = capped.metrics["name"] == "hindmost_gpu_clocks_event_reasons"
    capped.metrics["value"][reasons] = 0x4
    assert found(capped).by == "gpu_compute"


def test_where_nothing_was_sampled_nothing_is_said() -> None:
    """Neither in the report nor in its text: no data is no `unknown`."""
    report = judge(replace(recorded(), metrics=table("metrics", node=[]))).to_dict()
    assert report["job"]["bound"] is None
    assert columns.bound(report) == ""
    assert "LIMITED BY" not in text.render(report)


def test_transfers_that_take_most_of_the_step_are_what_bounds_it() -> None:
    """Whatever GPUs do meanwhile; overlapped with backward they must outlast what hides them."""
    assert found(recorded(layout="fsdp", transfer_share=1.5, gpu_bound="compute")).by == "communication"
    assert found(recorded(layout="dp", transfer_share=0.5, gpu_bound="compute")).by == "gpu_compute"


@pytest.mark.parametrize("queues", [0.0, 0.1])
def test_transfers_are_as_long_as_they_were_measured(queues: float) -> None:
    """Whatever share of them their ranks queue for a CPU."""
    run = loads.make(loads.Load(transfer=20.0))
    rows = loads.counters("runqueue_seconds", dict.fromkeys(range(4), queues), range(3))
    assert found(replace(run, metrics=loads.metrics(rows))).evidence == "transfers are 71 % of the typical step"


def test_an_input_bound_job_is_bound_by_its_input() -> None:
    """The verdict on all ranks says it; the line does not contradict it."""
    run = recorded(input_share=0.6, gpu_bound="compute")
    assert judge(run).verdicts[0].kind == "input_bound"
    assert found(run).by == "input"


def test_a_slow_rank_does_not_make_a_job_bound_by_something_else() -> None:
    """The line is about the typical rank; the verdict is about the slow one."""
    assert found(recorded(gpu_bound="memory", faults=(Fault("gc", (3,), 0.1),))).by == "gpu_memory"


def test_too_few_steps_say_nothing() -> None:
    """As no verdict does."""
    run = recorded(steps=6, gpu_bound="compute")
    assert whole_job.step_limit(build_blocks.build(run, DEFAULT), (), DEFAULT) is None


def test_a_report_says_it_in_one_line() -> None:
    """In text and in HTML, in words for each of what it may be."""
    report = judge(recorded(gpu_bound="memory")).to_dict()
    assert "LIMITED BY GPU memory bandwidth: SMs active" in text.render(report, width=200)
    assert inside(document.of_report(report))["report"]["bound"].startswith("GPU memory bandwidth: ")
    for by in BOUNDS:
        assert "_" not in columns.bound({"job": {"bound": {"by": by, "evidence": ""}}, "verdicts": ()})


@pytest.mark.parametrize(
    ("by", "cause", "said"),
    [
        ("cpu", None, "run fewer ranks, or threads of each, per node"),
        ("cpu", "cpu_contention", ""),  # its verdict says it
        ("communication", None, "overlap transfers with computing"),
        ("communication", "network", ""),  # its verdict says it
        ("gpu_compute", None, "compute less per sample"),
        ("serial", None, "see what that rank does in these steps"),
    ],
)
def test_what_can_be_done_about_the_limit_is_said_with_it(by: str, cause: str | None, said: str) -> None:
    """In text, in HTML and on the page; not where there is nothing to do, or a verdict says it."""
    report = judge(recorded(gpu_bound="memory")).to_dict()
    report["job"]["bound"] = {"by": by, "evidence": "so it is"}
    report["verdicts"][0]["cause"] = cause
    assert columns.on_bound(report)[: len(said) or None] == said
    shown = (text.render(report, width=200), document.of_report(report), with_rendered(report)["bound_do"])
    assert [said in one for one in shown] == [True] * 3
    assert [columns.on_bound(report) in one for one in shown] == [True] * 3


def test_a_job_that_mostly_stalls_is_not_limited_by_what_its_steps_do() -> None:
    """What is sampled is then of the stalls: a GPU that waits in a collective's kernel looks busy."""
    blocks = build_blocks.build(recorded(gpu_bound="compute"), DEFAULT)
    stalls = Verdict("intermittent", (1,), cost_ratio=0.77)
    assert whole_job.step_limit(blocks, [replace(stalls, cost_ratio=0.2)], DEFAULT) is not None
    assert whole_job.step_limit(blocks, [stalls], DEFAULT) is None


def short_of_cpus(ranks: float, others: float) -> tuple[StepLimit, dict[str, Any]]:
    """The limit of a job that waits for CPUs, of which it and others use so many on the node n1; and its report."""
    run = load(ROOT / "tests/fixtures/recordings/mpi-observed-even-4.tar.xz")
    use = {"n0": CpuUse(2.0, 1.0, 0.1), "n1": CpuUse(2.0, ranks, others)}
    limit = whole_job.step_limit(build_blocks.build(run, DEFAULT), (), DEFAULT, lambda: use)
    assert limit is not None
    report = judge(run).to_dict()
    report["job"]["bound"] = {"by": limit.by, "evidence": limit.evidence}
    report["verdicts"][0]["cause"] = None
    return limit, report


@pytest.mark.parametrize(
    ("ranks", "others", "said", "do"),
    [
        (1.6, 0.3, "Ranks use 1.6 of the 2 CPUs of n1, other processes 0.3", "run fewer ranks, or threads of each"),
        (0.4, 1.5, "Other processes use 1.5 of the 2 CPUs of n1, ranks 0.4", "stop the other processes"),
    ],
)
def test_too_few_cpus_are_used_by_ranks_or_by_others(ranks: float, others: float, said: str, do: str) -> None:
    """Of the node where others use most; what to do follows from that, and the table has the wait for a CPU."""
    limit, report = short_of_cpus(ranks, others)
    assert limit.by == "cpu"
    assert limit.evidence.endswith(f". {said}")
    assert columns.on_bound(report).startswith(do)
    assert "waits for a CPU" in columns.deciding(report)


@pytest.mark.parametrize(("ranks", "others", "stops"), [(1.6, 0.3, False), (0.4, 1.5, True)])
def test_a_setting_to_try_stands_for_what_to_do_about_too_few_cpus(ranks: float, others: float, stops: bool) -> None:
    """In text and on the page; but no setting of the job changes what other processes use."""
    _, report = short_of_cpus(ranks, others)
    setting: dict[str, Any] = {"name": "threads", "found": "so it is", "threshold": "1", "share": 0.5}
    setting["set"] = "`export OMP_NUM_THREADS=1`"
    report = {**report, "sections": {"advice": {"settings": [setting]}}}
    page = text.render(report, width=200)
    assert f"{'TRY' if stops else 'DO '}    `export OMP_NUM_THREADS=1`" in page
    assert with_rendered(report)["settings"] == ["`export OMP_NUM_THREADS=1` (so it is)"]
    assert ("DO     stop the other processes" in page) == stops


@pytest.mark.parametrize(("ranks", "others", "by"), [(1.6, 0.3, "cpu"), (0.4, 1.5, "checkpoint")])
def test_what_the_job_writes_limits_it_before_other_processes_do(ranks: float, others: float, by: str) -> None:
    """Where it costs a tenth of the time or more, though ranks wait for a CPU in all of it."""
    blocks = build_blocks.build(load(ROOT / "tests/fixtures/recordings/mpi-observed-even-4.tar.xz"), DEFAULT)
    assert blocks is not None
    writes = np.zeros_like(blocks.delay)
    writes[0, ::10] = 4 * blocks.step_ns
    seen = replace(overview.of(blocks, blocks.delay), saves=writes, period=blocks.step_ns + writes[0])
    use = {"n1": CpuUse(2.0, ranks, others)}
    limit = whole_job.step_limit(blocks, (), DEFAULT, lambda: use, seen)
    assert limit is not None
    assert limit.by == by


@pytest.mark.parametrize(("by", "do"), [(wording.OTHERS_USE, wording.WITHOUT_OTHERS), ("Ranks use", wording.TELLING)])
def test_more_steps_tell_no_more_while_other_processes_use_the_cpus(by: str, do: tuple[str, ...]) -> None:
    """Of a job that is not sure, stopping these comes first."""
    unsure = Verdict("balanced", confidence=UNSURE, advice=wording.TELLING)
    (found,) = whole_job.without_others([unsure], StepLimit("cpu", f"ranks wait. {by} 1.5 of the 2 CPUs of n1"))
    assert found.advice == do
