"""``hindmost simulate``: write the recording of a job whose faults are known."""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hindmost.errors import UsageError
from hindmost_proto.address import parse

from hindmost_cli import QUIET_GRPC, arguments, loading, report, stdio

_FAULT = re.compile(
    r"(?P<cause>\w+):(?P<ranks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*):(?P<percent>\d+(?:\.\d+)?)%"
    r"(?:@(?P<onset>\d+)(?:-(?P<end>\d+))?)?(?:~(?P<duty>\d+(?:\.\d+)?)%)?"
)
#: Options that are the scenario's own.
_SHAPE = "ranks steps seed layout tensor pipeline step_ms run_ahead varying_lengths gpu_bound".split()

EPILOG = """\
FAULT is CAUSE:RANKS:PERCENT%[@FROM[-TO]][~DUTY%]. It adds PERCENT of a step to each of RANKS,
from step FROM to before step TO, in DUTY percent of those steps. CAUSE is one of:
  on the GPU     compute, gpu_throttle, gpu_contention, workload, h2d
  on the host    input, cpu_contention, gc, checkpoint, memory, io
  in between     network (slows each group that has one of RANKS)
  stops the job  hang (RANKS never reach step FROM), desync (RANKS enter another operation there)
docs/how-to/simulate-faults.md describes each of them.

examples:
  hindmost simulate run --ranks 64 --fault compute:3:10% && hindmost report run
  hindmost simulate run --fault input:2,5-6:20%@40-90~30%
  hindmost simulate run --fault hang:1:0%@60
  hindmost simulate --collector 127.0.0.1:9460 --ranks 1024 --speed 1 --fault gpu_throttle:17:8%@100"""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EPILOG
    parser.usage = "hindmost simulate [options] FOLDER\n       hindmost simulate [options] --collector HOST:PORT"
    folder = arguments.path("FOLDER")
    parser.add_argument("out", metavar="FOLDER", type=folder, nargs="?", help="write the recording here: a new folder")
    add = parser.add_argument
    add("--collector", metavar="HOST:PORT", help="send the job to this collector instead of a folder")
    arguments.add_proofs(parser)
    add("--speed", type=float, default=0.0, metavar="X", help="job seconds per second (default: as fast as possible)")
    formats = ("run", "traces")
    add("--format", choices=formats, default="run", help="run directory or profiler traces (default: run)")
    add("--ranks", type=int, default=8, metavar="N", help="number of ranks, 2 to 16384 (default: 8)")
    add("--steps", type=int, default=100, metavar="N", help="number of steps (default: 100)")
    add("--seed", type=int, default=0, metavar="N", help="seed of the random numbers (default: 0)")
    layouts = ("dp", "fsdp", "tp_dp", "pp_dp")
    add("--layout", choices=layouts, default="dp", help="data, sharded, tensor or pipeline parallel (default: dp)")
    add("--tensor", type=int, default=1, metavar="N", help="ranks per tensor-parallel group (default: 1)")
    add("--pipeline", type=int, default=1, metavar="N", help="pipeline stages (default: 1)")
    add("--step-ms", type=float, default=100.0, metavar="MS", help="compute time of a step (default: 100)")
    add("--run-ahead", type=int, default=0, metavar="N", help="steps the host may run ahead of the GPU (default: 0)")
    add("--varying-lengths", type=float, default=0.0, metavar="SIGMA", help="spread of sequence lengths (default: 0)")
    kinds = ("compute", "memory")
    add("--gpu-bound", choices=kinds, default="", help="also record GPU activity, limited by compute or memory")
    add("--noise", type=float, default=1.0, metavar="X", help="jitter, relative to that of 4 H200s (default: 1)")
    add("--clock-offset-ms", type=float, metavar="MS", help="offset between the nodes' clocks (default: 1)")
    add("--clock-drift-ppm", type=float, metavar="PPM", help="drift between the nodes' clocks (default: 10)")
    add("--fault", action="append", default=[], metavar="FAULT", help="inject a fault (see below); may be repeated")
    add("--ground-truth", type=Path, metavar="FILE", help="write the injected faults and their cost to FILE (JSON)")
    add("--truth", dest="ground_truth", type=Path, help=argparse.SUPPRESS)  # its name in 0.1


