"""What only the table of metrics in an AMD GPU's firmware tells: what held the clocks back, bytes over XGMI."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_agent.amd import Device, number, opened, trouble
from hindmost_agent.gpu import Call, Card, GpuSampler, ratio
from hindmost_agent.metric import counter, series
from hindmost_agent.sampler import NAN, register

if TYPE_CHECKING:
    from collections.abc import Sequence

HELD_BACK = ratio("clocks_event", "Share of time in which this reason held the clocks back.", "reason")
XGMI_READ = counter("hindmost_gpu_xgmi_read_bytes_total", "Bytes read from other GPUs over all XGMI links.", "gpu_uuid")
XGMI_WRITTEN = counter(
    "hindmost_gpu_xgmi_written_bytes_total", "Bytes written to other GPUs over all XGMI links.", "gpu_uuid"
)
#: Key of the table to reason. Each counts how many of the firmware's rounds saw it; ``ROUNDS`` counts the rounds.
REASONS = {
    "ppt_residency_acc": "power_cap",
    "socket_thm_residency_acc": "socket_thermal",
    "vr_thm_residency_acc": "voltage_regulator_thermal",
    "hbm_thm_residency_acc": "memory_thermal",
    "prochot_residency_acc": "processor_hot",
}
ROUNDS = "accumulation_counter"
KIB = 1024.0


@register
class AmdTable(GpuSampler):
    """Share of time since the last reading in which each reason held the clocks back, and XGMI traffic; MI300 on."""

    name = "amd_table"
    period = 10.0
    source = "AMD SMI, gpu_metrics"
    metrics = (HELD_BACK, XGMI_READ, XGMI_WRITTEN)

    def cards(self) -> list[Card]:
        amd = opened(self.host)
        return [Card(device.uuid, [_call(amd.lib, device)], trouble) for device in amd.devices]


def _call(lib: Any, device: Device) -> Call:
    reasons = (series(HELD_BACK, device.uuid, reason) for reason in REASONS.values())
    fills = (*reasons, series(XGMI_READ, device.uuid), series(XGMI_WRITTEN, device.uuid))
    return Call("table of metrics", fills, Table(lib, device.handle).read)


class Table:
    """The table of one GPU, with what it held the last time."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._handle = handle
        self._before: dict[str, float] = {}

    def read(self) -> Sequence[float]:
        """In the order of ``AmdTable.metrics``; shares are missing the first time."""
        table = self._lib.amdsmi_get_gpu_metrics_info(self._handle)
        now = {key: number(table[key]) for key in (*REASONS, ROUNDS)}
        before, self._before = self._before, now
        rounds = now[ROUNDS] - before.get(ROUNDS, NAN)
        shares = [(now[key] - before.get(key, NAN)) / rounds if rounds > 0 else NAN for key in REASONS]
        # Counters that were set to 0 in between make a share below 0: it is not known then.
        known = [min(share, 1.0) if share >= 0 else NAN for share in shares]
        return [*known, _sum(table["xgmi_read_data_acc"]), _sum(table["xgmi_write_data_acc"])]


def _sum(links: object) -> float:
    """Bytes of all links that have a counter (in KiB), missing where none has."""
    counted = [value for link in (links if isinstance(links, list) else ()) if (value := number(link)) >= 0]
    return sum(counted) * KIB if counted else NAN
