"""What NVIDIA GPUs of Hopper and later really do: the GPU performance monitor's activity over the last seconds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hindmost_agent.gpu import Call, Card, GpuSampler, ratio
from hindmost_agent.metric import Metric, gauge, series
from hindmost_agent.nvml import opened, trouble
from hindmost_agent.sampler import NAN, Absent, register

if TYPE_CHECKING:
    from collections.abc import Sequence

MIB = float(1 << 20)


def _rate(name: str, text: str) -> Metric:
    return gauge(f"hindmost_gpu_{name}_bytes_per_second", text, "gpu_uuid")


#: NVML's GPM metric number, the metric, and what one of its units is (it gives per cent and MiB a second).
GPM: tuple[tuple[int, Metric, float], ...] = (
    (2, ratio("sm_activity", "Share of time in which the average SM had work."), 0.01),
    (3, ratio("sm_occupancy", "Warps resident, as a share of what the SMs could hold."), 0.01),
    (5, ratio("tensor_activity", "Share of the peak at which tensor cores worked."), 0.01),
    (10, ratio("dram_activity", "Share of the peak bandwidth at which device memory was used."), 0.01),
    (11, ratio("fp64_activity", "Share of the peak at which FP64 pipes worked."), 0.01),
    (12, ratio("fp32_activity", "Share of the peak at which FP32 pipes worked."), 0.01),
    (13, ratio("fp16_activity", "Share of the peak at which FP16 pipes worked (not the tensor cores)."), 0.01),
    (20, _rate("pcie_transmit", "Bytes a second from the GPU over PCIe."), MIB),
    (21, _rate("pcie_receive", "Bytes a second to the GPU over PCIe."), MIB),
    (60, _rate("nvlink_receive", "Bytes a second to the GPU over all NVLinks."), MIB),
    (61, _rate("nvlink_transmit", "Bytes a second from the GPU over all NVLinks."), MIB),
)


class Monitor:
    """Two samples of one GPU, taken in turn: activity is what happened between them."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._handle = handle
        self._before, self._after = lib.nvmlGpmSampleAlloc(), lib.nvmlGpmSampleAlloc()
        self._primed = False
        request = self._request = lib.c_nvmlGpmMetricsGet_t()
        request.version = lib.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(GPM)
        for slot, (number, _, _) in zip(request.metrics, GPM, strict=False):
            slot.metricId = number

    def read(self) -> Sequence[float]:
        """Activity since the last reading, in the order of ``GPM``; all missing the first time."""
        self._before, self._after = self._after, self._before
        self._lib.nvmlGpmSampleGet(self._handle, self._after)
        if not self._primed:
            self._primed = True
            return [NAN] * len(GPM)
        request = self._request
        request.sample1, request.sample2 = self._before, self._after
        self._lib.nvmlGpmMetricsGet(request)
        return [
            NAN if slot.nvmlReturn else slot.value * unit
            for slot, (_, _, unit) in zip(request.metrics, GPM, strict=False)
        ]


@register
class NvidiaGpm(GpuSampler):
    """Activity of SMs, tensor cores, memory and links between two readings; Hopper and later.

    On 4 H200s in a DDP job NVLink's rates, 1.48 GiB/s each way, agreed with the counters of `nvidia_links` within 10 %.
    """

    name = "nvidia_gpm"
    # A sample takes 0.3 ms a GPU: at this period that is well below the cost of the tick's own calls.
    period = 5.0
    source = "NVML, GPM"
    metrics = tuple(metric for _, metric, _ in GPM)

    def cards(self) -> list[Card]:
        nvml = opened(self.host)
        cards = []
        for device in nvml.devices:
            self.host.asking.of(device.uuid)
            if _supported(nvml.lib, device.handle):
                read = Monitor(nvml.lib, device.handle).read
                fills = tuple(series(metric, device.uuid) for metric in self.metrics)
                cards.append(Card(device.uuid, [Call("GPM", fills, read)], trouble))
        if not cards:
            raise Absent("no GPU here has a performance monitor (Hopper and later have)")
        return cards


def _supported(lib: Any, handle: Any) -> bool:
    try:
        return bool(lib.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice)
    except lib.NVMLError:
        return False
