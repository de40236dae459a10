"""Which commit a bench measured, to write with its figures."""

import json
import subprocess
from pathlib import Path
from typing import Any


def commit() -> str:
    """This tree's, with `-dirty` where files differ from it; `unknown` where there is no git."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    except FileNotFoundError:
        return "unknown"


def write(path: Path, found: dict[str, Any]) -> None:
    """The figures as JSON, and before them the commit."""
    path.write_text(json.dumps({"commit": commit(), **found}, indent=1) + "\n")
