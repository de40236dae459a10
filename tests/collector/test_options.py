"""Settings of the collector: four layers, checked before anything starts, each mistake in one line."""

import argparse
import asyncio
import dataclasses
import json
import os
import re
import resource
import signal
import threading
from pathlib import Path

import pytest
from hindmost.errors import UsageError
from hindmost_cli import collector as command_line
from hindmost_collector import collector as maintenance
from hindmost_collector import main
from hindmost_collector.options import Options, resolve, resolve_thresholds
from hindmost_collector.store.parquet.compaction import Upkeep
from hindmost_collector.store.parquet.store import read_run
from hindmost_judge.settings import DEFAULT

from tests.waiting import until


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
        ('listne = "x"', "c.toml: listne is not a setting; settings are command, exit_when_stdin_closes, "),
        ('[collector]\nlisten = "x"', "c.toml: collector is not a setting"),
        ("listen =", "c.toml is not TOML: "),
        ("listen = 9460", "c.toml: listen is 9460, which is not text: put it in quotes"),
        ("listen = [1]", "c.toml: listen is [1], which is not text"),
        ('listen = "9460"', "c.toml: listen '9460' is not HOST:PORT, for example 127.0.0.1:9460"),
        ('http = "127.0.0.1:99999"', "c.toml: http '127.0.0.1:99999' is not HOST:PORT"),
        ('flush_seconds = "abc"', "c.toml: flush_seconds is 'abc', which is not a number"),
        ("flush_seconds = nan", "c.toml: flush_seconds is nan, which is not a number"),
        ("flush_seconds = -1", "c.toml: flush_seconds is -1.0: between 0 and 3600"),
        ("judge_seconds = 4000", "c.toml: judge_seconds is 4000.0: between 0 and 3600"),
        ("memory_mib = 100.5", "c.toml: memory_mib is 100.5, which is not a whole number"),
        ("memory_mib = true", "c.toml: memory_mib is True, which is not a whole number"),
        ("memory_mib = 8", "c.toml: memory_mib is 8: between 16 and"),
        ("memory_mib = 99999999999", "c.toml: memory_mib is 99999999999: between 16 and"),
        ("exit_when_stdin_closes = 1", "c.toml: exit_when_stdin_closes is 1, which is neither true nor false"),
        (
            'exit_when_stdin_closes = "maybe"',
            "c.toml: exit_when_stdin_closes is 'maybe', which is neither true nor false",
        ),
        ("retention_days = -1", "c.toml: retention_days is -1.0: zero for no limit, or more"),
        ("retention_gib = inf", "c.toml: retention_gib is inf, which is not a number"),
        ('log_format = "xml"', "c.toml: log_format is 'xml': text or json"),
        ('out = "a"\nstore = "b"', "c.toml: store both say where to record: give one"),
        ('memory_mib = "inf"', "c.toml: memory_mib is 'inf', which is not a whole number"),
        (
            'remote_write = "http://prom:99999/"',
            "c.toml: remote_write 'http://prom:99999/': give http://HOST:PORT/PATH",
        ),
        ('remote_write = "http://[::1/"', "c.toml: remote_write 'http://[::1/': give http://HOST:PORT/PATH"),
        ('out = "s3://bucket/x"', "c.toml: out 's3://bucket/x': give a directory; a URL goes with --store"),
        ('store = "S3://bucket/x"', "c.toml: store 'S3://bucket/x': give a directory, or clickhouse://"),
        ('store = "s3://bucket"', "c.toml: store 's3://bucket': give a directory, or clickhouse://"),
    ],
)
def test_mistakes_are_named(tmp_path, toml, said):
    """Each mistake gives one line that names the layer or the setting, and what would be right."""
    file = tmp_path / "c.toml"
    file.write_text(toml)
    with pytest.raises(UsageError) as caught:
        resolve({}, {}, file)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("NOPE", "1", "HINDMOST_COLLECTOR_NOPE is not a setting; settings are command, "),
        (
            "EXIT_WHEN_STDIN_CLOSES",
            "perhaps",
            "HINDMOST_COLLECTOR_EXIT_WHEN_STDIN_CLOSES is 'perhaps', which is neither true nor false",
        ),
        ("FLUSH_SECONDS", "soon", "HINDMOST_COLLECTOR_FLUSH_SECONDS is 'soon', which is not a number"),
        (
            "REMOTE_WRITE",
            "ftp://me:secret@b",
            "HINDMOST_COLLECTOR_REMOTE_WRITE 'ftp://…@b': give http://HOST:PORT/PATH",
        ),
        ("RELAY_TO", "c:0", "HINDMOST_COLLECTOR_RELAY_TO 'c:0': port 0 is not valid"),
    ],
)
def test_mistakes_in_the_environment_are_named(name, value, said):
    """The environment is checked as the file is, and what is wrong is the variable by its whole name."""
    with pytest.raises(UsageError) as caught:
        resolve({}, {f"HINDMOST_COLLECTOR_{name}": value})
    assert str(caught.value).startswith(said)


