"""Data-parallel training of a small network with mpi4py and numpy, and a fault to inject.

    mpirun -np 4 python examples/train_mpi.py
    mpirun -np 4 python examples/train_mpi.py --slow-rank 2 --slow-ms 4

Each rank reads its batches from one file, computes gradients, averages them with an all-reduce and steps. With
--slow-rank one rank is held up by --slow-ms in each step: by more arithmetic (compute), by a file that is slow to read
(input), or by writing its weights out and waiting for the disk (checkpoint).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core a rank: numpy's BLAS reads it when it is imported

import numpy as np
from mpi4py import MPI

FEATURES, HIDDEN, CLASSES = 784, 128, 10
SAMPLES = 8192


def make_data(path: Path) -> None:
    """Write a synthetic set of images: one byte of label, then one byte a pixel."""
    random = np.random.default_rng(0)
    labels = random.integers(CLASSES, size=SAMPLES, dtype=np.uint8)
    prototypes = random.integers(256, size=(CLASSES, FEATURES))
    pixels = 0.6 * prototypes[labels] + 0.4 * random.integers(256, size=(SAMPLES, FEATURES))
    np.concatenate([labels[:, None], pixels.astype(np.uint8)], axis=1).tofile(path)


class Images:
    """The part of a file of images that one rank trains on, batch after batch, for ever."""

    def __init__(self, path: Path, rank: int, ranks: int, batch: int) -> None:
        self.file = path.open("rb", buffering=0)
        self.record = FEATURES + 1
        self.bytes = batch * self.record
        self.first = rank * (SAMPLES // ranks) * self.record
        self.last = self.first + (SAMPLES // ranks) * self.record
        self.file.seek(self.first)

    def read(self) -> bytes:
        if self.file.tell() + self.bytes > self.last:
            self.file.seek(self.first)
        return self.file.read(self.bytes)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        rows = np.frombuffer(self.read(), dtype=np.uint8).reshape(-1, self.record)
        return rows[:, 1:].astype(np.float32) / 255.0, rows[:, 0]


class SlowImages(Images):
    """The same on storage that takes some ms a read: a pipe whose other end hands the bytes over late."""

    def __init__(self, path: Path, rank: int, ranks: int, batch: int) -> None:
        super().__init__(path, rank, ranks, batch)
        self.delay_s = 0.0
        self.asked = threading.Semaphore(0)
        pipe = path.with_name(f"slow-{rank}")
        os.mkfifo(pipe)
        threading.Thread(target=self._serve, args=(pipe,), daemon=True).start()
        self.pipe = pipe.open("rb")

    def _serve(self, pipe: Path) -> None:
        with pipe.open("wb", buffering=0) as storage:
            while True:
                self.asked.acquire()
                time.sleep(self.delay_s)
                storage.write(Images.read(self))

    def read(self) -> bytes:
        self.asked.release()
        return self.pipe.read(self.bytes)


class Network:
    """Two layers and a softmax, all weights in one flat array so that one all-reduce averages every gradient."""

    def __init__(self) -> None:
        random = np.random.default_rng(1)
        self.weights = (random.standard_normal(FEATURES * HIDDEN + HIDDEN * CLASSES) * 0.05).astype(np.float32)
        self.gradient = np.zeros_like(self.weights)
        self.w1, self.w2 = self._views(self.weights)
        self.g1, self.g2 = self._views(self.gradient)

    @staticmethod
    def _views(flat: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        cut = FEATURES * HIDDEN
        return flat[:cut].reshape(FEATURES, HIDDEN), flat[cut:].reshape(HIDDEN, CLASSES)

    def forward_backward(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Fill the gradient; return the mean cross-entropy."""
        hidden = np.maximum(images @ self.w1, 0.0)
        logits = hidden @ self.w2
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        odds /= odds.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = float(-np.log(odds[rows, labels] + 1e-9).mean())
        odds[rows, labels] -= 1.0
        odds /= len(labels)
        self.g2[:] = hidden.T @ odds
        self.g1[:] = images.T @ ((odds @ self.w2.T) * (hidden > 0.0))
        return loss

    def step(self, rate: float) -> None:
        self.weights -= rate * self.gradient


def more_arithmetic(slow_ms: float, images: np.ndarray, network: Network) -> int:
    """How many extra products of a batch and the first layer take ``slow_ms`` of this core."""
    tried = 200
    start = time.process_time()
    for _ in range(tried):
        images @ network.w1
    return max(1, round(slow_ms / 1e3 * tried / (time.process_time() - start)))


def save(weights: np.ndarray, path: Path, slow_ms: float) -> None:
    """Write the weights and wait until the disk has them, again and again for some ms."""
    end = time.perf_counter() + slow_ms / 1e3
    with path.open("wb", buffering=0) as file:
        while time.perf_counter() < end:
            file.seek(0)
            file.write(weights)
            os.fsync(file.fileno())


def train(args: argparse.Namespace, comm: MPI.Comm, directory: Path) -> None:
    rank, ranks = comm.Get_rank(), comm.Get_size()
    slow = args.slow_rank == rank
    slow_input = slow and args.slow_what == "input"
    images = (SlowImages if slow_input else Images)(directory / "images.bin", rank, ranks, args.batch_size)
    network = Network()
    summed = np.empty_like(network.gradient)
    extra = more_arithmetic(args.slow_ms, images.batch()[0], network)

    comm.Barrier()
    for step in range(args.steps):
        faulty = slow and step >= args.slow_from_step
        if slow_input:
            images.delay_s = args.slow_ms / 1e3 if faulty else 0.0
        pixels, labels = images.batch()
        loss = network.forward_backward(pixels, labels)
        if faulty and args.slow_what == "compute":
            for _ in range(extra):
                pixels @ network.w1
        if faulty and args.slow_what == "checkpoint":
            save(network.weights, directory / f"weights-{rank}.bin", args.slow_ms)
        comm.Allreduce(network.gradient, summed)
        network.gradient[:] = summed / ranks
        network.step(args.learning_rate)
        if step % args.log_every == 0 and rank == 0:
            print(f"step {step:5d}  loss {loss:.4f}", flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=384)
    parser.add_argument("--learning-rate", type=float, default=0.05)
    parser.add_argument("--log-every", type=int, default=100)
    parser.add_argument("--slow-rank", type=int, default=-1, help="the rank to hold up (default: none)")
    parser.add_argument("--slow-ms", type=float, default=4.0, help="by how much, each step")
    parser.add_argument("--slow-what", choices=["compute", "input", "checkpoint"], default="compute")
    parser.add_argument("--slow-from-step", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    args, comm = arguments(), MPI.COMM_WORLD
    with tempfile.TemporaryDirectory(prefix="train-mpi-") as made:
        directory = Path(comm.bcast(made))
        if comm.Get_rank() == 0:
            make_data(directory / "images.bin")
        comm.Barrier()
        train(args, comm, directory)
        comm.Barrier()


if __name__ == "__main__":
    main()
