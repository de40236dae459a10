"""Network file systems come and go while an agent runs, and may have any name."""

import errno
from pathlib import Path

import pytest
from hindmost_agent.sampler import Absent, Host
from hindmost_agent.samplers.lustre import Lustre
from hindmost_agent.samplers.nfs import Nfs

from tests.agent.folders import gone, write
from tests.agent.readings import read


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An empty node."""
    return Host(proc=tmp_path / "proc", sys=tmp_path / "sys")


LLITE = "read_bytes 5 samples [bytes] 4096 1048576 {} 0\n"


def bytes_read(sampler: Lustre) -> dict[str, float]:
    return {key[1]: value for key, value in read(sampler).items() if key[0] == "hindmost_node_lustre_read_bytes_total"}


def test_lustre_mounts_come_and_go(host: Host) -> None:
    """A job's own file system appears and is unmounted; the one that stays is read all along."""
    root = host.proc / "fs/lustre/llite"
    write(root, {"scratch-ffff01/stats": LLITE.format(1000)})
    sampler = Lustre(host)
    assert bytes_read(sampler) == {"scratch": 1000}
    write(root, {"burst-ffff02/stats": LLITE.format(7)})
    assert bytes_read(sampler) == {"burst": 7, "scratch": 1000}
    gone(root / "burst-ffff02")
    assert bytes_read(sampler) == {"scratch": 1000}


def test_one_file_system_that_is_mounted_twice_is_one(host: Host) -> None:
    """Home and scratch are mounts of their own, each with its counts: together they are the file system's."""
    write(host.proc / "fs/lustre/llite", {"fs-ffff01/stats": LLITE.format(1000), "fs-ffff02/stats": LLITE.format(7)})
    assert bytes_read(Lustre(host)) == {"fs": 1007}


#: No times, and reads counted with their bytes.
LLITE_2_10 = """snapshot_time             1510950459.772792457 secs.nsecs
dirty_pages_hits          12 samples [regs]
read_bytes                40 samples [bytes] 4096 4194304 83886080
open                      136 samples [regs]
"""


def test_lustre_of_2_10_counts_reads_and_keeps_no_time(host: Host) -> None:
    """The golden scrape has a later release."""
    write(host.proc / "fs/lustre/llite", {"old-ffff88105db50000/stats": LLITE_2_10})
    found = {
        (key[0].removeprefix("hindmost_node_lustre_"), *key[2:]): value for key, value in read(Lustre(host)).items()
    }
    assert found == {
        ("read_bytes_total",): 83886080,
        ("operations_total", "read"): 40,
        ("operations_total", "open"): 136,
    }


def test_lustre_that_only_root_may_look_into_is_not_taken_for_none(host: Host) -> None:
    """2.12 and later: the mount is there for all to see, its counts are not, and the log says what to do."""
    write(host.sys / "fs/lustre/llite/scratch-ff47bce9ca35d800", {"uuid": "x\n"})
    with pytest.raises(Absent, match="run the agent as root") as absent:
        Lustre(host).sample()
    assert isinstance(absent.value.__cause__, PermissionError)


def test_one_lustre_mount_that_cannot_be_read_stops_no_other(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its server was taken out while it was read; when none can be read there is no mount, for this reason."""
    root = host.proc / "fs/lustre/llite"
    write(root, {"scratch-ffff01/stats": LLITE.format(1000), "burst-ffff02/stats": LLITE.format(7)})
    ending = "burst-ffff02/stats"

    def read_once(path: Path) -> bytes:
        if str(path).endswith(ending):
            raise OSError(errno.ENODEV, "No such device")
        return path.read_bytes()

    monkeypatch.setattr("hindmost_agent.samplers.lustre.read_once", read_once)
    assert bytes_read(Lustre(host)) == {"scratch": 1000}
    ending = "stats"
    with pytest.raises(Absent) as absent:
        Lustre(host).sample()
    assert isinstance(absent.value.__cause__, OSError)


def test_what_is_read_around_the_cache_is_read_too(host: Host) -> None:
    """Loaders and checkpoints that open with O_DIRECT are in columns of their own. Names are shown as they are typed:
    lists of mounts write blanks and backslashes in octal."""
    line = "device nas:/my\\040data mounted on /my\\134d with fstype nfs4 statvers=1.1\n"
    write(host.proc / "self", {"mountstats": f"{line}\tbytes:\t100 20 3000 400 3100 420 5 6\n"})
    found = read(Nfs(host))
    assert {key[1:] for key in found} == {("nas:/my data", "/my\\d")}
    values = {key[0].removeprefix("hindmost_node_nfs_"): value for key, value in found.items()}
    assert (values["read_bytes_total"], values["written_bytes_total"]) == (3100, 420)
    assert (values["server_read_bytes_total"], values["server_written_bytes_total"]) == (3100, 420)
