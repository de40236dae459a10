"""Measure storage: ``python -m bench.storage --output bench/results/storage.json``.

Rows are written by the collector's own store, ten seconds a flush, and compacted by its own upkeep; then the same rows
go into other engines. ``--recorded STORE`` adds samples that a real agent took; without it, what OUTPUT said of them
stays. Times are of whole questions, files listed and opened each time, the page cache warm, each next to a fixed sum in
memory: on a loaded machine both wait, and their ratio tells. ``--questions`` asks them only, and leaves what OUTPUT
says of the rest: that takes a minute, for which a machine may be free.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hindmost_collector
import pyarrow as pa
from hindmost_collector.store import schema
from hindmost_collector.store.arrow_tables import metrics_tables
from hindmost_collector.store.clickhouse.store import ClickHouseStore
from hindmost_collector.store.parquet import segments
from hindmost_collector.store.parquet.compaction import Retention, Upkeep, merged
from hindmost_collector.store.parquet.store import ParquetStore

from bench.storage import data, engines, questions

JOB = "bench"
SQLITE_ROWS = 500_000
KEYS = {"metrics": ("node", "name", "labels", "time_ns"), "steps": ("rank", "step"), "collectives": ("rank", "seq")}
DAY_S = 86400.0


def stored(store: ParquetStore, table: str, flushes: Iterable[Iterable[pa.Table]]) -> int:
    """Write flushes of a table, then compact as after the day is over; how many rows."""
    rows = 0
    for pieces in flushes:
        rows += store.write({(JOB, table): pieces}, {})[0]
    upkeep = Upkeep(store, Retention(), now=lambda: time.time() + DAY_S)
    while upkeep.compact():
        pass
    return rows


@contextmanager
def emptied(folder: Path) -> Any:
    """A store in ``folder``."""
    store = ParquetStore(folder, single=False)
    yield store
    store.close()


def ours(args: argparse.Namespace, folder: Path, start_ns: int, tables: Sequence[str]) -> dict[str, Any]:
    """Bytes a row of these tables in a store under ``folder``, made and compacted as a collector does."""
    definitions, kinds = data.definitions()
    made = {
        "metrics": (list(metrics_tables(tick, definitions)) for tick in _ticks(args, start_ns, kinds)),
        "steps": ([step] for step in data.steps(args.ranks, args.steps, start_ns)),
        "collectives": ([collective] for collective in data.collectives(args.ranks, args.steps // 10, 10, start_ns)),
    }
    found: dict[str, Any] = {}
    with emptied(folder / "store") as store:
        store.write({(JOB, "ranks"): [data.ranks(args.ranks)]}, {})
        for table in tables:
            rows = stored(store, table, made[table])
            taken = engines.size(folder / "store" / JOB / "segments" / table)
            found[table] = {"rows": rows, "hindmost_parquet": round(taken / rows, 2)}
            if table == "metrics":
                levels = sum(engines.size(one) for one in (folder / "store" / JOB / "segments").glob("metrics_*"))
                found[table]["coarser_levels_add"] = round(levels / rows, 2)
    return found


def sizes(args: argparse.Namespace, folder: Path, start_ns: int) -> dict[str, Any]:
    """Bytes a row of each table, ours and the others'."""
    definitions, kinds = data.definitions()
    found = ours(args, folder, start_ns, ("metrics", "steps", "collectives"))
    for table, row in found.items():
        order = ", ".join(KEYS[table])
        part = hindmost_collector.open(folder / "store").sql(
            f"select * exclude (job) from {table} order by {order} limit {args.other_rows}"
        )
        row["duckdb_file"] = round(engines.in_duckdb(part, folder), 2)
        row["sqlite"] = round(engines.in_sqlite(part.slice(0, SQLITE_ROWS), folder, KEYS[table]), 2)
    found["metrics"]["victoria_metrics"] = _rounded(
        engines.in_victoria_metrics(definitions, _ticks(args, start_ns, kinds), folder)
    )
    return found


def _ticks(args: argparse.Namespace, start_ns: int, kinds: Any) -> Any:
    return data.metrics(args.nodes, args.seconds, start_ns, kinds)


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


