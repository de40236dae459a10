"""AMD's management library, the Python package ``amdsmi`` of ROCm, opened once for all the samplers that use it."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from hindmost_agent.gpu import Trouble, say_joined, say_silent, with_joined, without_hung
from hindmost_agent.sampler import NAN, Absent

if TYPE_CHECKING:
    from hindmost_agent.sampler import Host

#: ``amdsmi_status_t`` of what will not be answered next time either: invalid parameters, not supported, not
#: implemented, symbol missing, no permission.
UNSUPPORTED = frozenset({1, 2, 3, 5, 10})
LOST = frozenset({31})  # the device is not found any more


class Device(NamedTuple):
    """One GPU of this node; ``handle`` is the library's."""

    handle: Any
    number: int
    uuid: str
    model: str
    pci_bus_id: str
    driver: str


class AmdSmi(NamedTuple):
    """The library (the module ``amdsmi``), the GPUs that answered, and number and handle of others.

    ``hung``: those of which an answer is still awaited, which must not be asked.
    """

    lib: Any
    devices: tuple[Device, ...]
    silent: tuple[tuple[int, Any], ...] = ()
    hung: tuple[Device, ...] = ()


def opened(host: Host) -> AmdSmi:
    """The library for this host, initialised at first use. Raises ``Absent`` where there is no AMD GPU."""
    if host.amdsmi is None:
        host.amdsmi = _open(host)
    found: AmdSmi = without_hung(host, host.amdsmi)
    return found


def number(value: object, unit: float = 1.0) -> float:
    """A value of the library in base units; missing where it says ``N/A`` or, in an unsigned field, all ones."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value in (0xFFFFFFFF, (1 << 64) - 1):
        return NAN
    return value * unit


def trouble(error: Exception) -> Trouble:
    """What an error of the library means for the value that was asked for."""
    code = getattr(error, "err_code", None)
    # A missing key or attribute: this release of the library does not know of it.
    if isinstance(error, (KeyError, AttributeError)) or code is None or code in UNSUPPORTED:
        return Trouble.UNSUPPORTED
    return Trouble.LOST if code in LOST else Trouble.PASSING


def _open(host: Host) -> AmdSmi:
    lib = host.amdsmi_library or _imported(host)
    try:
        lib.amdsmi_init(lib.AmdSmiInitFlags.INIT_AMD_GPUS)
        handles = lib.amdsmi_get_processor_handles()
    except lib.AmdSmiException as error:
        raise Absent(f"AMD SMI does not start: {error}") from error
    devices = [(index, handle, _device(host, lib, handle, index)) for index, handle in enumerate(handles)]
    found = tuple(device for _, _, device in devices if device is not None)
    if not found:
        raise Absent("AMD SMI lists no GPU that answers")
    return AmdSmi(lib, found, tuple((index, handle) for index, handle, device in devices if device is None))


def look_again(host: Host) -> None:
    """Ask the GPUs that have not answered yet; one that does now joins the others."""
    amd = opened(host)
    for index, handle in amd.silent:
        device = _device(host, amd.lib, handle, index)
        if device is not None:
            host.amdsmi = with_joined(host.amdsmi, device, (index, handle))
            say_joined(host, f"AMD GPU {index}")


def _imported(host: Host) -> Any:
    # Looked at first, because importing costs memory that a node without GPUs need not spend.
    if not (host.dev / "kfd").exists():
        raise Absent("no AMD GPU driver is loaded")
    try:
        # Without ROCm's shared library its import prints to stdout, which the process that started the agent reads.
        with contextlib.redirect_stdout(sys.stderr):
            return importlib.import_module("amdsmi")
    except ImportError as error:
        raise Absent("the package amdsmi is not installed") from error
    except (OSError, KeyError, AttributeError, NameError) as error:  # what it raises depends on how it was installed
        raise Absent(f"amdsmi finds no libamd_smi.so: {error}") from error


def _device(host: Host, lib: Any, handle: Any, index: int) -> Device | None:
    """One GPU, or ``None`` with a line that says so when it does not even say who it is."""
    which = f"AMD GPU {index}"
    if which in host.hung:
        return None
    host.asking.of(which)
    try:
        uuid, model = lib.amdsmi_get_gpu_device_uuid(handle), lib.amdsmi_get_gpu_asic_info(handle)["market_name"]
        driver = lib.amdsmi_get_gpu_driver_info(handle)["driver_version"]
        return Device(handle, index, uuid, model, lib.amdsmi_get_gpu_device_bdf(handle), driver)
    except lib.AmdSmiException as error:
        say_silent(host, which, error)
        return None
    finally:
        host.asking.of("")
