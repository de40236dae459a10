#!/usr/bin/env python3
"""Another NCCL profiler behind hindmost's plugin: whether both record the same as alone, and what that costs.

    python bench/gpu/nccl_next.py --example libnccl-profiler-example.so --inspector libnccl-profiler-inspector.so \\
        --out nccl_next.json     # about a minute

Two ranks, on two GPUs where there are as many; else both on one, where NCCL_HOSTID makes them two hosts to NCCL, which
then talk through sockets. Both libraries are built from NCCL's sources: ext-profiler/example, ext-profiler/inspector.

same   the events of NCCL's example profiler and the records of NCCL Inspector, each alone and behind hindmost, and
       hindmost's with and without another behind it, by kind, name, number and size
cost   the host's time to enqueue a small all-reduce, by what stands in NCCL's slot, in alternating blocks
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, str(Path(__file__).parents[2] / "agent"))

from hindmost import ring
from hindmost.native import build

RANKS = 2
ROUNDS = 5
PAUSE_S = 0.02
POOLS = ("GROUP_API", "COLL_API", "P2P_API", "KERNEL_LAUNCH", "GROUP", "COLL", "P2P", "PROXY_CTRL", "PROXY_DETACH")
#: All events but the proxy's own states, whose number is a matter of time.
EVENTS = 0xFFF & ~0x20
BLOCKS = 24
CALLS = 200
WARM_UP = 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--example", type=Path, required=True)
    parser.add_argument("--inspector", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("nccl_next.json"))
    parser.add_argument("--blocks", type=int, default=BLOCKS)
    parser.add_argument("--rank", choices=["same", "cost"], help=argparse.SUPPRESS)
    parser.add_argument("--other", type=Path, help=argparse.SUPPRESS)
    request = parser.parse_args()
    if request.rank:
        {"same": run_operations, "cost": run_blocks}[request.rank](request)
        return 0
    others = {"example": request.example.resolve(), "inspector": request.inspector.resolve()}
    found: dict[str, Any] = {"made_by": made_by(), "ranks": RANKS, "gpus": gpus(), "same": same(others), "cost": {}}
    for name, other in others.items():
        request.out.write_text(json.dumps(found, indent=1) + "\n")  # what is known is kept, whatever comes
        found["cost"][name] = cost(other, request.blocks)
    request.out.write_text(json.dumps(found, indent=1) + "\n")
    sys.stdout.write(json.dumps(found, indent=1) + "\n")
    return 0


def made_by() -> str:
    torch = importlib.import_module("torch")
    nccl = ".".join(map(str, torch.cuda.nccl.version()))
    on = f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}, NCCL {nccl}"
    return f"bench/gpu/nccl_next.py on {on}, {time.strftime('%Y-%m-%d', time.gmtime())}"


def gpus() -> int:
    return min(RANKS, int(importlib.import_module("torch").cuda.device_count()))


def variables(other: Path | None, folder: Path, *, hindmost: bool) -> dict[str, str]:
    """What a rank needs for this profiler alone, or behind hindmost."""
    ours = str(build.library("nccl"))
    environ = {
        "NCCL_PROFILE_EVENT_MASK": str(EVENTS),
        "NCCL_PROFILE_DUMP_FILE": str(folder / "example"),
        "NCCL_INSPECTOR_ENABLE": "1",
        "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS": "500",
        "NCCL_INSPECTOR_DUMP_DIR": str(folder),
        "HINDMOST_JOB_ID": "bench",
        "HINDMOST_RING_DIR": str(folder / "rings"),
        **{f"NCCL_PROFILE_{pool}_POOL_SIZE": "4096" for pool in POOLS},
    }
    if hindmost:
        return environ | {"NCCL_PROFILER_PLUGIN": ours, "HINDMOST_NCCL_NEXT": str(other or "none")}
    return environ | {"NCCL_PROFILER_PLUGIN": str(other or "none")}


def ranks(part: str, environ: dict[str, str], *options: str) -> list[str]:
    """Run both ranks; what each printed. Raises where one fails."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    running = []
    for rank in range(RANKS):
        place = {
            "RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "NCCL_HOSTID": f"host{rank}" if gpus() < RANKS else "host",
        }
        line = [sys.executable, __file__, "--rank", part, *options]
        running.append(
            subprocess.Popen(line, env={**os.environ, **environ, **place}, stdout=subprocess.PIPE, text=True)
        )
    said = [process.communicate(timeout=180)[0] for process in running]
    if any(process.returncode for process in running):
        raise SystemExit(f"{part}: a rank failed: {[process.returncode for process in running]}")
    return said


def joined() -> tuple[Any, Any]:
    """Torch and its distributed part, with a communicator; in a rank."""
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    return torch, dist


def run_operations(_: argparse.Namespace) -> None:
    """Each kind of operation, one after another, with time for Inspector to write the last of each down."""
    torch, dist = joined()
    whole, half = torch.ones(1 << 16, device="cuda"), torch.ones(1 << 15, device="cuda")
    other = 1 - dist.get_rank()
    operations: list[Callable[[], object]] = [
        lambda: dist.all_reduce(whole),
        lambda: dist.broadcast(half, 0),
        lambda: dist.all_gather_into_tensor(whole, half),
        lambda: dist.reduce_scatter_tensor(half, whole),
        lambda: dist.send(half, other) if other else dist.recv(half, other),
    ]
    for operation in operations * ROUNDS:
        operation()
        torch.cuda.synchronize()
        time.sleep(PAUSE_S)
    dist.destroy_process_group()


