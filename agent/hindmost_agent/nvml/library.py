"""NVIDIA's management library, opened once for all the samplers that use it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_agent.gpu import Trouble, say_joined, say_silent, without_hung
from hindmost_agent.sampler import Absent

if TYPE_CHECKING:
    from hindmost_agent.sampler import Host

#: ``nvmlReturn_t`` of what will not be answered next time either: invalid argument, not supported, no permission,
#: function not found.
UNSUPPORTED = frozenset({2, 3, 4, 13})
LOST = frozenset({15, 16})  # GPU is lost, reset required


class Device(NamedTuple):
    """One GPU of this node; ``handle`` is NVML's."""

    handle: Any
    number: int
    uuid: str
    model: str
    pci_bus_id: str


class Nvml(NamedTuple):
    """The library (the module ``pynvml``), its driver's version, the GPUs that answered, and the numbers of others.

    ``hung``: those of which an answer is still awaited, which must not be asked.
    """

    lib: Any
    driver: str
    devices: tuple[Device, ...]
    silent: tuple[int, ...] = ()
    hung: tuple[Device, ...] = ()


def opened(host: Host) -> Nvml:
    """The library for this host, initialised at first use. Raises ``Absent`` where there is no NVIDIA GPU."""
    if host.nvml is None:
        host.nvml = _open(host)
    found: Nvml = without_hung(host, host.nvml)
    return found


def _open(host: Host) -> Nvml:
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
        devices = {index: _device(host, lib, index) for index in range(lib.nvmlDeviceGetCount())}
        driver = _text(lib.nvmlSystemGetDriverVersion())
    except lib.NVMLError as error:
        raise Absent(f"NVML does not start: {error}") from error
    found = tuple(device for device in devices.values() if device is not None)
    if not found:
        raise Absent("NVML lists no GPU that answers")
    return Nvml(lib, driver, found, tuple(index for index, device in devices.items() if device is None))


def look_again(host: Host) -> None:
    """Ask the GPUs that have not answered yet; one that does now joins the others."""
    nvml = opened(host)
    for index in nvml.silent:
        device = _device(host, nvml.lib, index)
        if device is not None:
            before: Nvml = host.nvml
            devices = tuple(sorted((*before.devices, device), key=lambda one: one.number))
            host.nvml = before._replace(devices=devices, silent=tuple(one for one in before.silent if one != index))
            say_joined(host, f"GPU {index}")


def _device(host: Host, lib: Any, index: int) -> Device | None:
    """One GPU, or ``None`` with a line that says so when it does not even say who it is."""
    which = f"GPU {index}"
    if which in host.hung:
        return None
    host.asking.of(which)
    try:
        handle = lib.nvmlDeviceGetHandleByIndex(index)
        uuid, model = _text(lib.nvmlDeviceGetUUID(handle)), _text(lib.nvmlDeviceGetName(handle))
        return Device(handle, index, uuid, model, _text(lib.nvmlDeviceGetPciInfo(handle).busId))
    except lib.NVMLError as error:
        say_silent(host, which, error)
        return None
    finally:
        host.asking.of("")


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def trouble(error: Exception) -> Trouble:
    """What an NVML error means for the value that was asked for."""
    code = getattr(error, "value", None)
    if code in UNSUPPORTED:
        return Trouble.UNSUPPORTED
    return Trouble.LOST if code in LOST else Trouble.PASSING
