"""What boards show: of jobs that hang, are balanced, unsure or lost, and of a job of 96 ranks."""

from collections.abc import Callable, Iterable

import pytest

from tests.dashboards.conftest import INTERVAL_S, TICKS, Case, Target, targets

Evaluate = Callable[[Iterable[Case]], None]


pytestmark = pytest.mark.needs("promtool")

END = INTERVAL_S * TICKS
#: promtool loads 10,000 samples for one query at most.
RANKS, PER_NODE, CULPRIT = 96, 8, 57

#: No panel may draw more lines than a person can tell apart, no table may have more rows than one scrolls.
MOST = {"table": 50, "heatmap": 32, "statetimeline": 20}
MOST_LINES = 24


def target(board: str, title: str, ref: str = "A") -> Target:
    (found,) = [one for one in targets(board) if f"{one.title}, ".startswith(f"{title}, ") and one.ref == ref]
    return found


def urgency(value: float, words: str, kind: str = "straggler", cause: str = "", ranks: str = "") -> tuple[str, str]:
    """A verdict as the collector shows it."""
    of = f'kind="{kind}",cause="{cause}",ranks="{ranks}",verdict="{words}"'
    return f'hindmost_verdict_urgency{{job_id="j",instance="c:1",{of}}}', f"{value}x{TICKS}"


def state(name: str, until: int = TICKS, then: str = "") -> dict[str, str]:
    """The state of a job, one of them 1, and another one from a moment on."""
    made = {}
    for one in ("running", "hung", "ended", "lost"):
        before, after = int(one == name), int(one == (then or name))
        series = f'hindmost_job_state{{job_id="j",instance="c:1",state="{one}"}}'
        made[series] = f"{before}x{until} {after}x{TICKS - until}"
    return made


SLOW = urgency(0.4, "straggler: rank 3, compute", cause="compute", ranks="3")


SHOWN = [
    ({**state("hung"), **dict([SLOW, urgency(2, "hang: rank 5", "hang", ranks="5")])}, "hang: rank 5", 2),
    ({**state("running"), **dict([SLOW])}, "straggler: rank 3, compute", 0.4),
    ({**state("running"), **dict([urgency(0, "balanced", "balanced")])}, "balanced", 0),
    ({**state("running"), **dict([urgency(-1, "unsure: no rank proven", "balanced")])}, "unsure: no rank proven", -1),
    (state("running"), "not judged yet", -2),
    (state("lost"), "contact lost", 3),
    (state("ended"), "ended", -2),
]


def test_the_verdict_is_what_the_job_is(evaluate: Evaluate) -> None:
    """A hang comes before any cost, a lost job is not shown as well, and what is not known is not green. The boards of
    one job and of all jobs agree."""
    queries = (target("job", "Verdict").filled(job_id="j"), target("jobs", "Jobs, the most urgent first").filled())
    cases = []
    for series, words, value in SHOWN:
        shown = {f'{{__name__="job_verdict:hindmost_urgency:max",job_id="j",verdict="{words}"}}': float(value)}
        row = {
            labels.replace('__name__="job_verdict:hindmost_urgency:max",', ""): found for labels, found in shown.items()
        }
        cases.append(Case(series, [(queries[0], END, shown), (queries[1], END, row)]))
    evaluate(cases)


