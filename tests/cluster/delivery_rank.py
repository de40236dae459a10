"""A training process of the ledger: marks steps at a rate until its stdin ends, then says how many.

python delivery_rank.py RING_DIR RANK STEPS_A_SECOND
"""

import select
import sys
import time

from hindmost import ring
from hindmost.identity import Identity

#: Records of its ring: of thousands of steps a second it holds some seconds, as of tens it holds minutes.
CAPACITY = 1 << 17
PHASES = ("input", "forward", "backward", "optimizer")


def main() -> None:
    """Write a step of four phases and a collective, and wait for the next one's time."""
    folder, rank, rate = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    writer = ring.Writer.create(folder, Identity("ledger", rank, 2, rank, "node", "torch", "train.py"), "py", CAPACITY)
    train, reduce_ = writer.name("train"), writer.name("all_reduce")
    phases = [writer.name(name) for name in PHASES]
    world = writer.communicator(77, rank, 2, "world")
    step, period = 0, int(1e9 / rate)
    due = time.monotonic_ns()
    while not select.select([0], [], [], max(due - time.monotonic_ns(), 0) / 1e9)[0]:
        step += 1
        for place, phase in enumerate(phases):
            writer.event(ring.PHASE, phase, due + place * period // 8, period // 8)
        writer.event(ring.COLLECTIVE, reduce_, due + period // 2, period // 8, seq=step, comm=world, value=1 << 20)
        writer.event(ring.STEP, train, due, period, seq=step, value=32)
        due += period
    writer.close()
    sys.stdout.write(f"{step}\n")


if __name__ == "__main__":
    main()
