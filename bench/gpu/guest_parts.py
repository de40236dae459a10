#!/usr/bin/env python3
"""What each part of hindmost takes of a training step on several GPUs, and all of it together.

    python bench/gpu/guest_parts.py --gpus 2 --seconds 450 --out guest_parts_h200x2.json
    python bench/gpu/guest_parts.py --gpus 2 --seconds 20 --step-ms 5      # without a GPU: does it run? gloo, tiny

Two jobs train the same DDP model on the same GPUs, one bare, the other under `hindmost run`, and take turns: while one
trains, the other waits for its next command. A turn is a block of about two seconds of steps, so that each holds the
agent's ticks and batches. Modes of a block:

bare     the job that hindmost does not know; agent and collector stand still (SIGSTOP)
out      the observed job, hooks taken out and NCCL plugin paused; agent and collector stand still
probe    hooks in
plugin   hooks in, plugin at work
agent    and the agent runs: rings, NVML, GPM
all      and the collector runs: everything that `hindmost run` starts, as it starts it

A round is all modes in random order, then the same order reversed, which cancels any drift that is even over a round.
The first steps of a block belong to none. Of each mode: the mean difference to the first mode over rounds, as a ratio,
with a 95 % bootstrap interval over rounds.
"""

import argparse
import contextlib
import ctypes
import importlib
import itertools
import json
import os
import random
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

#: What is in, by mode: hooks, plugin, agent, collector.
MODES = {
    "bare": (False, False, False, False),
    "out": (False, False, False, False),
    "probe": (True, False, False, False),
    "plugin": (True, True, False, False),
    "agent": (True, True, True, False),
    "all": (True, True, True, True),
}
BLOCK_S = 2.0
DRAWS = 4000
ROOT = Path(__file__).parents[2]
#: Steps before a block's first: the host is ahead of the GPU again, and parts that were stopped have caught up.
WARM = 5


class Rank:
    """One process of a job: runs the commands that it reads from a socket."""

    def __init__(self, port: int, name: str) -> None:
        self.torch = importlib.import_module("torch")
        self.job = importlib.import_module("guest_parts_job").Job()
        self.job.timed(10)
        observed, gpu = name == "observed", self.torch.cuda.is_available()
        self.hooks = Hooks(self.torch) if observed else None
        plugin = os.environ.get("NCCL_PROFILER_PLUGIN", "") if observed and gpu else ""
        self.pause = ctypes.CDLL(plugin).hindmost_nccl_pause if plugin else lambda _: None
        self.line = socket.create_connection(("127.0.0.1", port)).makefile("rw")
        device = f"{self.torch.cuda.get_device_name()}, torch {self.torch.__version__}" if gpu else "cpu"
        self.say(job=name, rank=int(os.environ["RANK"]), device=device)

    def say(self, **what: Any) -> None:
        print(json.dumps(what), file=self.line, flush=True)

    def serve(self) -> None:
        for text in self.line:
            word, *numbers = text.split()
            if word == "fit":
                took = self.job.fit(float(numbers[0]))
                self.say(step_ms=took, size=self.job.size)
            elif word == "feed":
                self.job.feed(int(numbers[0]))
                self.say(step_ms=self.job.timed(10))
            else:
                self.say(step_ms=self.block(word, *map(int, numbers)))

    def block(self, mode: str, warm: int, steps: int) -> float:
        if self.hooks:
            self.hooks.put(MODES[mode][0])
            self.pause(not MODES[mode][1])
        for _ in range(warm):
            self.job.step()
        start = self.job.mark()
        for _ in range(steps):
            self.job.step()
        end = self.job.mark()
        self.job.settle()
        return float(start.elapsed_time(end)) / steps


