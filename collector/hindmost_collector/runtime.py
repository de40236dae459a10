"""What the collector sets up of Python and Arrow: memory, a late pandas."""

import contextlib
import ctypes
import sys
from collections.abc import Sequence
from functools import lru_cache

import pyarrow as pa


@lru_cache(1)  # each ``CDLL`` makes types, which only the garbage collector removes
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def give_memory_back() -> None:
    """Have glibc return all free memory to the system, also between blocks in use; rarely, and before a new peak of
    use."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        _libc().malloc_trim(0)


class _NoPandas:
    """Stands before the other finders of modules."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: object = None) -> None:  # noqa: ARG004
        if name == "pandas":
            raise ModuleNotFoundError(name=name)


def put_off_pandas() -> None:
    """Have pyarrow look for pandas now, and find none. For a process of our own, before its first array."""
    if "pandas" in sys.modules:
        return
    sys.meta_path.insert(0, _NoPandas)
    try:
        pa.array([0])
    finally:
        sys.meta_path.remove(_NoPandas)
