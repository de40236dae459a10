"""Ranks that share a CPU: what the shim says of their time between collectives."""

import pytest
from hindmost import ring

from tests.native.mpi_job import Mpi, launch, needs_mpi4py, of

pytestmark = [pytest.mark.needs("mpirun", "cc"), pytest.mark.timeout(500)]

COMPUTES = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import numpy
from mpi4py import MPI
data, total = numpy.ones(1000), numpy.empty(1000)
for step in range(80):
    sum(range(200_000))  # some ms without a system call, at the end of which another rank may be let run
    MPI.COMM_WORLD.Allreduce(data, total)
"""


def test_a_rank_that_computes_either_runs_or_waits_for_a_cpu(installed: Mpi, observed: dict[str, str]) -> None:
    """Of four ranks on one CPU none sleeps between collectives; one that did would be named for it."""
    needs_mpi4py(installed)
    ran = launch(installed, observed, str(installed.python), "-c", COMPUTES)
    assert ran.code == 0, ran.errors
    for events in ran.events:
        gaps = [e for e in of(events, ring.SELF) if e.flags & ring.CPU_KNOWN and e.flags & ring.RUNQUEUE_KNOWN]
        if len(gaps) < 20:
            pytest.skip("needs a kernel that says how long a thread waits for a CPU")
        own, ran_ns, queued = (sum(e.duration_ns for e in gaps), sum(e.value for e in gaps), sum(e.seq for e in gaps))
        # A hypervisor may take the CPU away, which is neither; without the queue's time 3/4 would be missing.
        assert own - ran_ns - queued * 1000 < 0.2 * own
