"""Bytes of an agent's batches on the wire, and of their parts: the agents of ``bench/collector_load``.

    python -m bench.wire_size --output bench/results/wire_size.json

Sizes depend on what is in a batch and on no clock: any machine gives the same within a byte or two of a varint.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from hindmost_proto import telemetry_pb2 as wire

from bench.collector_load import node
from bench.collector_load.agents import COLLECTIVES, NS, PHASES, RANKS, TICKS, Agent

SECONDS = 600


def measure(seconds: int = SECONDS) -> dict[str, Any]:
    """The mean over what is sent after the first batch, and the definitions before that one, bytes."""
    agent = Agent(number=7, world=100_000)
    *opening, _ = agent.messages(0, 1000 * NS)
    sent = [agent.messages(step, (1000 + step) * NS)[-1] for step in range(TICKS, seconds + TICKS, TICKS)]
    batches = [wire.AgentMessage.FromString(one).batch for one in sent]
    parts = [[wire.Batch(**{name: getattr(batch, name)}).ByteSize() for name in PARTS] for batch in batches]
    data = f"{node.samples_a_second():.0f} samples a second, {RANKS} ranks"
    return {
        "what": "bytes of an agent's messages before HTTP/2's framing; nothing is compressed",
        "data": f"simulated: {data}, {len(PHASES)} phases and {COLLECTIVES} collectives a step, a step a second",
        "machine": "any: sizes depend on no clock",
        "batches": len(sent),
        "seconds_a_batch": TICKS,
        "blocks_of_samples_a_batch": round(float(np.mean([len(batch.metrics) for batch in batches])), 1),
        "bytes_a_batch": round(float(np.mean([len(one) for one in sent])), 1),
        "bytes_a_second": round(sum(map(len, sent)) / seconds, 1),
        "of_which": {
            name: round(float(size), 1) for name, size in zip(PARTS, np.sum(parts, axis=0) / seconds, strict=True)
        },
        "bytes_of_the_definitions": sum(map(len, opening)) + len(agent.hello()),
    }


PARTS = ("metrics", "steps", "collectives", "rank_states")


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
