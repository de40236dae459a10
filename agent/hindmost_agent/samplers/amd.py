"""AMD GPUs, every tick: what changes from one second to the next."""

from __future__ import annotations

from functools import partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.amd import Device, number, opened, trouble
from hindmost_agent.gpu import Call, Card, GpuSampler, HungCard
from hindmost_agent.metric import series
from hindmost_agent.sampler import NAN, register

#: Where the power is: the first that holds a number; which one does depends on the card and on ROCm's release.
POWER_KEYS = ("current_socket_power", "socket_power", "average_socket_power")


@register
class Amd(GpuSampler):
    """Utilisation, power and clock of each AMD GPU."""

    name = "amd"
    source = "AMD SMI"
    metrics = (gpu.UP, gpu.UTILIZATION, gpu.MEMORY_BUSY, gpu.POWER, gpu.SM_CLOCK)

    def cards(self) -> list[Card]:
        amd = opened(self.host)
        cards = [Card(device.uuid, _calls(amd.lib, device), trouble, up=True) for device in amd.devices]
        return [*cards, *(HungCard(device.uuid) for device in amd.hung)]


def _calls(lib: Any, device: Device) -> list[Call]:
    handle, uuid = device.handle, device.uuid
    return [
        Call(
            "utilisation",
            (series(gpu.UTILIZATION, uuid), series(gpu.MEMORY_BUSY, uuid)),
            partial(_activity, lib, handle),
        ),
        Call("power", (series(gpu.POWER, uuid),), partial(_power, lib, handle)),
        Call("clock", (series(gpu.SM_CLOCK, uuid),), partial(_clock, lib, handle)),
    ]


def _activity(lib: Any, handle: Any) -> tuple[float, float]:
    found = lib.amdsmi_get_gpu_activity(handle)
    return number(found["gfx_activity"], 0.01), number(found["umc_activity"], 0.01)


def _power(lib: Any, handle: Any) -> tuple[float]:
    found = lib.amdsmi_get_power_info(handle)
    watts = (number(found.get(key)) for key in POWER_KEYS)
    return (next((value for value in watts if value > 0), NAN),)


def _clock(lib: Any, handle: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_clock_info(handle, lib.AmdSmiClkType.GFX)["clk"], 1e6),)
