"""Kernel messages that name broken hardware are counted by kind and device, as the kernels wrote them."""

from pathlib import Path
from typing import Any

import pytest
from hindmost_agent.sampler import Absent, Host
from hindmost_agent.samplers.kernel_log import ALL, EVENTS, MOST_DEVICES, PATTERNS, KernelLog

#: One message of each kind; event and device as which it counts.
MESSAGES = {
    "4,1,9,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.": (
        "gpu_xid", "0000:9b:00"),
    "4,2,9,-;NVRM: GPU 0000:9b:00.0: GPU has fallen off the bus.": ("gpu_fell_off_bus", "0000:9b:00.0"),
    "4,2,9,-;NVRM: GPU at PCI:0000:9b:00: GPU has fallen off the bus.": ("gpu_fell_off_bus", "0000:9b:00"),
    "4,2,9,-;NVRM: GPU at 0000:9b:00.0 has fallen off the bus.": ("gpu_fell_off_bus", "0000:9b:00.0"),
    "3,2,9,-;NVRM: The NVIDIA GPU 0000:9b:00.0\\x0aNVRM: (PCI ID: 10de:2335) installed in this system has"
    "\\x0aNVRM: fallen off the bus and is not responding to commands.": ("gpu_fell_off_bus", "0000:9b:00.0"),
    "6,3,9,-;amdgpu 0000:03:00.0: amdgpu: GPU reset begin!": ("gpu_reset", "0000:03:00.0"),
    "2,4,9,-;mce: [Hardware Error]: Machine check events logged": ("machine_check", ""),
    "4,5,9,-;EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0": ("memory_error", "MC0"),
    "2,4,9,-;mce: [Hardware Error]: CPU 7: Machine Check Exception: 5 Bank 4: b200000000070005": ("machine_check", ""),
    "4,4,9,-;{3}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 2": ("machine_check", ""),
    "2,5,9,-;EDAC MC1: 1 UE memory scrubbing error on CPU_SrcID#1_MC#0_Chan#0_DIMM#0": ("memory_error", "MC1"),
    "4,6,9,-;pcieport 0000:16:01.0: AER: Corrected error received: 0000:17:00.0": ("pcie_error", "0000:17:00.0"),
    "3,6,9,-;pcieport 0000:16:01.0: AER: Uncorrected (Non-Fatal) error received: 0000:17:00.0": (
        "pcie_error", "0000:17:00.0"),
    "4,6,9,-;pcieport 0000:16:01.0: AER: Multiple Correctable error message received from 0000:17:00.0": (
        "pcie_error", "0000:17:00.0"),
    "4,6,9,-;pcieport 0000:16:01.0: AER: Corrected error received: id=1700": ("pcie_error", "0000:16:01.0"),
    "6,7,9,-;bnxt_en 0000:19:00.0 eth0: NIC Link is Down": ("link_down", "eth0"),
    "6,8,9,-;mlx5_core 0000:1b:00.0 ens1f0np0: Link down": ("link_down", "ens1f0np0"),
    "6,8,9,-;mlx4_en: ens2: Link Down": ("link_down", "ens2"),
    "6,8,9,-;mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link DOWN": ("link_down", "mlx5_5"),
    "6,9,9,-;mlx5_core 0000:1b:00.0: Port module event: module 0, Cable unplugged": (
        "cable_unplugged", "0000:1b:00.0"),
    "3,10,9,-;Out of memory: Killed process 4242 (python) total-vm:8kB, anon-rss:4kB": ("out_of_memory", ""),
    "3,10,9,-;Memory cgroup out of memory: Kill process 4242 (python) score 992 or sacrifice child": (
        "out_of_memory", ""),
    "3,11,9,-;blk_update_request: critical medium error, dev sda, sector 2048 op 0x0:(READ)": ("io_error", "sda"),
    "4,11,9,-;nvme nvme0: I/O 642 (I/O Cmd) QID 1 timeout, aborting": ("io_timeout", "nvme0"),
    "4,11,9,-;nvme nvme0: I/O 24 QID 0 timeout, reset controller": ("io_timeout", "nvme0"),
    "3,11,9,-;I/O error, dev nvme0n1, sector 2048 op 0x0:(READ) flags 0x80700 phys_seg 1": ("io_error", "nvme0n1"),
    "3,12,9,-;INFO: task python:4242 blocked for more than 120 seconds.": ("hung_task", ""),
    "0,13,9,-;watchdog: BUG: soft lockup - CPU#17 stuck for 22s! [python:4242]": ("soft_lockup", "CPU#17"),
    "4,14,9,-;nvidia-nvswitch3: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 30 LTSSM Fault": (
        "nvswitch_sxid", "0000:c4:00.0"),
    "5,15,9,-;nfs: server nas1 not responding, still trying": ("nfs_not_responding", "nas1"),
    "4,16,9,-;Lustre: scratch-OST0003-osc-ffff9a01c7f4e800: Connection to scratch-OST0003 (at 10.0.0.3@o2ib) was lost;"
    " in progress operations using this service will wait": (
        "lustre_connection_lost", "scratch-OST0003-osc-ffff9a01c7f4e800"),
    "3,17,9,-;LustreError: 167-0: scratch-MDT0000-mdc-ffff9a01c7f4e800: This client was evicted by scratch-MDT0000; in"
    " progress operations using this service will fail.": ("lustre_evicted", "scratch-MDT0000-mdc-ffff9a01c7f4e800"),
}  # fmt: skip


