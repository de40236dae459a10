"""What changes rarely on AMD GPUs: identity, limits, memory errors, the PCIe link, energy."""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.amd import Device, look_again, number, opened, trouble
from hindmost_agent.gpu import Call, Card, GpuSampler
from hindmost_agent.metric import series
from hindmost_agent.sampler import NAN, register

#: PCIe generation by the transfers a second of a lane, in MT/s.
GENERATIONS = {2500: 1.0, 5000: 2.0, 8000: 3.0, 16000: 4.0, 32000: 5.0, 64000: 6.0}


@register
class AmdHealth(GpuSampler):
    """Identity, highest clocks, power limit, memory errors, PCIe link and replays, energy of each AMD GPU."""

    name = "amd_health"
    period = 30.0
    source = "AMD SMI"
    metrics = (
        gpu.INFO, gpu.SM_CLOCK_MAX, gpu.MEMORY_CLOCK_MAX, gpu.POWER_LIMIT, gpu.ECC, gpu.PCIE_WIDTH,
        gpu.PCIE_GENERATION, gpu.PCIE_REPLAYS, gpu.ENERGY,
    )  # fmt: skip

    def cards(self) -> list[Card]:
        amd = opened(self.host)
        return [Card(device.uuid, _calls(amd.lib, device), trouble) for device in amd.devices]

    def sample(self) -> list[float]:
        look_again(self.host)
        return super().sample()


def _calls(lib: Any, device: Device) -> list[Call]:
    handle, uuid = device.handle, device.uuid
    identity = (uuid, str(device.number), "amd", device.model, device.pci_bus_id, device.driver)
    ecc = (series(gpu.ECC, uuid, "yes"), series(gpu.ECC, uuid, "no"))
    pcie = (series(gpu.PCIE_WIDTH, uuid), series(gpu.PCIE_GENERATION, uuid), series(gpu.PCIE_REPLAYS, uuid))
    kinds = lib.AmdSmiClkType
    return [
        Call("identity", (series(gpu.INFO, *identity),), lambda: (1.0,)),
        # What never changes is asked for once.
        Call("highest clock", (series(gpu.SM_CLOCK_MAX, uuid),), cache(partial(_highest, lib, handle, kinds.GFX))),
        Call(
            "highest memory clock",
            (series(gpu.MEMORY_CLOCK_MAX, uuid),),
            cache(partial(_highest, lib, handle, kinds.MEM)),
        ),
        Call("power limit", (series(gpu.POWER_LIMIT, uuid),), partial(_limit, lib, handle)),
        Call("ECC errors", ecc, partial(_ecc, lib, handle)),
        Call("PCIe link", pcie, partial(_pcie, lib, handle)),
        Call("energy", (series(gpu.ENERGY, uuid),), partial(_energy, lib, handle)),
    ]


def _highest(lib: Any, handle: Any, kind: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_clock_info(handle, kind)["max_clk"], 1e6),)


def _limit(lib: Any, handle: Any) -> tuple[float]:
    return (number(lib.amdsmi_get_power_cap_info(handle)["power_cap"], 1e-6),)  # uW


def _ecc(lib: Any, handle: Any) -> tuple[float, float]:
    found = lib.amdsmi_get_gpu_total_ecc_count(handle)
    return number(found["correctable_count"]), number(found["uncorrectable_count"])


def _pcie(lib: Any, handle: Any) -> tuple[float, float, float]:
    found = lib.amdsmi_get_pcie_info(handle)["pcie_metric"]
    generation = GENERATIONS.get(found["pcie_speed"], NAN)
    return number(found["pcie_width"]), generation, number(found["pcie_replay_count"])


def _energy(lib: Any, handle: Any) -> tuple[float]:
    found = lib.amdsmi_get_energy_count(handle)
    # One unit of the accumulator is so many uJ.
    return (number(found["energy_accumulator"]) * number(found["counter_resolution"]) * 1e-6,)
