"""Writes ``docs/metrics.md`` from what the samplers declare; run it with ``python -m hindmost_agent.documentation``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from hindmost_agent import samplers

if TYPE_CHECKING:
    from hindmost_agent.metric import Metric
    from hindmost_agent.sampler import Sampler

HEAD = """# Metrics of the node agent

Generated from the samplers' declarations by `python -m hindmost_agent.documentation > docs/metrics.md`; a test fails
when this page is stale. Every series also has the label `node`. A value that cannot be read has no sample; it is never
0. With `--interval 100ms`, samplers of *every tick* are read ten times a second; the others keep their period.
"""


def page() -> str:
    """The whole page, samplers in order of their names."""
    return "\n".join([HEAD, *(_section(sampler) for sampler in samplers.load().values())])


def _section(sampler: type[Sampler]) -> str:
    when = f"every {sampler.period:g} s" if sampler.period else "every tick"
    when += ", and when a verdict names a rank of this node," if sampler.tells_why else ""
    about = " ".join((sampler.__doc__ or "").split())
    lines = [f"## {sampler.name}", "", about, "", f"Read {when} from {sampler.source}.", ""]
    lines += ["| metric | kind | labels | what it is |", "| --- | --- | --- | --- |"]
    lines += [_row(metric) for metric in sampler.metrics]
    return "\n".join([*lines, ""])


def _row(metric: Metric) -> str:
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind.name.lower()} | {labels} | {metric.help.replace('|', '/')} |"


if __name__ == "__main__":
    sys.stdout.write(page())
