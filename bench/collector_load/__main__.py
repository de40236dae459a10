"""How many nodes one collector carries: simulated agents, real gRPC on loopback, and a bare server for comparison.

Each agent has a connection of its own and sends what the real agent of a node of 8 GPUs does, byte for byte: a message
every two seconds with two ticks of 340 samples, in a dozen blocks, and of 8 ranks two steps with five phases and twenty
collectives; or every three or four, with as much more, where a collector of many agents asks for it. Clock round trips,
the ranks' states and their definitions come as often too. CPU is the server process's own
user and system time, all threads, with store and detection; the agents run in a process of their own. Other load on
the machine shifts lag, not CPU. Compaction merges what 16 flushes of ten seconds wrote, so a run of minutes has it:
``upkeep_s`` is the CPU time that it took, ``compacted_ratio`` how much of what is stored it has merged.
``secured`` is a collector of `hindmost run` over several hosts: TLS, and a token of the agents' job. ``bare`` is a
grpc.aio server with the collector's settings that looks into no message, the floor of any collector in Python.

    python -m bench.collector_load --agents 64 256 1024 --bare 64 256 1024 --seconds 40 --runs 3 -o FILE
"""

import argparse
import asyncio
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
from hindmost_cli.run.environment import proof

from bench.checkout import commit

#: Connecting and the first definitions are not what is measured: seconds for any number of agents, and for each.
SETTLE_S, SETTLE_AGENT_S = 10.0, 1 / 60
#: Each program sets for itself how gRPC waits.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "GRPC_EXPERIMENTS"}
#: With TLS each agent connects twice, with a handshake each time: so much longer, for all servers of such a run, as one
#: that has run for longer has more to judge.
HANDSHAKE = 4
#: Servers that are hindmost's own.
OWN = ("hindmost", "secured")
COUNTERS = ("batches", "duplicate_batches", "missing_batches", "shed_samples", "malformed_blocks", "store_failures")


def metrics(address: str, secret: str) -> str:
    request = urllib.request.Request(f"http://{address}/metrics")
    if secret:
        request.add_header("Authorization", f"Bearer {secret}")
    with urllib.request.urlopen(request, timeout=120) as answer:  # noqa: S310 - loopback
        text: str = answer.read().decode()
    return text


def quantile(text: str, share: float) -> float:
    """Upper bound of a quantile of the event loop's lag, seconds, from the collector's histogram."""
    pattern = r'hindmost_collector_loop_lag_seconds_bucket\{le="([^"]+)"\} ([\d.e+]+)'
    buckets = [(float(bound), float(count)) for bound, count in re.findall(pattern, text)]
    return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


def collected(address: str, secret: str) -> dict[str, Any]:
    """What the collector says of itself after the load."""
    text = metrics(address, secret)
    values = {name: re.search(rf"^hindmost_collector_{name}(?:_total)? (\S+)", text, re.M) for name in COUNTERS}
    seconds = {
        name: re.search(rf"^hindmost_collector_{name}_seconds_total (\S+)", text, re.M)
        for name in ("flush", "judging", "upkeep")
    }
    return {
        "lag_p99_s": quantile(text, 0.99),
        "lag_p999_s": quantile(text, 0.999),
        **{name: int(float(found[1])) for name, found in values.items() if found},
        **{f"{name}_s": round(float(found[1]), 2) for name, found in seconds.items() if found},
    }