def test_mistakes_of_several_layers_are_named_as_written():
    """What does not go together is named as each was set."""
    with pytest.raises(UsageError, match="--out and HINDMOST_COLLECTOR_STORE both say where to record: give one"):
        resolve({"out": "a"}, {"HINDMOST_COLLECTOR_STORE": "b"})


#: A value of each setting that is not its default, and as TOML has it.
SET = {
    "listen": ("127.0.0.1:7", '"127.0.0.1:7"'),
    "http": ("none", '"none"'),
    "out": ("runs/1", '"runs/1"'),
    "store": ("/var/lib/x", '"/var/lib/x"'),
    "job_id": ("42", '"42"'),
    "command": ("python train.py", '"python train.py"'),
    "launcher": ("srun", '"srun"'),
    "exit_when_stdin_closes": ("true", "true"),
    "flush_seconds": ("3.5", "3.5"),
    "memory_mib": ("512", "512"),
    "judge_seconds": ("5.0", "5.0"),
    "retention_days": ("30.0", "30.0"),
    "retention_gib": ("100.0", "100.0"),
    "remote_write": ("http://p:9090/api/v1/write", '"http://p:9090/api/v1/write"'),
    "relay_to": ("c:9460", '"c:9460"'),
    "kubernetes": ("events", '"events"'),
    "on_verdict": ("http://hooks/1", '"http://hooks/1"'),
    "print_verdicts": ("true", "true"),
    "metrics_level": ("rank", '"rank"'),
    "metrics_series": ("1000", "1000"),
    "job_label": ("job", '"job"'),
    "tls_cert": ("c.pem", '"c.pem"'),
    "tls_key": ("c.key", '"c.key"'),
    "tls_ca": ("ca.pem", '"ca.pem"'),
    "relays": ("r7", '"r7"'),
    "token_file": ("secret", '"secret"'),
    "web_config": ("web.yml", '"web.yml"'),
    "user_header": ("X-User", '"X-User"'),
    "insecure": ("true", "true"),
    "log_format": ("json", '"json"'),
}


#: What a setting needs as well.
BESIDE = {
    "tls_cert": {"tls_key": "c.key"},
    "tls_key": {"tls_cert": "c.pem"},
    "tls_ca": {"tls_cert": "c.pem", "tls_key": "c.key"},
    "relays": {"tls_cert": "c.pem", "tls_key": "c.key", "tls_ca": "ca.pem"},
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Options)])
def test_every_setting_is_a_flag_a_variable_and_a_key(name, tmp_path):
    """Whichever of the three sets it, a setting has the same value, and no setting lacks one of them."""
    text, toml = SET[name]
    parser = argparse.ArgumentParser()
    command_line.configure(parser)
    words = [f"--{name.replace('_', '-')}"] + ([] if text == "true" else [text])
    flags = vars(parser.parse_args(words))
    (tmp_path / "c.toml").write_text(f"{name} = {toml}\n")
    more = {f"HINDMOST_COLLECTOR_{key.upper()}": value for key, value in BESIDE.get(name, {}).items()}
    found = [resolve(flags, more), resolve({}, {f"HINDMOST_COLLECTOR_{name.upper()}": text, **more})]
    assert [*found, resolve({}, more, tmp_path / "c.toml")] == found[:1] * 3
    assert str(getattr(found[0], name)) == text.replace("true", "True")
    assert getattr(found[0], name) != getattr(Options(), name)


def test_the_name_of_a_setting_in_0_1_is_accepted(tmp_path):
    """It counts as the setting of today, and mistakes name it as it was written."""
    (tmp_path / "c.toml").write_text("hold = true\n")
    assert resolve({}, {}, tmp_path / "c.toml").exit_when_stdin_closes
    assert resolve({}, {"HINDMOST_COLLECTOR_HOLD": "1"}).exit_when_stdin_closes
    assert resolve_thresholds((), {}, tmp_path / "c.toml") == DEFAULT
    with pytest.raises(UsageError, match="HINDMOST_COLLECTOR_HOLD is 'maybe', which is neither true nor false"):
        resolve({}, {"HINDMOST_COLLECTOR_HOLD": "maybe"})


def test_a_flag_takes_back_what_the_environment_says():
    """A collector that the environment holds is not held where the command line says so."""
    parser = argparse.ArgumentParser()
    command_line.configure(parser)
    assert not resolve(
        vars(parser.parse_args(["--no-exit-when-stdin-closes"])), {"HINDMOST_COLLECTOR_EXIT_WHEN_STDIN_CLOSES": "1"}
    ).exit_when_stdin_closes