def in_clickhouse(folder: Path) -> dict[str, dict[str, float]]:
    """Bytes a row of each table in ClickHouse, as its own parts say after a full merge."""
    found = {}
    for url in engines.clickhouse(folder):
        if url is None:
            return {}
        store = ClickHouseStore(url)
        recording = hindmost_collector.open(folder / "store")
        for table, keys in KEYS.items():
            rows = recording.sql(
                f"select * exclude (job) from {table} order by {', '.join(keys)} limit {4 * SQLITE_ROWS}"
            )
            store.write({(JOB, table): [rows]}, {})
            found[table] = {"clickhouse": round(_taken(store, table) / len(rows), 2)}
            if table == "metrics":
                levels = sum(_taken(store, level) for level in schema.LEVELS)
                found[table]["clickhouse_coarser_levels_add"] = round(levels / len(rows), 2)
        store.close()
    return found


def _taken(store: ClickHouseStore, table: str) -> int:
    store.server.command(f"OPTIMIZE TABLE bench.{table}_rows FINAL")
    query = (
        "SELECT sum(data_compressed_bytes) FROM system.parts WHERE active AND database = 'bench'"
        f" AND table = '{table}_rows'"
    )
    return int(store.server.command(query))


def recorded(folder: Path, store: Path) -> dict[str, Any]:
    """Bytes a sample of what a real agent recorded, written and compacted again."""
    paths = [one.path for found in sorted(store.rglob("segments/metrics")) for one in segments.listed(found)]
    pieces = list(merged("metrics", paths))
    with emptied(folder / "recorded") as kept:
        count = stored(kept, "metrics", [pieces])
    taken = engines.size(folder / "recorded" / JOB / "segments" / "metrics")
    names = ("node", "name", "labels")
    series = len(pa.concat_tables(pieces).unify_dictionaries().group_by(list(names)).aggregate([]))
    kept = {"rows": count, "series": series, "hindmost_parquet": round(taken / count, 2)}
    return kept | {"measured": time.strftime("%Y-%m-%d", time.gmtime())}


def compaction() -> list[dict[str, Any]]:
    """What merging costs while jobs run: one node for long, and many nodes; processes of their own."""
    command = [sys.executable, "-m", "bench.storage.compaction"]
    sizes = (["--nodes", "1", "--seconds", "14400"], ["--nodes", "256", "--seconds", "320"])
    return [json.loads(subprocess.check_output([*command, *size], text=True)) for size in sizes]


def carried_over(output: Path | None) -> dict[str, Any]:
    """What a run without ``--recorded`` keeps of the last result: samples of a real agent."""
    if output is None or not output.exists():
        return {}
    kept = json.loads(output.read_text()).get("bytes_a_row", {}).get("metrics_recorded")
    return {"metrics_recorded": kept} if kept else {}


def load() -> str:
    """How busy the machine is, and when."""
    return f"load {os.getloadavg()[0]:.1f}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def answered(args: argparse.Namespace, start_ns: int) -> None:
    """Ask the questions of a store that holds what they need; put the answers into what OUTPUT says."""
    with tempfile.TemporaryDirectory() as name:
        ours(args, Path(name), start_ns, ("metrics", "steps"))
        before = load()
        asked = questions.asked(Path(name) / "store", start_ns, args.rounds)
    result = {"questions": asked, "questions_asked_at": f"{before} before, {load()} after"}
    print(result)
    if args.output:
        engines.write(args.output, json.loads(args.output.read_text()) | result)


def main() -> None:
    """Parse, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=64)
    parser.add_argument("--seconds", type=int, default=600)
    parser.add_argument("--ranks", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=9_770, help="of every rank: 10 M rows with 1,024 ranks")
    parser.add_argument("--other-rows", type=int, default=4_000_000, help="rows that the other engines get")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--recorded", type=Path, metavar="STORE", help="samples of a real agent; else as in OUTPUT before"
    )
    parser.add_argument("--questions", action="store_true", help="ask the questions only")
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    start_ns = (int(time.time()) - args.seconds - 60) * data.SECOND
    if args.questions:
        answered(args, start_ns)
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found = sizes(args, folder, start_ns)
        for table, taken in in_clickhouse(folder).items():
            found[table] |= taken
        found |= carried_over(args.output)
        if args.recorded:
            found["metrics_recorded"] = recorded(folder, args.recorded)
        print(found, flush=True)
        asked = questions.asked(folder / "store", start_ns, args.rounds)
    result = {
        "what": "bytes a row on disk; seconds a question takes, files listed and opened each time, page cache warm",
        "data": f"simulated: {args.nodes} nodes x {data.SERIES} series x {args.seconds} s; {args.ranks} ranks",
        "machine": f"{os.cpu_count()} cores, shared with other work: {load()} at the end",
        "bytes_a_row": found,
        "questions": asked,
        "questions_asked_at": load(),
        "compaction": compaction(),
    }
    print(result)
    if args.output:
        engines.write(args.output, result)


if __name__ == "__main__":
    main()
