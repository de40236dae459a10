"""A ledger of samples through everything that can go wrong on their way, with real processes:

    python -m bench.delivery_ledger [--cut 300] [--only NAME] [--out FILE]

In each scenario a real agent reads the rings of two training processes and streams to a real collector, through a link
that can be cut. At its end: samples produced = delivered + dropped, by the agent's account; rows stored = samples
delivered, counted in the Parquet files; steps stored = steps marked by the training processes, each once, less those
in dropped batches. A sample is a value that was measured, a row, a rank's state or a stack dump.
"""

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from .scenarios import all_of_them


def main() -> int:
    """Run the scenarios one after the other; 1 where one does not add up."""
    parser = argparse.ArgumentParser(description="samples produced = delivered + dropped, whatever goes wrong")
    parser.add_argument("--cut", type=float, default=300.0, metavar="SECONDS", help="how long the link is cut (300)")
    parser.add_argument("--only", action="append", help="these scenarios alone")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    results: dict[str, Any] = {}
    for name, scenario in all_of_them(args.cut).items():
        if args.only and name not in args.only:
            continue
        with tempfile.TemporaryDirectory() as folder:
            began = time.monotonic()
            try:
                found = {"adds_up": True, **scenario(Path(folder))}
            except AssertionError as error:
                found = {"adds_up": False, "why": str(error), "said": (Path(folder) / "errors.log").read_text()[-4000:]}
            results[name] = {**found, "seconds": round(time.monotonic() - began, 1)}
        print(name, json.dumps(results[name]), flush=True)
    if args.out:
        what = "bench/delivery_ledger: real agent, collector and rings on one machine, a link cut in between"
        args.out.write_text(json.dumps({"what": what, "scenarios": results}, indent=1) + "\n")
    return not all(result["adds_up"] for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
