"""Write each dashboard's JSON next to this file, or with ``--check`` say which of them is stale."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from dashboards import gpus, job, nodes

HERE = Path(__file__).parent
DASHBOARDS = {
    "hindmost-job.json": job.dashboard,
    "hindmost-nodes.json": nodes.dashboard,
    "hindmost-gpus.json": gpus.dashboard,
}


def render(name: str) -> str:
    """The text of one dashboard file, as it is checked in."""
    return json.dumps(DASHBOARDS[name](), cls=JSONEncoder, indent=2, sort_keys=True) + "\n"


def main(arguments: list[str]) -> int:
    """Write all files; with ``--check`` write none and return 1 where one differs from what would be written."""
    stale = [name for name in DASHBOARDS if not _is_fresh(name)]
    if "--check" in arguments:
        for name in stale:
            sys.stderr.write(f"dashboards/{name} is stale: run python -m dashboards\n")
        return 1 if stale else 0
    for name in stale:
        (HERE / name).write_text(render(name), encoding="utf-8")
    return 0


def _is_fresh(name: str) -> bool:
    path = HERE / name
    return path.exists() and path.read_text(encoding="utf-8") == render(name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
