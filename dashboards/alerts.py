"""The alert rules. Each has a section in ``docs/runbooks.md`` that says what it means and what to do.

What concerns a job is one alert a job, what concerns nodes one alert a node or a collector: a job of 512 nodes whose
agents are killed is one alert.
"""

from typing import Any, NamedTuple

from dashboards.thresholds import alert, lasting, minutes, runbook

CRITICAL, WARNING, NONE = "critical", "warning", "none"
_VERDICT = "job_id, kind, cause, ranks"
_STOPS = 'kind=~"hang|desync"'
#: XIDs that a program's own fault raises, and that say nothing of the hardware.
_OF_PROGRAMS = "13|31|43|45|68|69"


class Rule(NamedTuple):
    """One alert; ``lasting`` is how long it must hold before it fires."""

    name: str
    severity: str
    expression: str
    lasting: str
    summary: str
    description: str

    def written(self) -> dict[str, Any]:
        """As Prometheus reads it."""
        return {
            "alert": self.name,
            "expr": self.expression,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {
                "summary": self.summary,
                "description": self.description,
                "runbook_url": runbook(self.name),
            },
        }


def groups() -> list[dict[str, Any]]:
    """The groups of ``alerts.yml``."""
    return [
        {"name": name, "rules": [rule.written() for rule in rules]}
        for name, rules in (("hindmost-jobs", JOBS), ("hindmost-gpus", GPUS), ("hindmost-itself", ITSELF))
    ]


def _query(expression: str, shown: str) -> str:
    """A list within an annotation: what the template's ``expression`` finds as the alert fires."""
    return f"{{{{ range query {expression} }}}}{shown} {{{{ end }}}}"


_SILENT = "`topk(10, hindmost_collector_agent_connected == 0)`"
#: A job that is bound by its input, say, names no rank.
_NAMED = "{{ $labels.kind }}{{ with $labels.cause }}, {{ . }}{{ end }}{{ with $labels.ranks }}, rank {{ . }}{{ end }}"

JOBS = (
    Rule(
        "HindmostJobHangs",
        CRITICAL,
        f"max by ({_VERDICT}) (hindmost_verdict_info{{{_STOPS}}}) == 1",
        lasting("hang"),
        "Job {{ $labels.job_id }}: {{ $labels.kind }}{{ with $labels.ranks }}, rank {{ . }} does not arrive{{ end }}",
        "The other ranks wait in a collective that the named ranks have not entered. Look at their stacks in the "
        "run directory before the job is cancelled: stacks are lost with the processes.",
    ),
    Rule(
        "HindmostJobLost",
        CRITICAL,
        'max by (job_id) (hindmost_job_state{state="lost"}) == 1',
        lasting("contact"),
        "Job {{ $labels.job_id }}: no agent of it is heard",
        "All of its nodes, their network or their agents are down, or the job was killed with its agents. Whether it "
        "still trains is not known.",
    ),
    Rule(
        "HindmostNodesLost",
        WARNING,
        "max by (job_id) (hindmost_job_lost_nodes) > 0",
        lasting("contact"),
        "Job {{ $labels.job_id }}: {{ $value }} of its nodes are not heard",
        "Ranks on these nodes are missing from verdicts: the node, its network or its agent is down. Nodes without an "
        "agent: " + _query(_SILENT, "{{ .Labels.node }}"),
    ),
    Rule(
        "HindmostStraggler",
        WARNING,
        f"max by ({_VERDICT}) (hindmost_verdict_cost_ratio) > {alert('cost')}",
        lasting("cost"),
        f"Job {{{{ $labels.job_id }}}} loses {{{{ $value | humanizePercentage }}}} of its time: {_NAMED}",
        "For minutes one cause has cost more than the job can spare. The job's board shows where the time "
        "goes, the page and the run's report have evidence and advice.",
    ),
    Rule(
        "HindmostStragglerEarly",
        WARNING,
        f"max by ({_VERDICT}) (hindmost_verdict_cost_ratio) > {alert('early_cost')} and on (job_id) "
        f"time() - max by (job_id) (hindmost_job_start_time_seconds) < {60 * minutes('early_cost')}",
        lasting("early_cost"),
        f"Young job {{{{ $labels.job_id }}}} loses {{{{ $value | humanizePercentage }}}} of its time: {_NAMED}",
        "The job has just begun, or is short: it is cheap to cancel, fix and restart now. The page and "
        "the report have evidence and advice.",
    ),
)

