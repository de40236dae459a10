"""Kernel messages that name broken hardware: GPU XIDs, machine checks, links that went down, memory that ran out."""

import os
import re
from collections import Counter

from hindmost_agent.sampler import Absent, Host, Sampler, counter, register, series

ALL = counter(
    "hindmost_node_all_kernel_events_total",
    "Kernel messages of this kind since the agent started, of whatever device; 0: none yet.", "event",
)  # fmt: skip
EVENTS = counter(
    "hindmost_node_kernel_events_total", "Kernel messages of this kind since the agent started.", "event", "device"
)

BDF = rb"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-9a-fA-F])?"
#: Seen: "Corrected error received: id=00e5" of 4.x, "… received: 0000:17:00.0" of 5.x, "Correctable error message
#: received from 0000:17:00.0" of 6.x.
AER = rb"AER: (?:Multiple )?(?:Un)?[Cc]orrect(?:ed|able)(?: \((?:Non-)?Fatal\))? error (?:message )?received"
MLX_DOWN = rb"mlx(?:5_core \S{1,64}|4_en:) (\S{1,64}): Link down"

#: Kind of event and how its message reads; the group, where there is one, is the device. Of an event that takes several
#: lines only one is to match: what the kernel goes on to say of it is not another.
PATTERNS = (
    ("gpu_xid", re.compile(rb"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\)")),
    (
        "gpu_fell_off_bus",
        re.compile(rb"NVRM: (?:The NVIDIA )?GPU (?:at )?(?:PCI:)?(" + BDF + rb").*fallen off the bus"),
    ),
    ("gpu_reset", re.compile(rb"amdgpu ([0-9a-fA-F:.]+): amdgpu: GPU reset begin")),
    ("machine_check", re.compile(rb"Machine check events logged|Machine Check Exception: |Hardware error from APEI")),
    ("memory_error", re.compile(rb"EDAC (MC\d+): \d+ [CU]E ")),
    ("pcie_error", re.compile(AER + rb"(?:: | from )(" + BDF + rb")|pcieport (" + BDF + rb"): " + AER + rb": id=")),
    ("link_down", re.compile(rb"(\S{1,64}): (?:(?:NIC )?Link is Down|Port: \d+ Link DOWN)|" + MLX_DOWN, re.IGNORECASE)),
    ("cable_unplugged", re.compile(rb"mlx5_core (\S{1,64}): Port module event.*Cable unplugged")),
    ("out_of_memory", re.compile(rb"(?:Out of memory|Memory cgroup out of memory): Kill(?:ed)? process")),
    ("io_error", re.compile(rb"(?:critical \w+|I/O) error, dev (\w+)")),
    ("io_timeout", re.compile(rb"nvme (nvme\d+): I/O .{1,64} QID \d+ timeout")),
    ("hung_task", re.compile(rb"blocked for more than \d+ seconds")),
    ("soft_lockup", re.compile(rb"watchdog: BUG: soft lockup - (CPU#\d+)")),
    ("nvswitch_sxid", re.compile(rb"nvidia-nvswitch\d*: SXid \(PCI:([0-9a-fA-F:.]+)\)")),
    ("nfs_not_responding", re.compile(rb"nfs: server (\S{1,64}) not responding")),
    ("lustre_connection_lost", re.compile(rb"Lustre: (\S{1,64}): Connection to \S{1,128} .* was lost")),
    ("lustre_evicted", re.compile(rb"LustreError: (?:\S{1,16}: )?(\S{1,64}): This client was evicted by")),
)
#: A message without these words matches no pattern: one search skips most of a flood.
WORDS = re.compile(
    rb"nvrm:|gpu reset|hardware error|machine check|edac mc|aer: |link is down|link down|out of memory|error, dev|qid "
    rb"|blocked for more|soft lockup|sxid|cable unplugged|not responding|was lost|was evicted", re.IGNORECASE,
)  # fmt: skip
#: Messages taken in at one reading at most; a flood is read over several.
MOST = 1000
#: Kinds and devices that are counted separately; mounts and containers bring ever new names.
MOST_DEVICES = 512
#: The device hands out no record that is longer.
RECORD = 8192


@register
class KernelLog(Sampler):
    """Counts messages about faults since the agent started; off where the log may not be read.

    The series of a device begins with its first message, at 1, so `increase()` misses that message.
    `hindmost_node_all_kernel_events_total` counts every message; `hindmost_node_kernel_events_total` says which device.
    """

    name = "kernel_log"
    period = 5.0
    source = "/dev/kmsg"
    metrics = (ALL, EVENTS)

    def __init__(self, host: Host) -> None:
        super().__init__(host)
        try:
            self._fd = os.open(host.dev / "kmsg", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (FileNotFoundError, PermissionError) as error:
            raise Absent(f"the kernel log cannot be read: {error.strerror}") from error
        os.lseek(self._fd, 0, os.SEEK_END)  # what was there before is another's story
        self._counts: Counter[tuple[str, str]] = Counter()
        self._all = {kind: 0 for kind, _ in PATTERNS}

    def sample(self) -> list[float]:
        for _ in range(MOST):
            record = self._record()
            if not record:
                break
            # The device hands out one record a read; a file in its place, as many lines as fit.
            for line in record.splitlines():
                self._line(line)
        if len(self._all) + len(self._counts) != len(self.series):
            self.series = (*(series(ALL, kind) for kind in self._all), *(series(EVENTS, *key) for key in self._counts))
        return [*map(float, self._all.values()), *map(float, self._counts.values())]

    def _record(self) -> bytes:
        try:
            return os.read(self._fd, RECORD)
        except BlockingIOError:
            return b""
        except BrokenPipeError:  # records were overwritten before they were read: the next read goes on after them
            return b"\n"

    def _line(self, line: bytes) -> None:
        """Count a message once, as the first kind that it matches."""
        if not WORDS.search(line):
            return
        for kind, pattern in PATTERNS:
            if match := pattern.search(line):
                device = next((group for group in match.groups() if group), b"")
                key = kind, device.decode("utf-8", "replace")
                known = key in self._counts or len(self._counts) < MOST_DEVICES
                self._counts[key if known else (kind, "other")] += 1
                self._all[kind] += 1
                return

    def __del__(self) -> None:
        if hasattr(self, "_fd"):
            os.close(self._fd)