def example_events(folder: Path) -> Counter[str]:
    """The example profiler's events, without times, ids and addresses."""
    found: Counter[str] = Counter()
    for path in folder.glob("example*.json"):
        for line in path.read_text().splitlines():
            kind = re.search(r'"name": "([^"]*)", "cat": "([^"]*)", "ph": "(.)"', line)
            rest = re.findall(
                r'"(SeqNum|Count|count|datatype|Rank|Peer|Steps|ChunkSize|nChannels|Step|Channel)": ?"?(\w+)', line
            )
            if kind:
                found[" ".join([*kind.groups(), *(f"{name}={value}" for name, value in rest)])] += 1
    return found


def inspector_records(folder: Path) -> Counter[str]:
    """NCCL Inspector's records: which collective, which number, how large, by which clock."""
    found: Counter[str] = Counter()
    for path in folder.glob("*.log"):
        for line in path.read_text().splitlines():
            record = json.loads(line)
            call = record["coll_perf"]
            names = ("coll", "coll_sn", "coll_msg_size_bytes", "coll_timing_source")
            found[f"rank {record['header']['rank']} " + " ".join(str(call.get(name)) for name in names)] += 1
    return found


def hindmost_records(folder: Path) -> Counter[str]:
    """hindmost's collectives and sends with GPU times."""
    found: Counter[str] = Counter()
    for path in folder.glob("rings/*.ring"):
        reader = ring.Reader(path)
        for event in reader.poll():
            if event.kind in {ring.COLLECTIVE, ring.P2P}:
                timed = bool(event.flags & ring.GPU_TIME)
                found[f"rank {reader.header.rank} {event.name} {event.seq} {event.peer} {event.value} {timed}"] += 1
    return found


def same(others: dict[str, Path]) -> dict[str, Any]:
    """By other profiler: how many of its events are alike alone and behind hindmost, and of hindmost's."""
    readers = {"example": example_events, "inspector": inspector_records}
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as base:
        ours = recorded(None, Path(base, "hindmost"), hindmost=True)
        without = hindmost_records(ours)
        for name, other in others.items():
            alone = readers[name](recorded(other, Path(base, f"{name}-alone"), hindmost=False))
            behind_folder = recorded(other, Path(base, f"{name}-behind"), hindmost=True)
            behind, beside = readers[name](behind_folder), hindmost_records(behind_folder)
            found[name] = {
                "alone": alone.total(),
                "behind_hindmost": behind.total(),
                "differing": dict((alone - behind) | (behind - alone)),
                "hindmost_alone": without.total(),
                "hindmost_before_it": beside.total(),
                "hindmost_differing": dict((without - beside) | (beside - without)),
                "kinds": dict(Counter(event.split()[1] if name == "example" else event.split()[2] for event in behind)),
            }
    return found


def recorded(other: Path | None, folder: Path, *, hindmost: bool) -> Path:
    folder.mkdir()
    ranks("same", variables(other, folder, hindmost=hindmost), "--example", "x", "--inspector", "x")
    return folder


def run_blocks(request: argparse.Namespace) -> None:
    """Blocks of small all-reduces, each with another profiler in the slot; prints ns a call by block, in rank 0."""
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    ours, other = str(build.library("nccl")), str(request.other)
    slots = {
        "nothing": ("none", "none"),
        "hindmost": (ours, "none"),
        "other": (other, "none"),
        "hindmost, other": (ours, other),
    }
    order = random.Random(1)  # noqa: S311
    found: dict[str, list[float]] = {name: [] for name in slots}
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), RANKS, os.environ["RANK"] == "0")
    small = torch.ones(256, device="cuda")
    for block in range(request.blocks):
        for name in order.sample(sorted(slots), len(slots)):
            os.environ["NCCL_PROFILER_PLUGIN"], os.environ["HINDMOST_NCCL_NEXT"] = slots[name]
            prefix = dist.PrefixStore(f"{block} {name}", store)
            dist.init_process_group("nccl", store=prefix, rank=int(os.environ["RANK"]), world_size=RANKS)
            for _ in range(WARM_UP):
                dist.all_reduce(small)
            torch.cuda.synchronize()
            begin = time.perf_counter_ns()
            for _ in range(CALLS):
                dist.all_reduce(small)
            found[name].append((time.perf_counter_ns() - begin) / CALLS)
            torch.cuda.synchronize()
            dist.destroy_process_group()
    if os.environ["RANK"] == "0":
        sys.stdout.write(json.dumps(found))


def cost(other: Path, blocks: int) -> dict[str, Any]:
    """ns that a call takes longer, with a 95 % interval over blocks."""
    with tempfile.TemporaryDirectory() as base:
        environ = variables(None, Path(base), hindmost=False) | {"NCCL_PROFILE_EVENT_MASK": str(0x46)}
        environ.pop("NCCL_PROFILE_DUMP_FILE")
        options = ["--example", "x", "--inspector", "x", "--other", str(other), "--blocks", str(blocks)]
        found = json.loads(ranks("cost", environ, *options)[0])
    pairs = {
        "hindmost": ("hindmost", "nothing"),
        "other": ("other", "nothing"),
        "hindmost before other": ("hindmost, other", "other"),
    }
    return {
        "call_ns": {name: round(statistics.median(values)) for name, values in found.items()},
        "added_ns": {
            name: interval([a - b for a, b in zip(found[one], found[two], strict=True)])
            for name, (one, two) in pairs.items()
        },
        "blocks": blocks,
        "calls": CALLS,
    }


def interval(differences: list[float]) -> dict[str, float]:
    """Median of paired differences, and its 95 % interval by resampling."""
    source = random.Random(2)  # noqa: S311
    medians = sorted(statistics.median(source.choices(differences, k=len(differences))) for _ in range(2000))
    return {"median": round(statistics.median(differences)), "low": round(medians[50]), "high": round(medians[1949])}


if __name__ == "__main__":
    sys.exit(main())
