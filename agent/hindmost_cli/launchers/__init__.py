"""One file a launcher: how a command that starts ranks carries the probe's variables to them.

A launcher is a module here with

``NAME``
    what ``HINDMOST_LAUNCHER`` says;
``NATIVE``
    the C parts its ranks can use: ``pmpi``, ``nccl``;
``recognises(argv)``
    whether this command line is its own;
``carry(argv, names, environ)``
    ``argv`` changed so that the variables ``names``, which are set in the launcher's own environment, reach remote
    ranks too; everything else in it untouched;
``remote_hosts(argv, environ)``
    the hosts other than this one that the command names; empty where all ranks are here.

Files are found by being here; ``python``, which recognises everything, is asked last.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

FALLBACK = "python"


class Launcher(Protocol):
    """What a module here offers."""

    NAME: str
    NATIVE: tuple[str, ...]

    def recognises(self, argv: Sequence[str]) -> bool:
        """Whether this command line is this launcher's."""

    def carry(self, argv: Sequence[str], names: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """``argv`` so that ``names`` reach remote ranks."""

    def remote_hosts(self, argv: Sequence[str], environ: Mapping[str, str]) -> list[str]:
        """Other hosts the command names."""


@functools.cache
def registry() -> tuple[Launcher, ...]:
    """Every launcher, the one that recognises everything last."""
    names = [module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_")]
    names.sort(key=lambda name: (name == FALLBACK, name))
    modules = [importlib.import_module(f"{__name__}.{name}") for name in names]
    return tuple(cast("Launcher", module) for module in modules)


def find(argv: Sequence[str]) -> Launcher:
    """The launcher of this command line, looking past ``env``, ``nice``, ``numactl`` and their like."""
    return next(launcher for launcher in registry() if launcher.recognises(argv))
