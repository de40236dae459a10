"""``hindmost simulate``: write the recording of a job whose faults are known."""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from hindmost.cli import given, report
from hindmost.errors import UsageError

_FAULT = re.compile(
    r"(?P<cause>\w+):(?P<ranks>\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*):(?P<percent>\d+(?:\.\d+)?)%"
    r"(?:@(?P<onset>\d+)(?:-(?P<end>\d+))?)?(?:~(?P<duty>\d+(?:\.\d+)?)%)?"
)


EPILOG = """\
CAUSE is one of
  compute gpu_throttle gpu_contention workload     the GPU's computing is longer; with a lower clock, another process,
                                                   more tokens
  input cpu_contention gc checkpoint memory io     the host is late; io: in files that belong to no phase of the step
  h2d                                              the copy to the GPU takes longer
  network                                          transfers of every group with one of RANKS take longer
  hang                                             RANKS never come to step FROM, and everybody else waits
  desync                                           RANKS enter another operation in step FROM than the rest: all wait
PERCENT of the clean step is added to each of RANKS (of network once, for all that share it), from step FROM to before
TO, in DUTY percent of those steps. A job that hangs ends there for FOLDER; a collector is told for a minute of the
job's time what every rank is inside of.
A folder of --format traces holds what a profiler plugin, a step log, NVML and Flight Recorder dumps do: by them
gpu_throttle, input, network, hang and desync are told, and of all others the rank, its onset and its cost.

examples:
  hindmost simulate run --ranks 64 --fault compute:3:10% && hindmost report run
  hindmost simulate run --fault input:2,5-6:20%@40-90~30%    three ranks, now and then, for 50 steps
  hindmost simulate run --fault hang:1:0%@60
  hindmost simulate --collector 127.0.0.1:9460 --ranks 1024 --speed 1 --fault gpu_throttle:17:8%@100"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add this subcommand's arguments."""
    parser.epilog = EPILOG
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    folder = given.path("FOLDER")
    parser.add_argument("out", metavar="FOLDER", type=folder, nargs="?", help="where the recording goes: a new folder")
    parser.add_argument("--collector", metavar="HOST:PORT", help="send the job to a running collector instead")
    parser.add_argument(
        "--speed", type=float, default=0.0, metavar="X", help="seconds of the job a second; default: at once"
    )
    parser.add_argument("--format", choices=("run", "traces"), default="run", help="default: a run directory")
    parser.add_argument("--ranks", type=int, default=8, metavar="N", help="2 to 16384 (default: 8)")
    parser.add_argument("--steps", type=int, default=100, metavar="N", help="default: 100")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="one seed gives one run (default: 0)")
    parser.add_argument("--layout", choices=("dp", "fsdp", "tp_dp", "pp_dp"), default="dp", help="default: dp")
    parser.add_argument("--tensor", type=int, default=1, metavar="N", help="ranks of a tensor-parallel group")
    parser.add_argument("--pipeline", type=int, default=1, metavar="N", help="pipeline stages")
    parser.add_argument(
        "--step-ms", type=float, default=100.0, metavar="MS", help="computing of a clean step (default: 100)"
    )
    parser.add_argument(
        "--run-ahead", type=int, default=0, metavar="N", help="steps that the host may be ahead of the GPU"
    )
    parser.add_argument("--varying-lengths", type=float, default=0.0, metavar="SIGMA", help="of sequence lengths")
    sampled = "have the activity of GPUs sampled, as of kernels that are limited by this: compute or memory"
    parser.add_argument("--gpu-bound", choices=("compute", "memory"), default="", help=sampled)
    usual = "how unlike healthy ranks and steps are, times that of 4 H200s (default: 1)"
    parser.add_argument("--noise", type=float, default=1.0, metavar="X", help=usual)
    parser.add_argument("--clock-offset-ms", type=float, metavar="MS", help="how far clocks are apart (default: 1)")
    parser.add_argument("--clock-drift-ppm", type=float, metavar="PPM", help="how fast they part (default: 10)")
    where = "CAUSE:RANKS:PERCENT%[@FROM[-TO]][~DUTY%]"
    meaning = "what is wrong with whom, see below; may be repeated"
    parser.add_argument("--fault", action="append", default=[], metavar=where, help=meaning.replace("%", "%%"))
    parser.add_argument(
        "--ground-truth",
        type=Path,
        metavar="FILE",
        help="write the injected faults and their cost to FILE, as JSON (with FOLDER only)",
    )