GPUS = (
    Rule(
        "HindmostGpuDown",
        CRITICAL,
        "max by (node, gpu_uuid) (hindmost_gpu_up) == 0",
        "1m",
        "GPU {{ $labels.gpu_uuid }} of {{ $labels.node }} does not answer",
        "It is lost, or its driver has not answered for ten seconds; ranks on it stall or fail. See the node's kernel "
        "log for XID errors, and drain the node before the next job starts there.",
    ),
    Rule(
        "HindmostGpusUnread",
        CRITICAL,
        'max by (node, sampler) (hindmost_agent_sampler_success{sampler=~"nvidia|amd"}) == 0',
        "5m",
        "No GPU of {{ $labels.node }} can be read: {{ $labels.sampler }} fails",
        "The driver hangs, or it refuses the agent. Meanwhile there are no values of any GPU of that node. See the "
        "agent's journal there, and whether nvidia-smi or amd-smi returns.",
    ),
    Rule(
        "HindmostGpuVanished",
        WARNING,
        "count by (node) (group by (node, gpu_uuid) (present_over_time(hindmost_gpu_up[1h])) "
        "unless on (node, gpu_uuid) hindmost_gpu_up) and on (node) hindmost_collector_agent_connected == 1",
        lasting("gpu_vanished"),
        "{{ $value }} GPUs of {{ $labels.node }} had values within the hour and have none now",
        "The agent is connected and no longer sees these GPUs: the driver was unloaded, or a GPU fell off the bus. "
        "Compare nvidia-smi -L or amd-smi list with the board of GPUs.",
    ),
    Rule(
        "HindmostGpuXid",
        WARNING,
        "sum by (node, gpu_uuid) (increase(hindmost_gpu_all_xid_errors_total[10m])) > 0",
        "0s",
        "GPU {{ $labels.gpu_uuid }} of {{ $labels.node }} reports XID errors: "
        + _query(
            "(printf `max by (xid) (hindmost_gpu_xid_errors_total{gpu_uuid=%q})` $labels.gpu_uuid)", "{{ .Labels.xid }}"
        ),
        f"XIDs {_OF_PROGRAMS.replace('|', ', ')} come from programs; most others are reasons to drain the node. "
        "NVIDIA's catalogue of XID errors has each.",
    ),
    Rule(
        "HindmostGpuEcc",
        CRITICAL,
        'sum by (node, gpu_uuid) (increase(hindmost_gpu_ecc_errors_total{corrected="no"}[10m])) > 0 '
        "or max by (node, gpu_uuid) (hindmost_gpu_remap_failed) == 1",
        "0s",
        "GPU {{ $labels.gpu_uuid }} of {{ $labels.node }} has memory errors that ECC cannot correct",
        "Processes on it were or will be killed. Drain the node, reset the GPU so that rows are remapped, and replace "
        "it if remapping fails.",
    ),
    Rule(
        "HindmostGpuThrottled",
        WARNING,
        "sum by (node, gpu_uuid) (max by (node, gpu_uuid, reason) (rate(hindmost_gpu_clocks_event_seconds_total"
        '{reason=~"sw_thermal.*|hw_thermal.*|hw_slowdown|hw_power_brake.*"}[5m]) '
        f'or hindmost_gpu_clocks_event_ratio{{reason=~".*thermal.*"}})) > {alert("gpu_held_back")}',
        lasting("gpu_held_back"),
        "GPU {{ $labels.gpu_uuid }} of {{ $labels.node }} is slowed down {{ $value | humanizePercentage }} of the time",
        "Heat or the power supply holds its clock back, so its rank is late in each step. Compare its temperature with "
        "its neighbours'; check fans, coolant and power.",
    ),
)

