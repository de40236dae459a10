"""What NVIDIA GPUs sent and received over NVLink."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import Metric, counter, series
from hindmost_agent.nvml import Device, Field, field_call, opened, trouble
from hindmost_agent.sampler import register

if TYPE_CHECKING:
    from typing import Any

ALL_LINKS = 0xFFFFFFFF
KIBI = 1024.0


def _of(name: str, text: str) -> Metric:
    return counter(f"hindmost_gpu_{name}_total", text, "gpu_uuid")


FIELDS = (
    Field(138, ALL_LINKS, _of("nvlink_transmit_bytes", "Payload from the GPU over all NVLinks."), KIBI),
    Field(139, ALL_LINKS, _of("nvlink_receive_bytes", "Payload to the GPU over all NVLinks."), KIBI),
)


@register
class NvidiaLinks(GpuSampler):
    """Bytes of each GPU's NVLinks, by counters that do not block; errors are in `nvidia_link_errors`.

    What went over PCIe is in `nvidia_gpm`: NVML's counters of it have 32 bits, which a training job fills in seconds.
    """

    name = "nvidia_links"
    period = 30.0
    source = "NVML"
    metrics = (gpu.PCIE_GENERATION, *dict.fromkeys(field.metric for field in FIELDS))

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        return [Card(device.uuid, _calls(nvml.lib, device), trouble) for device in nvml.devices]


def _calls(lib: Any, device: Device) -> list[Call]:
    generation = partial(lib.nvmlDeviceGetCurrPcieLinkGeneration, device.handle)
    return [
        Call("PCIe generation", (series(gpu.PCIE_GENERATION, device.uuid),), lambda: (generation(),)),
        field_call(lib, device, FIELDS),
    ]