def run(args: argparse.Namespace) -> int:
    """Simulate, write, say what was written."""
    from hindmost_collector.simulate import Scenario, simulate
    from hindmost_collector.simulate.write import simulated, write

    if args.collector is not None:
        given.filled("--collector", args.collector)
    if (args.out is None) == (args.collector is None):
        raise UsageError("name a FOLDER for the recording, or a --collector to send it to")
    scenario = Scenario(
        ranks=args.ranks,
        steps=args.steps,
        seed=args.seed,
        layout=args.layout,
        tensor=args.tensor,
        pipeline=args.pipeline,
        step_ms=args.step_ms,
        run_ahead=args.run_ahead,
        varying_lengths=args.varying_lengths,
        gpu_bound=args.gpu_bound,
        noise=_noise(args),
        faults=tuple(fault for text in args.fault for fault in parse_fault(text)),
    )
    if args.collector:
        return _to_collector(scenario, args)
    if args.format == "run" and not args.ground_truth:
        simulated(scenario, args.out)
    else:
        made = simulate(scenario)
        write(made.run, args.out, args.format)
        if args.ground_truth:
            report.write(json.dumps(asdict(made.truth), indent=1) + "\n", args.ground_truth, "--ground-truth")
    sys.stdout.write(f"{args.out}: {args.ranks} ranks, {args.steps} steps; judge it by: hindmost report {args.out}\n")
    return 0


def _noise(args: argparse.Namespace) -> Any:
    """As 4 H200s showed it, times ``--noise``; clocks as they were asked for."""
    from hindmost_collector.simulate import Noise

    usual = Noise()
    if not 0 <= args.noise < math.inf:
        raise UsageError(f"--noise {args.noise:g}: 0 for none, or more")
    scaled = ("between_ranks", "each_stretch", "wandering", "stall_probability", "transfer", "host")
    asked = {"clock_offset_ms": args.clock_offset_ms, "clock_drift_ppm": args.clock_drift_ppm}
    clocks = {name: value for name, value in asked.items() if value is not None}
    return replace(usual, **{name: getattr(usual, name) * args.noise for name in scaled}, **clocks)


def _to_collector(scenario: Any, args: argparse.Namespace) -> int:
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what gRPC would print is said in our own one line
    from hindmost_collector.simulate.stream import send

    if not re.fullmatch(r".+:\d{1,5}", args.collector) or "//" in args.collector:
        raise UsageError(f"--collector {args.collector}: write HOST:PORT, as the collector was given as --listen")
    if not 0 <= args.speed < math.inf:
        raise UsageError(f"--speed {args.speed:g}: seconds of the job a second; 0 for as fast as it is taken")
    if args.ground_truth:
        raise UsageError("--ground-truth needs a FOLDER: drop --ground-truth or --collector")
    count = send(scenario, args.collector, args.speed)
    sys.stdout.write(f"{args.collector}: {args.ranks} ranks, {args.steps} steps, {count} batches, all acknowledged\n")
    return 0


def parse_fault(text: str) -> list[Any]:
    """``compute:3,5-6:20%@40-90~30%``: ranks 3, 5 and 6 slower by 20 % of the step in 30 % of steps 40 to 89.

    A fault for each rank: each is a cause of its own, and its repair has its own worth. A network is slow once for all.
    """
    from hindmost_collector.simulate import Fault
    from hindmost_collector.simulate.scenario import MAX_RANKS

    found = _FAULT.fullmatch(text)
    if found is None:
        raise UsageError(f"--fault {text}: expected CAUSE:RANKS:PERCENT%[@FROM[-TO]][~DUTY%], like compute:3:20%@40")
    ranks: list[int] = []
    for part in found["ranks"].split(","):
        low, _, high = part.partition("-")
        if not 0 <= int(high or low) - int(low) < MAX_RANKS:
            raise UsageError(f"--fault {text}: {part} is no range of ranks")
        ranks += range(int(low), int(high or low) + 1)
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
