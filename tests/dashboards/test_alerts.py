"""The alert rules, as Prometheus itself reads and evaluates them: each fires, and is quiet before and after."""

import re
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from tests.dashboards.conftest import INTERVAL_S, RULES, Case

ROOT = Path(__file__).parents[2]
#: For how many ticks a series is well, ill and well again in what follows.
BEFORE, ILL, AFTER = 8, 30, 60
#: When the alert must be quiet, fire, and be quiet again.
QUIET, FIRES, RESOLVED = (INTERVAL_S * tick for tick in (BEFORE - 1, BEFORE + ILL - 1, BEFORE + ILL + AFTER - 1))


def gauge(well: float, ill: float) -> str:
    """A value that is well, ill, and well again."""
    return f"{well}x{BEFORE} {ill}x{ILL} {well}x{AFTER}"


def growing(at_first: float, a_tick: float) -> str:
    """A counter that stands, grows by so much a tick, and stands again."""
    top = at_first + a_tick * ILL
    return f"{at_first}x{BEFORE} {at_first}+{a_tick}x{ILL} {top}x{AFTER}"


def there(before: bool, ill: bool) -> str:
    """A series that exists with the value 1, or not."""
    return " ".join(
        f"1x{ticks}" if seen else f"_x{ticks}" for seen, ticks in ((before, BEFORE), (ill, ILL), (before, AFTER))
    )


ALWAYS = f"1x{BEFORE + ILL + AFTER + 2}"
SLOW = 'hindmost_verdict_cost_ratio{job_id="j",instance="c:1",kind="straggler",cause="compute",ranks="2"}'
HANG = 'hindmost_verdict_info{job_id="j",instance="c:1",kind="hang",cause="unknown",ranks="3",since_step="4"}'
STOPS = f"0+9x{BEFORE} {9 * BEFORE}x{ILL} {9 * BEFORE}+9x{AFTER}"
CONNECTED = 'hindmost_collector_agent_connected{instance="c:1",node="%s"}'
OLD, YOUNG = "-1800", "0"


class Alert(NamedTuple):
    """Series with which an alert fires, and the labels by which it is grouped; ``more``: of others that fire, too."""

    name: str
    labels: dict[str, str]
    series: dict[str, str]
    more: tuple[dict[str, str], ...] = ()


def started(at: str) -> dict[str, str]:
    """When job ``j`` began: time is 0 at the first tick."""
    return {'hindmost_job_start_time_seconds{job_id="j",instance="c:1"}': f"{at}x{BEFORE + ILL + AFTER + 2}"}


def of_k(series: dict[str, str]) -> dict[str, str]:
    """The same of job ``k``."""
    return {name.replace('job_id="j"', 'job_id="k"'): values for name, values in series.items()}


VERDICT = {"job_id": "j", "kind": "straggler", "cause": "compute", "ranks": "2"}
JOB, NODE, GPU, COLLECTOR = {"job_id": "j"}, {"node": "n"}, {"node": "n", "gpu_uuid": "G"}, {"instance": "c:1"}
AGENT, OTHER_GPU, LAG = NODE | COLLECTOR, {"node": "m", "gpu_uuid": "H"}, "hindmost_collector_loop_lag_seconds_bucket"


def of(metric: str, *labels: dict[str, str], **more: str) -> str:
    """The name of a series."""
    pairs = {name: value for one in (*labels, more) for name, value in one.items()}
    return metric + "{" + ",".join(f'{name}="{value}"' for name, value in pairs.items()) + "}"


def one(name: str, labels: dict[str, str], metric: str, values: str, *others: dict[str, str], **more: str) -> Alert:
    """One that needs a single series, of the labels that the alert has, of ``others`` and of ``more``."""
    return Alert(name, labels, {of(metric, labels, *others, **more): values})


