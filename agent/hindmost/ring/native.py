"""The extension in C, for events and hooks of torch, where ``HINDMOST_RING_MODULE`` names one and it fits.

One build serves every CPython that has the GIL (``native/python_abi.h``), whichever of them runs ``hindmost``.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from typing import TYPE_CHECKING, Any, Protocol

from hindmost.ring import layout

if TYPE_CHECKING:
    from collections.abc import Mapping


#: What the file name of a build holds that uses the stable ABI, and nothing that changes between versions.
ABI = "abi3"


class NativeRing(Protocol):
    """``_ring.Ring``: writes into a buffer that holds a ring."""

    event: WriteEvent

    def release(self) -> None:
        """Let go of the memory."""


def load(environ: Mapping[str, str] = os.environ) -> Any | None:
    """The extension module; None where there is none, or where it does not fit this interpreter.

    It is never built here: compiling has no place in a training process.
    """
    path = environ.get("HINDMOST_RING_MODULE", "")
    if not path or ABI not in os.path.basename(path) or not fits():
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


def has_gil() -> bool:
    """Whether one thread at a time runs Python."""
    return bool(getattr(sys, "_is_gil_enabled", lambda: True)())


def fits() -> bool:
    """Whether this interpreter can load it: objects of free-threaded builds are laid out otherwise, GIL or not."""
    return sys.implementation.name == "cpython" and "t" not in sys.abiflags


class WriteEvent(Protocol):
    """Write one event; see ``Writer.event``."""

    def __call__(
        self,
        kind: int,
        name: int,
        start_ns: int,
        duration_ns: int,
        seq: int = 0,
        comm: int = layout.NONE16,
        peer: int = layout.NONE16,
        value: int = 0,
        flags: int = 0,
    ) -> None: ...
