"""The same rows in other engines: how many bytes each takes for them."""

import contextlib
import json
import shutil
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from hindmost_collector.http_client import Receiver
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.row_builder import MetricRows
from hindmost_collector.store.remote_write import RemoteWrite


def size(path: Path) -> int:
    """Bytes of a file, or of all files under a directory."""
    if path.is_file():
        return path.stat().st_size
    return sum(one.stat().st_size for one in path.rglob("*") if one.is_file())


def in_duckdb(table: pa.Table, folder: Path) -> float:
    """Bytes a row of a DuckDB file, rows in the same order."""
    path = folder / "rows.duckdb"
    with duckdb.connect(str(path)) as connection:
        connection.register("given", table)
        connection.execute("create table kept as select * from given")
        connection.execute("force checkpoint")
    found = size(path) / len(table)
    path.unlink()
    return found


def in_sqlite(table: pa.Table, folder: Path, keys: tuple[str, ...]) -> float:
    """Bytes a row of an SQLite file: words in a table of their own, rows by their key without a row id."""
    path = folder / "rows.sqlite"
    columns = table.column_names
    words: dict[str, int] = {}
    plain = [
        [words.setdefault(str(one), len(words)) if isinstance(one, str) else one for one in column.to_pylist()]
        for column in table.columns
    ]
    with sqlite3.connect(path) as connection:
        connection.execute("create table words (id integer primary key, word text)")
        connection.executemany("insert into words values (?, ?)", [(code, word) for word, code in words.items()])
        connection.execute(f"create table kept ({', '.join(columns)}, primary key ({', '.join(keys)})) without rowid")
        holes = ", ".join("?" * len(columns))
        connection.executemany(f"insert or ignore into kept values ({holes})", zip(*plain, strict=True))
    with sqlite3.connect(path) as connection:
        connection.execute("vacuum")
    found = size(path) / len(table)
    path.unlink()
    return found


def in_victoria_metrics(definitions: Definitions, ticks: Iterable[list[MetricRows]], folder: Path) -> float | None:
    """Bytes a sample in VictoriaMetrics, sent by our remote write; None where it is not installed."""
    binary = shutil.which("victoria-metrics")
    if binary is None:
        return None
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    base, data = f"http://127.0.0.1:{port}", folder / "victoria"
    options = [f"-storageDataPath={data}", f"-httpListenAddr=127.0.0.1:{port}", "-selfScrapeInterval=0s"]
    process = subprocess.Popen([binary, *options], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        _wait(f"{base}/health")
        sink = RemoteWrite(Receiver(f"{base}/api/v1/write"), definitions)
        for blocks in ticks:
            sink.add(blocks)
            sink._send_blocks()
        assert not sum(sink.counts[key] for key in ("refused", "dropped_full", "dropped_old")), sink.counts
        for action in ("force_flush", "force_merge"):
            _get(f"{base}/internal/{action}")
        time.sleep(5.0)  # merges go on in the background
        return size(data / "data") / sink.counts["sent"]
    finally:
        process.terminate()
        process.wait(60)
        shutil.rmtree(data, ignore_errors=True)


def clickhouse(folder: Path) -> Iterator[str | None]:
    """The URL of a ClickHouse engine (chDB behind the tests' server) while it is needed; None without chDB."""
    root = Path(__file__).parents[2]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.clickhouse.server", str(folder / "clickhouse")],
        stdout=subprocess.PIPE,
        text=True,
        cwd=root,
    )
    assert process.stdout
    port = process.stdout.readline().strip()
    try:
        yield f"clickhouse://127.0.0.1:{port}/bench" if port else None
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder / "clickhouse", ignore_errors=True)


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=120) as answer:  # noqa: S310 - loopback
        return answer.read()


def _wait(url: str) -> None:
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            _get(url)
            return
        time.sleep(0.1)
    raise TimeoutError(url)


def write(path: Path, result: dict[str, Any]) -> None:
    """The figures as JSON."""
    path.write_text(json.dumps(result, indent=1) + "\n")
