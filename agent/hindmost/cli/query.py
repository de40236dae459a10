"""``hindmost query``: SQL over a run directory or a store, also while it is written."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    """Where, what, and in which form."""
    parser.add_argument("path", metavar="PATH", help="a run directory, or a collector's store (URL)")
    parser.add_argument(
        "sql", metavar="SQL", help="for example: select rank, avg(duration_ns) from steps group by rank"
    )
    parser.add_argument("--format", choices=["text", "csv", "json"], default="text", help="how to print (default text)")
    parser.epilog = (
        "Tables: ranks, steps, collectives, communicators, intervals, in_flight, metrics, stacks, clocks, rank_states. "
        "Durations are ns, times ns of the job clock, -1 is unmeasured; each table has a column job. "
        "Directories answer DuckDB's SQL, clickhouse:// URLs ClickHouse's."
    )


def run(args: argparse.Namespace) -> int:
    """Print the result."""
    import hindmost_collector

    result = hindmost_collector.open(args.path).sql(args.sql).to_pandas()
    if args.format == "csv":
        sys.stdout.write(result.to_csv(index=False))
    elif args.format == "json":
        sys.stdout.write(result.to_json(orient="records", lines=True))
    else:
        sys.stdout.write(result.to_string(index=False) + "\n")
    return 0
