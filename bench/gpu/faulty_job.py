"""A training job in which one rank goes wrong on request: the job that ``live_faults.py`` observes.

Files in ``--room`` control the ranks: ``go`` (all are imported; join), ``strike`` (the step from which on the fault
acts, 0 for at once; ``struck`` says when that was), ``stop`` (the step after which to leave), ``quit`` (leave at once,
whatever you are in). It imports no hindmost.
"""

import argparse
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from job_faults import FAULTS, Job
from job_work import CUDA, SIZE, Batches, Products, mark, settle
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

#: Steps over which the step time is measured, before which nothing strikes.
FROM, TO = 15, 30


def leave_when_told(room: Path) -> None:
    """A rank in a collective that never ends can only be ended by another thread."""
    while not (room / "quit").exists():
        time.sleep(0.1)
    os._exit(3)


def build(device: torch.device) -> DistributedDataParallel:
    _, _, width, layers = SIZE
    layer = nn.TransformerEncoderLayer(width, width // 64, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    model = model.to(device, torch.bfloat16 if CUDA else torch.float32)
    return DistributedDataParallel(model, device_ids=[device] if CUDA else None)


def train(args: argparse.Namespace, device: torch.device) -> None:
    """Steps until the request to stop."""
    torch.manual_seed(0)
    data = Batches()
    model = build(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=CUDA)
    here = {"rank": dist.get_rank(), "ranks": dist.get_world_size(), "culprit": args.rank, "share": args.share}
    fault = FAULTS[args.fault](Job(**here, room=args.room, data=data, model=model, device=device))
    stop, told, began = args.room / "stop", 1 << 60, 0.0
    loader = iter(DataLoader(data, batch_size=None))
    with (args.room / "steps" if dist.get_rank() == 0 else Path(os.devnull)).open("a", buffering=1) as log:
        step = -1
        while step < told:
            step += 1
            if step in (FROM, TO):
                settle()
                began, took = time.perf_counter(), time.perf_counter() - began
                if step == TO:
                    fault.measured(took / (TO - FROM))
            if step > TO:
                fault.before(step)
            batch = next(loader)
            fault.within(step)
            batch = batch.to(device, non_blocking=True)
            model(batch[:, : SIZE[1]]).float().pow(2).mean().backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            fault.after(step)
            log.write(f"{step} {time.time_ns()}\n")
            if told == 1 << 60 and stop.exists():
                told = int(stop.read_text())
    settle()


def burn(args: argparse.Namespace) -> None:
    """Another process on the rank's GPU, busy from ``strike`` on."""
    while not (args.room / "go").exists():  # until then the GPU is another job's
        time.sleep(0.02)
    torch.cuda.set_device(args.rank)
    products = Products(torch.device("cuda", args.rank), 4096)
    while not (args.room / "strike").exists():
        time.sleep(0.02)
    mark(args.room / "struck", {"time_ns": time.time_ns()})
    while not any((args.room / end).exists() for end in ("stop", "quit")):
        products.do(20)
        settle()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--room", type=Path, required=True)
    parser.add_argument("--fault", default="", choices=FAULTS)
    parser.add_argument("--share", type=float, default=0.0, help="of the step, by which the rank is slower")
    parser.add_argument("--rank", type=int, default=0, help="the rank that goes wrong")
    parser.add_argument("--burn", action="store_true", help="be the other process on the GPU of --rank")
    args = parser.parse_args()
    torch.set_num_threads(1)
    wait: Callable[[], bool] = (args.room / "go").exists
    if args.burn:
        return burn(args)
    (args.room / f"pid.{os.environ['RANK']}").write_text(str(os.getpid()))
    threading.Thread(target=leave_when_told, args=(args.room,), daemon=True).start()
    while not wait():
        time.sleep(0.02)
    local = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local) if CUDA else torch.device("cpu")
    if CUDA:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if CUDA else "gloo")
    train(args, device)
    dist.barrier()
    dist.destroy_process_group()
    return None


if __name__ == "__main__":
    main()
