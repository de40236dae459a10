"""NVML's field values: many numbers of one GPU in one call, without those that this GPU lacks or is slow to tell."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_agent.gpu import Call
from hindmost_agent.metric import series
from hindmost_agent.nvml.library import UNSUPPORTED
from hindmost_agent.sampler import NAN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hindmost_agent.metric import Metric
    from hindmost_agent.nvml.library import Device

log = logging.getLogger(__name__)

#: A field that takes NVML longer than this is not asked for again: its value is not worth a training job's time.
SLOW_US = 2_000
#: Which member of the value union a field's ``valueType`` names.
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def number(found: Any) -> float:
    """The value of a field that was asked for, missing where there is none."""
    return NAN if found.nvmlReturn else getattr(found.value, MEMBERS[found.valueType])


class Field(NamedTuple):
    """One field value: its number, the scope it is asked for, what it fills and its unit's size."""

    number: int
    scope: int
    metric: Metric
    unit: float = 1.0
    labels: tuple[str, ...] = ()


def call(lib: Any, device: Device, fields: Sequence[Field]) -> Call:
    """The one call that reads these fields of a GPU."""
    fills = tuple(series(field.metric, device.uuid, *field.labels) for field in fields)
    return Call("field values", fills, Fields(lib, device, fields).read)


class Fields:
    """Fields of one GPU, asked for in one call; slow and unsupported ones are left out after the first."""

    def __init__(self, lib: Any, device: Device, fields: Sequence[Field]) -> None:
        self._lib = lib
        self._device = device
        self._fields = fields
        self._asked = list(range(len(fields)))

    def read(self) -> Sequence[float]:
        """A value for each of the fields, missing where there is none."""
        values = [NAN] * len(self._fields)
        asked = [(self._fields[index].number, self._fields[index].scope) for index in self._asked]
        found = self._lib.nvmlDeviceGetFieldValues(self._device.handle, asked) if asked else []
        for index, field in zip(tuple(self._asked), found, strict=False):
            values[index] = number(field) * self._fields[index].unit
            if field.latencyUsec > SLOW_US or field.nvmlReturn in UNSUPPORTED:
                self._leave_out(index, field)
        return values

    def _leave_out(self, index: int, field: Any) -> None:
        self._asked.remove(index)
        why = f"takes {field.latencyUsec} us" if field.nvmlReturn == 0 else f"NVML error {field.nvmlReturn}"
        one = self._fields[index]
        log.info("GPU %s: %s %s is not read (%s)", self._device.uuid, one.metric.name, " ".join(one.labels), why)
