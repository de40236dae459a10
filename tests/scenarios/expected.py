"""What each recording of a known fault must be judged as; and that a verdict or a sentence explains who comes last."""

from dataclasses import dataclass

from hindmost_collector.report import columns
from hindmost_judge.verdict.schema import Report


@dataclass(frozen=True)
class Expected:
    """Who is named, why, since when, and what the fault did to the mean step in ms (``None``: not asked).

    ``also`` are ranks of further verdicts.
    """

    kinds: tuple[str, ...]
    ranks: tuple[int, ...] = ()
    victims: tuple[int, ...] = ()
    cause: str | None = None
    since: int | None = None
    cost_ms: float | None = None
    also: tuple[int, ...] = ()


RECORDINGS = {
    "ddp-clean": Expected(("balanced",)),
    "ddp-slow-compute-rank1": Expected(("straggler",), (1,), cause="compute", cost_ms=1.6),
    "ddp-slow-compute-onset-rank1": Expected(("straggler",), (1,), cause="compute", since=60, cost_ms=2.6),
    "ddp-slow-input-rank2": Expected(("straggler", "intermittent"), (2,), cause="input", cost_ms=0.9),
    "tp2-dp2-slow-compute-rank3": Expected(("straggler",), (3,), victims=(2,), cause="compute"),
    "ddp-hang-rank1": Expected(("hang",), (1,), victims=(0, 2, 3)),
    # Up to step 57 rank 1's host takes 14 ms for a backward, and then 7.5: that is all a repair of rank 2 saves there.
    "ddp-noisy-host-slow-input-rank2": Expected(("straggler",), (2,), cause="input", cost_ms=6.0, also=(1,)),
    "ddp-slow-backward-rank2": Expected(("straggler",), (2,), cause="compute", cost_ms=3.6),
    "ddp-slow-backward-rank0": Expected(("straggler",), (0,), cause="compute"),
    "ddp-slow-backward-rank3": Expected(("straggler",), (3,), cause="compute", cost_ms=4.5),
    "ddp-slow-forward-rank1": Expected(("straggler",), (1,), cause="compute", cost_ms=1.3),
    "ddp-slow-optimizer-rank2": Expected(("straggler",), (2,), cause="compute", cost_ms=2.9),
    "ddp-pausing-rank1": Expected(("intermittent",), (1,), cause="unknown", cost_ms=92),
    "ddp-buffers-slow-input-rank0": Expected(("straggler",), (0,), cause="input", cost_ms=25.9),  # in broadcasts
    "ddp-host-bound-slow-input-rank1": Expected(("straggler",), (1,), cause="input", cost_ms=3.0),
    "fsdp-slow-compute-from40-rank1": Expected(("straggler",), (1,), cause="compute", since=40, cost_ms=1.6),
    "fsdp-stalled-input-rank0": Expected(
        ("intermittent",), (0,), cause="input", cost_ms=10.7
    ),  # and nothing host-bound
    "pp2-dp2-host-bound": Expected(("host_bound",)),
    "pp4-host-bound": Expected(("host_bound",)),
    "pp2-dp2-slow-forward-rank3": Expected(("straggler",), (3,), cause="compute"),  # its GPU waits for its host, too
    "ddp-lengths-slow-forward-rank3": Expected(("straggler",), (3,), cause="compute"),  # last in a third of the steps
    "pp4-slow-forward-rank2": Expected(("uneven_workload",), cost_ms=3.3),
    "tp4-slow-forward-rank2": Expected(("straggler",), (2,), cause="compute"),  # all phases hold waiting
    "moe-slow-forward-rank1": Expected(("insufficient_data",)),  # its reductions have the times of other operations
    "pp2-dp2-slow-input-rank0": Expected(("straggler",), (0,), cause="input", cost_ms=37.6),
    "inspector-ddp-clean": Expected(("balanced",)),
    "inspector-ddp-slow-rank0": Expected(("straggler",), (0,), cause="compute", cost_ms=3.6),
    "kineto-ddp-slow-rank0": Expected(("straggler",), (0,), cause="compute", cost_ms=3.6),
    "kineto-gloo-buffers-slow-rank1": Expected(("straggler",), (1,), since=0, cost_ms=60),  # 4 ranks, no steps marked
    "ddp-observed-clean": Expected(("balanced",)),
    "ddp-observed-slow-compute-rank1": Expected(("straggler",), (1,), cause="compute", cost_ms=0.6),
    "ddp-observed-late-input-rank1": Expected(("straggler",), (1,), cause="input", since=120, cost_ms=400),
    "ddp-observed-throttled-disk-rank1": Expected(("straggler",), (1,), cause="io", since=0),  # no workers
    "ddp-observed-throttled-workers-rank1": Expected(("straggler",), (1,), cause="io"),
    "mpi-observed-one-core": Expected(("oversubscribed",), (0, 1), cause="cpu_contention", since=0),  # and another free
    **{f"mpi-observed-even-{number}": Expected(("balanced",)) for number in range(1, 5)},
    "mpi-observed-demo-slow-rank2": Expected(("straggler",), (2,), cause="compute", since=0, cost_ms=3.9),
    "mpi-observed-demo-input-rank1": Expected(("straggler",), (1,), cause="input", since=0, cost_ms=3.5),
    # Rank 1 sleeps 5 ms before a collective: started and awaited, polled for, made of messages, or one of two.
    **{
        f"mpi-observed-{meets}-rank1": Expected(("straggler",), (1,), cause="unknown", since=0, cost_ms=4.9)
        for meets in ("awaited", "polled", "gathered", "twice")
    },
    "mpi-observed-raised-rank2": Expected(("hang",), (2,), victims=(0, 1, 3), since=60),
    "mpi-observed-ring-asleep-rank2": Expected(("hang",), (2,), victims=(0, 1, 3)),
    "mpi-observed-deadlock-ranks0-1": Expected(("hang",), (0, 1), victims=(2, 3), cause="deadlock"),
    "mpi-observed-parted-rank1": Expected(("desync",), (1,), victims=(0, 2, 3), since=60),
    "mpi-observed-asleep-rank1": Expected(("straggler",), (1,), cause="unknown", cost_ms=1.4),
    "mpi-observed-asleep-now-and-then-rank1": Expected(("intermittent",), (1,), cause="unknown", cost_ms=1.8),
    "gloo-observed-asleep-now-and-then-rank1": Expected(("intermittent",), (1,), cause="unknown"),
    "gloo-observed-stopped-now-and-then-rank1": Expected(("intermittent",), (1,), cause="unknown", cost_ms=24.0),
    # The same in collectives only, in steps of 1 s, and with queues for CPUs; 30 ms every 100 ms.
    "gloo-observed-stopped-in-collectives-rank1": Expected(("intermittent",), (1,), cause="unknown", cost_ms=5.0),
    "mpi-observed-stopped-in-long-steps-rank1": Expected(("intermittent",), (1,), cause="stopped"),
    "mpi-observed-stopped-beside-queues-rank1": Expected(("intermittent",), (1,), cause="unknown"),
    "mpi-observed-stopped-often-rank1": Expected(("straggler",), (1,), cause="stopped", since=0),
    "horovod-observed-stopped-often-rank1": Expected(("straggler",), (1,), cause="stopped"),
    "mpi-observed-burst-rank0": Expected(("balanced",)),  # undisturbed: rank 0 computes longer in 23 steps on end
    "gloo-observed-quota-rank1": Expected(("intermittent",), (1,), cause="cpu_contention"),
    "gloo-observed-uneven-lengths": Expected(("uneven_workload",), cause="workload", cost_ms=24.0),
    "gloo-observed-unmeasured-rank1": Expected(("insufficient_data",)),
    # Batch norm under DDP: its buffers' broadcast makes rank 0 wait for rank 1, and others wait for rank 0.
    **{
        f"gloo-observed-buffers-slow-input-rank1-of{ranks}": Expected(
            ("straggler",), (1,), cause="input", since=0, cost_ms=60
        )
        for ranks in (2, 3, 4)
    },
}


