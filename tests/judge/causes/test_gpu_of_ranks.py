"""Which GPU is a rank's, where its probe did not say."""

import dataclasses
import json

import numpy as np
from hindmost_collector.ingest.chunk import from_rows
from hindmost_judge.causes.telemetry import with_gpus

from tests.scenarios import loads


def test_a_rank_has_the_gpu_on_which_its_node_saw_it_compute() -> None:
    """Of this job only; a rank's own statement stands, and no rank gets a GPU that was not observed."""
    run = loads.make(loads.Load(ranks=4))
    seen = [("made", "0", "GPU-a"), ("made", "1", "GPU-b"), ("other", "2", "GPU-c")]
    labels = [json.dumps({"gpu_uuid": uuid, "job": job, "rank": rank}) for job, rank, uuid in seen]
    metrics = from_rows("metrics", [("node0", "hindmost_gpu_rank_info", text, 1, 1.0) for text in labels])
    ranks = {**run.ranks, "gpu_uuid": np.array(["GPU-own", "", "", ""])}
    known = with_gpus(dataclasses.replace(run, ranks=ranks, metrics=metrics))
    assert known.ranks["gpu_uuid"].tolist() == ["GPU-own", "GPU-b", "", ""]
