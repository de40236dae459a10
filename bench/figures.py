"""Figures in README.md and docs/explanation/performance.md: measures what two cores can measure in five minutes.

    make figures                           # measure, keep bench/results/figures.json, rewrite both tables
    python -m bench.figures --table        # rewrite the tables from what was measured last

Nothing else should run meanwhile. Accuracy takes 30 minutes and is measured by bench/accuracy; its
rows are of the commits that bench/results/accuracy.json and lanes.json name. A collector's load is the median of the
runs that bench/collector_load kept. Figures on GPUs are from bench/gpu.
"""

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

from bench.checkout import commit
from bench.collector_load.__main__ import typical

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
KEPT = RESULTS / "figures.json"
README, PERFORMANCE = ROOT / "README.md", ROOT / "docs" / "explanation" / "performance.md"
#: The table of a page: what is between these lines is this program's.
TABLE = re.compile(r"(<!-- figures: make figures -->\n).*?(<!-- end of figures -->)", re.DOTALL)
#: Agents of the collector that the README's row is about.
AGENTS = 1024


def measure() -> dict[str, Any]:
    """Run each bench for a short time; its results, the commit and the machine."""
    with tempfile.TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("probe", "agent")}
        commands = {
            "probe": ["-m", "bench.probe_overhead", "--part", "calls", "messages", "--out", str(files["probe"])],
            "agent": ["-m", "bench.agent_cost", "--seconds", "20", "--rounds", "3", "--out", str(files["agent"])],
        }
        for command in commands.values():
            subprocess.run([sys.executable, *command], cwd=ROOT, check=True)
        found = {name: json.loads(file.read_text(encoding="utf-8")) for name, file in files.items()}
    machine = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    when = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    return {"commit": commit(), "when": when, "machine": machine, **found}


def headline(
    load: dict[str, Any],
    accuracy: dict[str, Any],
    lanes: dict[str, Any],
    on_gpus: dict[str, Any],
    guests: dict[str, Any],
    live: list[Any],
) -> str:
    """The README's rows."""
    named, slow = counted(accuracy, "single fault of 5 % or more: recall")
    exact, all_lanes = exactly(lanes)
    right, cases = sum(one["as_expected"] for one in live), sum(one["of"] for one in live)
    wrong = [case for one in live for case in one["faults"] if not case["as_expected"]]
    healthy = sum(case["expected"].startswith("no rank") for case in wrong)
    missed = f"{len(wrong) - healthy} missed a cause, the source line of a hang, or one of two slow ranks"
    said = f"{right} of {cases}; {healthy} named a healthy rank, {missed}"
    step_ms, longer = on_gpus["step_ms"]["out"], on_gpus["between"]["all - out"]
    low, high = longer["percent_95"]
    cpu, mib = (typical(load, "hindmost", AGENTS, name) for name in ("cpu_of_a_core", "rss_mib"))
    whole = guests["numpy 2400 on 16 cores"]
    on_full_cores = []
    for name, digits in (("products 80 within", 0), ("within, 16 cores", 1)):
        running = guests[f"numpy 200000 {name}"]
        step = f"step of {running['step_ms_without']:.{digits}f} ms of an all-reduce job on {running['machine_cores']}"
        on_full_cores.append(
            (
                f"{step} full cores, after start-up (40 s): how much longer with hindmost",
                "{:+.1f} % (95 % interval {:.1f} to {:.1f})".format(running["percent"], *running["percent_95"]),
                "`bench/guest`",
            )
        )
    floor = typical(load, "bare", AGENTS, "cpu_of_a_core")
    return rows(
        ("simulated jobs with a fault of 5 % or more, judged right", f"{named} of {slow}", "`bench/accuracy`"),
        (
            "jobs of a second simulator, with small faults and few ranks too: exactly the right ranks named",
            f"{exact} of {all_lanes}",
            "`bench/accuracy --suite lanes`",
        ),
        ("live jobs on H200s, with and without faults, judged right", said, "`bench/gpu`"),
        (
            f"DDP step of {step_ms:.0f} ms on two H200s, with agent, probe and collector",
            f"{longer['percent']:.2f} % longer (95 % interval {low:.2f} to {high:.2f})",
            "`bench/gpu/guest_parts.py`",
        ),
        *on_full_cores,
        (
            f"command of such a job on {whole['machine_cores']} cores, start and report included: how much longer",
            "{:.1f} s (95 % interval {:.1f} to {:.1f})".format(
                whole["command_longer_s"], *whole["command_longer_s_95"]
            ),
            "`bench/guest`",
        ),
        (
            f"collector of {AGENTS:,} simulated nodes with 8 ranks each",
            f"{cpu:.2f} of a core, {mib:.0f} MiB; receiving the same messages alone takes {floor:.2f}",
            "`bench/collector_load`",
        ),
    )