#: What a kernel says of one event, line by line: each counts once.
ONE_EVENT = {
    "machine check": (
        "mce: [Hardware Error]: Machine check events logged\n"
        "mce: [Hardware Error]: CPU 0: Machine Check: 0 Bank 4: a600000000020408\n"
        "mce: [Hardware Error]: TSC 0 ADDR fef4c9e0\n"
        "mce: [Hardware Error]: PROCESSOR 0:706a1 TIME 1537152664 SOCKET 0 APIC 0 microcode 28\n"
    ),
    "firmware's error": (
        "{7}[Hardware Error]: Hardware error from APEI Generic Hardware Error Source: 0\n"
        "{7}[Hardware Error]: It has been corrected by h/w and requires no further action\n"
        "{7}[Hardware Error]: event severity: corrected\n"
        "{7}[Hardware Error]:  Error 0, type: corrected\n"
    ),
    "PCIe, of the port itself": (
        "pcieport 0000:16:01.0: AER: Multiple Corrected error received: 0000:16:01.0\n"
        "pcieport 0000:16:01.0: AER: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)\n"
        "pcieport 0000:16:01.0: AER:   device [8086:352a] error status/mask=00000001/00002000\n"
        "pcieport 0000:16:01.0: AER:    [ 0] RxErr\n"
    ),
    "PCIe, of the device behind it": (
        "pcieport 0000:16:01.0: AER: Uncorrected (Fatal) error received: 0000:17:00.0\n"
        "nvidia 0000:17:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Inaccessible\n"
        "pcieport 0000:16:01.0: AER: Root Port link has been reset (0)\n"
        "pcieport 0000:16:01.0: AER: device recovery failed\n"
    ),
    "GPU reset": (
        "amdgpu 0000:03:00.0: amdgpu: GPU reset begin!\n"
        "amdgpu 0000:03:00.0: amdgpu: GPU reset succeeded, trying to resume\n"
        "amdgpu 0000:03:00.0: amdgpu: GPU reset(2) succeeded!\n"
    ),
    "out of memory before 4.20": (
        "Out of memory: Kill process 4242 (python) score 950 or sacrifice child\n"
        "Killed process 4242 (python) total-vm:8kB, anon-rss:4kB, file-rss:0kB\n"
    ),
}
#: What a kernel says while all is well: when a driver is loaded, when a link comes up.
NO_EVENT = (
    "EDAC MC0: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#0: DEV 0000:7e:0c.0",
    "EDAC MC: Ver: 3.0.0",
    "pcieport 0000:16:01.0: AER: enabled with IRQ 34",
    "pcieport 0000:16:01.0: PME: Signaling with IRQ 34",
    "mlx5_core 0000:ab:00.0 mlx5_5: Port: 1 Link ACTIVE",
    "mlx5_core 0000:1b:00.0: Port module event: module 0, Cable plugged",
    "NVRM: The NVIDIA GPU 0000:01:00.0 (PCI ID: 10de:1bb1)\\x0aNVRM: installed in this system is not supported by open",
    "Lustre: scratch-OST0003-osc-ffff9a01c7f4e800: Connection restored to 10.0.0.3@o2ib (at 10.0.0.3@o2ib)",
)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A kernel log with an old message in it."""
    path = tmp_path / "kmsg"
    path.write_text("4,0,1,-;NVRM: Xid (PCI:0000:9b:00): 31, pid=1, old\n")
    return path


def counted(sampler: KernelLog) -> dict[tuple[str, ...], float]:
    """By kind and device what was counted so far; the sums by kind alone agree with it."""
    values = sampler.sample()
    found = list(zip(sampler.series, values, strict=True))
    events = {one.values: value for one, value in found if one.metric is EVENTS}
    for one, value in found:
        if one.metric is ALL:
            assert value == sum(count for (kind, _), count in events.items() if kind == one.values[0])
    return events


@pytest.mark.parametrize(
    ("text", "events"),
    [
        *((message, [(event, 1)]) for message, event in MESSAGES.items()),
        *((lines, 1) for lines in ONE_EVENT.values()),
        *((line, []) for line in NO_EVENT),
    ],
)
def test_an_event_counts_once_whatever_a_kernel_says_of_it(log: Path, text: str, events: Any) -> None:
    """Each kernel's wording is known. What it goes on to say of an event is no other, nor what it says while all is
    well: drivers name themselves as they name errors."""
    sampler = KernelLog(Host(dev=log.parent))
    with log.open("a") as file:
        file.write(text + "\n")
    found = counted(sampler)
    assert (list(found.items()) if isinstance(events, list) else sum(found.values())) == events


def test_events_add_up_from_the_agent_s_start_on(log: Path) -> None:
    """What stood in the log before is another's story; harmless messages are not counted."""
    sampler = KernelLog(Host(dev=log.parent))
    assert counted(sampler) == {}
    for _ in range(2):
        with log.open("a") as file:
            file.write("6,7,9,-;bnxt_en 0000:19:00.0 eth0: NIC Link is Down\n6,8,9,-;bnxt_en: NIC Link is Up\n")
        sampler.sample()
    assert list(counted(sampler).values()) == [2]


def test_devices_without_end_are_one(log: Path) -> None:
    """Mounts and containers bring names that were never seen before: an agent of years must not remember all."""
    sampler = KernelLog(Host(dev=log.parent))
    for mount in range(600):
        with log.open("a") as file:
            file.write(f"4,1,1,-;Lustre: scratch-OST0001-osc-{mount:x}: Connection to x (at y) was lost\n")
        found = counted(sampler)
    assert len(found) == MOST_DEVICES + 1
    assert found["lustre_connection_lost", "other"] == 600 - MOST_DEVICES


def test_every_kind_of_event_is_0_before_its_first(log: Path) -> None:
    """Else a rate or an increase would not see the first one."""
    sampler = KernelLog(Host(dev=log.parent))
    assert sampler.sample() == [0] * len(PATTERNS)
    assert {one.metric.name for one in sampler.series} == {"hindmost_node_all_kernel_events_total"}
    assert {one.values[0] for one in sampler.series} == {kind for kind, _ in PATTERNS}


def test_a_log_that_may_not_be_read_is_missing(tmp_path: Path) -> None:
    """As for agents that are not root where the kernel restricts it."""
    with pytest.raises(Absent):
        KernelLog(Host(dev=tmp_path))