def test_what_kubernetes_says_of_services_is_no_setting():
    """The variables that Kubernetes sets for a Service named hindmost-collector are passed over, mistakes are not."""
    found = {
        "SERVICE_HOST": "10.0.0.1",
        "SERVICE_PORT": "9460",
        "SERVICE_PORT_GRPC": "9460",
        "PORT": "tcp://10.0.0.1:9460",
        "PORT_9460_TCP": "tcp://10.0.0.1:9460",
        "PORT_9460_TCP_PROTO": "tcp",
        "PORT_9460_TCP_PORT": "9460",
        "PORT_9460_TCP_ADDR": "10.0.0.1",
        "MEMORY_MIB": "512",
    }
    environ = {f"HINDMOST_COLLECTOR_{key}": value for key, value in found.items()}
    assert resolve({}, environ) == Options(memory_mib=512)
    with pytest.raises(UsageError, match="HINDMOST_COLLECTOR_PORT is not a setting"):
        resolve({}, {"HINDMOST_COLLECTOR_PORT": "9460"})


async def test_a_failing_upkeep_goes_on(collecting, tmp_path, monkeypatch, caplog):
    """Upkeep that fails for whatever reason says so, and comes round again."""
    rounds = threading.Semaphore(0)

    def compact(_):
        rounds.release()
        raise ValueError("cannot convert float NaN to integer")

    monkeypatch.setattr(Upkeep, "compact", compact)
    monkeypatch.setattr(maintenance, "UPKEEP_S", 0.01)

    async with collecting(store=str(tmp_path)):
        assert [await asyncio.to_thread(rounds.acquire, timeout=200) for _ in range(2)] == [True, True]
    assert "maintenance of the store failed and will be retried" in caplog.text


async def test_what_upkeep_takes_is_counted(collecting, tmp_path, monkeypatch):
    """The CPU time of compaction and retention is on the metrics page, whether it came to an end or not."""
    monkeypatch.setattr(Upkeep, "compact", lambda _: len(sorted(range(100_000), key=lambda one: -one)) // 0)
    monkeypatch.setattr(maintenance, "UPKEEP_S", 0.01)

    async with collecting(store=str(tmp_path)) as collector:
        await until(lambda: collector.upkeep_seconds > 0.001)
        (line,) = re.findall(
            r"^hindmost_collector_upkeep_seconds_total (\S+)$", collector.endpoints.metrics().decode(), re.MULTILINE
        )
    assert float(line) > 0.001


def test_a_collector_may_have_as_many_connections_as_the_host_allows(collector_process, tmp_path):
    """Each agent is an open file, and 1024 are what a shell allows: the collector raises that to the hard limit."""
    process = collector_process("--store", tmp_path, "--http", "none", open_files=256)
    (allowed,) = re.findall(r"Max open files +(\d+)", Path(f"/proc/{process.popen.pid}/limits").read_text())
    assert int(allowed) == min(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 65536)


async def test_a_collector_that_records_nothing_says_so(caplog, capsys):
    """Without --store or --out everything is acknowledged and nothing kept, which the first warning says."""
    stopped = asyncio.Event()
    stopped.set()
    assert (await main.serve(Options(listen="127.0.0.1:0", http="none"), stopped)) == 0
    assert '"grpc"' in capsys.readouterr().out
    ours = [record for record in caplog.records if record.name == main.log.name]
    assert [record.message for record in ours if record.levelname == "WARNING"] == [
        "nothing is recorded: give --store DIRECTORY to keep every job, or --out RUN_DIR for one"
    ]


async def test_terminated_collector_flushes(collector_process, fake_agent, tmp_path, monkeypatch):
    """SIGTERM flushes what would have waited for minutes, exits 0, and the log is JSON lines."""
    monkeypatch.setenv("HINDMOST_COLLECTOR_FLUSH_SECONDS", "600")
    process = collector_process("--http", "none", "--store", tmp_path, "--log-format", "json")

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
    _, errors = process.popen.communicate()
    assert process.popen.returncode == 0
    assert read_run(tmp_path / "j").steps["step"].tolist() == [0, 0]
    assert all({"time", "level", "logger", "message"} <= json.loads(line).keys() for line in errors.splitlines())


def test_thresholds_in_the_same_file_are_the_judges(tmp_path):
    """``[judge]`` is no setting of the collector, and no mistake either."""
    file = tmp_path / "c.toml"
    file.write_text('listen = "127.0.0.1:1"\n[judge]\nmin_effect = 0.02\n')
    assert resolve({}, {}, file) == Options(listen="127.0.0.1:1")
