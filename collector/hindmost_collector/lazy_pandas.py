"""pyarrow imports pandas with its first array, to recognise a Series: 0.4 s of a core and 40 MiB.

Where it finds none, it looks again once a DataFrame is wanted.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Sequence


class _NoPandas:
    """Stands before the other finders of modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:  # noqa: ARG004
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def put_off() -> None:
    """Have pyarrow look for pandas now, and find none. For a process of our own, before its first array."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
