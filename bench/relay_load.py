"""What a relay takes from a collector, and what it costs: the same agents directly, and through relays.

The agents are those of ``bench/collector_load``; CPU is each process's own user and system time over the same seconds.

    python bench/relay_load.py --agents 256 --relays 2 --seconds 20 --output bench/results/relay_load.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parent.parent
#: For the first connections and definitions of all agents.
SETTLE_S = 14.0


def collector(*arguments: str) -> tuple[subprocess.Popen[str], str]:
    """A real ``hindmost collector`` and where it listens."""
    command = [sys.executable, "-m", "hindmost", "collector", "--listen", "127.0.0.1:0", "--http", "none", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout
    return process, json.loads(process.stdout.readline())["grpc"]


def generator(door: str, agents: int, first: int, seconds: int) -> subprocess.Popen[str]:
    """A process that is ``agents`` agents, numbered from ``first``."""
    numbers = {"--agents": agents, "--first": first, "--seconds": seconds, "--settle": SETTLE_S}
    words = [str(word) for pair in numbers.items() for word in pair]
    command = [sys.executable, "-m", "bench.collector_load", "--generate", door, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def cpu_s(process: subprocess.Popen[str]) -> float:
    """User and system time so far."""
    times = psutil.Process(process.pid).cpu_times()
    return times.user + times.system


def measure(agents: int, relays: int, seconds: int) -> dict[str, Any]:
    """One round: ``agents`` over ``relays`` (0: directly)."""
    with tempfile.TemporaryDirectory() as folder:
        top, address = collector("--store", folder)
        between = [collector("--relay-to", address) for _ in range(relays)]
        time.sleep(1.0)
        doors = [where for _, where in between] or [address]
        share = agents // len(doors)
        clients = [generator(door, share, number * share, seconds) for number, door in enumerate(doors)]
        for client in clients:
            assert client.stdout
            client.stdout.readline()  # all agents are made
        time.sleep(SETTLE_S)
        before, relays_before, began = cpu_s(top), [cpu_s(one) for one, _ in between], time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - began
        used = (cpu_s(top) - before) / took
        relay_used = [(cpu_s(one) - was) / took for (one, _), was in zip(between, relays_before, strict=True)]
        done = [json.loads(client.communicate(timeout=180)[0]) for client in clients]
        for process in (*(one for one, _ in between), top):
            process.kill()
            process.wait()
    return {
        "agents": agents,
        "relays": relays,
        "collector_cpu_of_a_core": round(used, 4),
        "relay_cpu_of_a_core": [round(one, 4) for one in relay_used],
        "batches": sum(one["sent"] for one in done),
        "unacknowledged": sum(one["sent"] - one["acked"] for one in done),
    }


def main() -> None:
    """Alternate both ways, so that whatever else runs here disturbs them alike."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--agents", type=int, default=256)
    parser.add_argument("--relays", type=int, default=2)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    found = []
    for _ in range(args.rounds):
        for relays in (0, args.relays):
            found.append(measure(args.agents, relays, args.seconds))
            print(json.dumps(found[-1]), flush=True)
    ratios = [
        round(via["collector_cpu_of_a_core"] / direct["collector_cpu_of_a_core"], 3)
        for direct, via in zip(found[::2], found[1::2], strict=True)
    ]
    result = {
        "what": "simulated agents of bench/collector_load (340 samples a second, 8 ranks) on loopback",
        "machine": f"{os.cpu_count()} cores, shared with other work: ratios within a round are what holds",
        "collector_cpu_through_relays_over_direct": ratios,
        "rounds": found,
    }
    if args.output:
        args.output.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps({"ratios": ratios}))


if __name__ == "__main__":
    main()
