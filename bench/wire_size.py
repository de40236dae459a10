"""Bytes of an agent's batch on the wire, and of its parts: the agents of ``bench/collector_load``, a batch a second.

    python -m bench.wire_size --output bench/results/wire_size.json

Sizes depend on what is in a batch and on no clock: any machine gives the same within a byte or two of a varint.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_proto import telemetry_pb2 as wire

from bench.collector_load.agents import COLLECTIVES, PHASES, RANKS, SERIES, Agent

STEPS = 600


def measure(steps: int = STEPS) -> dict[str, Any]:
    """The mean over ``steps`` batches, and the opening of a stream, bytes."""
    agent, random = Agent(number=7, world=100_000, plain=False), np.random.default_rng(7)
    opening = sum(message.ByteSize() for message in agent.opening())
    whole, parts = [], []
    for step in range(steps):
        message = agent.batch(step, random)
        whole.append(message.ByteSize())
        parts.append([wire.Batch(**{name: getattr(message.batch, name)}).ByteSize() for name in PARTS])
    means = np.mean(parts, axis=0)
    return {
        "what": "bytes of an agent's message before HTTP/2's framing; nothing is compressed",
        "data": f"simulated: {SERIES} series, {RANKS} ranks, {len(PHASES)} phases and {COLLECTIVES} collectives a step",
        "machine": "any: sizes depend on no clock",
        "batches": steps,
        "bytes_a_batch": round(float(np.mean(whole)), 1),
        "of_which": {name: round(float(size), 1) for name, size in zip(PARTS, means, strict=True)},
        "bytes_of_the_opening": opening,
    }


PARTS = ("metrics", "steps", "collectives")


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    text = json.dumps(measure(), indent=1)
    print(text)
    if args.output:
        args.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
