"""The README's figures: measures what two cores can measure in five minutes, and writes the table.

    make figures                           # measure, keep bench/results/figures.json, rewrite the README's table
    python -m bench.figures --table        # rewrite the table from what was measured last

Nothing else should run meanwhile. Accuracy takes 25 minutes and is measured by bench/accuracy; its row is of the commit
that bench/results/accuracy.json names.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
KEPT = RESULTS / "figures.json"
README = ROOT / "README.md"
#: The table in the README, and what is between these lines is this program's.
TABLE = re.compile(r"(<!-- figures: make figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)
AGENTS = 1024


def measure() -> dict[str, Any]:
    """Run each bench for a short time; its results, the commit and the machine."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("probe", "agent", "collector")}
        commands = {
            "probe": ["bench/probe_overhead.py", "--part", "calls", "messages", "--out", str(files["probe"])],
            "agent": ["bench/agent_cost.py", "--seconds", "20", "--rounds", "3", "--out", str(files["agent"])],
            "collector": ["-m", "bench.collector_load", "--agents", str(AGENTS), "-o", str(files["collector"])],
        }
        for command in commands.values():
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
        found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.strip()
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    when = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"commit": commit, "when": when, "machine": machine, **found}


def table(kept: dict[str, Any], accuracy: dict[str, Any]) -> str:
    """The README's rows."""
    added = ", ".join(f"+{kept['probe'][part]['difference']:.0f} ns" for part in ("calls", "messages"))
    agent = kept["agent"]["summary"]["agent 1 Hz"]
    (load,) = (one for one in kept["collector"]["measured"] if one["server"] == "hindmost")
    named, slow = counted(accuracy, "single fault of 5 % or more: recall")
    false, steps_seen = counted(accuracy, "clean jobs, half of them with varying sequence lengths: false alarms, steps")
    agent_cpu, agent_mib = agent["cpu_percent_of_a_core"]["median"], agent["rss_mib"]
    cells = [
        ("what", "measured", "by"),
        ("---", "---", "---"),
        (
            f"accuracy: {slow} simulated jobs with one fault of 5 % or more",
            f"the right rank in {named} of them",
            "`bench/accuracy`",
        ),
        (f"accuracy: {steps_seen} steps of simulated jobs without a fault", f"{false} false alarms", "the same"),
        ("probe: one MPI collective, one MPI send or receive", added, "`bench/probe_overhead.py`"),
        ("agent: one a node, at 1 Hz", f"{agent_cpu:.2f} % of a core, {agent_mib:.0f} MiB", "`bench/agent_cost.py`"),
        (
            f"collector: {load['agents']:,} simulated nodes of 8 ranks",
            f"{load['cpu_of_a_core']:.2f} of a core, {load['rss_mib']} MiB",
            "`bench/collector_load`",
        ),
    ]
    rows = "".join(f"| {' | '.join(row)} |\n" for row in cells)
    measured = f"Measured on {kept['machine']}, {kept['when']}, commit {kept['commit']}; `make figures` repeats it."
    around = f"Other work had a load of {kept['agent']['load_before']:.1f}. Accuracy is of commit {accuracy['commit']}."
    return f"{rows}\n{measured}\n{around}\n"


def counted(accuracy: dict[str, Any], name: str) -> tuple[str, str]:
    """How many of how many a row of the accuracy table counts."""
    (row,) = (one for one in accuracy["table"] if one.startswith(f"| {name} |"))
    found = re.search(r"\((\d+)(?:/| in )([\d,]+)\)", row)
    if not found:
        raise ValueError(f"bench/results/accuracy.json: no count in {row!r}")
    return found[1], found[2]


def in_place(text: str) -> str:
    """The README with the table of what was measured last."""
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    accuracy = json.loads((RESULTS / "accuracy.json").read_text(encoding="utf-8"))
    return TABLE.sub(lambda found: found[1] + table(kept, accuracy) + found[2], text)


def main() -> None:
    """Measure and write, or write only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="rewrite the table from what was measured last")
    if not parser.parse_args().table:
        KEPT.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    README.write_text(in_place(README.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
