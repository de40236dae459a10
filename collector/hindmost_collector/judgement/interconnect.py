"""What to look at where transfers are slow: what connects the ranks, as far as it is known where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hindmost_collector.judgement.wording import names
from hindmost_collector.model import Job

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_collector.model import Run

#: Nodes that an advice names.
_NAMED = 4
_BETWEEN = "NIC counters, cables, the switch port"
_OF_GPUS = "NVLink errors, PCIe width and speed, who shares a PCIe switch (`nvidia-smi topo -m`)"
_OF_HOSTS = "memory bandwidth, NUMA binding, other processes"


def advice(run: Run, ranks: Sequence[int]) -> str:
    """Where to look for a slow link of ``ranks``, of all where there are none: within their node, or between nodes."""
    seen = np.isin(run.ranks["rank"], ranks) if len(ranks) > 1 else np.ones(len(run.ranks["rank"]), bool)
    nodes = sorted(set(run.ranks["node"][seen].tolist()))
    who = f"the link of {names(ranks)}" if ranks else "what all ranks' traffic shares"
    others = "" if ranks else ", other jobs on the network"
    if not nodes or not nodes[0]:
        return f"look at {who}: within a node {_OF_GPUS}; between nodes {_BETWEEN}{others}"
    if len(nodes) > 1:
        which = f"{', '.join(nodes[:_NAMED])}{f' and {len(nodes) - _NAMED} more' if len(nodes) > _NAMED else ''}"
        return f"look at {who} between {which}: {_BETWEEN}{others}"
    return f"look at {who} within {nodes[0]}: {_OF_GPUS if _with_gpus(run) else _OF_HOSTS}"


def _with_gpus(run: Run) -> bool:
    """Whether ranks may have GPUs: our own runs name them, other tools' recordings need not."""
    return bool(run.job.source != Job.source or (run.ranks["gpu_uuid"] != "").any())
