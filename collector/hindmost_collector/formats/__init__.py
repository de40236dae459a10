"""Trace formats: recordings of other tools, one file a format.

A format is a module here with

``NAME``
    its common name;
``PRECEDENCE``
    of two formats that show the same, the one of the lower number is believed;
``recognises(sample)``
    whether the content of a file is of this format;
``load(files)``
    the files' data; everything else is not measured.

A format is found by being here; ``recordings/load.py`` asks them.
"""

import functools
import importlib
import pkgutil
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

from hindmost_judge.model import Run

from hindmost_collector.recordings.trace_files import Sample


class Format(Protocol):
    """What a module here offers."""

    NAME: str
    PRECEDENCE: int

    def recognises(self, sample: Sample) -> bool:
        """Whether a file is of this format, by its first bytes."""

    def load(self, files: Sequence[Path]) -> Run:
        """The data of the files."""


@functools.cache
def registry() -> tuple[Format, ...]:
    """Every format, in the order in which they are believed."""
    modules = [importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__)]
    found = [cast("Format", module) for module in modules if hasattr(module, "recognises")]
    return tuple(sorted(found, key=lambda form: (form.PRECEDENCE, form.NAME)))
