"""NVLink and PCIe of NVIDIA GPUs: bytes, links that are down, packets sent again, errors."""

import math
from functools import partial
from typing import Any

from hindmost_agent import gpu
from hindmost_agent.gpu import Call, Device, GpuSampler
from hindmost_agent.nvml import NVIDIA, Field, field_call, field_value
from hindmost_agent.sampler import NAN, Metric, counter, gauge, register, series

ALL_LINKS = 0xFFFFFFFF
KIBI = 1024.0


def _of(name: str, text: str, *labels: str) -> Metric:
    return counter(f"hindmost_gpu_{name}_total", text, "gpu_uuid", *labels)


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
    maker = NVIDIA
    metrics = (gpu.PCIE_GENERATION, *dict.fromkeys(field.metric for field in FIELDS))

    def calls(self, lib: Any, device: Device) -> list[Call]:
        generation = partial(lib.nvmlDeviceGetCurrPcieLinkGeneration, device.handle)
        return [
            Call("PCIe generation", (series(gpu.PCIE_GENERATION, device.uuid),), lambda: (generation(),)),
            field_call(lib, device, FIELDS),
        ]


#: NVML_NVLINK_MAX_LINKS, and the field that says whether a link is active (1).
LINKS, STATE = 18, 165
#: Links of one GPU whose errors are asked for at a reading: 2.4 ms each on an H200.
AT_ONCE = 3
#: Whether a link's errors of before it was first asked are in the total: of those that are up at first they are; added
#: later, they would be taken for errors of that moment.
COUNTED, UNCOUNTED = True, False


ACTIVE = gauge("hindmost_gpu_nvlink_links_active", "NVLinks that are up.", "gpu_uuid")
#: Of errors that links are asked for in turn: 18 of them, three each five minutes.
AGE = "up to half an hour old on Hopper and later"
#: Metric, the fields that together are its total before Hopper, and the field of each link from Hopper on.
ERRORS = (
    (_of("nvlink_replay_errors", f"NVLink packets that had to be sent again, all links; {AGE}."), (52,), 161),
    (_of("nvlink_recoveries", f"Times an NVLink recovered from an error, all links; {AGE}."), (59,), 162),
    (_of("nvlink_crc_errors", f"NVLink packets with a CRC error, all links; {AGE}."), (38, 45), 163),
)
PCIE = _of("pcie_errors", "Errors on the GPU's PCIe link, by kind: a bad riser, slot or cable.", "kind")
PCIE_FIELDS = (
    Field(173, 0, PCIE, 1.0, ("correctable",)),
    Field(174, 0, PCIE, 1.0, ("naks_received",)),
    Field(175, 0, PCIE, 1.0, ("receiver",)),
    Field(176, 0, PCIE, 1.0, ("bad_tlp",)),
    Field(177, 0, PCIE, 1.0, ("naks_sent",)),
    Field(178, 0, PCIE, 1.0, ("bad_dllp",)),
)


@register
class NvidiaLinkErrors(GpuSampler):
    """NVLinks that are up, errors of NVLink and of PCIe.

    On Hopper and later the agent reads three of the 18 links at a time, so each link every half hour.
    A link that comes up later counts from its first reading on.
    """

    name = "nvidia_link_errors"
    period = 300.0
    source = "NVML"
    maker = NVIDIA
    metrics = (ACTIVE, *(metric for metric, _, _ in ERRORS), PCIE)

    def calls(self, lib: Any, device: Device) -> list[Call]:
        links = NvLinks(lib, device.handle)
        return [
            Call("NVLink states", (series(ACTIVE, device.uuid),), links.active),
            Call("NVLink errors", tuple(series(metric, device.uuid) for metric, _, _ in ERRORS), links.errors),
            field_call(lib, device, PCIE_FIELDS),
        ]


class NvLinks:
    """The NVLinks of one GPU. What it does not tell is missing, and no trouble: many GPUs have no such links."""

    def __init__(self, lib: Any, handle: Any) -> None:
        self._lib = lib
        self._handle = handle
        #: Links that are up, and the place of the next whose errors are asked for.
        self._links: list[int] = []
        self._next = 0
        self._in_turn = False
        #: Errors of each link when it was last asked, in the order of ``ERRORS``, and of all links together.
        self._known: dict[int, list[float]] = {}
        self._totals = [0.0] * len(ERRORS)

    def active(self) -> tuple[float]:
        """How many links are up."""
        states = self._field_values([(STATE, link) for link in range(LINKS)])
        self._links = [link for link, state in enumerate(states) if state == 1]
        return (NAN if all(map(math.isnan, states)) else float(len(self._links)),)

    def errors(self) -> tuple[float, ...]:
        """Errors of all links, in the order of ``ERRORS``; as of half an hour ago where links are asked in turn."""
        if self._in_turn:
            self._ask(self._due(), UNCOUNTED)
        else:
            totals = tuple(sum(self._field_values([(number, 0) for number in numbers])) for _, numbers, _ in ERRORS)
            if not all(map(math.isnan, totals)):
                return totals
            self._in_turn = True
            self._ask(self._links, COUNTED)
        return tuple(self._totals) if self._known else (NAN,) * len(ERRORS)

    def _due(self) -> list[int]:
        count, start = len(self._links), self._next
        self._next += AT_ONCE
        return [self._links[(start + place) % count] for place in range(min(AT_ONCE, count))]

    def _ask(self, links: list[int], counted: bool) -> None:
        """Add what these links' errors have grown; of one that was never asked, all of them or none."""
        for link in links:
            found = self._field_values([(number, link) for _, _, number in ERRORS])
            if any(map(math.isnan, found)):
                continue
            before = self._known.get(link)
            for place, now in enumerate(found):
                grown = now * counted if before is None else now - before[place]
                self._totals[place] += now if grown < 0 else grown  # a link that was reset counts from 0 again
            self._known[link] = found

    def _field_values(self, fields: list[tuple[int, int]]) -> list[float]:
        """Each field's number, missing where there is none."""
        return [field_value(found) for found in self._lib.nvmlDeviceGetFieldValues(self._handle, fields)]