ITSELF = (
    Rule(
        "HindmostWatchdog",
        NONE,
        "vector(1)",
        "0s",
        "Alerts reach their receiver",
        "Always fires. Send it to a receiver that calls for help when it stops: then Prometheus or Alertmanager is "
        "down, and no other alert will come.",
    ),
    Rule(
        "HindmostCollectorDown",
        WARNING,
        'up{job="hindmost"} == 0 or absent(up{job="hindmost"})',
        "2m",
        "The hindmost collector at {{ $labels.instance }} does not answer",
        "Training continues and agents spool what they measure, but stragglers are not reported. See systemctl status "
        "hindmost-collector and its journal.",
    ),
    Rule(
        "HindmostAgentsSilent",
        WARNING,
        "count by (instance) (hindmost_collector_agent_connected == 0) > 0",
        "2m",
        "{{ $value }} agents of the collector at {{ $labels.instance }} are not connected",
        "They did not sign off: nodes, their network or the agents are down. What they measure is in their spools. "
        "Nodes: " + _query(_SILENT, "{{ .Labels.node }}"),
    ),
    Rule(
        "HindmostRanksUnmeasured",
        WARNING,
        "max by (node) ((hindmost_agent_rings > 0) and on (node) "
        "rate(hindmost_agent_ring_events_total[2m]) == 0) unless on (node) (group by (node) (hindmost_rank_info "
        f"and on (job_id) hindmost_verdict_info{{{_STOPS}}})) "
        "or max by (node) (group by (node) (hindmost_rank_info) unless on (node) hindmost_process_cpu_seconds_total)",
        "2m",
        "The agent on {{ $labels.node }} sees ranks and measures nothing of them",
        "Ranks there wrote no event for two minutes and no hang explains it, or the agent cannot read their "
        "processes. Run hindmost doctor on the node.",
    ),
    Rule(
        "HindmostEventsLost",
        WARNING,
        "sum by (job_id) (increase(hindmost_rank_events_lost_total[5m])) > 0",
        lasting("losses"),
        "Job {{ $labels.job_id }}: {{ $value | humanize }} events were overwritten before an agent read them",
        "Verdicts on this job rest on incomplete data. Raise HINDMOST_RING_CAPACITY, or find out why the agent on the "
        "ranks' nodes gets no CPU.",
    ),
    Rule(
        "HindmostSpoolFills",
        WARNING,
        f"max by (node) (hindmost_agent_spool_bytes / hindmost_agent_spool_limit_bytes) > {alert('spool_used')}",
        lasting("spool_used"),
        "The spool of the agent on {{ $labels.node }} is {{ $value | humanizePercentage }} full",
        "The collector acknowledges more slowly than the agent measures. At the limit the oldest samples are dropped "
        "and counted. See whether the collector is up, and whether its disk is full.",
    ),
    Rule(
        "HindmostSamplesDropped",
        WARNING,
        "sum by (node, reason) (increase(hindmost_agent_dropped_samples_total[5m])) > 0",
        lasting("losses"),
        "The agent on {{ $labels.node }} dropped {{ $value | humanize }} samples: {{ $labels.reason }}",
        "These measurements are lost. Repair the connection to the collector, or give the agent a larger spool with "
        "--spool-size.",
    ),
    Rule(
        "HindmostDetectorFails",
        WARNING,
        "sum by (instance) (increase(hindmost_collector_detector_failures_total[10m])) > 0",
        "0s",
        "A detector of the collector at {{ $labels.instance }} failed",
        "Verdicts of that kind are missing from running jobs. The collector's log names the detector and why; the "
        "report's notes name it too. Please report it.",
    ),
    Rule(
        "HindmostLate",
        WARNING,
        "histogram_quantile(0.99, sum by (instance, le) (rate(hindmost_collector_loop_lag_seconds_bucket[5m]))) "
        f"> {alert('lag')}",
        lasting("lag"),
        "The collector at {{ $labels.instance }} is late by {{ $value | humanizeDuration }}",
        "Verdicts come late, and agents wait for acknowledgements. Give it CPU, put relays before it, or split the "
        "cluster between collectors.",
    ),
    Rule(
        "HindmostSeriesWithheld",
        WARNING,
        "max by (instance) (hindmost_collector_withheld_series) > 0",
        "2m",
        "The collector at {{ $labels.instance }} leaves {{ $value | humanize }} series out of /metrics",
        "There would be more than metrics_series. Boards lack cores, ranks or nodes. Raise the setting if Prometheus "
        "can take them, or choose a lower metrics_level.",
    ),
    Rule(
        "HindmostSegmentTorn",
        WARNING,
        "max by (instance) (hindmost_collector_torn_segments) > 0",
        "1m",
        "{{ $value | humanize }} segments of the store at {{ $labels.instance }} are torn",
        "Reports and queries leave their rows out. /readyz of that collector names the files: restore each from a copy "
        "under its name without .torn, or delete it. Check the disk.",
    ),
    Rule(
        "HindmostStoreFails",
        CRITICAL,
        "max by (instance) (hindmost_collector_store_failing) == 1",
        "1m",
        "The hindmost collector at {{ $labels.instance }} cannot write",
        "Its disk is full or not writable. Nothing is lost while the agents' spools have room: free space before they "
        "fill up. Live verdicts continue.",
    ),
)

RULES = (*JOBS, *GPUS, *ITSELF)
