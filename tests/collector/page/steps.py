"""Steps of a job, as the judge hands them on."""

import numpy as np
from hindmost_judge.overview import Overview

MS = 1e6


def late_steps(first: int, last: int, late: float = 2.0, ranks: int = 3) -> Overview:
    """Steps of 10 ms, of which rank 1 is late in each, and computes that much longer than the 5 ms of the others."""
    steps = np.arange(first, last + 1)
    delay = np.zeros((ranks, len(steps)))
    delay[1] = late * MS
    planes = {
        "delay": delay,
        "self": 5 * MS + delay,
        "wait": late * MS - delay,
        "transfer": np.full_like(delay, 3 * MS),
    }
    return Overview(
        ranks=np.arange(ranks),
        steps=steps,
        period=np.full(len(steps), 10 * MS),
        cohort=np.zeros(ranks, np.int64),
        planes={**planes, "caused": delay, "last": (delay > 0).astype(float)},
        on_gpu=False,
        gathers=False,
        checkpoint=steps == 7,
    )
