"""Small jobs of two lanes a rank, run step by step: what their marks are, and how long they take."""

import numpy as np
from hindmost_judge.types import Floats, Timeline

PHASES = ("input", "forward", "backward", "other", "between")
MS = 1e6


def run(
    host: Floats, gpu: float, *, waits: str, lag: int = 1, transfer: float = 0.5, launches: bool = True
) -> Timeline:
    """The timeline of hosts with this work [P, R, S] ms, and GPUs that take ``gpu`` ms for what a step launches. Hosts
    wait for the last collective of the ``step`` before ``other`` ends, of the step ``lag`` before as ``forward`` ends
    (``before``), or of the step before as it begins (``copy``) or once a quarter of it is launched (``queue``)."""
    phases, ranks, steps = host.shape
    now, busy = np.zeros(ranks), np.zeros(ranks)
    began, arrived, left = (np.zeros((ranks, steps)) for _ in range(3))
    spent, enqueued = np.zeros(host.shape), np.zeros((ranks, steps))
    end = 0.0
    for step in range(steps):
        began[:, step] = now
        for phase in range(phases):
            free = now
            if phase == PHASES.index("forward") and waits == "copy":
                free = np.maximum(now, end + 1.0)
            if phase == PHASES.index("forward") and waits == "queue":
                free = np.maximum(now, end + 1.0 - host[phase, :, step] / 4)
            after = free + host[phase, :, step]
            if phase == PHASES.index("forward") and waits == "before" and step >= lag:
                after = np.maximum(after, left[:, step - lag] + 1.0)
            if phase == PHASES.index("other") and waits == "step":
                after = np.maximum(after, end + 0.2)
            spent[phase, :, step], now = after - now, after
            if phase == PHASES.index("backward"):
                enqueued[:, step] = now
                arrived[:, step] = np.maximum(now + 0.1, busy + gpu)
                end = float(arrived[:, step].max()) + transfer
                left[:, step], busy = end, np.full(ranks, end)
    return Timeline(
        phases=PHASES,
        began=began * MS,
        spent=spent * MS,
        launched=PHASES.index("backward"),
        enqueued=enqueued * MS if launches else None,
        queued=np.full((ranks, steps), 0.1 * MS) if launches else None,
        arrived=arrived * MS,
        left=left * MS,
        waited=(left - arrived - transfer) * MS,
        between=np.diff(left, axis=1, prepend=0.0) * MS - (left - arrived) * MS,
        cohort=np.zeros(ranks, np.int64),
        clock=0.5 * MS,
    )


def work(ranks: int, steps: int, noise: float = 0.02, seed: int = 0) -> Floats:
    """[P, R, S] ms: 20 of input, 8 of forward, 10 of backward, 1 of the rest."""
    usual = np.array([20.0, 8.0, 10.0, 1.0, 0.0])[:, None, None]
    return np.asarray(usual * (1.0 + noise * np.random.default_rng(seed).standard_normal((5, ranks, steps))))
