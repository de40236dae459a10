"""How this process' memory is had from the system, and given back."""

from __future__ import annotations

import contextlib
import ctypes

#: malloc.h's numbers of options, and their values. Threads share two heaps: each would keep what the largest flush, or
#: report, that it ever made took. Arrays below 4 MiB come from a heap, which keeps 16 MiB of what is free: else each
#: is mapped and unmapped, for which the kernel stops every thread.
MALLOC = {"M_ARENA_MAX": (-8, 2), "M_MMAP_THRESHOLD": (-3, 4 << 20), "M_TRIM_THRESHOLD": (-1, 16 << 20)}


def set_up() -> None:
    """Set up glibc's malloc for a process of a few threads and many short-lived arrays."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        library = ctypes.CDLL(None)
        for option, value in MALLOC.values():
            library.mallopt(option, value)


def give_back() -> None:
    """Have glibc return all free memory to the system, also between blocks in use; rarely, and before a new peak of
    use."""
    with contextlib.suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)
