"""One scrape of a whole node is what it was, and what Prometheus wants. Renew with ``RENEW_GOLDEN=1 pytest``."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from hindmost_agent import samplers
from hindmost_agent.exposition import Exposition
from hindmost_agent.runner import Runner
from hindmost_agent.sampler import NS, Host
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

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
    assert +node.own.errors == {}
    elsewhere = {kind for name, kind in kinds().items() if name not in node.own.success}
    assert not {kind for kind in elsewhere if not re.search(rf"{kind.__module__} import.*\b{kind.__name__}\b", TESTS)}
    assert page.decode().splitlines() == GOLDEN.read_text().splitlines()


def test_the_scrape_of_a_recorded_machine_is_what_it_was(recorded: Host) -> None:
    """Its kernel's own files and its driver's own answers; no sampler fails on them."""
    golden = GOLDEN.with_name(f"agent_scrape_{recorded.proc.parent.name}.txt")
    page = scrape(recorded)
    if os.environ.get("RENEW_GOLDEN"):
        golden.write_bytes(page)
    assert +recorded.own.errors == {}
    assert page.decode().splitlines() == golden.read_text().splitlines()
    assert "hindmost_process_threads_runqueue_seconds_total" in page.decode()


@pytest.mark.needs("promtool")
def test_prometheus_has_nothing_to_say_against_it(node: Host) -> None:
    """promtool lints names, units and help."""
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=scrape(node), capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr.decode()) == (0, "")


def test_no_series_comes_twice(node: Host) -> None:
    """Prometheus refuses a page that holds one series twice."""
    names = [line.rsplit(" ", 1)[0] for line in scrape(node).decode().splitlines() if not line.startswith("#")]
    assert len(names) == len(set(names)) > 2000


BROKEN = st.one_of(
    st.binary(max_size=200),
    st.integers(0, 60),  # truncated to so much
    st.just("huge"),
    st.none(),  # vanished
)


def damaged(whole: bytes, how: bytes | int | str) -> bytes:
    """Other bytes, so much of it, or a number without end."""
    if isinstance(how, str):
        return b"9" * 300_000
    return how if isinstance(how, bytes) else whole[:how]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_broken_files_break_nothing(node: Host, data: st.DataObject) -> None:
    """Truncated, binary, huge or vanished: no sampler raises out of the runner, and the page is still a page."""
    runner = Runner(kinds(), node, NS)
    runner.run(0)
    files = sorted(path for path in node.proc.parent.rglob("*") if path.is_file())
    some = data.draw(st.lists(st.sampled_from(files), min_size=1, max_size=6, unique=True))
    before = {path: path.read_bytes() for path in some}
    plan = [(path, data.draw(BROKEN)) for path in some]
    for path, broken in plan:
        if broken is None:
            path.unlink()
        else:
            path.write_bytes(damaged(before[path], broken))
    try:
        readings = runner.run(1000 * NS)
        page = Exposition("node1").render(readings)
    finally:
        for path, content in before.items():
            path.write_bytes(content)
    assert all(len(reading.values) == len(reading.series) for reading in readings)
    assert all(line.startswith(b"#") or float(line.rsplit(b" ", 1)[1]) is not None for line in page.splitlines())
