"""Kernel messages that name broken hardware are counted by kind and device, as the kernels wrote them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hindmost_agent.sampler import Absent, Host
from hindmost_agent.samplers.kernel_log import KernelLog

if TYPE_CHECKING:
    from pathlib import Path

#: One message of each kind; event and device as which it counts.
MESSAGES = {
    "4,1,9,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        "gpu_xid", "0000:9b:00"),
    "4,2,9,-;NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.": ("gpu_fell_off_bus", "0000:9b:00.0"),
    "6,3,9,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!": ("gpu_reset", "0000:03:00.0"),
    "2,4,9,-;mce: [Hardware Error]: Machine check events logged": ("machine_check", ""),
    "4,5,9,-;EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": ("memory_error", "MC0"),
    "4,6,9,-;pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0": ("pcie_error", "0000:16:01.0"),
    "6,7,9,-;bnxt_en 0000:19:00.0 eth0: NIC Link is Down": ("link_down", "eth0"),
    "6,8,9,-;mlx5_core 0000:1b:00.0 ens1f0np0: Link down": ("link_down", "ens1f0np0"),
    "6,9,9,-;mlx5_core 0000:1b:00.0: Port module event: module 0, Cable unplugged": (
        "cable_unplugged", "0000:1b:00.0"),
    "3,10,9,-;Out of memory: Killed process 4242 (python) total-vm:8kB, anon-rss:4kB": ("out_of_memory", ""),
    "3,11,9,-;I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1": ("io_error", "nvme0n1"),
    "3,12,9,-;INFO: task python:4242 blocked for more than 120 seconds.": ("hung_task", ""),
    "0,13,9,-;watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python:4242]": ("soft_lockup", "CPU#17"),
    "4,14,9,-;nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault": (
        "nvswitch_sxid", "0000:c4:00.0"),
    "5,15,9,-;nfs: server nas1 not responding, still trying": ("nfs_not_responding", "nas1"),
    "4,16,9,-;Lustre: scratch-OST0003-osc-ffff9a01c7f4e800: Connection to scratch-OST0003 (at 10.0.0.3@o2ib) was lost;"
    " in progress operations using this service will wait": (
        "lustre_connection_lost", "scratch-OST0003-osc-ffff9a01c7f4e800"),
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A kernel log with an old message in it."""
    path = tmp_path / "kmsg"
    path.write_text("4,0,1,-;NVRM: Xid (PCI:0000:9b:00): 31, pid=1, old\n")
    return path


@pytest.mark.parametrize(("message", "expected"), MESSAGES.items())
def test_a_message_counts_as_one_event_of_one_device(log: Path, message: str, expected: tuple[str, str]) -> None:
    """Each kernel's wording is known, and no message is two events."""
    sampler = KernelLog(Host(dev=log.parent))
    with log.open("a") as file:
        file.write(message + "\n")
    values = sampler.sample()
    assert {one.values: value for one, value in zip(sampler.series, values, strict=True)} == {expected: 1}


def test_events_add_up_from_the_agent_s_start_on(log: Path) -> None:
    """What stood in the log before is another's story; harmless messages are not counted."""
    sampler = KernelLog(Host(dev=log.parent))
    assert sampler.sample() == []
    for _ in range(2):
        with log.open("a") as file:
            file.write("6,7,9,-;bnxt_en 0000:19:00.0 eth0: NIC Link is Down\n6,8,9,-;bnxt_en: NIC Link is Up\n")
        sampler.sample()
    assert sampler.sample() == [2]


def test_a_log_that_may_not_be_read_is_absent(tmp_path: Path) -> None:
    """As for agents that are not root where the kernel restricts it."""
    with pytest.raises(Absent):
        KernelLog(Host(dev=tmp_path))
