"""Network file systems come and go while an agent runs, and may have any name."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from hindmost_agent.files import mount_text
from hindmost_agent.sampler import Absent, Host
from hindmost_agent.samplers.lustre import Lustre
from hindmost_agent.samplers.nfs import Nfs

from tests.agent.test_node_samplers import gone, read, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def host(tmp_path: Path) -> Host:
    """An empty node."""
    return Host(proc=tmp_path / "proc", sys=tmp_path / "sys")


LLITE = "read_bytes 5 samples [bytes] 4096 1048576 {} 0\n"


def test_lustre_mounts_come_and_go(host: Host) -> None:
    """A job's own file system appears and is unmounted; the one that stays is read all along."""
    root = host.proc / "fs/lustre/llite"
    write(root, {"scratch-ffff01/stats": LLITE.format(1000)})
    sampler, metric = Lustre(host), "hindmost_node_lustre_read_bytes_total"
    assert read(sampler) == {(metric, "scratch"): 1000}
    write(root, {"burst-ffff02/stats": LLITE.format(7)})
    assert read(sampler) == {(metric, "burst"): 7, (metric, "scratch"): 1000}
    gone(root / "burst-ffff02")
    assert read(sampler) == {(metric, "scratch"): 1000}


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
    assert set(read(Lustre(host))) == {("hindmost_node_lustre_read_bytes_total", "scratch")}
    ending = "stats"
    with pytest.raises(Absent) as absent:
        Lustre(host).sample()
    assert isinstance(absent.value.__cause__, OSError)


def test_a_mount_s_name_is_as_it_is_typed() -> None:
    """Lists of mounts write blanks and backslashes in octal."""
    assert mount_text(rb"/my\040data\134\011x") == "/my data\\\tx"


def test_an_nfs_mount_with_a_blank_in_its_name(host: Host) -> None:
    """Export and mount point are shown as they are typed."""
    line = "device nas:/my\\040data mounted on /my\\040data with fstype nfs4 statvers=1.1\n\tbytes:\t1 2 0 0 3 4 5 6\n"
    write(host.proc / "self", {"mountstats": line})
    assert {key[1:] for key in read(Nfs(host))} == {("nas:/my data", "/my data")}