ALERTS = [
    Alert("HindmostJobHangs", {**JOB, "kind": "hang", "cause": "unknown", "ranks": "3"}, {HANG: there(False, True)}),
    one("HindmostJobLost", JOB, "hindmost_job_state", gauge(0, 1), COLLECTOR, state="lost"),
    one("HindmostNodesLost", JOB, "hindmost_job_lost_nodes", gauge(0, 16), COLLECTOR),
    Alert("HindmostStraggler", VERDICT, {SLOW: gauge(0.09, 0.4), **started(OLD)}, more=({**VERDICT, "job_id": "k"},)),
    Alert("HindmostStragglerEarly", {**VERDICT, "job_id": "k"}, of_k({SLOW: gauge(0.09, 0.4), **started(YOUNG)})),
    one("HindmostGpuDown", {**NODE, "gpu_uuid": "D"}, "hindmost_gpu_up", gauge(1, 0)),
    one("HindmostGpusUnread", {**NODE, "sampler": "nvidia"}, "hindmost_agent_sampler_success", gauge(1, 0)),
    Alert(
        "HindmostGpuVanished",
        NODE,
        {of("hindmost_gpu_up", GPU): there(True, False).replace("_x", "stale _x", 1), CONNECTED % "n": ALWAYS},
    ),
    one("HindmostGpuXid", GPU, "hindmost_gpu_all_xid_errors_total", growing(0, 1)),
    Alert(
        "HindmostGpuEcc",
        GPU,
        {
            of("hindmost_gpu_ecc_errors_total", GPU, corrected="no"): growing(0, 1),
            of("hindmost_gpu_ecc_errors_total", OTHER_GPU, corrected="yes"): growing(0, 1),
        },
    ),
    Alert(
        "HindmostGpuThrottled",
        GPU,
        {
            of("hindmost_gpu_clocks_event_seconds_total", GPU, reason="sw_thermal_slowdown"): growing(0, 9),
            of("hindmost_gpu_clocks_event_seconds_total", OTHER_GPU, reason="gpu_idle"): growing(0, 15),
        },
    ),
    one("HindmostCollectorDown", {"instance": "c:2", "job": "hindmost"}, "up", gauge(1, 0)),
    Alert("HindmostAgentsSilent", COLLECTOR, {CONNECTED % f"n{number}": gauge(1, 0) for number in range(16)}),
    Alert(
        "HindmostRanksUnmeasured",
        NODE,
        {of("hindmost_agent_rings", AGENT): ALWAYS, of("hindmost_agent_ring_events_total", AGENT): STOPS},
    ),
    one("HindmostEventsLost", JOB, "hindmost_rank_events_lost_total", growing(0, 3), rank="0"),
    Alert(
        "HindmostSpoolFills",
        NODE,
        {
            of("hindmost_agent_spool_bytes", AGENT): gauge(10, 90),
            of("hindmost_agent_spool_limit_bytes", AGENT): gauge(100, 100),
        },
    ),
    one(
        "HindmostSamplesDropped",
        {**NODE, "reason": "spool_full"},
        "hindmost_agent_dropped_samples_total",
        growing(0, 3),
    ),
    one("HindmostDetectorFails", COLLECTOR, "hindmost_collector_detector_failures_total", growing(0, 1)),
    Alert(
        "HindmostLate",
        COLLECTOR,
        {of(LAG, COLLECTOR, le="0.1"): STOPS}
        | {of(LAG, COLLECTOR, le=le): f"0+9x{BEFORE + ILL + AFTER}" for le in ("5", "+Inf")},
    ),
    one("HindmostSeriesWithheld", COLLECTOR, "hindmost_collector_withheld_series", gauge(0, 7)),
    one("HindmostSegmentTorn", COLLECTOR, "hindmost_collector_torn_segments", gauge(0, 2)),
    one("HindmostStoreFails", COLLECTOR, "hindmost_collector_store_failing", gauge(0, 1)),
]
UP = {'up{job="hindmost",instance="c:1"}': ALWAYS}


def rules() -> list[dict[str, Any]]:
    """The rules of ``alerts.yml``."""
    found: list[dict[str, Any]] = yaml.safe_load(RULES[1].read_text(encoding="utf-8"))["groups"]
    return [rule for group in found for rule in group["rules"]]