class Hooks:
    """Takes what the probe hooked in torch out of this process, and puts it back."""

    def __init__(self, torch: Any) -> None:
        loader = torch.utils.data.dataloader._BaseDataLoaderIter
        places = [(loader, "__next__"), (torch.autograd, "backward")]
        surrounded = [(owner, name, getattr(owner, name)) for owner, name in places]
        #: Functions in whose place others are, and hooks that stand in the functions themselves.
        self.surrounded = [place for place in surrounded if hasattr(place[2], "__wrapped__")]
        recorder = importlib.import_module("hindmost.stepping").attached
        self.entered = [hook for each in recorder._followers for hook in getattr(each, "entered", ())]
        module = importlib.import_module("torch.optim.optimizer")
        self.tables = [module._global_optimizer_pre_hooks, module._global_optimizer_post_hooks]
        self.kept = [dict(table) for table in self.tables]
        assert all(self.kept), "the probe is not in this process"
        assert len(self.surrounded) + len(self.entered) == len(places), "the probe is not in all of its places"

    def put(self, inside: bool) -> None:
        for owner, name, function in self.surrounded:
            setattr(owner, name, function if inside else innermost(function))
        for hook in self.entered:
            (hook.enter if inside else hook.leave)()
        for table, kept in zip(self.tables, self.kept, strict=True):
            table.clear()
            table.update(kept if inside else {})


def innermost(function: Any) -> Any:
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    return function


class Job:
    """A job of several ranks under torchrun, spoken to over sockets."""

    def __init__(self, name: str, gpus: int, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.line: list[str] = []
        listener = socket.create_server(("127.0.0.1", 0))
        line = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus), __file__]
        line += ["--be", name, "--port", str(listener.getsockname()[1])]
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        if name == "observed":
            paths = [*(str(ROOT / part) for part in ("agent", "collector", "proto")), environ.get("PYTHONPATH", "")]
            environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
            line = [sys.executable, "-m", "hindmost", "run", "--out", str(folder / "run"), "--", *line]
        self.log = (folder / f"{name}.log").open("w")
        self.process = subprocess.Popen(line, env=environ, stdout=self.log, stderr=subprocess.STDOUT)
        self.ranks: list[IO[str]] = []
        listener.settimeout(180)
        self.device = ""
        for _ in range(gpus):
            try:
                connection, _ = listener.accept()
            except TimeoutError:
                raise SystemExit(f"{name} did not start:\n{(folder / f'{name}.log').read_text()[-3000:]}") from None
            file = connection.makefile("rw")
            self.device = json.loads(file.readline())["device"]
            self.ranks.append(file)

    def ask(self, command: str) -> list[dict[str, Any]]:
        for rank in self.ranks:
            print(command, file=rank, flush=True)
        answers = [rank.readline() for rank in self.ranks]
        if not all(answers):
            raise SystemExit(f"{self.name} ended:\n{Path(self.log.name).read_text()[-3000:]}")
        return [json.loads(answer) for answer in answers]

    def end(self) -> str:
        for rank in self.ranks:
            rank.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(60)
        self.process.kill()
        return Path(self.log.name).read_text()


