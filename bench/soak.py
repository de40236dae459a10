"""A collector and an agent as services, and jobs that come and go: what grows.

    python -m bench.soak [--minutes 30] [--simulated-every 20] [--retention-gib 0.02] [--out FILE]

One after the other, jobs of two real ranks run for some seconds each; every 20 s a simulated job of 16 ranks is sent at
once. A real job is forgotten half a minute after its end, a simulated one, whose ranks never end, after five minutes.
What a collector has of agents that left, it keeps for an hour. Memory, open files, threads, disk and `/metrics` are
read every 5 s. A slope is a least-squares fit over the second half, when caches are full; its error is twice the
standard error of the fit. Each running job takes memory, so how many the collector has is fitted too. An agent of a
node reads all jobs there: run this alone, or with processes and a /dev/shm of its own
(`unshare --mount --pid --fork --mount-proc`).
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bench.checkout import packages, write

ROOT = Path(__file__).resolve().parents[1]
RANK = str(ROOT / "bench/hosts/rank.py")
EVERY_S = 5.0
STEPS, STEP_MS = 400, 20
#: What may grow a little, for so long: allocators keep what a larger job took. And what may not: by more than so many.
MEMORY = ("collector_mib", "agent_mib")
COUNTED, MORE = ("collector_threads", "agent_threads", "collector_files", "agent_files", "collector_jobs_over"), 4
#: A simulated job is forgotten five minutes after it was sent; sealing jobs one after the other takes some seconds.
FORGOTTEN_S = 330.0


class Soak:
    """Everything that runs; ``folder`` has stores and spools."""

    def __init__(self, folder: Path, retention_gib: float, simulated_every_s: float) -> None:
        self.folder, self.over = folder, threading.Event()
        self.simulated_every_s = simulated_every_s
        self.jobs = self.simulated = self.failed = 0
        self.sent_s: list[float] = []
        words = "--listen 127.0.0.1:0 --http 127.0.0.1:0 --flush-seconds 2".split()
        words += ["--store", str(folder / "store"), "--retention-gib", str(retention_gib)]
        self.collector = self.start("collector", *words)
        assert self.collector.stdout is not None
        bound = json.loads(self.collector.stdout.readline())
        self.address, self.page = bound["grpc"], bound["http"]
        self.agent = self.start("agent", "--collector", self.address, "--spool", str(folder / "spool"))
        assert self.agent.stdout is not None
        self.agent.stdout.readline()

    def start(self, *words: str) -> subprocess.Popen[str]:
        """``hindmost WORDS``, which writes its log next to the store."""
        with (self.folder / f"{words[0]}.log").open("a") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "hindmost", *words],
                env=self.environ(), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip

    def environ(self, **more: str) -> dict[str, str]:
        return {**os.environ, "PYTHONPATH": packages(), **more}

    def come_and_go(self) -> None:
        """Jobs of two ranks, one after the other."""
        while not self.over.is_set():
            self.jobs += 1
            job = f"soak-{os.getpid()}-{self.jobs}"
            rings = Path(f"/dev/shm/hindmost-{os.getuid()}/{job}")  # noqa: S108 - where rings live
            rings.parent.mkdir(mode=0o700, exist_ok=True)
            rings.mkdir(mode=0o700)
            marks = self.folder / "marks" / job
            marks.mkdir(parents=True)
            own = {"HINDMOST_JOB_ID": job, "HINDMOST_RING_DIR": str(rings), "WORLD_SIZE": "2"}
            own["PYTHONPATH"] = packages(probe=True)
            command = [sys.executable, RANK, str(marks), "none", str(STEPS), str(STEP_MS)]
            ranks = [
                subprocess.Popen(command, env=self.environ(**own, RANK=str(rank), LOCAL_RANK=str(rank)))
                for rank in range(2)
            ]
            self.failed += sum(one.wait() != 0 for one in ranks)

    def simulate(self) -> None:
        """Jobs that are sent at once."""
        while not self.over.wait(self.simulated_every_s):
            self.simulated += 1
            words = ["simulate", "--collector", self.address, "--ranks", "16", "--seed", str(self.simulated)]
            done = subprocess.run(
                [sys.executable, "-m", "hindmost", *words, "--fault", "compute:3:20%"],
                env=self.environ(), capture_output=True, text=True, check=False,
            )  # fmt: skip
            self.failed += done.returncode != 0
            self.sent_s.append(time.monotonic())

    def look(self) -> dict[str, float]:
        found: dict[str, float] = {"store_mib": _size(self.folder / "store"), "spool_mib": _size(self.folder / "spool")}
        for name, process in (("collector", self.collector), ("agent", self.agent)):
            status = Path(f"/proc/{process.pid}/status").read_text()
            values = dict(line.split(":", 1) for line in status.splitlines() if ":" in line)
            found[f"{name}_mib"] = int(values["VmRSS"].split()[0]) / 1024
            found[f"{name}_threads"] = int(values["Threads"])
            found[f"{name}_files"] = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        rings = Path(f"/dev/shm/hindmost-{os.getuid()}")  # noqa: S108 - where rings live
        with urllib.request.urlopen(f"http://{self.page}/metrics", timeout=60) as answer:
            found["collector_jobs"] = answer.read().count(b"\nhindmost_job_info{")
        recent = sum(time.monotonic() - at_s < FORGOTTEN_S for at_s in list(self.sent_s))
        found["collector_jobs_over"] = max(found["collector_jobs"] - recent, 0)
        found["job_folders"] = len(list(rings.glob(f"soak-{os.getpid()}-*")))
        return found

    def end(self) -> dict[str, Any]:
        """Let both leave in order: the agent's account of samples."""
        self.agent.terminate()
        said, _ = self.agent.communicate(timeout=60)
        self.collector.terminate()
        self.collector.communicate(timeout=120)
        account: dict[str, Any] = json.loads(said.splitlines()[-1])["samples"]
        return account

    def kill(self) -> None:
        """End whatever still runs."""
        for one in (self.agent, self.collector):
            if one.poll() is None:
                one.send_signal(signal.SIGKILL)
                one.wait()


