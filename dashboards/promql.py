"""The PromQL that several panels share: who is selected, how ranks find their node, and what stays readable at scale.

Identity is on ``hindmost_rank_info`` only, so a series of a rank learns its node by a join. A job of thousands of ranks
must not draw thousands of lines: panels show the ranks that matter most.
"""

from __future__ import annotations

#: How many lines or bars a panel draws, and how many rows a table of ranks has.
LINES = 12
ROWS = 50

_INFO = 'hindmost_rank_info{job="$job",node=~"$node",rank=~"$rank"}'


def of_job(metric: str) -> str:
    """The chosen job's series of ``metric``."""
    return f'{metric}{{job="$job"}}'


def of_ranks(metric: str, matcher: str = "") -> str:
    """The chosen ranks' series of ``metric``, narrowed by one more matcher."""
    return f'{metric}{{job="$job",rank=~"$rank"{"," + matcher if matcher else ""}}}'


def per_second(selector: str) -> str:
    """Average rate over the interval that suits the panel's resolution."""
    return f"rate({selector}[$__rate_interval])"


def over_range(selector: str) -> str:
    """Increase over the dashboard's whole time range."""
    return f"increase({selector}[$__range])"


def per_step(selector: str) -> str:
    """Seconds a step of each rank, from a counter of seconds."""
    steps = of_ranks("hindmost_rank_steps_total")
    return f"{per_second(selector)} / on (job, rank) group_left () ({per_second(steps)} > 0)"


def with_node(expression: str, at: str = "") -> str:
    """Per-rank series with their node, without the ranks that are not selected.

    One identity a rank is taken even while an old and a new process of it are both visible. ``at`` fixes the time.
    """
    return f"({expression}) * on (job, rank) group_left (node) topk by (job, rank) (1, {_INFO}{at})"


def top(expression: str, ranking: str) -> str:
    """The ranks of ``expression`` with most of the counter ``ranking`` over the time range: the same all along."""
    chosen = with_node(f"increase({ranking}[$__range] @ end())", at=" @ end()")
    return f"{with_node(expression)} and on (job, rank) topk({LINES}, {chosen})"


def highest(expression: str) -> str:
    """The ranks with the highest ``expression``, at each moment."""
    return f"topk({LINES}, {with_node(expression)})"


def busiest(expression: str) -> str:
    """The nodes with the highest ``expression`` at each moment, among those that hold a selected rank."""
    return f"topk({LINES}, ({expression}) and on (node) group by (node) ({_INFO}))"
