"""Settings of the collector: four layers, checked before anything starts, each mistake in one line."""

from __future__ import annotations

import asyncio
import json
import os
import signal

import pytest
from hindmost.errors import UsageError
from hindmost_collector.options import resolve
from hindmost_collector.store.parquet import read_run


def test_layers(tmp_path):
    """A flag wins over the environment, that over the file, and that over the default."""
    file = tmp_path / "c.toml"
    file.write_text('listen = "127.0.0.1:1"\nhttp = "127.0.0.1:2"\nflush_seconds = 3\nretention_days = 1.5\n')
    environ = {"HINDMOST_COLLECTOR_HTTP": "127.0.0.1:20", "HINDMOST_COLLECTOR_FLUSH_SECONDS": "30", "OTHER": "x"}
    options = resolve({"flush_seconds": 300.0, "listen": None}, environ, file)
    found = options.listen, options.http, options.flush_seconds, options.retention_days, options.memory_mib
    assert found == ("127.0.0.1:1", "127.0.0.1:20", 300.0, 1.5, 256)


@pytest.mark.parametrize(
    ("toml", "said"),
    [
        ('listne = "x"', "c.toml sets 'listne', which is no setting; settings are command"),
        ('[collector]\nlisten = "x"', "c.toml sets 'collector', which is no setting"),
        ("listen =", "c.toml is not TOML: "),
        ("listen = 9460", "c.toml sets listen to 9460, which is no text: put it in quotes"),
        ("listen = [1]", "c.toml sets listen to [1], which is no text"),
        ('listen = "9460"', "--listen '9460' is not HOST:PORT, for example 127.0.0.1:9460"),
        ('http = "127.0.0.1:99999"', "--http '127.0.0.1:99999' is not HOST:PORT"),
        ('flush_seconds = "abc"', "c.toml sets flush_seconds to 'abc', which is no number"),
        ("flush_seconds = nan", "c.toml sets flush_seconds to nan, which is no number"),
        ("flush_seconds = -1", "flush_seconds is -1.0: between 0 and 3600"),
        ("judge_seconds = 4000", "judge_seconds is 4000.0: between 0 and 3600"),
        ("memory_mib = 100.5", "c.toml sets memory_mib to 100.5, which is no whole number"),
        ("memory_mib = true", "c.toml sets memory_mib to True, which is no whole number"),
        ("memory_mib = 8", "memory_mib is 8: between 16 and"),
        ("memory_mib = 99999999999", "memory_mib is 99999999999: between 16 and"),
        ("hold = 1", "c.toml sets hold to 1, which is neither true nor false"),
        ('hold = "maybe"', "c.toml sets hold to 'maybe', which is neither true nor false"),
        ("retention_days = -1", "retention_days is -1.0: zero for no limit, or more"),
        ("retention_gib = inf", "c.toml sets retention_gib to inf, which is no number"),
        ('log_format = "xml"', "log_format is 'xml': text or json"),
        ('out = "a"\nstore = "b"', "--out and --store both say where to record: give one"),
        ('store = "s3://bucket"', "--store 's3://bucket': give a directory, or clickhouse://"),
    ],
)
def test_mistakes_are_named(tmp_path, toml, said):
    """Each mistake is told in one line that names the layer or the setting, and what would be right."""
    file = tmp_path / "c.toml"
    file.write_text(toml)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistakes_in_the_environment_are_named():
    """The environment is checked as the file is."""
    with pytest.raises(UsageError, match="the environment sets 'nope', which is no setting"):
        resolve({}, {"HINDMOST_COLLECTOR_NOPE": "1"})
    with pytest.raises(UsageError, match="the environment sets hold to 'perhaps', which is neither true nor false"):
        resolve({}, {"HINDMOST_COLLECTOR_HOLD": "perhaps"})


def test_terminated_collector_flushes(collector_process, fake_agent, tmp_path, monkeypatch):
    """SIGTERM flushes what would have waited for minutes, exits 0, and the log is JSON lines."""
    monkeypatch.setenv("HINDMOST_COLLECTOR_FLUSH_SECONDS", "600")
    process = collector_process("--http", "none", "--store", tmp_path, "--log-format", "json")

    async def scenario():
        agent = fake_agent(process.addresses["grpc"])
        await agent.connect(define=False)
        await agent.send(agent.batch(0))
        while not (await agent.read()).HasField("need"):
            pass
        await agent.define()
        await agent.round_trip()  # the reply comes after the batch was taken
        os.kill(process.popen.pid, signal.SIGTERM)
        await agent.until_acked(1)
        await agent.close()

    asyncio.run(scenario())
    _, errors = process.popen.communicate(timeout=60)
    assert process.popen.returncode == 0
    assert read_run(tmp_path / "j").steps["step"].tolist() == [0, 0]
    assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in errors.splitlines())