def _size(folder: Path) -> float:
    """MiB on disk."""
    done = subprocess.run(["du", "-sk", str(folder)], capture_output=True, text=True, check=False)
    return int((done.stdout.split() or ["0"])[0]) / 1024


def slope(at_s: Sequence[float], values: Sequence[float], jobs: Sequence[float]) -> dict[str, float]:
    """A least-squares fit: units an hour with as many jobs, and twice its standard error."""
    known, y = np.column_stack([np.array(at_s) / 3600, np.ones(len(at_s)), jobs]), np.array(values)
    inverse = np.linalg.pinv(known)
    found = inverse @ y
    error = np.sqrt(((y - known @ found) ** 2).sum() / max(len(y) - 3, 1) * (inverse[0] ** 2).sum())
    return {"an_hour": round(float(found[0]), 3), "error": round(float(2 * error), 3)}


def growing(growth: Mapping[str, Mapping[str, Any]], mib: float) -> list[str]:
    """What surely grew in the second half: memory by more than ``mib`` MiB an hour, and at all what is counted and is
    there at most a few of."""
    rates = {name: one["second_half"]["an_hour"] - one["second_half"]["error"] for name, one in growth.items()}
    found = [f"{name} grows by {rates[name]:.0f} MiB an hour or more" for name in MEMORY if rates[name] > mib]
    return found + [
        f"{name}: {growth[name]['half']:.0f} at half time, {growth[name]['last']:.0f} at the end"
        for name in COUNTED
        if rates[name] > 0 and growth[name]["last"] > growth[name]["half"] + MORE
    ]


def main() -> int:
    """Soak; 1 where a job failed, a sample is not accounted for, or a service grows without end."""
    parser = argparse.ArgumentParser(description="a collector, an agent, and jobs that come and go: what grows")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--simulated-every", type=float, default=20.0, metavar="S")
    parser.add_argument("--retention-gib", type=float, default=0.02)
    parser.add_argument("--most-growth", type=float, default=40.0, metavar="MIB", help="an hour, of each service")
    parser.add_argument("--out", type=Path, help="write the results here, as JSON")
    args = parser.parse_args()
    seen: list[tuple[float, dict[str, float]]] = []
    with tempfile.TemporaryDirectory(prefix="hindmost-soak-") as folder:
        soak = Soak(Path(folder), args.retention_gib, args.simulated_every)
        threads = [threading.Thread(target=one, daemon=True) for one in (soak.come_and_go, soak.simulate)]
        try:
            for one in threads:
                one.start()
            began = time.monotonic()
            while (at := time.monotonic() - began) < args.minutes * 60:
                seen.append((at, soak.look()))
                time.sleep(EVERY_S)
            soak.over.set()
            for one in threads:
                one.join(120)
            account = soak.end()
        finally:
            soak.kill()
    half = [(at, look) for at, look in seen if at > args.minutes * 30]
    at_s, none = [at for at, _ in half], [0.0] * len(half)
    jobs = [look["collector_jobs"] for _, look in half]
    result = {
        "what": f"bench/soak.py: {args.minutes:g} minutes, a simulated job every {args.simulated_every:g} s;"
        f" {os.cpu_count()} cores, shared with other work",
        "jobs": soak.jobs, "simulated_jobs": soak.simulated, "failed": soak.failed, "samples": account,
        "growth": {
            name: {
                "first": round(seen[0][1][name], 1), "half": round(half[0][1][name], 1),
                "last": round(half[-1][1][name], 1), "most": round(max(look[name] for _, look in seen), 1),
                "second_half": slope(at_s, [look[name] for _, look in half], jobs if name in MEMORY else none),
            }
            for name in seen[0][1]
        },
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    if args.out:
        write(args.out, result)
    accounted = account["produced"] == account["delivered"] + sum(account["dropped"].values()) + account["kept"]
    found = growing(result["growth"], args.most_growth)
    for line in found:
        print(line, file=sys.stderr)
    return int(soak.failed > 0 or not accounted or account["kept"] > 0 or bool(found))


if __name__ == "__main__":
    sys.exit(main())
