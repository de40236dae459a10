"""Two hosts on this machine, in network namespaces: every launcher, network and fault, and what each ended in.

    python -m bench.hosts [--only NAME …] [--mpich DIR] [--torch PYTHON] [--out FILE]

Needs root, ip, tc, nft for NAT, and faketime for a clock that is off. Hosts have names, shared memory, a disk and a
network of their own, but the same cores. A job that ends in order has all ranks of both hosts, each step once, no
dropped sample, no process and no secret left. After a fault that ends it, what is stored was marked, once, and all
processes have left.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path

from bench.checkout import write
from bench.hosts.scenarios import Settings, cases, play

ROW = "{:<10} {:<44} {:<8} {:>6}  {}"


def main() -> int:
    """Play the scenarios one after the other; 1 where one did not end as it should."""
    parser = argparse.ArgumentParser(description="jobs on two hosts: launchers, networks, faults")
    parser.add_argument("--only", action="append", help="these scenarios alone")
    parser.add_argument("--mpich", type=Path, default=Path(".cache/mpich").absolute(), help="where MPICH is")
    parser.add_argument("--torch", type=Path, default=Path(sys.executable), help="a Python with PyTorch and Horovod")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    if os.geteuid():
        parser.error("needs root: it makes network namespaces")
    settings, results = Settings(args.mpich, args.torch), {}
    print(ROW.format("name", "what", "passed", "s", "ended in"))
    for name, case in cases(settings).items():
        if args.only and name not in args.only:
            continue
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="hindmost-hosts-") as folder:
            found = play(case, Path(folder), settings)
        found["seconds"] = round(time.monotonic() - began, 1)
        results[name] = {"what": case.what, **found}
        passed = {True: "yes", False: "NO", None: "skipped"}[found["passed"]]
        ending = "{verdict}; {nodes} hosts, {ranks} ranks; {steps}"
        ending = found.get("why") or ending.format_map(found)
        print(ROW.format(name, case.what, passed, found["seconds"], ending), flush=True)
    if args.out:
        what = "bench/hosts: jobs on two hosts in network namespaces of one machine"
        write(args.out, {"what": what, "cores": os.cpu_count(), "scenarios": results})
    return any(result["passed"] is False for result in results.values())


if __name__ == "__main__":
    sys.exit(main())
