"""A process of an elastic job that goes on as another rank: its steps are each rank's own."""

from pathlib import Path

from hindmost import ring
from hindmost.identity import Identity
from hindmost_agent.jobs.rings import Rings
from hindmost_agent.sampler import Host


def write(directory: Path, rank: int, steps: int) -> None:
    """A ring of this process under this rank, closed after so many steps."""
    made = ring.Writer.create(directory, Identity("job", rank, 3, 0, "n", "horovod", "t.py"), "py", 64)
    for step in range(steps):
        made.event(ring.STEP, made.name("train"), step * 100, 100, step)
    made.close()


def test_a_process_that_moves_is_another_rank(tmp_path: Path) -> None:
    """What it did before stays with the rank it was, which has ended; what it does now is the new rank's."""
    rings = Rings(Host(), [tmp_path])
    write(tmp_path, 2, 3)
    rings.discover(0)
    (old,) = rings
    assert old.gone_ns is None
    write(tmp_path, 1, 1)
    rings.discover(10)
    rings.poll(10)
    assert [(one.process.rank, one.written, one.gone_ns) for one in rings] == [(2, 3, 10), (1, 1, None)]
    assert old.finished(10)
    rings.remove(old)
    assert [one.process.rank for one in rings] == [1]
    rings.close()
