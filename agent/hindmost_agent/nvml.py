"""NVIDIA's management library, opened once for all samplers: its GPUs, many values of one in a call, XID events."""

import contextlib
import ctypes
import importlib
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from hindmost_agent.gpu import Call, Device, Maker, Trouble
from hindmost_agent.sampler import NAN, Absent, Asking, Host, Metric, series

log = logging.getLogger(__name__)

#: ``nvmlReturn_t`` of what will not be answered next time either: invalid argument, not supported, no permission,
#: function not found.
UNSUPPORTED = frozenset({2, 3, 4, 13})
LOST = frozenset({15, 16})  # GPU is lost, reset required


class _Nvidia(Maker):
    library, error, called = "NVML", "NVMLError", "GPU"

    def start(self, host: Host) -> tuple[Any, Sequence[Any]]:
        lib = host.nvml_library
        if lib is None:
            # Looked at first, because importing costs memory that a node without GPUs need not spend.
            if not (host.dev / "nvidiactl").exists():
                raise Absent("no NVIDIA driver is loaded")
            try:
                lib = importlib.import_module("pynvml")
            except ImportError as error:
                raise Absent("nvidia-ml-py is not installed") from error
        try:
            lib.nvmlInit()
            driver = _text(lib.nvmlSystemGetDriverVersion())
            return lib, [driver] * lib.nvmlDeviceGetCount()
        except lib.NVMLError as error:
            raise Absent(f"NVML does not start: {error}") from error

    def device(self, lib: Any, number: int, slot: Any) -> Device:
        handle = lib.nvmlDeviceGetHandleByIndex(number)
        uuid, model = _text(lib.nvmlDeviceGetUUID(handle)), _text(lib.nvmlDeviceGetName(handle))
        return Device(handle, number, uuid, model, _text(lib.nvmlDeviceGetPciInfo(handle).busId), driver=slot)

    def trouble(self, error: Exception) -> Trouble:
        code = getattr(error, "value", None)
        if code in UNSUPPORTED:
            return Trouble.UNSUPPORTED
        return Trouble.LOST if code in LOST else Trouble.PASSING


NVIDIA = _Nvidia()


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


#: A field that takes NVML longer than this is not asked for again: its value is not worth a training job's time.
SLOW_US = 2_000
#: Which member of the value union a field's ``valueType`` names.
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")


def field_value(found: Any) -> float:
    """The value of a field that was asked for, missing where there is none."""
    return NAN if found.nvmlReturn else getattr(found.value, MEMBERS[found.valueType])


class Field(NamedTuple):
    """One field value: its number, the scope it is asked for, what it fills and its unit's size."""

    number: int
    scope: int
    metric: Metric
    unit: float = 1.0
    labels: tuple[str, ...] = ()


def field_call(lib: Any, device: Device, fields: Sequence[Field]) -> Call:
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
            values[index] = field_value(field) * self._fields[index].unit
            if field.latencyUsec > SLOW_US or field.nvmlReturn in UNSUPPORTED:
                self._leave_out(index, field)
        return values

    def _leave_out(self, index: int, field: Any) -> None:
        self._asked.remove(index)
        why = f"takes {field.latencyUsec} us" if field.nvmlReturn == 0 else f"NVML error {field.nvmlReturn}"
        one = self._fields[index]
        log.info("GPU %s: %s %s is not read (%s)", self._device.uuid, one.metric.name, " ".join(one.labels), why)


XID_EVENT, TIMEOUT = 0x8, 10
#: Events read per tick at most; a flood takes several ticks.
MOST = 64


class XidErrors:
    """XID errors heard of so far.

    ``counts``: by the GPU's UUID and the XID's number. ``totals``: by the GPU's UUID, 0 from when it is listened to.
    """

    def __init__(self, lib: Any, asking: Asking) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()
        self.totals: Counter[str] = Counter()
        self._lib = lib
        self._asking = asking
        self._events: Any = None
        #: GPUs that are listened to, or never can be.
        self._asked: set[str] = set()
        self._said: set[str] = set()

    def hear(self, devices: Iterable[Device], hung: Iterable[Device] = ()) -> None:
        """Count the events that are waiting; never waits for one. GPUs not listened to yet are asked again.

        Of those that have ``hung``, which are not asked, what they said is heard.
        """
        known = {_address(device.handle): device.uuid for device in (*devices, *hung)}
        self._listen(devices)
        for _ in range(MOST if self._events is not None else 0):
            try:
                event = self._lib.nvmlEventSetWait_v2(self._events, 0)
            except self._lib.NVMLError as error:
                if getattr(error, "value", None) != TIMEOUT:
                    self._again(devices, error)
                return
            uuid, xid = known.get(_address(event.device)) or self._asked_for(event.device), str(event.eventData)
            self.counts[uuid, xid] += 1
            self.totals[uuid] += 1
            log.warning("GPU %s: XID %s", uuid, xid)

    def _asked_for(self, handle: Any) -> str:
        """The UUID of a GPU that is none of the node's known ones; a lost one does not say it."""
        self._asking.of("a GPU that reported an XID error")
        try:
            return str(self._lib.nvmlDeviceGetUUID(handle))
        except self._lib.NVMLError:
            return "unknown"
        finally:
            self._asking.of("")

    def _listen(self, devices: Iterable[Device]) -> None:
        try:
            if self._events is None:
                self._events = self._lib.nvmlEventSetCreate()
        except self._lib.NVMLError as error:
            self._say("NVML reports no XID errors (%s)", error)
            return
        for device in devices:
            if device.uuid not in self._asked:
                self._asking.of(device.uuid)
                self._register(device)
        self._asking.of("")

    def _register(self, device: Device) -> None:
        try:
            self._lib.nvmlDeviceRegisterEvents(device.handle, XID_EVENT, self._events)
        except self._lib.NVMLError as error:
            self._say(f"GPU {device.uuid}: NVML reports no XID errors of it (%s)", error)
            if NVIDIA.trouble(error) is not Trouble.UNSUPPORTED:
                return
        else:
            self.totals[device.uuid] += 0
        self._asked.add(device.uuid)

    def _again(self, devices: Iterable[Device], error: Exception) -> None:
        """Start over with a new set: what broke the old one may be one GPU's end, and the others go on."""
        self._say("NVML's event stream failed (%s): restarting it", error)
        events, self._events = self._events, None
        self._asked.clear()
        with contextlib.suppress(self._lib.NVMLError):
            self._lib.nvmlEventSetFree(events)
        self._listen(devices)

    def _say(self, what: str, error: Exception) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(what, error)


def _address(handle: Any) -> int | None:
    """Where a handle points: two pointers to one GPU are not equal, and a lost GPU does not say who it is."""
    return ctypes.cast(handle, ctypes.c_void_p).value
