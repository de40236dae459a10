"""XID errors as NVML's events tell them; a GPU that is lost, or refuses, silences no other."""

from __future__ import annotations

import ctypes
import logging
from collections import Counter
from typing import TYPE_CHECKING, Any

from hindmost_agent.gpu import Trouble
from hindmost_agent.nvml import Device, trouble

if TYPE_CHECKING:
    from collections.abc import Iterable

    from hindmost_agent.sampler import Asking

log = logging.getLogger(__name__)

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
            self._count(known.get(_address(event.device)) or self._asked_for(event.device), str(event.eventData))

    def _count(self, uuid: str, xid: str) -> None:
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
            if trouble(error) is not Trouble.UNSUPPORTED:
                return
        else:
            self.totals[device.uuid] += 0
        self._asked.add(device.uuid)

    def _again(self, devices: Iterable[Device], error: Exception) -> None:
        """Start over with a new set: what broke the old one may be one GPU's end, and the others go on."""
        self._say("NVML's event stream failed (%s): restarting it", error)
        self._free()
        self._listen(devices)

    def _free(self) -> None:
        events, self._events = self._events, None
        self._asked.clear()
        try:
            self._lib.nvmlEventSetFree(events)
        except self._lib.NVMLError as error:
            log.debug("cannot free an event set (%s)", error)

    def _say(self, what: str, error: Exception) -> None:
        if what not in self._said:
            self._said.add(what)
            log.warning(what, error)


def _address(handle: Any) -> int | None:
    """Where a handle points: two pointers to one GPU are not equal, and a lost GPU does not say who it is."""
    return ctypes.cast(handle, ctypes.c_void_p).value
