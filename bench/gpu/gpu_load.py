"""Keeps GPUs busy while a bench measures; puts this repository's packages on the path."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "agent"), str(ROOT / "proto"), str(ROOT / "collector")]

LOAD = """
import sys, time, torch
kind, seconds, gpu = sys.argv[1], float(sys.argv[2]), int(sys.argv[3])
torch.cuda.set_device(gpu)
end = time.time() + seconds
a = torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16); b = torch.randn_like(a); c = torch.empty_like(a)
x = torch.empty(1 << 30, device="cuda", dtype=torch.uint8); y = torch.empty_like(x)
print("loaded", flush=True)
while time.time() < end:
    for _ in range(50):
        torch.matmul(a, b, out=c) if kind == "gemm" else y.copy_(x)
    torch.cuda.synchronize()
"""


def load(kind: str, seconds: float, gpus: int) -> list[subprocess.Popen[str]]:
    """Keep every GPU busy for a while; returns once all of them are."""
    started = [
        subprocess.Popen([sys.executable, "-c", LOAD, kind, str(seconds), str(gpu)], stdout=subprocess.PIPE, text=True)
        for gpu in range(gpus)
    ]
    for process in started:
        assert process.stdout is not None
        process.stdout.readline()
    time.sleep(2)
    return started


def stop(processes: list[subprocess.Popen[str]]) -> None:
    for process in processes:
        process.kill()
        process.wait()
