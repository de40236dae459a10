"""What a rank says of itself, and when hosts enqueued the GPU's operations, next to starts of the GPU's."""

import pytest
from hindmost_collector.ingest.chunk import finish
from hindmost_collector.ingest.clock import NodeClock
from hindmost_collector.ingest.decode import Decoder
from hindmost_collector.ingest.definitions import Definitions
from hindmost_collector.ingest.packed_fields import packed
from hindmost_judge.model import GPU_TIME
from hindmost_proto import telemetry_pb2 as wire

AHEAD = 1_000_000


def decoded(**columns: list[int]) -> dict[str, list[int]]:
    """Start and enqueue times on the job's clock, which is ``AHEAD`` of the node's, of three calls of rank 0."""
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, AHEAD)
    known = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n")
    definitions.learn(wire.Definitions(ranks=[known]), decoder.job, clock)
    batch = wire.Batch(sequence=1)
    calls = {"rank": 7, "op_names": ["all_reduce"], "op": [0, 0, 0], "comm": [1] * 3, "seq": [0, 1, 2]}
    batch.collectives.add(**calls, **columns)
    assert decoder.add(packed(batch), "n", "j", clock) == []
    found = finish(decoder.take()["j"]).coded["collectives"]
    return {name: found[name].tolist() for name in ("start_ns", "enqueue_ns")}


@pytest.mark.parametrize("first", [-1, 30])
def test_launches_are_on_the_jobs_clock_and_starts_on_the_gpus(first: int) -> None:
    """Also where no call of the batch began on the host's clock, and the first one's launch is not known."""
    found = decoded(start_ns=[900, 910, 920], flags=[GPU_TIME] * 3, enqueue_ns=[first, 40, 50])
    assert found["start_ns"] == [900, 910, 920]
    assert found["enqueue_ns"] == [first if first < 0 else AHEAD + first, AHEAD + 40, AHEAD + 50]


def test_calls_of_the_host_have_no_launch() -> None:
    """An agent that sends no such column, as earlier ones do, measured none."""
    found = decoded(start_ns=[900, 910, 920], flags=[0] * 3)
    assert found == {"start_ns": [AHEAD + 900, AHEAD + 910, AHEAD + 920], "enqueue_ns": [-1] * 3}


def test_a_rank_may_name_its_framework_and_its_gpu_later() -> None:
    """A probe comes after the ring of its process; what says less, or nothing new, is no row."""
    definitions = Definitions()
    decoder, clock = Decoder(definitions), NodeClock(0, 0)
    for more in ({"framework": "python"}, {}, {"framework": "torch"}, {"framework": "torch", "gpu_uuid": "GPU-1"}, {}):
        sent = wire.Rank(ref=7, job_id="j", rank=0, world_size=1, node="n", **more)
        definitions.learn(wire.Definitions(ranks=[sent]), decoder.job, clock)
    rows = decoder.job("j").ranks
    assert [(row[6], row[5]) for row in rows] == [("python", ""), ("torch", ""), ("torch", "GPU-1")]
    assert definitions.ranks[7].framework == "torch"