def run(args: argparse.Namespace) -> int:
    from hindmost_collector.simulate import Scenario, simulate
    from hindmost_collector.simulate.write import simulated, write

    if args.collector is not None:
        arguments.filled("--collector", args.collector)
    if (args.out is None) == (args.collector is None):
        raise UsageError("name a FOLDER for the recording, or a --collector to send it to")
    faults = tuple(fault for text in args.fault for fault in parse_fault(text))
    scenario = Scenario(**{name: getattr(args, name) for name in _SHAPE}, noise=_noise(args), faults=faults)
    if args.collector:
        return _to_collector(scenario, args)
    if args.format == "run" and not args.ground_truth:
        simulated(scenario, args.out)
    else:
        made = simulate(scenario)
        write(made.run, args.out, args.format)
        if args.ground_truth:
            report.write(json.dumps(asdict(made.truth), indent=1) + "\n", args.ground_truth, "--ground-truth")
    sys.stdout.write(
        f"{args.out}: {args.ranks} ranks, {args.steps} steps;"
        f" print its verdict with: {stdio.program()} report {args.out}\n"
    )
    return 0


def _noise(args: argparse.Namespace) -> Any:
    """As 4 H200s showed it, times ``--noise``; clocks as they were asked for."""
    from hindmost_collector.simulate import Noise

    usual = Noise()
    if not 0 <= args.noise < math.inf:
        raise UsageError(f"--noise {args.noise:g}: use 0 for none, or a positive number")
    scaled = ("between_ranks", "each_stretch", "wandering", "stall_probability", "transfer", "host")
    asked = {"clock_offset_ms": args.clock_offset_ms, "clock_drift_ppm": args.clock_drift_ppm}
    clocks = {name: value for name, value in asked.items() if value is not None}
    return replace(usual, **{name: getattr(usual, name) * args.noise for name in scaled}, **clocks)


def _to_collector(scenario: Any, args: argparse.Namespace) -> int:
    with loading(QUIET_GRPC):
        from hindmost_collector.simulate.stream import send

    where = parse(args.collector)
    if where is None or not where.host:
        raise UsageError(f"--collector {args.collector}: write HOST:PORT, the collector's --listen address")
    if not 0 <= args.speed < math.inf:
        raise UsageError(f"--speed {args.speed:g}: use job seconds per second, or 0 for as fast as possible")
    if args.ground_truth:
        raise UsageError("--ground-truth needs a FOLDER: drop --ground-truth or --collector")
    count = send(scenario, args.collector, args.speed, arguments.client(args))
    sys.stdout.write(f"{args.collector}: {args.ranks} ranks, {args.steps} steps, {count} batches, all acknowledged\n")
    return 0


def parse_fault(text: str) -> list[Any]:
    """``compute:3,5-6:20%@40-90~30%``: ranks 3, 5 and 6 slower by 20 % of the step in 30 % of steps 40 to 89.

    A fault for each rank: each is a cause of its own, and its repair has its own worth. A network is slow once for all.
    """
    from hindmost_collector.simulate import Fault

    found = _FAULT.fullmatch(text)
    if found is None:
        raise UsageError(f"--fault {text}: expected CAUSE:RANKS:PERCENT%[@FROM[-TO]][~DUTY%], like compute:3:20%@40")
    try:
        ranks = arguments.ranks(found["ranks"])
    except ValueError as error:
        raise UsageError(f"--fault {text}: {error} is not a range of ranks") from error
    of_all = found["cause"] == "network"
    return [
        Fault(
            found["cause"],
            who,
            float(found["percent"]) / 100,
            int(found["onset"] or 0),
            int(found["end"]) if found["end"] else None,
            float(found["duty"] or 100) / 100,
        )
        for who in ([tuple(ranks)] if of_all else [(rank,) for rank in ranks])
    ]