@pytest.mark.needs("promtool")
def test_promtool_accepts_the_rules() -> None:
    """Prometheus would load both files."""
    checked = subprocess.run(["promtool", "check", "rules", *RULES], check=False, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stderr


@pytest.mark.needs("promtool")
def test_each_alert_fires_once_where_it_must_and_never_else(evaluate: Callable[[Iterable[Case]], None]) -> None:
    """16 silent agents are one alert, a verdict is one of its job; before all goes wrong and after it nothing fires."""
    firing = {}
    for alert in ALERTS:
        severity = next(rule["labels"]["severity"] for rule in rules() if rule["alert"] == alert.name)
        for labels in (alert.labels, *alert.more):
            firing[of("", labels, __name__="ALERTS", alertname=alert.name, alertstate="firing", severity=severity)] = (
                1.0
            )
    series = {name: values for alert in ALERTS for name, values in alert.series.items()}
    found = 'ALERTS{alertname!="HindmostWatchdog",alertstate="firing"}'
    expected = [(found, float(at), firing if at == FIRES else {}) for at in (QUIET, FIRES, RESOLVED)]
    evaluate([Case({**UP, **series}, expected)])


@pytest.mark.needs("promtool")
def test_the_watchdog_always_fires_and_a_missing_collector_is_told(evaluate: Callable[[Iterable[Case]], None]) -> None:
    """The dead man's switch needs no series; that no collector is scraped at all is an alert."""
    firing = 'count by (alertname) (ALERTS{alertstate="firing"})'
    found = {'{alertname="HindmostWatchdog"}': 1.0, '{alertname="HindmostCollectorDown"}': 1.0}
    evaluate([Case({"other": ALWAYS}, [(firing, float(FIRES), found)])])


@pytest.mark.needs("promtool")
def test_a_short_job_is_told_at_once_and_an_old_one_when_it_lasts(evaluate: Callable[[Iterable[Case]], None]) -> None:
    """Half a minute after its onset a straggler of a young job fires; that of an old one does after five minutes."""
    soon, lasts = (BEFORE + 2.0) * INTERVAL_S, (BEFORE + 22.0) * INTERVAL_S
    firing = 'count by (alertname) (ALERTS{alertname=~"HindmostStraggler.*",alertstate="firing"})'
    early, late = {'{alertname="HindmostStragglerEarly"}': 1.0}, {'{alertname="HindmostStraggler"}': 1.0}
    cases = [({**UP, SLOW: gauge(0, 0.4), **started(YOUNG)}, [(firing, soon, early), (firing, lasts, early | late)])]
    cases.append(({**UP, SLOW: gauge(0, 0.4), **started(OLD)}, [(firing, soon, {}), (firing, lasts, late)]))
    evaluate([Case(*case) for case in cases])


@pytest.mark.needs("promtool")
def test_a_hang_explains_that_ranks_write_no_events(evaluate: Callable[[Iterable[Case]], None]) -> None:
    """Where a job hangs its ranks are silent: that is one alert and not two."""
    (silent,) = [alert.series for alert in ALERTS if alert.name == "HindmostRanksUnmeasured"]
    info = {
        'hindmost_rank_info{job_id="j",rank="3",node="n"}': ALWAYS,
        'hindmost_process_cpu_seconds_total{node="n"}': ALWAYS,
    }
    (hangs,) = [alert.series for alert in ALERTS if alert.name == "HindmostJobHangs"]
    firing = 'count by (alertname) (ALERTS{alertname!="HindmostWatchdog",alertstate="firing"})'
    evaluate(
        [Case({**UP, **silent, **info, **hangs}, [(firing, float(FIRES), {'{alertname="HindmostJobHangs"}': 1.0})])]
    )


@pytest.mark.needs("promtool")
def test_texts_name_what_is_ill(tmp_path: Path) -> None:
    """Summaries and descriptions are filled in, with the nodes and the XIDs that a query finds."""
    series = {
        CONNECTED % "n7": gauge(1, 0),
        'hindmost_verdict_cost_ratio{job_id="j",kind="input_bound",cause="input",ranks=""}': gauge(0, 0.4),
        'hindmost_gpu_all_xid_errors_total{node="n",gpu_uuid="G"}': growing(0, 1),
        'hindmost_gpu_xid_errors_total{node="n",gpu_uuid="G",xid="79"}': growing(0, 1),
    }
    texts = {rule["alert"]: rule["annotations"] for rule in rules()}
    filled = {
        "HindmostAgentsSilent": (COLLECTOR, {"{{ $value }}": "1", "{{ $labels.instance }}": "c:1"}, "n7 "),
        "HindmostGpuXid": (GPU, {"{{ $labels.gpu_uuid }}": "G", "{{ $labels.node }}": "n"}, "79 "),
    }
    expected = []
    for name, (labels, words, listed) in filled.items():
        annotations = {}
        for key, text in texts[name].items():
            annotations[key] = re.sub(r"\{\{ range.*\{\{ end \}\}", listed, text)
            for word, value in words.items():
                annotations[key] = annotations[key].replace(word, value)
        alerts = [{"exp_labels": {"severity": "warning", **labels}, "exp_annotations": annotations}]
        expected.append({"eval_time": f"{FIRES}s", "alertname": name, "exp_alerts": alerts})
    expected.append({"eval_time": f"{FIRES}s", "alertname": "HindmostStraggler", "exp_alerts": [bound_by_input(texts)]})
    made = [{"series": name, "values": values} for name, values in series.items()]
    tests = [{"interval": f"{INTERVAL_S}s", "input_series": made, "alert_rule_test": expected}]
    path = tmp_path / "texts.yml"
    path.write_text(
        yaml.safe_dump({"rule_files": [str(RULES[1])], "evaluation_interval": f"{INTERVAL_S}s", "tests": tests})
    )
    tested = subprocess.run(["promtool", "test", "rules", path], check=False, capture_output=True, text=True)
    assert tested.returncode == 0, tested.stdout + tested.stderr


def bound_by_input(texts: dict[str, dict[str, str]]) -> dict[str, Any]:
    """The alert of a verdict that names no rank: nor does its text."""
    summary = "Job j loses 40% of its time: input_bound, input"
    labels = {"severity": "warning", "job_id": "j", "kind": "input_bound", "cause": "input"}
    return {"exp_labels": labels, "exp_annotations": {**texts["HindmostStraggler"], "summary": summary}}


def test_every_alert_has_a_case_a_severity_and_a_page_that_says_what_to_do() -> None:
    """No alert is untested, none pages without a description, and each has its runbook; no runbook is left over."""
    tested = {alert.name for alert in ALERTS} | {"HindmostWatchdog"}
    assert {rule["alert"] for rule in rules()} == tested
    for rule in rules():
        assert rule["labels"]["severity"] in {"critical", "warning", "none"}
        assert len(rule["annotations"]["description"].split()) > 15, rule["alert"]
        assert rule["annotations"]["runbook_url"] == f"docs/runbooks.md#{rule['alert'].lower()}"
    sections = (ROOT / "docs/runbooks.md").read_text(encoding="utf-8").split("\n## ")[1:]
    assert all("\n\nLook:\n- " in section and "\n\nDo:\n- " in section for section in sections)
    assert {section.partition("\n")[0] for section in sections} == tested