def measure(server: str, count: int, seconds: int, settle: float) -> dict[str, Any]:
    """Start a server and its agents, each in processes of their own; what the server took once they had settled."""
    with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryDirectory() as proofs:
        own = ["-m", "hindmost", "collector", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--store", directory]
        environ, secret = ENVIRONMENT, ""
        if server == "secured":
            made, _ = proof(Path(proofs), "bench", encrypted=True)
            own += made.collector_options
            secret = (made.folder / "secret").read_text().strip()
            environ = {**ENVIRONMENT, **made.variables(elsewhere=True)}
        command = own if server in OWN else ["-m", "bench.collector_load", "--serve"]
        started = subprocess.Popen([sys.executable, *command], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT)
        assert started.stdout
        addresses = json.loads(started.stdout.readline())
        load = ["-m", "bench.collector_load", "--generate", addresses["grpc"]]
        load += ["--agents", str(count), "--seconds", str(seconds), "--settle", str(settle)]
        client = subprocess.Popen([sys.executable, *load], stdout=subprocess.PIPE, text=True, env=environ)
        try:
            assert client.stdout
            client.stdout.readline()  # all agents are made
            cpu, peak = watched(psutil.Process(started.pid), client, settle, seconds)
            done = json.loads(client.communicate(timeout=seconds + 180)[0])
            figures = collected(addresses["http"], secret) if addresses["http"] else {}
            stored, merged = stored_bytes(Path(directory))
        finally:
            for process in (client, started):
                process.kill()
                process.wait()
    return {
        "server": server,
        "agents": count,
        "cpu_of_a_core": round(cpu, 4),
        "us_an_agent_and_second": round(cpu / count * 1e6, 1),
        "rss_mib": round(peak / 2**20),
        "sent": done["sent"],
        "unacknowledged": done["sent"] - done["acked"],
        "stored_mib": round(stored / 2**20, 1),
        "compacted_ratio": round(merged / max(stored, 1), 3),
        "client_cpu_of_a_core": round(done["cpu_s"] / seconds, 3),
        **figures,
    }


def stored_bytes(store: Path) -> tuple[int, int]:
    """Bytes of all segments, coarser levels of samples left out, and of those that compaction made."""
    found = [one for one in store.rglob("segments/*/*.parquet") if not one.parent.name.startswith("metrics_")]
    taken = {one: one.stat().st_size for one in found}
    return sum(taken.values()), sum(size for one, size in taken.items() if one.stem.endswith("-1"))


def watched(process: psutil.Process, client: subprocess.Popen[str], settle: float, seconds: int) -> tuple[float, int]:
    """``(CPU of a core, largest resident bytes)`` of a process while its agents send at full rate."""
    time.sleep(settle)
    before, began, peak = process.cpu_times(), time.monotonic(), 0
    while client.poll() is None and time.monotonic() - began < seconds:
        peak = max(peak, process.memory_info().rss)
        time.sleep(0.25)
    after, took = process.cpu_times(), time.monotonic() - began
    return (after.user + after.system - before.user - before.system) / took, peak


def circumstances() -> dict[str, Any]:
    """The machine, the commit, and the load of other work."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"
    return {"machine": machine, "commit": commit(), "load_before": os.getloadavg()[0]}


def main() -> None:
    """Parse, measure, print one JSON line a measurement."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--agents", type=int, nargs="*", default=[64, 256, 1024], help="at the collector")
    parser.add_argument(
        "--secured", type=int, nargs="*", default=[], help="agents at the collector with TLS and a token"
    )
    parser.add_argument("--bare", type=int, nargs="*", default=[], help="agents at the bare server")
    parser.add_argument("--seconds", type=int, default=40)
    parser.add_argument("--runs", type=int, default=1, help="how often to measure each, one round after the other")
    parser.add_argument(
        "--together", action="store_true", help="all of a round at one time: other load is alike for each"
    )
    parser.add_argument("-o", "--output", type=Path, help="where the figures go as JSON")
    parser.add_argument("--add", action="store_true", help="add to what that file has, measured on this machine")
    parser.add_argument("--generate", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--settle", type=float, default=SETTLE_S, help=argparse.SUPPRESS)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        from bench.collector_load import servers  # noqa: PLC0415 - gRPC is set up when it is loaded

        asyncio.run(servers.serve())
    elif args.generate:
        from bench.collector_load import agents  # noqa: PLC0415 - the same

        count = args.agents[0]
        load = agents.Load(count, args.settle, args.seconds, count * agents.RANKS)
        work = agents.generate(args.generate, load)
        print(json.dumps(asyncio.run(work)))
    else:
        began = circumstances()
        plan = [("bare", args.bare), ("hindmost", args.agents), ("secured", args.secured)]
        each = [(server, count) for server, counts in plan for count in counts]
        found = []
        settle = [SETTLE_S + count * SETTLE_AGENT_S * (HANDSHAKE if args.secured else 1) for _, count in each]
        with ThreadPoolExecutor(len(each) if args.together else 1) as pool:
            rounds = [(*one, args.seconds, after) for one, after in zip(each, settle, strict=True)] * args.runs
            for one in pool.map(lambda asked: measure(*asked), rounds):
                found.append(one | {"seconds": args.seconds})
                print(json.dumps(found[-1]), flush=True)
        if args.output:
            write(args.output, began, found, add=args.add)


def write(output: Path, began: dict[str, Any], found: list[dict[str, Any]], *, add: bool) -> None:
    """Keep what was measured: alone, or after what the file has of this commit."""
    command = f"python -m bench.collector_load {' '.join(sys.argv[1:])}"
    kept: dict[str, Any] = {"what": [], **began, "measured": []}
    if add and output.exists():
        kept = json.loads(output.read_text())
        measured = kept.get("commit", "unknown")
        if measured != began["commit"]:
            sys.exit(f"{output} is of commit {measured}, this is {began['commit']}: leave --add out")
    kept["what"] = [*kept["what"], {"command": command, "load": [began["load_before"], os.getloadavg()[0]]}]
    kept.pop("load_before", None)
    kept["measured"] = [*kept["measured"], *found]
    output.write_text(json.dumps(kept, indent=1) + "\n")


def typical(kept: dict[str, Any], server: str, agents: int, name: str) -> float:
    """The median of the runs of one size, of what such a file has. Raises StatisticsError where there is none."""
    of_size = [one for one in kept["measured"] if (one["server"], one["agents"]) == (server, agents)]
    return statistics.median(one[name] for one in of_size)


if __name__ == "__main__":
    main()
