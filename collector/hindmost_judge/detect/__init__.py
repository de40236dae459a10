"""Pure functions from a run to findings, one file each; a new file here that registers a function is a new detector.

A file without one is a part that several of them, or the judge itself, are made of.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING

from hindmost_judge.detector import REGISTRY, in_order

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hindmost_judge.detector import Detector


@functools.cache
def load() -> Mapping[str, Detector]:
    """Import every module of this folder; return all detectors by name, in the order in which they are asked."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return in_order(REGISTRY)