#: A rank is seen to come last in this share of the collectives, with the others waiting for this share of a step.
_MOSTLY, _MUCH = 0.5, 0.05
#: What other ranks cause, as means, explains a rank's typical wait if it is this share of it.
_ABOUT = 1 / 3


def not_explained(report: Report) -> list[int]:
    """Ranks that are last in most collectives with others waiting, and that no verdict and no sentence is about."""
    said = [line for verdict in report.verdicts for line in verdict.evidence] + list(report.notes)
    named = {rank for verdict in report.verdicts for rank in (*verdict.ranks, *verdict.victims)}
    found = []
    for row in report.ranks:
        others = [other.wait_ms or 0.0 for other in report.ranks if other.rank != row.rank]
        waited = max(min(others, default=0.0), row.caused_wait_ms or 0.0)
        seen = (row.share_last or 0.0) > _MOSTLY and waited >= _MUCH * (row.step_ms or float("inf"))
        reported = row.rank in named or any(f"rank {row.rank} " in f"{line} " for line in said)
        if seen and not reported:
            found.append(row.rank)
    return found


def waits_of_no_rank(report: Report) -> list[int]:
    """Ranks that wait for much of a step, says the table, though it shows no other rank that they wait for."""
    shown = report.to_dict()
    caption = columns.caption(columns.table(shown["ranks"])[0], shown)
    if "wait: in receives" in caption or "longer work of this rank explains" in caption:
        return []
    found = []
    for row in report.ranks:
        caused = sum(other.caused_wait_ms or 0.0 for other in report.ranks if other.rank != row.rank)
        if (row.wait_ms or 0.0) > max(_MUCH * (row.step_ms or float("inf")), caused / _ABOUT):
            found.append(row.rank)
    return found
