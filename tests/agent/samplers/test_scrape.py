"""One scrape of a whole node is what it was, and what Prometheus wants. Renew with ``RENEW_GOLDEN=1 pytest``."""

import os
import re
import subprocess
from collections import Counter
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.exposition import Exposition
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host

GOLDEN = Path(__file__).resolve().parents[2] / "golden/agent_scrape.txt"
TESTS = "".join(path.read_text(encoding="utf-8") for path in Path(__file__).parent.glob("test_*.py"))


def kinds() -> dict[str, type]:
    """All but the agent's account of itself, which differs from run to run."""
    return {name: kind for name, kind in samplers.load().items() if name != "agent"}


def scrape(host: Host) -> bytes:
    runner = Runner(kinds(), host, NS)
    for second in (0, 100):
        runner.run(second * NS)
    return Exposition("node1").render(runner.latest.values())


def test_the_scrape_is_what_it_was(node: Host) -> None:
    """Every sampler finds its source on this node, or has tests of its own; none fails."""
    page = scrape(node)
    if os.environ.get("RENEW_GOLDEN"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_bytes(page)
    assert +node.counts.errors == {}
    elsewhere = {kind for name, kind in kinds().items() if name not in node.counts.success}
    assert not {kind for kind in elsewhere if not re.search(rf"{kind.__module__} import.*\b{kind.__name__}\b", TESTS)}
    assert page.decode().splitlines() == GOLDEN.read_text().splitlines()


def test_the_scrape_of_a_recorded_machine_is_what_it_was(recorded: Host) -> None:
    """Its kernel's own files and its driver's own answers; no sampler fails on them."""
    golden = GOLDEN.with_name(f"agent_scrape_{recorded.proc.parent.name}.txt")
    page = scrape(recorded)
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_bytes(page)
    assert +recorded.counts.errors == {}
    assert page.decode().splitlines() == golden.read_text().splitlines()
    assert "hindmost_process_threads_runqueue_seconds_total" in page.decode()


@pytest.mark.needs("promtool")
def test_prometheus_has_nothing_to_say_against_it(node: Host) -> None:
    """promtool lints names, units and help."""
    done = subprocess.run(["promtool", "check", "metrics"], input=scrape(node), capture_output=True, check=False)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_no_series_comes_twice(node: Host) -> None:
    """Prometheus refuses a page that holds one series twice."""
    names = [line.rsplit(" ", 1)[0] for line in scrape(node).decode().splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)) > 1000


def test_a_metric_belongs_to_one_sampler() -> None:
    """Two sources of one name would be two values of one series."""
    names = Counter(metric.name for sampler in samplers.load().values() for metric in dict.fromkeys(sampler.metrics))
    # The two readers of NVIDIA's and AMD's cards share what any GPU tells: a card is read by one of them.
    shared = {name for name, count in names.items() if count > 1 and not name.startswith("hindmost_gpu_")}
    assert not shared


def test_every_sampler_says_what_it_is() -> None:
    """Its file has its name or that of the source it is a part of (`amd_health`: `amd.py`); the rest is declared."""
    for name, sampler in samplers.load().items():
        assert name.startswith(sampler.__module__.rpartition(".")[2])
        assert sampler.source
        assert sampler.period >= 0
        assert (sampler.__doc__ or "").strip().endswith(".")
        assert sampler.metrics