def test_a_job_that_is_killed_turns_from_well_to_lost(evaluate: Evaluate) -> None:
    """Its last verdict is gone with the first scrape that finds it lost: nothing of it stays green."""
    name, _ = urgency(0, "balanced", "balanced")
    series = {**state("running", TICKS // 2, "lost"), name: f"0x{TICKS // 2} stale"}
    found = target("job", "Verdict").filled(job_id="j").replace("topk(1, ", "sum by (verdict) (")
    before, after = (TICKS // 2 - 1) * INTERVAL_S, (TICKS // 2 + 2) * INTERVAL_S
    evaluate(
        [Case(series, [(found, before, {'{verdict="balanced"}': 0}), (found, after, {'{verdict="contact lost"}': 3})])]
    )


def test_hours_lost_count_every_gpu_that_waits(evaluate: Evaluate) -> None:
    """A job of 8 GPUs that hangs for ten minutes has lost 80 GPU-minutes; one that loses 40 % has lost 0.4 of them."""
    devices = {'hindmost_job_devices{job_id="j",instance="c:1"}': f"8x{TICKS}"}
    now = target("jobs", "Lost now").filled()
    cases = [((2, "hang: rank 5", "hang"), 8), ((0.25, "straggler"), 2), ((0, "balanced"), 0), ((-1, "unsure"), 0)]
    evaluate([Case({**devices, **dict([urgency(*of)])}, [(now, END, {"{}": lost})]) for of, lost in cases])


def test_workers_count_with_their_rank(evaluate: Evaluate) -> None:
    """A rank's panels hold its loader workers, and a rank without workers counts alone."""
    of = '{job_id="j",rank="%d",node="n"}'
    series = {
        "hindmost_process_cpu_seconds_total" + of % 0: f"0+{INTERVAL_S}x{TICKS}",
        "hindmost_process_cpu_seconds_total" + of % 1: f"0+{INTERVAL_S}x{TICKS}",
        "hindmost_process_children_cpu_seconds_total" + of % 0: f"0+{3 * INTERVAL_S}x{TICKS}",
    }
    found = target("job", "CPU").filled(job_id="j").replace("topk(12, ", "sum by (rank) (")
    evaluate([Case(series, [(found, END, {'{rank="0"}': 4, '{rank="1"}': 1})])])


def test_what_two_collectors_see_counts_once(evaluate: Evaluate) -> None:
    """Each job that is started on its own has a collector; the silence is that of the job's own agent."""
    series = {'hindmost_rank_info{job_id="j",rank="0",node="n",instance="c:1"}': f"1x{TICKS}"}
    for number in (1, 2):
        of = f'node="n",instance="c:{number}"'
        gpu = f'{of},gpu_uuid="G"'
        series |= {
            f"hindmost_node_memory_available_bytes{{{of}}}": f"{number + 1}x{TICKS}",
            f"hindmost_node_memory_total_bytes{{{of}}}": f"4x{TICKS}",
            f"hindmost_collector_agent_silence_seconds{{{of}}}": f"{number}x{TICKS}",
            f'hindmost_gpu_info{{{gpu},gpu="0"}}': f"1x{TICKS}",
            f"hindmost_gpu_up{{{gpu}}}": f"1x{TICKS}",
            f"hindmost_gpu_sm_clock_hertz{{{gpu}}}": f"3x{TICKS}",
            f"hindmost_gpu_sm_clock_max_hertz{{{gpu}}}": f"4x{TICKS}",
            f'hindmost_gpu_ecc_errors_total{{{gpu},corrected="no"}}': f"0+1x{TICKS}",
        }
        counters = {
            f'hindmost_node_pressure_waiting_seconds_total{{{of},resource="io"}}': 0.6,
            f'hindmost_node_cpu_seconds_total{{{of},mode="user"}}': 6,
            f'hindmost_gpu_clocks_event_seconds_total{{{gpu},reason="hw_slowdown"}}': 0.0625,
        }
        for what in ("disk_read", "disk_written", "network_receive", "network_transmit"):
            for device in ("a", "b"):
                counters[f'hindmost_node_{what}_bytes_total{{{of},device="{device}"}}'] = 10
        series |= {name: f"0+{rate * INTERVAL_S}x{TICKS}" for name, rate in counters.items()}
    on_n, of_gpu = '{node="n"}', '{node="n",gpu_uuid="G",gpu="0"}'
    expected = [
        ("job", "Memory in use", "A", {on_n: 0.5}),
        ("job", "Pressure", "A", {'{node="n",resource="io"}': 0.6}),
        ("job", "Since the agent's last message", "A", {on_n: 1}),
        *(("job", title, ref, {on_n: 20}) for title in ("Disk", "Network") for ref in "AB"),
        ("nodes", "CPU time by mode", "A", {'{mode="user"}': 6}),
        ("nodes", "Pressure", "A", {'{node="n",resource="io"}': 0.6}),
        ("nodes", "Network bytes", "A", {f'{{node="n",device="{device}"}}': 10 for device in ("a", "b")}),
        ("gpus", "SM clock", "A", {of_gpu: 0.75}),
        ("gpus", "Held back", "A", {'{reason="hw_slowdown"}': 0.0625}),
        ("gpus", "Errors over the time range", "A", {on_n: 20}),
    ]
    checks = [
        (target(board, title, ref).filled(job_id="j" if board == "job" else ".*"), END, of)
        for board, title, ref, of in expected
    ]
    throttled = 'ALERTS{alertname="HindmostGpuThrottled"}'
    evaluate([Case(series, [*checks, (throttled, END, {})])])


def test_a_gpu_without_a_job_is_shown(evaluate: Evaluate) -> None:
    """The board has all GPUs; one that is chosen by its job has that job's only."""
    series = {}
    for gpu in range(2):
        of = f'node="n",gpu_uuid="G{gpu}"'
        series[f"hindmost_gpu_up{{{of}}}"] = series[f'hindmost_gpu_info{{{of},gpu="{gpu}"}}'] = f"1x{TICKS}"
        series[f"hindmost_gpu_power_watts{{{of}}}"] = f"{100 + gpu}x{TICKS}"
    series['hindmost_gpu_rank_info{node="n",gpu_uuid="G1",job_id="j",rank="4"}'] = f"1x{TICKS}"
    power = target("gpus", "Power")
    idle, used = '{node="n",gpu_uuid="G0",gpu="0"}', '{node="n",gpu_uuid="G1",gpu="1",job_id="j",rank="4"}'
    every = power.filled(job_id=".*"), END, {idle: 100.0, used: 101.0}
    evaluate([Case(series, [every, (power.filled(job_id="j"), END, {used: 101.0})])])


def test_a_large_job_stays_readable_with_its_culprit_on_top(evaluate: Evaluate) -> None:
    """Each panel that is about ranks has data, few enough series to read, and the one slow rank in it."""
    found = [
        one
        for one in targets("job")
        if ":hindmost_" in one.expression and "job_rank" in one.expression and "hindmost_process" not in one.expression
    ]
    assert len(found) > 15
    checks = []
    for one in found:
        expression, most = one.filled(job_id="big"), MOST.get(one.kind, MOST_LINES)
        checks.append((f"(count({expression}) > bool 0) * (count({expression}) <= bool {most})", END, {"{}": 1.0}))
    for title in (
        "Wait caused to others, the 12 worst ranks",
        "Last into a collective",
        "Wait caused to others, the 32 worst ranks",
        "Phases of the rank that causes most wait",
    ):
        first = target("job", title).filled(job_id="big")
        place = (
            f'count(topk(1, sum by (rank, node) ({first})) and on (rank, node) hindmost_rank_info{{rank="{CULPRIT}"}})'
        )
        checks.append((place, END, {"{}": 1.0}))
    evaluate([Case(dict(big()), checks)])


def big() -> Iterable[tuple[str, str]]:
    """Series of a job of 96 ranks on 12 nodes, one of which is slow by a fifth of a step."""
    for rank in range(RANKS):
        slow, labels = rank == CULPRIT, f'job_id="big",rank="{rank}"'
        yield f'hindmost_rank_info{{{labels},node="n{rank // PER_NODE}",pid="{rank + 2}"}}', f"1x{TICKS}"
        rates = {
            "steps": 2.0,
            "work": 64.0,
            "step_seconds": 1.0,
            "collectives": 8.0,
            "events_lost": 0.0,
            "wait_seconds": 0.01 if slow else 0.2,
            "caused_wait_seconds": 200.0 if slow else 0.01 + rank * 1e-6,
            "last_arrivals": 7.5 if slow else 0.5 / RANKS,
        }
        for name, rate in rates.items():
            yield f"hindmost_rank_{name}_total{{{labels}}}", f"0+{rate * INTERVAL_S}x{TICKS}"
        for phase, seconds in (("input", 0.1), ("forward", 0.5 if slow else 0.3), ("sync", 0.01 if slow else 0.2)):
            yield f'hindmost_rank_phase_seconds_total{{{labels},phase="{phase}"}}', f"0+{seconds * INTERVAL_S}x{TICKS}"