def parts(kept: dict[str, Any], accuracy: dict[str, Any]) -> str:
    """The rows of performance.md, and how they were measured."""
    agent = kept["agent"]["summary"]["agent 1 Hz"]
    cpu, mib = agent["cpu_percent_of_a_core"]["median"], agent["rss_mib"]
    calls, messages = (f"+{kept['probe'][part]['difference']:.0f} ns" for part in ("calls", "messages"))
    table = rows(
        ("probe: one MPI collective", calls, "`bench/probe_overhead.py`"),
        ("probe: one MPI send or receive", messages, "`bench/probe_overhead.py`"),
        ("agent: one a node, at 1 Hz", f"{cpu:.2f} % of a core, {mib:.0f} MiB", "`bench/agent_cost.py`"),
    )
    measured = f"Measured on {kept['machine']}, {kept['when']}, commit {kept['commit']}."
    around = f"Other work had a load of {kept['agent']['load_before']:.1f}. Accuracy is of commit {accuracy['commit']}."
    return f"{table}\n{measured}\n{around}\n"


def rows(*cells: tuple[str, str, str]) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in (("what", "measured", "by"), ("---", "---", "---"), *cells))


def counted(accuracy: dict[str, Any], name: str) -> tuple[str, str]:
    """How many of how many a row of the accuracy table counts."""
    (row,) = (one for one in accuracy["table"] if one.startswith(f"| {name} |"))
    found = re.search(r"\((\d+)(?:/| in )([\d,]+)\)", row)
    if not found:
        raise ValueError(f"bench/results/accuracy.json: no count in {row!r}")
    return found[1], found[2]


def exactly(lanes: dict[str, Any]) -> tuple[int, int]:
    """Of how many jobs of the second simulator exactly the right ranks were named, and of how many there are."""
    (row,) = (one for one in lanes["table"] if one.startswith("| all |"))
    many, fewer, *_ = re.findall(r"\((\d+)/(\d+)\)", row)  # of 8 ranks or more, and of fewer
    return int(many[0]) + int(fewer[0]), int(many[1]) + int(fewer[1])


def pages() -> dict[Path, str]:
    """Each page with the table of what was measured last."""
    names = ("figures", "collector_load", "accuracy", "lanes", "guest_parts_h200x2", "guest")
    files = [RESULTS / f"{name}.json" for name in names]
    kept, load, accuracy, lanes, on_gpus, guests = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    live = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(RESULTS.glob("live_faults_*.json"))]
    tables = {README: headline(load, accuracy, lanes, on_gpus, guests, live), PERFORMANCE: parts(kept, accuracy)}
    return {page: _in_place(page.read_text(encoding="utf-8"), table) for page, table in tables.items()}


def _in_place(text: str, table: str) -> str:
    return TABLE.sub(lambda found: found[1] + table + found[2], text)


def main() -> None:
    """Measure and write, or write only."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", action="store_true", help="rewrite the tables from what was measured last")
    if not parser.parse_args().table:
        KEPT.write_text(json.dumps(measure(), indent=1) + "\n", encoding="utf-8")
    for page, text in pages().items():
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
