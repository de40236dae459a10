#!/usr/bin/env python3
"""A real elastic Horovod job under hindmost that loses a rank: what was recorded, and what the summary says.

    python bench/horovod_elastic.py     # needs Horovod (make horovod); two minutes, most of them its timeouts

Three ranks on two "hosts" of this machine, the last one slow by 20 ms a step; the rank on the second host is killed in
the middle, Horovod goes on with two whose numbers have moved. Printed: the steps of each rank as recorded, the job's
exit code, and the summary. Not a test: how long Horovod takes to notice depends on its own timeouts.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from horovod_jobs import OPENING

TRAIN = """
data = TensorDataset(torch.rand(64, 64), torch.randint(0, 10, (64,)))

@hvd.elastic.run
def train(state):
    while state.epoch < 30:
        for x, y in DataLoader(data, batch_size=16):
            if hvd.rank() == hvd.size() - 1:
                time.sleep(0.02)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        if state.epoch == 10 and os.environ["HOROVOD_HOSTNAME"] == "127.0.0.1":
            os.kill(os.getpid(), 9)
        state.epoch += 1
        state.commit()

train(hvd.elastic.TorchState(model, optimizer, epoch=0))
"""


def command(directory: Path) -> list[str]:
    """``hindmost run`` with an elastic job whose hosts a script names."""
    script, hosts = directory / "train.py", directory / "hosts.sh"
    script.write_text(OPENING + TRAIN)
    hosts.write_text("#!/bin/sh\necho localhost:2\necho 127.0.0.1:1\n")
    hosts.chmod(0o755)
    run = [sys.executable, "-m", "hindmost", "run", "--out", str(directory / "run"), "--"]
    elastic = ["-np", "3", "--min-np", "2", "--max-np", "3", "--host-discovery-script", str(hosts)]
    return [*run, "horovodrun", "--network-interfaces", "lo", *elastic, sys.executable, str(script)]


def recorded(run: Path) -> dict[int, dict[str, int]]:
    """First and last step of each rank in the run directory."""
    read = importlib.import_module("hindmost_collector.store.parquet.store").read_run(run)
    found: dict[int, dict[str, int]] = {}
    for rank, step in zip(read.steps["rank"].tolist(), read.steps["step"].tolist(), strict=True):
        one = found.setdefault(rank, {"first_step": step, "last_step": step, "steps": 0})
        one["first_step"], one["last_step"] = min(one["first_step"], step), max(one["last_step"], step)
        one["steps"] += 1
    return found


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="hindmost-elastic-") as name:
        environ = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(
            command(Path(name)), env=environ, capture_output=True, text=True, timeout=300, check=False
        )
        print(json.dumps({"exit_code": done.returncode, "ranks": recorded(Path(name, "run"))}, indent=2))
        print(done.stderr[done.stderr.rfind("hindmost ·") :])


if __name__ == "__main__":
    main()
