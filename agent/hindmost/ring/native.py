"""The extension in C, for events and hooks of torch, where ``HINDMOST_RING_MODULE`` names one that fits."""

from __future__ import annotations

import os
import sys
import sysconfig
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost.ring.writer import WriteEvent


class NativeRing(Protocol):
    """``_ring.Ring``: writes into a buffer that holds a ring."""

    event: WriteEvent

    def release(self) -> None:
        """Let go of the memory."""


def load(environ: Mapping[str, str] = os.environ) -> Any | None:
    """The extension module; None where there is none, or where it does not fit this interpreter.

    It is never built here: compiling has no place in a training process. An interpreter without the GIL goes without
    it, because loading an extension that was built for the GIL would bring the GIL back.
    """
    path = environ.get("HINDMOST_RING_MODULE", "")
    if not path or abi() not in os.path.basename(path) or not has_gil():  # noqa: PTH119 - pathlib is slow to import
        return None
    try:
        loader = ExtensionFileLoader("_ring", path)
        spec = spec_from_loader("_ring", loader)
        if spec is None:
            return None
        module = module_from_spec(spec)
        loader.exec_module(module)
    except (ImportError, OSError):
        return None  # pure Python does the same
    return module


def open_ring(memory: Any, capacity: int, environ: Mapping[str, str] = os.environ) -> NativeRing | None:
    """The C writer over ``memory``; None where there is none, or where it does not fit."""
    try:
        ring: NativeRing = load(environ).Ring(memory, capacity)  # type: ignore[union-attr]
    except (ValueError, AttributeError):
        return None
    return ring


def abi() -> str:
    """What the file name of an extension for this interpreter holds, such as ``cpython-312-x86_64-linux-gnu``."""
    return str(sysconfig.get_config_var("SOABI"))


def has_gil() -> bool:
    """Whether one thread at a time runs Python."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())