class Guests:
    """The agent and the collector that a `hindmost run` has started."""

    def __init__(self, run: int) -> None:
        found = dict(_daemons(run))
        self.pids = {name: found[name] for name in ("agent", "collector")}
        self.runs = dict.fromkeys(self.pids, True)
        self.used = dict.fromkeys(self.pids, 0.0)
        self.ran_s = dict.fromkeys(self.pids, 0.0)

    def put(self, agent: bool, collector: bool) -> None:
        for name, wanted in (("collector", collector), ("agent", agent)):
            if self.runs[name] != wanted:
                os.kill(self.pids[name], signal.SIGCONT if wanted else signal.SIGSTOP)
                self.runs[name] = wanted

    def cpu_s(self) -> dict[str, float]:
        return {
            name: sum(int(task.read_text().split()[0]) for task in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9
            for name, pid in self.pids.items()
        }


def _daemons(run: int) -> Iterator[tuple[str, int]]:
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            if int(stat.read_text().rpartition(")")[2].split()[1]) == run:
                words = (stat.parent / "cmdline").read_text().split("\0")
                yield (words[3] if len(words) > 3 else ""), int(stat.parent.name)


def measured(gpus: int, seconds: float, step_ms: float, modes: list[str], folder: Path) -> dict[str, Any]:
    end = time.monotonic() + seconds
    observed = Job("observed", gpus, folder)
    jobs = {"observed": observed}
    if "bare" in modes:
        jobs["bare"] = Job("bare", gpus, folder)
    first = next(iter(jobs.values()))
    size = first.ask(f"fit {step_ms}")[0]["size"]
    took = [max(one["step_ms"] for one in job.ask(f"feed {size}")) for job in jobs.values()]
    steps = max(round(BLOCK_S * 1e3 / took[0]), 4)
    guests = Guests(observed.process.pid)
    draw = random.Random(7)  # noqa: S311 - an order
    rounds: list[dict[str, list[float]]] = []
    cpu: dict[str, list[float]] = {name: [] for name in guests.pids}
    while True:
        order = draw.sample(modes, len(modes))
        blocks: dict[str, list[float]] = {mode: [] for mode in modes}
        began = time.monotonic()
        for mode in (*order, *reversed(order)):
            guests.put(*MODES[mode][2:])
            before, then = guests.cpu_s(), time.monotonic()
            answers = jobs["bare" if mode == "bare" else "observed"].ask(f"{mode} {WARM} {steps}")
            blocks[mode].append(statistics.fmean(one["step_ms"] for one in answers))
            if mode == "all":
                for name, used in guests.cpu_s().items():
                    cpu[name].append((used - before[name]) / (time.monotonic() - then))
        rounds.append(blocks)
        if time.monotonic() + (time.monotonic() - began) > end:
            break
    rounds = rounds[1:] or rounds  # the first is for caches
    guests.put(True, True)
    said = observed.end()
    if "bare" in jobs:
        jobs["bare"].end()
    return {
        "made_by": f"bench/gpu/guest_parts.py --gpus {gpus} --seconds {seconds:.0f} --step-ms {step_ms:.0f}",
        "device": f"{gpus} x {observed.device}",
        "when": time.strftime("%Y-%m-%d"),
        "batch": size,
        "steps_a_block": steps,
        "rounds": len(rounds),
        "blocks_a_mode": 2 * len(rounds),
        "step_ms": {mode: statistics.median(took for one in rounds for took in one[mode]) for mode in modes},
        "difference": {mode: difference(rounds, modes[0], mode) for mode in modes[1:]},
        "between": {
            f"{mode} - {before}": difference(rounds, before, mode) for before, mode in itertools.pairwise(modes)
        },
        "cores": {name: round(statistics.fmean(took), 4) for name, took in cpu.items() if took},
        "report": said[-2500:],
        "blocks_ms": [{mode: [round(one, 4) for one in took] for mode, took in blocks.items()} for blocks in rounds],
    }


def difference(rounds: list[dict[str, list[float]]], base: str, mode: str) -> dict[str, Any]:
    """Of a step's time, in per cent: the mean over rounds with its 95 % interval, and the median with its."""
    values = [100 * (statistics.fmean(one[mode]) / statistics.fmean(one[base]) - 1) for one in rounds]
    low, high = interval(values, statistics.fmean)
    return {
        "percent": round(statistics.fmean(values), 4),
        "percent_95": [round(low, 4), round(high, 4)],
        "median_percent": round(statistics.median(values), 4),
        "median_percent_95": [round(one, 4) for one in interval(values, statistics.median)],
    }


def interval(values: Sequence[float], of: Callable[[Sequence[float]], float]) -> tuple[float, float]:
    """95 % bootstrap interval of a mean or median."""
    draw = random.Random(11)  # noqa: S311 - a bootstrap
    drawn = sorted(of(draw.choices(values, k=len(values))) for _ in range(DRAWS))
    return drawn[int(0.025 * DRAWS)], drawn[int(0.975 * DRAWS)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=450, help="for everything")
    parser.add_argument("--step-ms", type=float, default=100)
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--out", type=Path)
    parser.add_argument("--be", help=argparse.SUPPRESS)
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be:
        Rank(args.port, args.be).serve()
        return 0
    folder = Path(tempfile.mkdtemp(prefix="hindmost-bench-"))
    try:
        found = measured(args.gpus, args.seconds, args.step_ms, args.modes, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    print(found["report"])
    for mode in args.modes:
        print(f"{mode:<8} {found['step_ms'][mode]:9.3f} ms", found["difference"].get(mode, ""), flush=True)
    print("cores:", found["cores"], "rounds:", found["rounds"])
    return 0


if __name__ == "__main__":
    sys.exit(main())
