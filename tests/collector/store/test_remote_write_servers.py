"""Remote write into real servers: what is read back is what the store holds."""

import asyncio
import contextlib
import json
import math
import subprocess
import urllib.parse
import urllib.request

import pytest
from hindmost_collector.store.parquet.store import read_run

from tests.servers import free_port, until_it_answers
from tests.waiting import until

STEPS = 12


def commands(name, port, folder):
    """How each server is started on loopback with its data in ``folder``, and its path for remote write."""
    config = folder / "empty.yml"
    config.write_text("")
    if name == "prometheus":
        options = [
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--web.enable-remote-write-receiver",
        ]
        return [*options, f"--web.listen-address=127.0.0.1:{port}"], "/-/ready"
    options = [f"-storageDataPath={folder / 'data'}", f"-httpListenAddr=127.0.0.1:{port}"]
    return [*options, "-search.latencyOffset=0s", "-selfScrapeInterval=0s"], "/health"


@pytest.fixture(
    params=[
        pytest.param("prometheus", marks=pytest.mark.needs("prometheus")),
        pytest.param("victoria-metrics", marks=pytest.mark.needs("victoria-metrics")),
    ]
)
def server(request, tmp_path):
    """The base URL of a fresh server."""
    port, log = free_port(), tmp_path / "server.log"
    options, ready = commands(request.param, port, tmp_path)
    with log.open("wb") as written:
        process = subprocess.Popen([request.param, *options], stdout=written, stderr=written, cwd=tmp_path)
    try:
        until_it_answers(process, f"http://127.0.0.1:{port}{ready}", log)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(300)


def raw(base, selector):
    """Every sample of a selector in the last minutes: ``(ms, value)``, those that mark an end left out."""
    query = urllib.parse.urlencode({"query": f"{selector}[15m]"})
    with urllib.request.urlopen(f"{base}/api/v1/query?{query}", timeout=200) as answer:  # noqa: S310 - loopback
        result = json.load(answer)["data"]["result"]
    found = [(round(float(at) * 1000), float(value)) for series in result for at, value in series["values"]]
    return sorted(one for one in found if not math.isnan(one[1]))


async def test_read_back_equal(server, collecting, fake_agent, tmp_path):
    """Samples of nodes come back at their own times with their own values, and counters of ranks are there too."""
    options = {"out": str(tmp_path / "run"), "remote_write": f"{server}/api/v1/write"}
    async with collecting(job_id="j", **options) as collector, fake_agent(collector.addresses["grpc"]) as agent:
        for step in range(STEPS):
            await agent.send(agent.batch(step))
            await asyncio.sleep(0.01)  # samples of one ms would be one sample
        await agent.until_acked(STEPS)
    counts = collector.remote.counts
    assert (counts["refused"], counts["dropped_leaving"], counts["dropped_full"]) == (0, 0, 0)
    metrics = read_run(tmp_path / "run").metrics
    name = "hindmost_node_cpu_seconds_total"
    kept = metrics["name"] == name
    stored = sorted(zip((metrics["time_ns"][kept] // 1_000_000).tolist(), metrics["value"][kept].tolist(), strict=True))
    assert len(stored) == STEPS
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{server}/internal/force_flush", timeout=200):  # noqa: S310
        pass  # VictoriaMetrics shows what it has a few seconds later otherwise; Prometheus knows no such page
    await until(lambda: raw(server, f'{name}{{node="n0",mode="user"}}') == stored)
    steps = 'hindmost_rank_steps_total{job_id="j",rank="1"}'
    await until(lambda: [value for _, value in raw(server, steps)][-1:] == [STEPS])
