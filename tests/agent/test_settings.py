"""An agent's settings are checked before it starts; a wrong one is named in one line with the remedy."""

from pathlib import Path

import pytest
from hindmost.errors import UsageError
from hindmost_agent.settings import Address, address, byte_size, default_spool, duration, settings


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({}, "nothing to do"),
        ({"collector": "node1"}, "--collector node1"),
        ({"collector": ":9400"}, "--collector :9400"),
        ({"collector": "node1:99999"}, "--collector node1:99999"),
        ({"listen": "9400"}, "--listen 9400"),
        ({"listen": "127.0.0.1:9400", "interval": "fast"}, "--interval fast"),
        ({"listen": "127.0.0.1:9400", "interval": "1ms"}, "--interval 1ms"),
        ({"listen": "127.0.0.1:9400", "spool_size": "much"}, "--spool-size much"),
        ({"listen": "127.0.0.1:9400", "spool_size": "5kB"}, "--spool-size 5kB"),
        ({"listen": "127.0.0.1:9400", "ring_dir": __file__}, "--ring-dir"),
        ({"listen": "127.0.0.1:9400", "spool": "/var/spool"}, "--spool /var/spool"),
        ({"listen": "127.0.0.1:9400", "job_id": "../../x"}, "--job-id '../../x'"),
        ({"listen": "127.0.0.1:9400", "job_id": ".."}, "--job-id '..'"),
        ({"listen": "127.0.0.1:9400", "job_id": "a\nb"}, "--job-id 'a\\nb'"),
        ({"listen": "127.0.0.1:9400", "job_id": "x" * 300}, "--job-id 'xxx"),
    ],
)
def test_bad_input_is_named(words: dict[str, str], named: str) -> None:
    """The line starts with the option and what was given."""
    with pytest.raises(UsageError) as caught:
        settings(**words)  # type: ignore[arg-type]  # strings, as a command line gives them
    assert str(caught.value).startswith(named)
    assert "\n" not in str(caught.value)


def test_units_are_understood() -> None:
    """Sizes and times come as people write them."""
    assert byte_size("x", "256MiB") == 256 << 20
    assert (byte_size("x", "1TiB"), byte_size("x", "2TB")) == (1 << 40, 2 * 10**12)
    assert duration("x", "100ms") == pytest.approx(0.1)
    assert address("x", "[::1]:9400") == Address("::1", 9400)
    assert str(Address("::1", 9400)) == "[::1]:9400"


def test_a_job_s_rings_are_where_its_probes_put_them() -> None:
    """With a job id alone, the ring folder is the documented one."""
    made = settings(collector="n:1", job_id="j7")
    assert made.ring_dir is not None
    assert made.ring_dir.name == "j7"


def test_a_job_of_any_name_is_served_where_its_rings_are_given() -> None:
    """Its name is then no folder's but its spool's, in which what no folder may be called is replaced."""
    made = settings(collector="n:1", job_id="../../x", ring_dir="/dev/shm/rings", environ={"TMPDIR": "/scratch"})
    assert made.ring_dir == Path("/dev/shm/rings")
    assert made.spool is not None
    assert made.spool.parent == default_spool("j7", "n", 1, {"TMPDIR": "/scratch"}).parent


@pytest.mark.parametrize("other", [("j/1", "n2", 1), ("j2", "n1", 1), ("j/1", "n1", 2)])
def test_spools_are_apart(other: tuple[str, str, int]) -> None:
    """Of nodes that share a temporary folder, of jobs, and of two runs of one job, which have a collector each."""
    env = {"TMPDIR": "/scratch"}
    first, second = default_spool("j/1", "n1", 1, env), default_spool(*other, env)
    assert first != second
    assert first.parent == second.parent
    assert first.is_relative_to(Path("/scratch"))
