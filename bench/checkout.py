"""The checkout that a bench measures: its commit, to write with the figures, and where its packages are."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


def packages(checkout: Path = ROOT, probe: bool = False) -> str:
    """PYTHONPATH of a checkout's packages; with ``probe`` that of a rank which its probe observes."""
    first = "agent/hindmost/inject" if probe else "collector"
    return os.pathsep.join(str(checkout / one) for one in (first, "agent", "proto"))


def commit() -> str:
    """This tree's, with `-dirty` where files differ from it; `unknown` where there is no git."""
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def write(path: Path, found: dict[str, Any]) -> None:
    """The figures as JSON, and before them the commit."""
    path.write_text(json.dumps({"commit": commit(), **found}, indent=1) + "\n")
