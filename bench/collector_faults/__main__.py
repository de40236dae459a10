"""kill -9 of a real collector at random instants under load from real gRPC clients: a ledger of every row.

Each client keeps what is not acknowledged, reconnects and sends it again; the collector flushes twenty times a second
and compacts more often than it would, so that kills fall into commits, renames and merges.

    python -m bench.collector_faults --kills 50 --seed 1 -o collector_kills.json
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.collector_faults import ledger


def main() -> int:
    """Run, print the ledger, fail where it does not add up."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--agents", type=int, default=8)
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        result = asyncio.run(ledger.kills(Path(folder), args.kills, args.seed, args.agents))
    loads = f"load average {before:.1f} before, {os.getloadavg()[0]:.1f} after"
    machine = f"{os.cpu_count()} cores, shared with other work: {loads}"
    result = {"measured": time.strftime("%Y-%m-%d", time.gmtime()), "machine": machine, **result}
    text = json.dumps(result, indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")
    return 0 if ledger.adds_up(result) else 1


if __name__ == "__main__":
    sys.exit(main())
