#!/usr/bin/env python3
"""How soon NCCL's RAS lets hindmost name the rank of a hang, where hindmost's plugin is not loaded.

    python bench/gpu/ras_hang.py --out ras_hang.json     # about a minute; two ranks, on one GPU if there is only one

Rank 1 leaves a job of all-reduces after some seconds and sleeps; rank 0 waits for it. ``NCCL_PROFILER_PLUGIN=none``.

probe    under `hindmost run`: steps are marked
nothing  a collector and a node's agent; the ranks know nothing of hindmost

For each: the verdict, how long after the stop it was written, and whether its communicator is NCCL's own name for it.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

HINDMOST = [sys.executable, "-m", "hindmost"]
STEPS, STEP_S = 80, 0.1
PATIENCE_S = 60.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("ras_hang.json"))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    request = parser.parse_args()
    if request.rank:
        run_rank(request.rank)
        return 0
    found = []
    for _ in range(request.repeat):
        for name, case in (("probe", under_run), ("nothing", as_service)):
            with tempfile.TemporaryDirectory() as folder:
                found.append({"case": name, "gpus": min(2, gpus()), **case(Path(folder))})
            request.out.write_text(json.dumps(found, indent=1) + "\n")
            sys.stdout.write(json.dumps(found[-1]) + "\n")
    return 0


def run_rank(folder: Path) -> None:
    """One rank: all-reduces, then rank 1 comes to none any more."""
    torch, dist = importlib.import_module("torch"), importlib.import_module("torch.distributed")
    step = importlib.import_module("hindmost").step if os.environ.get("HINDMOST_PROBE") != "0" else lambda: None
    torch.cuda.set_device(int(os.environ["RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl")
    values = torch.ones(1 << 16, device="cuda")
    for number in range(10_000):
        if number == STEPS and dist.get_rank() == 1:
            (folder / "stopped").write_text(str(time.time()))
            time.sleep(600)
        dist.all_reduce(values)
        torch.cuda.synchronize()
        step()
        time.sleep(STEP_S)


def rank_lines(folder: Path) -> list[str]:
    """A shell's command line for each rank."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    common = f"WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={port} NCCL_PROFILER_PLUGIN=none NCCL_RAS_ENABLE=1"
    common += f" NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT NCCL_DEBUG_FILE={folder}/nccl.%p"
    program = shlex.join([sys.executable, __file__, "--rank", str(folder)])
    host = "" if gpus() > 1 else "NCCL_HOSTID=host{rank}"  # of one GPU, NCCL takes two ranks only from two hosts
    line = f"RANK={{rank}} LOCAL_RANK={{rank}} {host} {common} exec {program}"
    return [line.format(rank=rank) for rank in range(2)]


def gpus() -> int:
    """How many there are, without a context on any."""
    return len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())


@contextmanager
def started(argv: list[str], **more: str) -> Iterator[subprocess.Popen[str]]:
    """A process, ended with all that it started."""
    process = subprocess.Popen(
        argv, env={**os.environ, **more}, text=True, start_new_session=True, stdout=subprocess.PIPE
    )
    try:
        yield process
    finally:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.communicate(timeout=20)
            except (subprocess.TimeoutExpired, ProcessLookupError):
                continue
            break


def under_run(folder: Path) -> dict[str, Any]:
    """A probe that marks steps, and no plugin."""
    lines = " & ".join(f"({line})" for line in rank_lines(folder))
    with started([*HINDMOST, "run", "--quiet", "--out", str(folder / "run"), "--", "bash", "-c", f"{lines} & wait"]):
        return verdict(folder)


def as_service(folder: Path) -> dict[str, Any]:
    """Ranks without a probe, and a node's agent."""
    ports = ["--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    job = ["--out", str(folder / "run"), "--job-id", "hang"]
    with started([*HINDMOST, "collector", *ports, *job]) as collector:
        assert collector.stdout is not None
        address = json.loads(collector.stdout.readline())["grpc"]
        agent = [*HINDMOST, "agent", "--collector", address, "--spool", str(folder / "spool")]
        lines = " & ".join(f"({line})" for line in rank_lines(folder))
        with started(agent), started(["bash", "-c", f"{lines} & wait"], HINDMOST_PROBE="0", SLURM_JOB_ID="hang"):
            return verdict(folder)


def verdict(folder: Path) -> dict[str, Any]:
    """The first verdict that names a rank, and when it was written."""
    until, path = time.monotonic() + PATIENCE_S, folder / "run/verdicts.jsonl"
    while time.monotonic() < until:
        lines = path.read_text().splitlines() if path.exists() else []
        events = [json.loads(line) for line in lines if line.endswith("}")]
        for event in events:
            if event["verdict"]["kind"] == "hang" and event["verdict"]["ranks"]:
                return said(folder, event["verdict"])
        time.sleep(0.02)
    return {"named": None, "nccl": logs(folder)[-2000:]}


def said(folder: Path, found: dict[str, Any]) -> dict[str, Any]:
    """What of a verdict is of interest here."""
    after_s = time.time() - float((folder / "stopped").read_text())
    evidence = "\n".join(found["evidence"])
    comm = re.search(r"communicator (0x[0-9a-f]+)", evidence)
    return {
        "named": found["ranks"],
        "after_s": round(after_s, 2),
        "communicator": comm and comm[1],
        "is_nccls": comm is not None and f"commId {comm[1]} " in logs(folder),
        "version": next(iter(re.findall(r"NCCL version (\S+)", logs(folder))), None),
        "evidence": found["evidence"],
    }


def logs(folder: Path) -> str:
    return "\n".join(path.read_text() for path in sorted(folder.glob("nccl.*")))


if __name__ == "__main__":
    sys.exit(main())
